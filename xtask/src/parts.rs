//! Real parts that tests and measurements use: servers and tools that are not Rust crates.
//!
//! Where we may install (root on Debian or a relative of it) a missing part is installed;
//! everywhere else the reader is told exactly what to install, and the command fails. A test that
//! is skipped because its server is missing would be a test nobody runs.

mod packages;

use std::env;
use std::ffi::OsStr;
use std::process::Command;

use crate::shell;

pub(crate) use packages::{envoy, install as install_packages};

/// Something to be found on `PATH`.
#[derive(Debug)]
pub(crate) struct Part {
    /// The command that must be there.
    pub(crate) command: &'static str,
    /// What the command must end well with, where being there is not enough.
    pub(crate) trial: &'static [&'static str],
    /// The Debian package that brings it.
    pub(crate) package: &'static str,
    /// What it is needed for, to be told to who must install it.
    pub(crate) why: &'static str,
}

const PYTHON: Part = Part {
    command: "python3",
    // Debian's python3 comes without what makes a virtual environment.
    trial: &["-c", "import ensurepip, venv"],
    package: "python3-venv",
    why: "Envoy, Valkey, redis-py and schemathesis are installed with it",
};

/// What `cargo xtask test` needs.
pub(crate) const FOR_TESTS: &[Part] = &[
    Part {
        command: "redis-server",
        trial: &[],
        package: "redis-server",
        // Sentinel is the same program under another name, and needs no package of its own.
        why: "stores and scripts are tested on real servers, Sentinels and Clusters",
    },
    Part {
        command: "cc",
        trial: &[],
        package: "gcc",
        why: "it builds what sets a server's clock apart from the machine's",
    },
    Part {
        command: "make",
        trial: &[],
        package: "make",
        why: "it builds the allocator of the `tollgate` command",
    },
    Part {
        command: "redis-cli",
        trial: &[],
        package: "redis-tools",
        why: "it asks the server for decisions",
    },
    Part {
        command: "nginx",
        trial: &[],
        package: "nginx-light",
        why: "it asks the server for decisions",
    },
    Part {
        command: "caddy",
        trial: &[],
        package: "caddy",
        why: "it asks the server for decisions",
    },
    Part {
        command: "nft",
        trial: &[],
        package: "nftables",
        why: "it loads the rulesets that limit connections",
    },
    Part {
        command: "ip",
        trial: &[],
        package: "iproute2",
        why: "it lays the wire over which rulesets are tried",
    },
    Part {
        command: "curl",
        trial: &[],
        package: "curl",
        why: "the first minute of the README is tried with it",
    },
    Part {
        command: "promtool",
        trial: &[],
        package: "prometheus",
        why: "it checks what the server tells Prometheus",
    },
    PYTHON,
    Part {
        command: "node",
        trial: &[],
        package: "nodejs",
        why: "it runs node-redis, and what drives the browser",
    },
    Part {
        command: "npm",
        trial: &[],
        package: "npm",
        why: "node-redis, playwright-core and axe-core are installed with it",
    },
    Part {
        command: "chromium",
        trial: &[],
        package: "chromium",
        why: "the dashboard is tried in it",
    },
];

/// What `cargo xtask screenshots` needs besides.
pub(crate) const FOR_SCREENSHOTS: &[Part] = &[Part {
    command: "fc-list",
    trial: &["-q", "Inter"],
    package: "fonts-inter",
    why: "pictures taken on different machines look alike in it",
}];

/// What `cargo xtask bench decide` needs.
pub(crate) const FOR_INSTRUCTION_COUNTS: &[Part] = &[Part {
    command: "valgrind",
    trial: &[],
    package: "valgrind",
    why: "its callgrind counts instructions",
}];

/// What `cargo xtask fuzz` needs.
pub(crate) const FOR_FUZZING: &[Part] =
    &[Part { command: "c++", trial: &[], package: "g++", why: "it builds libFuzzer" }];

/// What `cargo xtask bench server` needs.
pub(crate) const FOR_SERVER_BENCHMARK: &[Part] = &[
    Part {
        command: "redis-server",
        trial: &[],
        package: "redis-server",
        why: "what it spends on PING is what the Redis protocol costs",
    },
    Part {
        command: "protoc",
        trial: &[],
        package: "protobuf-compiler",
        why: "throttlecrab-server, a peer, is not built without it",
    },
];

/// What `cargo xtask bench redis` needs.
pub(crate) const FOR_REDIS_BENCHMARK: &[Part] = &[
    Part {
        command: "redis-server",
        trial: &[],
        package: "redis-server",
        why: "it keeps the states that are measured",
    },
    Part {
        command: "redis-benchmark",
        trial: &[],
        package: "redis-tools",
        why: "it tells how many decisions the server can make",
    },
];

