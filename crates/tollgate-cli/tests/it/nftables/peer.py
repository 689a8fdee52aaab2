"""A machine of a test: does what each line of its input says, and answers with a line.

listen PORT                      take connections, of both kinds, and hold each until its peer ends it
open NAME FROM TO PORT SECONDS   open a connection from one address to another
close NAME                       end it
"""

import socket
import sys
import threading


def hold(connection):
    with connection:
        while connection.recv(1024):
            pass


def take(listener):
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=hold, args=[connection], daemon=True).start()


def listen(port):
    address = ("::", int(port))
    listener = socket.create_server(
        address, family=socket.AF_INET6, dualstack_ipv6=True, backlog=128
    )
    threading.Thread(target=take, args=[listener], daemon=True).start()
    return "listening"


def open_connection(name, source, target, port, seconds):
    try:
        connections[name] = socket.create_connection(
            (target, int(port)), timeout=float(seconds), source_address=(source, 0)
        )
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return str(error)
    return "open"


def close(name):
    connections.pop(name).close()
    return "closed"


connections = {}
commands = {"listen": listen, "open": open_connection, "close": close}
print("ready", flush=True)
for line in sys.stdin:
    command, *arguments = line.split()
    print(commands[command](*arguments), flush=True)
