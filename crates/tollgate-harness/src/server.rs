//! One server in a process of its own.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};

use crate::bounds::PORT_CLASHES_MAX;
use crate::clock::Clock;
use crate::parts::Flavour;
use crate::port::free_port;
use crate::resp::{Client, Reply};
use crate::tls::Certificates;
use crate::wait::eventually;

/// The user that the harness itself is, where users are listed.
const OWN_USER: &str = "harness";

/// A server that keeps nothing beyond its end, unless told otherwise.
#[derive(Clone, Debug)]
pub struct Setup {
    flavour: Flavour,
    role: Role,
    lines: String,
    password: Option<String>,
    users: Option<String>,
    speaks_tls: bool,
    environment: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Single,
    ClusterNode,
    Sentinel,
}

/// A running server; it ends, and its folder goes, when this is dropped.
#[derive(Debug)]
pub struct Server {
    setup: Setup,
    port: u16,
    certificates: Option<Certificates>,
    process: Mutex<Process>,
    is_stopped: AtomicBool,
    client: Mutex<Option<Client>>,
    // After the process: it may still write while it ends.
    folder: Folder,
}

impl Setup {
    /// As people get it, but for what goes to disk: nothing does.
    pub fn new(flavour: Flavour) -> Self {
        Self {
            flavour,
            role: Role::Single,
            lines: String::new(),
            password: None,
            users: None,
            speaks_tls: false,
            environment: Vec::new(),
        }
    }

    pub(crate) fn role(mut self, role: Role) -> Self {
        self.role = role;
        self
    }

    /// A line of the configuration, such as `maxmemory 2mb`; the last of several wins.
    #[must_use]
    pub fn line(mut self, line: &str) -> Self {
        self.lines += line;
        self.lines.push('\n');
        self
    }

    /// The password of the default user.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.line(&format!("requirepass \"{password}\""))
    }

    /// Users, as an ACL file lists them, such as `user anna on >secret ~tollgate:* +@all`.
    #[must_use]
    pub fn users(mut self, file: &str) -> Self {
        self.users = Some(format!("{file}\nuser {OWN_USER} on nopass ~* &* +@all\n"));
        self
    }

    /// TLS instead of plain TCP. Redis only: the Valkey we have is built without it.
    #[must_use]
    pub fn tls(mut self) -> Self {
        assert_eq!(self.flavour, Flavour::Redis, "the Valkey of the wheel is built without TLS");
        self.speaks_tls = true;
        self
    }

    /// A wall clock of its own instead of the machine's.
    #[must_use]
    pub fn clock(mut self, clock: &Clock) -> Self {
        self.environment.extend(clock.environment());
        self
    }

    /// Starts it and waits until it answers.
    pub fn start(self) -> Server {
        for _ in 0..PORT_CLASHES_MAX {
            if let Some(server) = self.clone().try_start() {
                return server;
            }
        }
        panic!("{PORT_CLASHES_MAX} times somebody took the port that was free a moment before");
    }

    /// Nothing if somebody took the port meanwhile.
    fn try_start(self) -> Option<Server> {
        let folder = Folder::new();
        let port = free_port();
        let certificates = self.speaks_tls.then(|| Certificates::new(&folder.0));
        let configuration = self.configuration(&folder.0, port, certificates.as_ref());
        fs::write(folder.0.join("server.conf"), configuration).expect("the folder is ours");
        if let Some(users) = &self.users {
            fs::write(folder.0.join("users.acl"), users).expect("the folder is ours");
        }
        let process = Mutex::new(Process(self.spawn(&folder.0)));
        let server = Server {
            setup: self,
            port,
            certificates,
            process,
            is_stopped: AtomicBool::new(false),
            client: Mutex::new(None),
            folder,
        };
        match server.until_it_answers() {
            Ok(()) => Some(server),
            Err(log) if log.contains("Address already in use") => None,
            Err(log) => panic!("the server ended at its start: {log}"),
        }
    }

    fn configuration(&self, folder: &Path, port: u16, tls: Option<&Certificates>) -> String {
        let plain = if self.speaks_tls { 0 } else { port };
        let mut text = format!(
            "bind 127.0.0.1\nport {plain}\nunixsocket \"{}\"\ndir \"{}\"\n",
            socket_in(folder).display(),
            folder.display()
        );
        if let Some(Certificates { authority, server, server_key, .. }) = tls {
            text += &format!(
                "tls-port {port}\ntls-ca-cert-file \"{}\"\ntls-cert-file \"{}\"\n\
                 tls-key-file \"{}\"\ntls-auth-clients optional\n",
                authority.display(),
                server.display(),
                server_key.display()
            );
        }
        if self.role != Role::Sentinel {
            // Replicas that come one after the other are not waited for, or they would be for
            // seconds.
            text += "save \"\"\nappendonly no\nrepl-diskless-sync-delay 0\n";
        }
        if self.role == Role::ClusterNode {
            text += &format!("cluster-enabled yes\ncluster-port {}\n", free_port());
        }
        if self.users.is_some() {
            text += &format!("aclfile \"{}\"\n", folder.join("users.acl").display());
        }
        text + &self.lines
    }

    fn spawn(&self, folder: &Path) -> Child {
        let log = File::options().create(true).append(true).open(folder.join("server.log"));
        let log = log.expect("the folder is ours");
        let mut command = Command::new(self.flavour.program());
        command.arg(folder.join("server.conf")).current_dir(folder);
        if self.role == Role::Sentinel {
            command.arg("--sentinel");
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stderr(log.try_clone().expect("a file can be had twice"));
        command.stdout(log).spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }
}

