//! Rules about where files are.

use super::Violation;
use super::source::{Source, has_word};
use super::tree::Tree;

/// The one test that is a binary of its own: a loom model is built with a cfg of its own.
const MODEL: &str = "crates/tollgate-store/tests/loom.rs";

/// One integration test binary per crate: each is linked anew, and helpers cannot be shared.
pub(super) fn integration_tests(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, _) in tree.files() {
        let Some(file) = inside_tests(path) else { continue };
        if path == MODEL {
            continue;
        }
        let sentence = match file.split_once('/') {
            None => {
                "move it to tests/it/ and name it in tests/it/main.rs (data goes into a folder of \
                 its own): one integration test binary per crate"
            }
            Some(("it", inner)) => {
                violations.extend(unreached(tree, path, inner));
                continue;
            }
            Some(_) if file.ends_with(".rs") => {
                "move it to tests/it/: of tests/, only that folder holds Rust"
            }
            Some(_) => continue,
        };
        violations.push(Violation::in_file(path, sentence));
    }
    violations
}

/// A file of `tests/it` that no other file names is never compiled, and nobody notices.
fn unreached(tree: &Tree, path: &str, inner: &str) -> Option<Violation> {
    let stem = inner.strip_suffix(".rs")?;
    if stem == "main" {
        return None;
    }
    let folder = path.strip_suffix(inner)?;
    let (parent, name) = match stem.rsplit_once('/') {
        Some((parent, name)) => (format!("{folder}{parent}.rs"), name),
        None => (format!("{folder}main.rs"), stem),
    };
    let code = Source::parse(tree.text(&parent).unwrap_or_default()).code;
    (!has_word(&code, &format!("mod {name}"))).then(|| {
        Violation::in_file(path, format!("it is never compiled; write `mod {name};` in {parent}"))
    })
}

/// What a path is called from the `tests` folder of its crate on, if it is in one.
fn inside_tests(path: &str) -> Option<&str> {
    let in_crate = path.strip_prefix("crates/").and_then(|rest| rest.split_once('/'));
    let inner = in_crate.map(|(_, inner)| inner).or_else(|| path.strip_prefix("xtask/"))?;
    inner.strip_prefix("tests/")
}

/// Every example policy is loaded by a test, so that what people copy works.
pub(super) fn example_policies(tree: &Tree) -> Vec<Violation> {
    const TEST: &str = "crates/tollgate/tests/it/examples.rs";
    let test = tree.text(TEST).unwrap_or_default();
    let policies = tree.below("examples/policies").filter(|(file, _)| file.ends_with(".yaml"));
    let untested = policies.filter(|(file, _)| !test.contains(file));
    untested
        .map(|(file, _)| {
            let sentence = format!("load and exercise it in {TEST}, where its name is not found");
            Violation::in_file(&format!("examples/policies/{file}"), sentence)
        })
        .collect()
}

/// A module is `name.rs`, with `name/` beside it.
pub(super) fn module_files(tree: &Tree) -> Vec<Violation> {
    let named_mod =
        tree.files().filter_map(|(path, _)| Some((path, path.strip_suffix("/mod.rs")?)));
    named_mod
        .map(|(path, folder)| {
            Violation::in_file(path, format!("call it {folder}.rs, and keep its folder beside it"))
        })
        .collect()
}

/// An algorithm in Rust and its twin in Lua name each other: `lua/name.lua` in the module doc of
/// the one, `Twin of name.rs` in the first line of the other. Lua files that begin otherwise are
/// shared by the twins.
pub(super) fn lua_twins(tree: &Tree) -> Vec<Violation> {
    const FOLDER: &str = "crates/tollgate-core/src";
    let mut violations = Vec::new();
    for (file, text) in tree.below(FOLDER) {
        if let Some(name) = file.strip_suffix(".rs") {
            let twin = format!("lua/{name}.lua");
            let begins = format!("Twin of {name}.rs");
            if !module_doc_names(text, &twin) || first_line(tree, &twin).contains(&begins) {
                continue;
            }
            let sentence = format!(
                "it says that {twin} is its twin; add that file, beginning with `-- {begins}`"
            );
            violations.push(Violation::in_file(&format!("{FOLDER}/{file}"), sentence));
        } else if let Some(name) = twin_named_by(file, text) {
            let original = tree.text(&format!("{FOLDER}/{name}.rs")).unwrap_or_default();
            if file == format!("lua/{name}.lua") && module_doc_names(original, file) {
                continue;
            }
            let sentence = format!(
                "it says that it is the twin of {name}.rs; let the two have one name, and let the \
                 module doc of {FOLDER}/{name}.rs name `lua/{name}.lua`"
            );
            violations.push(Violation::in_file(&format!("{FOLDER}/{file}"), sentence));
        }
    }
    return violations;

    fn first_line<'a>(tree: &'a Tree, twin: &str) -> &'a str {
        let text = tree.text(&format!("{FOLDER}/{twin}")).unwrap_or_default();
        text.lines().next().unwrap_or_default()
    }
}

