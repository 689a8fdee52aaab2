//! redis-cli, redis-py and node-redis ask, as their users write it.

use std::path::Path;
use std::process::Command;

use crate::Folder;
use crate::support::parts;
use crate::support::server::Server;

const POLICY: &str = "
listen: { resp: 127.0.0.1:0 }
limits:
  - { name: api, per: [user], rate: 3/hour, algorithm: token_bucket }
  - { name: daily, per: [user], rate: 100/year, algorithm: fixed_window }
";

fn serve(folder: &Folder) -> (Server, String) {
    let server = Server::start(Path::new(&folder.write("policy.yaml", POLICY)));
    let port = server.address("resp").port().to_string();
    (server, port)
}

fn output(mut command: Command) -> String {
    let output = command.output().expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("it prints text");
    let (printed, said) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{command:?}: {printed}{said}");
    printed
}

#[test]
fn redis_cli_asks() {
    let folder = Folder::new();
    let (_server, port) = serve(&folder);
    let ask = |options: &[&str], words: &str| {
        let mut command = parts::on_path("redis-cli");
        command.args(["-p", &port]).args(options).args(words.split(' '));
        output(command)
    };
    assert_eq!(ask(&[], "PING"), "PONG\n");
    // 15 at once, and one of 30 a minute comes back every two seconds.
    assert_eq!(ask(&[], "CL.THROTTLE anna 14 30 60"), "0\n15\n14\n-1\n2\n");
    assert_eq!(ask(&[], "CL.THROTTLE anna 14 30 60 15"), "1\n15\n14\n2\n2\n");
    for options in [&[][..], &["-3"], &["-2"]] {
        let (user, words) = (options.join(""), "TG.CHECK user");
        let first = ask(options, &format!("{words} x{user}"));
        assert!(first.starts_with("1\n3\n2\n-1\n"), "{first}");
        assert!(first.ends_with("\napi\n0\n"), "{first}");
    }
    assert!(ask(&[], "TG.CHECK user x COST 4").starts_with("0\n3\n2\n-1\n"), "no wait helps");
    assert!(ask(&[], "TG.CHEKC user x").contains("ERR"));
    assert!(ask(&[], "INFO").contains("tollgate"));
}

const PYTHON: &str = r#"
import sys, redis
for protocol in (2, 3):
    client = redis.Redis(port=int(sys.argv[1]), protocol=protocol)
    assert client.ping()
    user = f"python-{protocol}"
    pipeline = client.pipeline(transaction=False)
    for _ in range(4):
        pipeline.execute_command("TG.CHECK", "user", user)
    pipeline.execute_command("CL.THROTTLE", user, 0, 1, 3600)
    pipeline.execute_command("CL.THROTTLE", user, 0, 1, 3600)
    answers = pipeline.execute()
    assert [answer[0] for answer in answers] == [1, 1, 1, 0, 0, 1], answers
    denied = answers[3]
    assert denied[1:3] == [3, 0] and 0 < denied[3] <= 1200000 and denied[5] == b"api", denied
    assert answers[5][3] in (3599, 3600), answers[5]
    try:
        client.execute_command("FLUSHALL")
        raise SystemExit("FLUSHALL was taken")
    except redis.ResponseError:
        pass
    assert client.ping(), "the connection lives"
    big = client.pipeline(transaction=False)
    for number in range(10000):
        big.execute_command("TG.CHECK", "user", f"{user}-{number}")
    assert all(answer[0] == 1 for answer in big.execute())
print("done")
"#;

#[test]
fn redis_py_asks() {
    let folder = Folder::new();
    let (_server, port) = serve(&folder);
    let mut python = parts::python("python");
    python.args(["-c", PYTHON, &port]);
    assert_eq!(output(python), "done\n");
}

const NODE: &str = r#"
const assert = require("node:assert");
const { createClient } = require("redis");
async function ask(RESP) {
  const client = createClient({ RESP, socket: { port: Number(process.argv[1]) } });
  client.on("error", (error) => { console.error(error); process.exit(1); });
  await client.connect();
  assert.equal(await client.ping(), "PONG");
  const user = `node-${RESP}`;
  const check = () => client.sendCommand(["TG.CHECK", "user", user]);
  // Sent together, and so a pipeline.
  const answers = await Promise.all([check(), check(), check(), check()]);
  assert.deepEqual(answers.map((answer) => answer[0]), [1, 1, 1, 0]);
  assert.equal(answers[3][5], "api");
  const throttle = () => client.sendCommand(["CL.THROTTLE", user, "0", "1", "3600"]);
  assert.deepEqual(await throttle(), [0, 1, 0, -1, 3600]);
  assert.equal((await throttle())[0], 1);
  await assert.rejects(client.sendCommand(["FLUSHALL"]));
  assert.equal(await client.ping(), "PONG");
  await client.close();
}
ask(2).then(() => ask(3)).then(() => console.log("done"));
"#;

#[test]
fn node_redis_asks() {
    let folder = Folder::new();
    let (_server, port) = serve(&folder);
    let mut node = parts::node();
    node.args(["-e", NODE, &port]);
    assert_eq!(output(node), "done\n");
}
