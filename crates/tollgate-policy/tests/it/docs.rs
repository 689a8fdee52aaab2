//! docs/policy.md says what is so.
//!
//! A `yaml` block there is a whole policy, unless the line before it is `<!-- limit -->` (a list of
//! limits) or `<!-- tenants -->` (a tenants file, read with the policy that stands before it). It
//! has neither mistakes nor warnings, unless the next block is a `text` that shows them and is
//! marked `<!-- mistake: FILE -->` or `<!-- warning: FILE -->`, where FILE is what the policy is
//! called. The table after `<!-- patterns -->` is about paths.

use std::collections::BTreeSet;

use serde_json::Value;
use tollgate_core::Micros;
use tollgate_policy::{Mistakes, Policy, Warning, WarningCode, bounds, schema};

use crate::{names, policy};

const PAGE: &str = include_str!("../../../../docs/policy.md");
const GATEWAY_PAGE: &str = include_str!("../../../../docs/gateway.md");

/// One fenced block of the page.
#[derive(Debug)]
struct Block<'p> {
    mark: &'p str,
    language: &'p str,
    text: String,
}

impl Block<'_> {
    fn is_policy(&self) -> bool {
        self.language == "yaml" && self.mark.is_empty()
    }

    fn is_tenants_file(&self) -> bool {
        self.mark == "tenants"
    }

    /// The name under which the policy before this block is read, if this is what is said of it.
    fn subject(&self, kind: &str) -> Option<&str> {
        self.mark.strip_prefix(kind)?.strip_prefix(": ")
    }
}

fn blocks() -> Vec<Block<'static>> {
    blocks_of(PAGE)
}

fn blocks_of(page: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut before = "";
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let inside: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            let mark = before.strip_prefix("<!-- ").and_then(|mark| mark.strip_suffix(" -->"));
            let text = inside.join("\n") + "\n";
            blocks.push(Block { mark: mark.unwrap_or(""), language, text });
        }
        before = line;
    }
    blocks
}

/// Reads one block of the page as what it is.
fn read(blocks: &[Block<'_>], number: usize, name: &str) -> Result<Policy, Mistakes> {
    let block = &blocks[number];
    let (text, tenants) = match block.mark {
        "limit" => (format!("limits:\n{}", block.text), None),
        "tenants" => {
            let has_tenants = |block: &&Block<'_>| {
                block.is_policy() && block.text.lines().any(|line| line.starts_with("tenants:"))
            };
            let policy = blocks[..number].iter().rfind(has_tenants);
            (policy.expect("a policy stands before its tenants").text.clone(), Some(block))
        }
        _ => (block.text.clone(), blocks[number..].iter().find(|block| block.is_tenants_file())),
    };
    Policy::parse(name, &text, &mut |_| {
        tenants.map(|block| block.text.clone()).ok_or("it is not on the page".to_owned())
    })
}

/// Of these a part of a policy is warned whatever it says.
const OF_PARTS: [WarningCode; 4] = [
    WarningCode::NoLimits,
    WarningCode::NoTenants,
    WarningCode::OnlyMeters,
    WarningCode::SkipsConcurrency,
];

#[test]
fn every_policy_that_is_shown_is_read_and_gets_the_mistakes_and_warnings_that_are_shown() {
    let blocks = blocks();
    let mut seen = BTreeSet::new();
    for (number, block) in blocks.iter().enumerate().filter(|(_, block)| block.language == "yaml") {
        let said = blocks.get(number + 1).filter(|next| next.language == "text");
        let mistakes_of = said.and_then(|said| said.subject("mistake"));
        let warnings_of = said.and_then(|said| said.subject("warning"));
        let name = mistakes_of.or(warnings_of).unwrap_or("policy.yaml");
        let shown = said.map_or("", |said| said.text.trim_end());
        match read(&blocks, number, name) {
            Ok(policy) => {
                let warnings = policy.warnings().iter();
                let told = warnings.filter(|it| shown.contains("warning[") || !is_of_parts(it));
                let told: Vec<String> = told.map(ToString::to_string).collect();
                assert_eq!(told.join("\n"), shown, "{}", block.text);
            }
            Err(mistakes) => assert_eq!(mistakes.to_string(), shown, "{}", block.text),
        }
        seen.extend([block.mark, said.map_or("", |said| said.mark)]);
    }
    let kinds = ["", "limit", "mistake: policy.yaml", "tenants", "warning: policy.yaml"];
    assert_eq!(seen, BTreeSet::from(kinds), "something of each kind is shown");
}

