//! Rules about what code may say.

use super::Violation;
use super::source::{Source, lines_with};
use super::tree::Tree;

/// What reads a clock.
const CLOCK_READS: &[&str] =
    &["Instant::now", "SystemTime::now", "UNIX_EPOCH.elapsed", "Utc::now", "quanta::"];

/// Where a clock may be read, with the reason.
const CLOCKS: &[Allowed] = &[
    Allowed {
        place: "crates/tollgate-store/src/clock.rs",
        why: "time comes from where the state is, and this is the memory store's clock",
    },
    Allowed {
        place: "crates/tollgate-server/src/moment.rs",
        why: "timers of connections and dates of answers go by it, and nothing else",
    },
    Allowed {
        place: "crates/tollgate-client/src/clock.rs",
        why: "waits are timers, and a server's date is compared with ours",
    },
    Allowed {
        place: "crates/tollgate-client/examples/many_tasks.rs",
        why: "the API that it calls is its own, and counts by the wall clock",
    },
    Allowed {
        place: "crates/tollgate-client/examples/storm/clock.rs",
        why: "it is the clock of a runtime that stands still",
    },
    Allowed {
        place: "crates/tollgate-client/tests/it/support.rs",
        why: "it is the clock of a runtime that stands still",
    },
    Allowed { place: "bench/", why: "it measures time" },
    Allowed { place: "xtask/", why: "nothing of it is shipped" },
];

/// Files that may hold `unsafe`, each with its proof beside it.
const UNSAFE: &[Allowed] = &[
    Allowed {
        place: "crates/tollgate-store/src/pages.rs",
        why: "mapped memory has no type until somebody says that it is words",
    },
    Allowed { place: "bench/src/allocator.rs", why: "counting allocations takes an allocator" },
];

/// Files that may sleep. A test that sleeps is slow or fails now and then; waiting for another
/// process to listen is the one thing that no clock of ours can hurry.
const SLEEPS: &[Allowed] = &[
    Allowed { place: "crates/tollgate-harness/src/", why: "it waits for servers, and delays" },
    Allowed { place: "crates/tollgate-cli/tests/it/support.rs", why: "it waits for processes" },
    Allowed { place: "crates/tollgate-cli/tests/it/soak.rs", why: "it goes on for a while" },
    Allowed { place: "crates/tollgate-server/src/server.rs", why: "it waits before it stops" },
    Allowed { place: "crates/tollgate-store/src/redis/", why: "it asks again after a pause" },
    Allowed { place: "bench/", why: "it measures time" },
];

/// An exception to a rule: a file, or a folder (`bench/`).
struct Allowed {
    place: &'static str,
    why: &'static str,
}

impl Allowed {
    fn covers(&self, path: &str) -> bool {
        let is_below = self.place.ends_with('/') && path.starts_with(self.place);
        path == self.place || is_below
    }

    fn text(&self) -> String {
        format!("{}: {}", self.place, self.why)
    }
}

/// Time is an argument: what asks for it by itself cannot be tested without sleeping, and answers
/// differently from its twin in Redis.
pub(super) fn clock_reads(tree: &Tree) -> Vec<Violation> {
    let advice = "reads a clock; take the time as an argument";
    outside(tree, CLOCKS, CLOCK_READS, advice)
}

/// The lint table denies it too; this also covers what is no member of the workspace.
pub(super) fn unsafe_code(tree: &Tree) -> Vec<Violation> {
    let advice = "is not ours to write; find a safe way, or a crate that is trusted with it";
    outside(tree, UNSAFE, &["unsafe"], advice)
}

pub(super) fn sleeps(tree: &Tree) -> Vec<Violation> {
    let advice = "makes tests slow, and fail now and then; move a manual clock, or wait for the \
                  event itself";
    outside(tree, SLEEPS, &["thread::sleep", "time::sleep"], advice)
}

/// Main holds no work put off and no test switched off.
pub(super) fn unfinished_work(tree: &Tree) -> Vec<Violation> {
    const NOTES: &[&str] = &["TODO", "FIXME", "XXX"];
    const STUBS: &[&str] = &["todo!", "unimplemented!", "dbg!", "#[ignore"];
    const OTHER_SOURCES: &[&str] = &[".lua", ".sh", ".toml", ".yaml", ".yml", ".ci/run"];

    let mut violations = Vec::new();
    let mut report = |path: &str, text: &str, words: &[&str], advice: &str| {
        for word in words {
            let sentence = format!("`{word}` {advice}");
            let lines = lines_with(text, word);
            violations.extend(lines.map(|line| Violation::at_line(path, line, sentence.clone())));
        }
    };
    let note = "is a note of work put off; do it now, or open an issue and take the note away";
    let stub = "is not for main; finish it or take it away";
    for (path, text) in tree.files() {
        if path.ends_with(".rs") {
            let source = Source::parse(text);
            report(path, &source.comments, NOTES, note);
            report(path, &source.code, STUBS, stub);
        } else if OTHER_SOURCES.iter().any(|end| path.ends_with(end)) {
            report(path, text, NOTES, note);
        }
    }
    violations
}