fn module_doc_names(text: &str, twin: &str) -> bool {
    text.lines().filter(|line| line.starts_with("//!")).any(|line| line.contains(twin))
}

fn twin_named_by<'a>(file: &str, text: &'a str) -> Option<&'a str> {
    let first = text.lines().next().filter(|_| file.ends_with(".lua"))?;
    Some(first.split_once("Twin of ")?.1.split_once(".rs")?.0)
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn a_crate_has_one_integration_test_binary() {
        check(
            integration_tests,
            &[
                ("crates/tollgate-store/tests/it/main.rs", "mod clock;\nmod twin;\n"),
                ("crates/tollgate-store/tests/it/clock.rs", ""),
                ("crates/tollgate-store/tests/it/twin.rs", "mod redis;\n"),
                ("crates/tollgate-store/tests/it/twin/redis.rs", ""),
                ("crates/tollgate-store/tests/snapshots/old.bin", ""),
                ("crates/tollgate-store/tests/loom.rs", ""),
            ],
            &[],
        );
        check(
            integration_tests,
            &[("crates/tollgate/tests/loom.rs", ""), ("xtask/tests/other/main.rs", "")],
            &[
                ("crates/tollgate/tests/loom.rs", "move it to tests/it/"),
                ("xtask/tests/other/main.rs", "only that folder holds Rust"),
            ],
        );
    }

    #[test]
    fn a_test_file_that_is_never_compiled_is_refused() {
        check(
            integration_tests,
            &[
                ("crates/a/tests/it/main.rs", "mod clock; // mod twin;\n"),
                ("crates/a/tests/it/clock.rs", "mod other;\n"),
                ("crates/a/tests/it/clock/redis.rs", ""),
                ("crates/a/tests/it/twin.rs", ""),
                ("crates/b/tests/it/alone.rs", ""),
            ],
            &[
                ("crates/a/tests/it/clock/redis.rs", "`mod redis;` in crates/a/tests/it/clock.rs"),
                ("crates/a/tests/it/twin.rs", "`mod twin;` in crates/a/tests/it/main.rs"),
                ("crates/b/tests/it/alone.rs", "`mod alone;` in crates/b/tests/it/main.rs"),
            ],
        );
    }

    #[test]
    fn an_example_policy_that_no_test_names_is_refused() {
        let policy = ("examples/policies/login.yaml", "limits: []\n");
        let test = "crates/tollgate/tests/it/examples.rs";
        check(example_policies, &[policy, (test, "load(\"login.yaml\")")], &[]);
        check(example_policies, &[policy, (test, "")], &[(policy.0, "exercise it in crates")]);
        check(example_policies, &[policy], &[(policy.0, "exercise it in crates")]);
    }

    #[test]
    fn a_module_is_named_after_itself() {
        check(module_files, &[("crates/a/src/b.rs", ""), ("crates/a/src/b/c.rs", "")], &[]);
        check(
            module_files,
            &[("crates/a/src/b/mod.rs", "")],
            &[("crates/a/src/b/mod.rs", "call it crates/a/src/b.rs")],
        );
    }

    const RUST: (&str, &str) =
        ("crates/tollgate-core/src/bucket.rs", "//! Its twin is `lua/bucket.lua`.\n");
    const LUA: (&str, &str) =
        ("crates/tollgate-core/src/lua/bucket.lua", "-- Twin of bucket.rs.\n");

    #[test]
    fn twins_name_each_other() {
        let shared = ("crates/tollgate-core/src/lua/prelude.lua", "-- Shared by the twins.\n");
        let other = ("crates/tollgate-core/src/lib.rs", "//! Algorithms and their Lua twins.\n");
        check(lua_twins, &[RUST, LUA, shared, other], &[]);
    }

    #[test]
    fn a_twin_without_the_other_is_refused() {
        check(lua_twins, &[RUST], &[(RUST.0, "lua/bucket.lua is its twin; add that file")]);
        check(lua_twins, &[LUA], &[(LUA.0, "name `lua/bucket.lua`")]);
        check(lua_twins, &[LUA, (RUST.0, "//! Alone.\n")], &[(LUA.0, "module doc of")]);
        check(lua_twins, &[RUST, (LUA.0, "-- Alone.\n")], &[(RUST.0, "`-- Twin of bucket.rs`")]);
    }
}