fn is_of_parts(warning: &Warning) -> bool {
    OF_PARTS.contains(&warning.code())
}

#[test]
fn the_first_policy_is_complete() {
    let policy = read(&blocks(), 0, "policy.yaml").unwrap_or_else(|mistakes| panic!("{mistakes}"));
    assert_eq!(policy.warnings(), []);
    assert_eq!((policy.rules().len(), policy.tenant_keys()), (4, 3));
}

/// Shows every value of the schema to `look`, the outer ones first.
fn walk(node: &Value, look: &mut dyn FnMut(&Value)) {
    look(node);
    match node {
        Value::Object(map) => map.values().for_each(|node| walk(node, look)),
        Value::Array(list) => list.iter().for_each(|node| walk(node, look)),
        _ => {}
    }
}

fn walk_schema(look: &mut dyn FnMut(&Value)) {
    walk(&serde_json::from_str(schema()).expect("the schema is JSON"), look);
}

/// What the schema says of every field, wherever it stands.
fn fields() -> Vec<(String, Value)> {
    let mut fields = Vec::new();
    walk_schema(&mut |node| {
        let properties = node.get("properties").and_then(Value::as_object).into_iter().flatten();
        fields.extend(properties.map(|(name, shape)| (name.clone(), shape.clone())));
    });
    assert!(fields.len() > 50, "only {} fields were found", fields.len());
    fields
}

/// The rows of the tables that are about a field.
fn rows(field: &str) -> Vec<&'static str> {
    let plain = format!("| `{field}`");
    let linked = format!("| [`{field}`]");
    PAGE.lines().filter(|line| line.starts_with(&plain) || line.starts_with(&linked)).collect()
}

#[test]
fn every_field_is_documented() {
    // All others have a row of their own in a table.
    let elsewhere = ["not", "cidr", "first", "attribute", "path"];
    for (field, _) in fields() {
        assert!(PAGE.contains(&format!("`{field}`")), "`{field}` is not documented");
        assert!(
            elsewhere.contains(&field.as_str()) || !rows(&field).is_empty(),
            "`{field}` has no row"
        );
    }
}

#[test]
fn every_default_is_stated_in_the_row_of_its_field() {
    for (field, shape) in fields() {
        let default = match shape.get("default") {
            Some(Value::String(word)) => word.clone(),
            Some(other) => other.to_string().replace('"', "").replace(',', ", "),
            None => continue,
        };
        let is_stated = rows(&field).iter().any(|row| row.contains(&format!("`{default}`")));
        assert!(is_stated, "{default} is not stated as the default of `{field}`");
    }
}

#[test]
fn every_word_that_a_field_may_be_is_documented() {
    walk_schema(&mut |node| {
        let several = node.get("enum").and_then(Value::as_array).into_iter().flatten();
        for word in several.chain(node.get("const")) {
            let word = word.as_str().unwrap();
            assert!(PAGE.contains(&format!("`{word}`")), "`{word}` is not documented");
        }
    });
}

#[test]
fn every_warning_has_its_section_and_there_is_no_section_for_another() {
    let (_, warnings) = PAGE.split_once("\n## Warnings\n").unwrap();
    let (warnings, _) = warnings.split_once("\n## ").unwrap();
    let sections =
        warnings.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'));
    let codes = WarningCode::ALL.map(WarningCode::name);
    assert_eq!(sections.collect::<BTreeSet<_>>(), codes.into_iter().collect());
}

/// What stands in backticks.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_pattern_stands_for_the_paths_that_are_shown_and_not_for_the_others() {
    let (_, table) = PAGE.split_once("<!-- patterns -->").unwrap();
    let is_row = |line: &&str| line.starts_with("| `");
    let rows: Vec<&str> =
        table.lines().skip_while(|line| !is_row(line)).take_while(is_row).collect();
    assert!(rows.len() >= 5, "only {} patterns were found", rows.len());
    for row in rows {
        let columns: Vec<&str> = row.split(" | ").collect();
        let [pattern, inside, outside] = columns[..] else { panic!("{row} has three columns") };
        check_pattern(pattern, inside, outside);
    }
}

fn check_pattern(pattern: &str, inside: &str, outside: &str) {
    let pattern = words(pattern).next().expect("a row names a pattern");
    let limit = format!("limits: [{{name: it, when: {{path: \"{pattern}\"}}, rate: 5/minute}}]");
    let policy = policy(&limit);
    let applies = |path: &str| !names(&policy, &[("path", path.as_bytes())]).is_empty();
    for path in words(inside) {
        assert!(applies(path), "{pattern} stands for {path}");
    }
    for path in words(outside) {
        assert!(!applies(path), "{pattern} does not stand for {path}");
    }
}

