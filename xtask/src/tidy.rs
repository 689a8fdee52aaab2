//! The house rules, held by a tool rather than by memory.
//!
//! A rule is a function from the tracked tree to what breaks it; it reads no disk, so that each is
//! tested on a tree made up of a line or two. Every violation is reported at once, each with a
//! sentence that says what to do.

mod code;
mod layout;
mod manifest;
mod source;
mod text;
mod tree;

use std::fmt;

use tree::Tree;

/// What a rule is: everything in the tree that breaks it.
type Rule = fn(&Tree) -> Vec<Violation>;

const RULES: &[Rule] = &[
    manifest::imports,
    manifest::shared_settings,
    manifest::reasons,
    code::clock_reads,
    code::unsafe_code,
    code::unfinished_work,
    code::sleeps,
    layout::integration_tests,
    layout::example_policies,
    layout::module_files,
    layout::lua_twins,
    text::build_machine_paths,
    text::links,
];

/// Checks every rule on the tree as it is now, committed or not.
pub(crate) fn run() -> Result<(), String> {
    let tree = Tree::tracked()?;
    let mut violations: Vec<Violation> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    violations.sort();
    for violation in &violations {
        eprintln!("{violation}");
    }
    match violations.len() {
        0 => Ok(()),
        1 => Err("a house rule is broken (see above)".into()),
        count => Err(format!("house rules are broken in {count} places (see above)")),
    }
}

/// A place where a rule is broken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    path: String,
    line: Option<usize>,
    sentence: String,
}

impl Violation {
    fn in_file(path: &str, sentence: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line: None, sentence: sentence.into() }
    }

    fn at_line(path: &str, line: usize, sentence: impl Into<String>) -> Self {
        Self { line: Some(line), ..Self::in_file(path, sentence) }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.path, self.sentence),
            None => write!(f, "{}: {}", self.path, self.sentence),
        }
    }
}

/// What the tests of every rule say: this tree breaks the rule at these places, told as path and
/// line, and with these words in the sentence.
#[cfg(test)]
fn check(rule: Rule, files: &[(&str, &str)], expected: &[(&str, &str)]) {
    let violations = rule(&Tree::of(files));
    let told: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), expected.len(), "{told:#?}");
    for (violation, (place, words)) in told.iter().zip(expected) {
        assert!(violation.starts_with(&format!("{place}: ")), "{violation} is not at {place}");
        assert!(violation.contains(words), "{violation} does not say {words}");
    }
}