/// Every use of one of the words in Rust code, outside the places where it is allowed.
fn outside(tree: &Tree, allowed: &[Allowed], words: &[&str], advice: &str) -> Vec<Violation> {
    let exceptions: Vec<String> = allowed.iter().map(Allowed::text).collect();
    let allowed_in = if allowed.is_empty() { "no file".to_owned() } else { exceptions.join(", ") };
    let mut violations = Vec::new();
    for (path, text) in tree.rust() {
        if allowed.iter().any(|place| place.covers(path)) {
            continue;
        }
        let code = Source::parse(text).code;
        for word in words {
            let sentence = format!("`{word}` {advice} (allowed in {allowed_in})");
            let lines = lines_with(&code, word);
            violations.extend(lines.map(|line| Violation::at_line(path, line, sentence.clone())));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn a_clock_is_read_in_its_one_file_only() {
        let read = "fn f() {\n    let now = Instant::now();\n}\n";
        check(clock_reads, &[("crates/tollgate-store/src/clock.rs", read)], &[]);
        check(clock_reads, &[("xtask/src/a.rs", read), ("bench/src/main.rs", read)], &[]);
        check(
            clock_reads,
            &[("crates/tollgate-core/tests/it/a.rs", read), ("crates/tollgate/src/lib.rs", read)],
            &[
                ("crates/tollgate-core/tests/it/a.rs:2", "take the time as an argument"),
                ("crates/tollgate/src/lib.rs:2", "allowed in crates/tollgate-store/src/clock.rs"),
            ],
        );
    }

    #[test]
    fn every_way_to_read_a_clock_is_known() {
        for read in ["std::time::SystemTime::now()", "use quanta::Clock;", "chrono::Utc::now()"] {
            check(
                clock_reads,
                &[("crates/a/src/lib.rs", read)],
                &[("crates/a/src/lib.rs:1", "clock")],
            );
        }
    }

    #[test]
    fn a_clock_may_be_spoken_of() {
        let text = "// Instant::now() is never asked.\nconst WORD: &str = \"Instant::now\";\n";
        check(clock_reads, &[("crates/tollgate/src/lib.rs", text)], &[]);
    }

    #[test]
    fn unsafe_is_refused_everywhere() {
        let text = "#![forbid(unsafe_code)]\nfn f() { unsafe { g() } }\n";
        check(unsafe_code, &[("bench/src/a.rs", text)], &[("bench/src/a.rs:2", "find a safe way")]);
        check(unsafe_code, &[("crates/a/src/lib.rs", "// no unsafe code of our own\n")], &[]);
    }

    #[test]
    fn a_sleep_is_refused_unless_a_server_must_start() {
        let text = "std::thread::sleep(pause);\n";
        check(sleeps, &[("crates/tollgate-harness/src/wait.rs", text)], &[]);
        check(
            sleeps,
            &[
                ("crates/a/src/redis.rs", text),
                ("crates/a/tests/it/other.rs", "tokio::time::sleep(x)"),
            ],
            &[
                ("crates/a/src/redis.rs:1", "manual clock"),
                ("crates/a/tests/it/other.rs:1", "manual clock"),
            ],
        );
    }

    #[test]
    fn notes_of_unfinished_work_are_refused_in_every_source() {
        check(
            unfinished_work,
            &[
                ("crates/a/src/lua/a.lua", "-- XXX\n"),
                ("crates/a/src/lib.rs", "\n// TODO: more\n"),
                ("policy.yaml", "# FIXME\n"),
            ],
            &[
                ("crates/a/src/lib.rs:2", "open an issue"),
                ("crates/a/src/lua/a.lua:1", "open an issue"),
                ("policy.yaml:1", "open an issue"),
            ],
        );
    }

    #[test]
    fn stubs_and_switched_off_tests_are_refused_in_code() {
        let text =
            "fn f() {\n    todo!()\n}\n#[ignore = \"slow\"]\nfn g() { dbg!(unimplemented!()) }\n";
        let path = "crates/a/src/lib.rs";
        let at = |line: &str| format!("{path}:{line}");
        check(
            unfinished_work,
            &[(path, text)],
            &[
                (&at("2"), "`todo!`"),
                (&at("5"), "`unimplemented!`"),
                (&at("5"), "`dbg!`"),
                (&at("4"), "`#[ignore`"),
            ],
        );
    }

    #[test]
    fn the_words_may_stand_in_strings_and_in_prose() {
        check(
            unfinished_work,
            &[("crates/a/src/lib.rs", "f(\"TODO\", \"dbg!\")\n"), ("CONTRIBUTING.md", "no TODO\n")],
            &[],
        );
    }
}