fn with_commas(number: usize) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

#[test]
fn the_bounds_that_are_stated_are_those_in_force() {
    let stated = [
        ("bytes of a policy", format!("{} MiB", bounds::POLICY_BYTES_MAX >> 20)),
        ("bytes of a tenants file", format!("{} MiB", bounds::TENANTS_BYTES_MAX >> 20)),
        ("commas, colons, brackets and lines of a policy", with_commas(bounds::POLICY_MARKS_MAX)),
        ("the same of a tenants file with a key a line", with_commas(bounds::TENANTS_MARKS_MAX)),
        ("depth of lists and maps", with_commas(bounds::DEPTH_MAX)),
        ("limits", with_commas(bounds::LIMITS_MAX)),
        ("rates of one limit", with_commas(bounds::RATES_MAX)),
        ("bytes of a limit's name", with_commas(bounds::NAME_BYTES_MAX)),
        ("entries of `per`", with_commas(bounds::PER_MAX)),
        ("attributes of `first`", with_commas(bounds::FIRST_MAX)),
        ("shards of one limit", with_commas(*bounds::SHARDS_RANGE.end() as usize)),
        ("nodes", with_commas(bounds::NODES_MAX as usize)),
        ("servers of `cluster`, Sentinels", with_commas(bounds::REDIS_SERVERS_MAX)),
        ("routes of `upstream`", with_commas(bounds::ROUTES_MAX)),
        ("hosts of a route, and paths", with_commas(bounds::ROUTE_PATTERNS_MAX)),
        ("servers of a route", with_commas(bounds::TARGETS_MAX)),
        ("bytes of such a server's name", with_commas(bounds::HOST_BYTES_MAX)),
        ("bytes of an attribute's name", with_commas(bounds::ATTRIBUTE_BYTES_MAX)),
        ("bytes of a tenant's or tier's name", with_commas(bounds::TENANT_BYTES_MAX)),
        ("bytes of a path pattern", with_commas(bounds::PATTERN_BYTES_MAX)),
        (
            "entries of a `sliding_log`, slots of a `concurrency` limit",
            with_commas(tollgate_core::bounds::LOG_ENTRIES_MAX as usize),
        ),
    ];
    for (what, most) in stated {
        let row = format!("\n| {what} | {most} |\n");
        assert!(PAGE.contains(&row), "the page does not state {row}");
    }
    let many = with_commas(bounds::LOG_ENTRIES_WARNED as usize);
    assert!(PAGE.contains(&format!("more than {many} requests for each key")), "{many}");
    let least = bounds::MEMORY_BYTES_MIN >> 20;
    assert!(PAGE.contains(&format!("size, at least {least}MiB")), "{least}");
    let (from, to) = bounds::IPV6_PREFIX_RANGE.into_inner();
    assert!(PAGE.contains(&format!("number, {from} to {to}")), "{from} to {to}");
    let (least, most) = bounds::SHARDS_RANGE.into_inner();
    assert!(PAGE.contains(&format!("number, {least} to {most}")), "{least} to {most}");
    for range in [
        bounds::STORE_TIMEOUT_MICROS_RANGE,
        bounds::GATEWAY_TIMEOUT_MICROS_RANGE,
        bounds::OTLP_INTERVAL_MICROS_RANGE,
    ] {
        let (least, most) = range.into_inner();
        let (least, most) = (Micros::new(least), Micros::new(most));
        assert!(PAGE.contains(&format!("time, {least} to {most}")), "{least} to {most}");
    }
    assert!(PAGE.contains(&format!("number, 1 to {} |", bounds::HELD_MAX)));
    let (names, bytes) = (bounds::JSON_NAMES_MAX, bounds::JSON_PATH_BYTES_MAX);
    assert!(PAGE.contains(&format!("at most {names} names and {bytes} bytes")), "{names}, {bytes}");
}

#[test]
fn the_policies_of_the_gateways_page_are_in_order() {
    let blocks = blocks_of(GATEWAY_PAGE);
    let policies = blocks.iter().filter(|block| block.is_policy());
    assert!(policies.clone().count() > 0);
    for block in policies {
        let warnings: Vec<String> =
            policy(&block.text).warnings().iter().map(ToString::to_string).collect();
        assert_eq!(warnings, [""; 0], "{}", block.text);
    }
}
