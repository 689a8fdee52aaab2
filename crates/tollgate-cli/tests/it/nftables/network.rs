//! Two machines with a wire between them, each a network namespace of its own.
//!
//! The namespaces have no names. They are those of two processes that read our orders and end with
//! them, so that nothing is left behind, however a test ends.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::support::parts::on_path;
use crate::support::process::Process;

const PEER: &str = include_str!("peer.py");

/// The port that is guarded.
pub(super) const PORT: u16 = 8000;

/// Where the server is.
const SERVER: [&str; 2] = ["198.18.0.1", "2001:db8::1"];

/// How long a connection that must come about may take: SYNs that are lost are sent again after one
/// second and three.
const PATIENCE: &str = "20";

/// How long one that must not come about is waited for: less than a second, after which its SYN
/// would be sent again.
const GLANCE: &str = "0.5";

/// A process in a network namespace of its own.
struct Machine {
    process: Process,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Machine {
    fn new() -> Self {
        let mut child = apart("python3", &["-c", PEER]);
        let orders = child.stdin.take().expect("its input is piped");
        let answers = BufReader::new(child.stdout.take().expect("its output is piped"));
        let mut machine = Self { process: Process::of(child), orders, answers };
        let ready = machine.answer();
        assert_eq!(ready, "ready", "{NEEDS_ROOT}");
        machine
    }

    fn order(&mut self, line: &str) -> String {
        writeln!(self.orders, "{line}").expect("the machine listens");
        self.answer()
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the machine answers in text");
        line.trim_end().to_owned()
    }

    /// Runs a program in the machine's namespace.
    fn run(&self, program: &str, arguments: &[&str], input: &str) -> String {
        let mut command = on_path("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.process.id()));
        command.arg(on_path(program).get_program()).args(arguments);
        let run = crate::run(&mut command, input);
        assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "{program} {arguments:?}");
        run.stdout
    }
}

/// Whoever runs these tests must be told why they cannot.
const NEEDS_ROOT: &str = "network namespaces and nftables need root, and a kernel that has them";

/// Starts a program in a network namespace of its own.
fn apart(program: &str, arguments: &[&str]) -> Child {
    let mut command = on_path("unshare");
    command.arg("--net").arg(on_path(program).get_program()).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().expect("unshare runs")
}

/// What nft says of a ruleset, in a namespace where there is nothing else.
pub(super) fn checked(ruleset: &str) -> String {
    let mut command: Command = on_path("unshare");
    command.arg("--net").arg(on_path("nft").get_program()).args(["--check", "--file", "-"]);
    let run = crate::run(&mut command, ruleset);
    assert!(!run.stderr.contains("Operation not permitted"), "{}{NEEDS_ROOT}", run.stderr);
    format!("{}{}", run.stdout, run.stderr)
}

/// A server behind a ruleset, and a machine of many addresses that connects to it.
pub(super) struct Network {
    server: Machine,
    clients: Machine,
}

impl Network {
    /// `addresses` are those of the clients.
    pub(super) fn new(ruleset: &str, addresses: &[&str]) -> Self {
        let (mut server, clients) = (Machine::new(), Machine::new());
        let other = clients.process.id().to_string();
        let wire = ["link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", &other];
        server.run("ip", &wire, "");
        for (machine, addresses) in [(&server, &SERVER[..]), (&clients, addresses)] {
            for address in addresses {
                let prefix = if address.contains(':') { 32 } else { 8 };
                let address = format!("{address}/{prefix}");
                // Nobody else could have the address, so nobody is asked.
                let nodad = address.contains(':').then_some("nodad");
                let add = ["address", "add", &address, "dev", "wire"].into_iter().chain(nodad);
                machine.run("ip", &add.collect::<Vec<&str>>(), "");
            }
            machine.run("ip", &["link", "set", "wire", "up"], "");
        }
        assert_eq!(server.order(&format!("listen {PORT}")), "listening");
        let network = Self { server, clients };
        network.load(ruleset);
        network
    }

    /// Puts a ruleset in force, in place of the one before.
    pub(super) fn load(&self, ruleset: &str) {
        self.server.run("nft", &["--file", "-"], ruleset);
    }

    /// What nft shows of the ruleset in force.
    pub(super) fn listed(&self) -> String {
        self.server.run("nft", &["list", "ruleset"], "")
    }

    /// Opens a connection, which must come about, and holds it under this name.
    pub(super) fn open(&mut self, name: &str, from: &str) {
        assert_eq!(self.connect(name, from, PATIENCE), "open", "{name} from {from}");
    }

    /// Tries to open a connection, which must not come about.
    pub(super) fn refused(&mut self, from: &str) {
        assert_eq!(self.connect("refused", from, GLANCE), "no answer", "from {from}");
    }

    pub(super) fn close(&mut self, name: &str) {
        assert_eq!(self.clients.order(&format!("close {name}")), "closed");
    }

    fn connect(&mut self, name: &str, from: &str, seconds: &str) -> String {
        let server = SERVER[usize::from(from.contains(':'))];
        self.clients.order(&format!("open {name} {from} {server} {PORT} {seconds}"))
    }
}
