//! docs/redis-protocol.md says what is so.
//!
//! The first `yaml` block is the policy. Every `console` block is run against it, one after the
//! other, at one moment, and what redis-cli would show is compared.

use tollgate_server::conversation;

use super::{Counter, Reply};

const PAGE: &str = include_str!("../../../../../docs/redis-protocol.md");

/// The insides of all blocks in a language.
fn blocks(language: &str) -> impl Iterator<Item = &'static str> {
    let fence = format!("```{language}\n");
    PAGE.split("\n\n").filter_map(move |paragraph| {
        paragraph.strip_prefix(&*fence).and_then(|block| block.strip_suffix("\n```"))
    })
}

/// A reply as redis-cli shows it on a terminal.
fn on_terminal(reply: &Reply, indent: usize) -> String {
    match reply {
        Reply::Simple(text) => text.clone(),
        Reply::Error(text) => format!("(error) {text}"),
        Reply::Integer(number) => format!("(integer) {number}"),
        Reply::Bulk(text) => format!("\"{text}\""),
        Reply::Nil => "(nil)".to_owned(),
        Reply::Map(_) => unreachable!("nobody asked for the third protocol"),
        Reply::Array(elements) => {
            let numbered = elements
                .iter()
                .zip(1..)
                .map(|(element, number)| format!("{number}) {}", on_terminal(element, indent + 3)));
            numbered.collect::<Vec<_>>().join(&format!("\n{}", " ".repeat(indent)))
        }
    }
}

#[test]
fn every_example_is_answered_as_it_is_shown() {
    let yaml = PAGE.split("```yaml\n").nth(1).and_then(|rest| rest.split("```\n").next());
    let counter = Counter::new(yaml.expect("a policy"));
    let mut examples = 0;
    for block in blocks("console") {
        for example in block.split("$ redis-cli -p 6380 ").skip(1) {
            let (line, expected) = example.split_once('\n').expect("a command and its reply");
            let replies = conversation(&counter.limiter, None, &[line.as_bytes(), b"\n"]);
            let (reply, rest) = Reply::read(&replies);
            assert!(rest.is_empty(), "{line}");
            assert_eq!(on_terminal(&reply, 0), expected.trim_end(), "{line}");
            examples += 1;
        }
    }
    assert!(examples > 20, "{examples} examples were found");
}

#[test]
fn every_command_is_on_the_page() {
    let counter = Counter::new("limits: []");
    let told = conversation(&counter.limiter, None, &[b"COMMAND\n"]);
    let (Reply::Array(commands), _) = Reply::read(&told) else { panic!("an array") };
    for command in commands {
        let Reply::Array(facts) = command else { panic!("an array") };
        let name = facts[0].text().to_uppercase();
        assert!(
            PAGE.contains(&format!("`{name}")) || PAGE.contains(&format!("6380 {name}")),
            "{name}"
        );
    }
}