/// What `cargo xtask bench gateway` needs.
pub(crate) const FOR_GATEWAY_BENCHMARK: &[Part] = &[
    Part {
        command: "nginx",
        trial: &[],
        package: "nginx-light",
        why: "it is the server behind all proxies, and one of them",
    },
    PYTHON,
    Part { command: "wrk", trial: &[], package: "wrk", why: "it asks over HTTP/1.1" },
    Part { command: "h2load", trial: &[], package: "nghttp2-client", why: "it asks over HTTP/2" },
];

/// Installs packages without starting the services in them: tests start servers of their own, and a
/// machine that only runs tests should not end up with a Redis listening on it. `policy-rc.d` is
/// how Debian is told so; it is gone again even when the installation is interrupted.
const INSTALL: &str = r#"
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 130' HUP INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
apt-get update || echo "apt-get update failed; going on with the package lists that are there" >&2
apt-get install -y --no-install-recommends "$@"
"#;

/// Sees to it that every part is there, or says what to do.
pub(crate) fn require(parts: &[Part]) -> Result<(), String> {
    let missing = missing_of(parts);
    if missing.is_empty() {
        return Ok(());
    }
    if !may_install() {
        return Err(what_to_install(&missing));
    }
    let packages: Vec<&str> = missing.iter().map(|part| part.package).collect();
    eprintln!("installing {}", packages.join(" "));
    let status = Command::new("sh").args(["-c", INSTALL, "sh"]).args(&packages).status();
    let installed = status.is_ok_and(|status| status.success());
    let missing = missing_of(parts);
    match (installed, missing.is_empty()) {
        (_, true) => Ok(()),
        (false, false) => {
            Err(format!("the installation failed (see above); {}", what_to_install(&missing)))
        }
        (true, false) => {
            let commands: Vec<&str> = missing.iter().map(|part| part.command).collect();
            Err(format!(
                "apt-get installed {}, and yet there is no {} on PATH that works; look where the \
                 package put it (`dpkg --listfiles`) and add that folder to PATH",
                packages.join(" "),
                commands.join(", no ")
            ))
        }
    }
}

fn missing_of(parts: &[Part]) -> Vec<&Part> {
    let path = env::var_os("PATH").unwrap_or_default();
    let works = |part: &Part| {
        let tried = || shell::output(Command::new(part.command).args(part.trial)).is_ok();
        is_on(&path, part.command) && (part.trial.is_empty() || tried())
    };
    parts.iter().filter(|part| !works(part)).collect()
}

fn is_on(path: &OsStr, command: &str) -> bool {
    env::split_paths(path).any(|folder| folder.join(command).is_file())
}

fn may_install() -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let is_root = || shell::output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    is_on(&path, "apt-get") && is_root()
}

fn what_to_install(missing: &[&Part]) -> String {
    let mut text =
        String::from("these commands are needed, and missing from PATH or incomplete:\n");
    for part in missing {
        text += &format!("  {}: {}\n", part.command, part.why);
    }
    let packages: Vec<&str> = missing.iter().map(|part| part.package).collect();
    text += &format!(
        "on Debian or Ubuntu, run `sudo apt-get install {}`; elsewhere, install what brings the \
         commands above and put them on PATH; then run this again",
        packages.join(" ")
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: &[Part] = &[
        Part { command: "nginx", trial: &[], package: "nginx-light", why: "it asks for decisions" },
        Part { command: "valkey-server", trial: &[], package: "valkey", why: "it holds states" },
    ];

    #[test]
    fn a_command_that_is_there_and_does_not_work_is_missing() {
        let shell = |trial| Part { command: "sh", trial, package: "dash", why: "" };
        assert!(missing_of(&[shell(&[])]).is_empty());
        assert!(missing_of(&[shell(&["-c", "exit 0"])]).is_empty());
        assert_eq!(missing_of(&[shell(&["-c", "exit 1"])]).len(), 1);
    }

    #[test]
    fn who_must_install_is_told_every_command_and_package_and_why() {
        let text = what_to_install(&PARTS.iter().collect::<Vec<_>>());
        assert_eq!(
            text,
            "these commands are needed, and missing from PATH or incomplete:\n  \
             nginx: it asks for decisions\n  \
             valkey-server: it holds states\n\
             on Debian or Ubuntu, run `sudo apt-get install nginx-light valkey`; elsewhere, \
             install what brings the commands above and put them on PATH; then run this again"
        );
    }

    #[test]
    fn a_command_is_looked_for_in_every_folder_of_the_path() {
        let source = shell::root().join("xtask/src");
        let path = env::join_paths([shell::root().join("no-such-folder"), source]).unwrap();
        assert!(is_on(&path, "parts.rs"));
        assert!(!is_on(&path, "no-such-command"));
        assert!(!is_on(&path, "tidy"), "a folder is not a command");
        assert!(!is_on(OsStr::new(""), "parts.rs"));
    }
}