impl Server {
    /// Starts one as it comes.
    pub fn start(flavour: Flavour) -> Self {
        Setup::new(flavour).start()
    }

    /// Whose server it is.
    pub fn flavour(&self) -> Flavour {
        self.setup.flavour
    }

    /// As a client is told of it: `redis://127.0.0.1:20000`, with the password if there is one.
    pub fn url(&self) -> String {
        let scheme = if self.setup.speaks_tls { "rediss" } else { "redis" };
        let password = self.setup.password.as_ref();
        let password = password.map_or_else(String::new, |password| format!(":{password}@"));
        format!("{scheme}://{password}{}", self.address())
    }

    /// The port it listens at, by TLS if it speaks that.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address it listens at.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// The socket in the file system that it listens at as well.
    pub fn socket(&self) -> PathBuf {
        socket_in(&self.folder.0)
    }

    /// Its folder, where it may leave files.
    pub fn folder(&self) -> &Path {
        &self.folder.0
    }

    /// Its certificates, if it speaks TLS.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// The number of its process.
    pub fn process_id(&self) -> u32 {
        self.process().0.id()
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.0.join("server.log")).unwrap_or_default()
    }

    /// Its version: `7.0.15`.
    pub fn version(&self) -> String {
        let field = match self.flavour() {
            Flavour::Redis => "redis_version",
            Flavour::Valkey => "valkey_version",
        };
        self.info(field).expect("every server tells its version")
    }

    /// One field of what `INFO` tells; nothing if there is none, or no answer.
    pub fn info(&self, field: &str) -> Option<String> {
        let text = self.try_command(&["INFO", "everything"]).ok()?.text();
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(name, _)| *name == field).map(|(_, value)| value.trim().to_owned())
    }

    /// Sends a command over a connection of the harness's own, and returns the answer.
    pub fn command<W: AsRef<[u8]>>(&self, words: &[W]) -> Reply {
        let answer = self.try_command(words);
        answer.unwrap_or_else(|error| panic!("the server does not answer: {error}"))
    }

    /// The same, for a server that may be gone. One that is stopped is not waited for.
    pub fn try_command<W: AsRef<[u8]>>(&self, words: &[W]) -> io::Result<Reply> {
        if self.is_stopped.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut kept = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        let mut client = match kept.take() {
            Some(client) => client,
            None => self.connect()?,
        };
        let reply = client.try_command(words)?;
        // A connection that broke is not kept.
        *kept = Some(client);
        Ok(reply)
    }

    /// A connection of one's own, with every right.
    pub fn client(&self) -> Client {
        self.connect().unwrap_or_else(|error| panic!("the server takes no connection: {error}"))
    }

    fn connect(&self) -> io::Result<Client> {
        let mut client = Client::unix(&self.socket())?;
        match (&self.setup.users, &self.setup.password) {
            (Some(_), _) => client.try_command(&["AUTH", OWN_USER, ""])?,
            (None, Some(password)) => client.try_command(&["AUTH", password])?,
            (None, None) => return Ok(client),
        };
        Ok(client)
    }

    /// Stops the process where it is: connections still succeed, and nothing answers.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        self.signal(Signal::STOP);
        let status = format!("/proc/{}/status", self.process_id());
        eventually("the process has stopped", || {
            let status = fs::read_to_string(&status).expect("the process is there");
            status.contains("State:\tT").then_some(())
        });
    }

    /// Lets a stopped process go on.
    pub fn cont(&self) {
        self.signal(Signal::CONT);
        self.is_stopped.store(false, Ordering::SeqCst);
    }

    /// Ends it at once, as a failed machine would.
    pub fn kill(&self) {
        self.process().end();
        self.is_stopped.store(false, Ordering::SeqCst);
    }

    /// Starts it again after [`kill`](Self::kill), at the same port and in the same folder, and
    /// waits until it answers, if only that it is loading.
    pub fn restart(&self) {
        self.kill();
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = None;
        // The socket of the process before would take no connection, and is in the way.
        let _ = fs::remove_file(self.socket());
        self.process().0 = self.setup.spawn(&self.folder.0);
        self.until_it_answers()
            .unwrap_or_else(|log| panic!("the server ended at its second start: {log}"));
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.process_id()).expect("the system's own number");
        let id = Pid::from_raw(id).expect("no process has the number 0");
        kill_process(id, signal).expect("the process is there");
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it listens everywhere, which it does before it answers anybody; or returns the
    /// log of a server that ended.
    fn until_it_answers(&self) -> Result<(), String> {
        eventually("the server answers", || {
            if self.process().0.try_wait().expect("it is our child").is_some() {
                return Some(Err(self.log()));
            }
            self.try_command(&["PING"]).ok().map(|_| Ok(()))
        })
    }
}

/// Starts several at once.
pub(crate) fn start_all(setups: &[Setup]) -> Vec<Server> {
    thread::scope(|scope| {
        let start = |setup: &Setup| {
            scope.spawn({
                let setup = setup.clone();
                || setup.start()
            })
        };
        let started: Vec<_> = setups.iter().map(start).collect();
        started.into_iter().map(|start| start.join().expect("it has said why not")).collect()
    })
}

fn socket_in(folder: &Path) -> PathBuf {
    folder.join("server.sock")
}

/// A process that ends with its value.
#[derive(Debug)]
struct Process(Child);

impl Process {
    fn end(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// A folder that goes with its value.
#[derive(Debug)]
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-harness-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a folder for temporary files");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
