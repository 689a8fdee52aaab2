//! Rules about manifests: who may import whom, and where versions stand.
//!
//! Manifests are read line by line. They are our own and plain, and a parser of all of TOML would
//! be this crate's only dependency.

use super::Violation;
use super::tree::Tree;

const ROOT: &str = "Cargo.toml";

/// Which of our crates each of them may import. What is missing here is what keeps the layers
/// apart: policies know no stores, stores know no policies, and nothing knows the doors.
const IMPORTS: &[(&str, &[&str])] = &[
    ("tollgate-core", &[]),
    ("tollgate-policy", &["tollgate-core"]),
    ("tollgate-store", &["tollgate-core"]),
    ("tollgate", &["tollgate-core", "tollgate-policy", "tollgate-store"]),
    ("tollgate-client", &["tollgate-core"]),
    ("tollgate-sim", &["tollgate-core", "tollgate-policy"]),
    ("tollgate-server", &["tollgate"]),
    (
        "tollgate-cli",
        &[
            "tollgate",
            "tollgate-client",
            "tollgate-core",
            "tollgate-policy",
            "tollgate-server",
            "tollgate-sim",
            "tollgate-store",
        ],
    ),
    ("tollgate-harness", &[]),
    ("xtask", &[]),
];

/// The crate that people may want without anything else.
const CORE: &str = "tollgate-core";

/// The import table, and a folder for each crate under its own name.
pub(super) fn imports(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for member in members(tree) {
        let Some(allowed) = imports_of(member.name) else {
            violations.push(Violation::in_file(
                member.path,
                format!(
                    "crate `{}` is not in the import table; add it in xtask/src/tidy/manifest.rs \
                     with what it may import, and to the code map of ARCHITECTURE.md",
                    member.name
                ),
            ));
            continue;
        };
        if package_name(member.text).as_deref() != Some(member.name) {
            let sentence =
                format!("the package must be called `{}`, as its folder is", member.name);
            violations.push(Violation::in_file(member.path, sentence));
        }
        for dependency in dependencies(member.text) {
            let problem = match dependency.kind {
                Kind::Normal => import_problem(member.name, &dependency.name, allowed),
                Kind::Development => cycle_problem(member.name, &dependency.name),
            };
            violations.extend(
                problem.map(|sentence| Violation::at_line(member.path, dependency.line, sentence)),
            );
        }
    }
    violations
}

/// Versions stand in the root manifest, and so does the lint table: both are named once.
pub(super) fn shared_settings(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for member in members(tree) {
        for dependency in dependencies(member.text).into_iter().filter(|it| !it.is_inherited) {
            violations.push(Violation::at_line(
                member.path,
                dependency.line,
                format!(
                    "name the version of `{0}` in the root manifest, with a word on why it is \
                     there, and write `{0}.workspace = true` here",
                    dependency.name
                ),
            ));
        }
        let lints = entries(member.text).find(|entry| entry.section == ["lints"]);
        if lints.is_none_or(|entry| entry.text.replace(' ', "") != "workspace=true") {
            let sentence =
                "the lint table is in the root manifest; add `[lints]` with `workspace = true`";
            violations.push(Violation::in_file(member.path, sentence));
        }
    }
    violations
}

/// Dependencies are borrowed code: each has a comment above it that says why. A family (`clap`,
/// `clap_complete`) shares one.
pub(super) fn reasons(tree: &Tree) -> Vec<Violation> {
    let text = tree.text(ROOT).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let mut family: Option<&str> = None;
    let mut violations = Vec::new();
    for entry in entries(text).filter(|entry| entry.section == ["workspace", "dependencies"]) {
        let above = lines[..entry.line - 1].last().map_or("", |line| line.trim());
        if above.starts_with('#') {
            family = Some(entry.key);
        } else if above.is_empty() || above.starts_with('[') {
            family = None;
        }
        let is_ours = entry.text.contains("path =");
        let is_explained = family.is_some_and(|first| is_of_family(entry.key, first));
        if !is_ours && !is_explained {
            let sentence =
                format!("say in a comment line above `{}` why we depend on it", entry.key);
            violations.push(Violation::at_line(ROOT, entry.line, sentence));
        }
    }
    violations
}

fn is_of_family(name: &str, first: &str) -> bool {
    name.strip_prefix(first).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '_']))
}

fn imports_of(name: &str) -> Option<&'static [&'static str]> {
    IMPORTS.iter().find(|(of, _)| *of == name).map(|&(_, imports)| imports)
}

fn import_problem(from: &str, to: &str, allowed: &[&str]) -> Option<String> {
    if from == CORE {
        return Some(format!(
            "{CORE} has no dependencies at all; do without `{to}`, or put what needs it into \
             another crate"
        ));
    }
    let is_ours = imports_of(to).is_some() || to.starts_with("tollgate");
    (is_ours && !allowed.contains(&to)).then(|| {
        let may = if allowed.is_empty() { "none".to_owned() } else { allowed.join(", ") };
        format!(
            "{from} may not import {to} (of our crates it may import: {may}); move the code to \
             where both may see it"
        )
    })
}

/// A crate tested with the help of one that imports it is built twice, and the two do not have the
/// same types.
fn cycle_problem(from: &str, to: &str) -> Option<String> {
    reaches(to, from).then(|| {
        format!("{to} imports {from}, so {from} cannot be tested with it; move the test to {to}")
    })
}

fn reaches(from: &str, to: &str) -> bool {
    imports_of(from).unwrap_or_default().iter().any(|next| *next == to || reaches(next, to))
}

/// A crate of the workspace. The benchmark's workspace is not ours to rule: its peers bring what
/// they bring.
struct Member<'a> {
    name: &'a str,
    path: &'a str,
    text: &'a str,
}

fn members(tree: &Tree) -> impl Iterator<Item = Member<'_>> {
    tree.files().filter_map(|(path, text)| {
        let folder = path.strip_suffix("/Cargo.toml")?;
        let name = folder.strip_prefix("crates/").unwrap_or(folder);
        let is_member = !name.contains('/') && (folder != name || name == "xtask");
        is_member.then_some(Member { name, path, text })
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Needed to build the crate, a build script's included.
    Normal,
    /// Needed to build its tests only.
    Development,
}

#[derive(Debug, PartialEq, Eq)]
struct Dependency {
    name: String,
    kind: Kind,
    line: usize,
    /// Whether it says `workspace = true`.
    is_inherited: bool,
}

fn dependencies(manifest: &str) -> Vec<Dependency> {
    let mut found: Vec<Dependency> = Vec::new();
    for entry in entries(manifest) {
        let Some((kind, name)) = dependency_of(&entry) else { continue };
        let is_inherited = entry.text.replace(' ', "").contains("workspace=true");
        // `[dependencies.x]` and `x.features = […]` tell of one dependency in several entries.
        match found.iter_mut().find(|it| it.name == name && it.kind == kind) {
            Some(known) => known.is_inherited |= is_inherited,
            None => found.push(Dependency { name, kind, line: entry.line, is_inherited }),
        }
    }
    found
}

fn dependency_of(entry: &Entry<'_>) -> Option<(Kind, String)> {
    let is_table = |part: &&str| part.ends_with("dependencies");
    let at = entry.section.iter().position(is_table)?;
    let kind = match entry.section[at] {
        "dev-dependencies" => Kind::Development,
        _ => Kind::Normal,
    };
    let name = entry.section.get(at + 1).copied().unwrap_or(entry.key);
    Some((kind, name.to_owned()))
}

fn package_name(manifest: &str) -> Option<String> {
    let mut entries = entries(manifest);
    let entry = entries.find(|entry| entry.section == ["package"] && entry.key == "name")?;
    Some(entry.text.split_once('=')?.1.trim().trim_matches('"').to_owned())
}

/// A line `key = value` of a manifest, with the lines it goes on for.
#[derive(Debug)]
struct Entry<'a> {
    /// The parts of the header it stands under.
    section: Vec<&'a str>,
    /// The first part of its key.
    key: &'a str,
    /// Its lines.
    text: String,
    /// Its first line, counted from 1.
    line: usize,
}

fn entries(manifest: &str) -> impl Iterator<Item = Entry<'_>> {
    let mut section = Vec::new();
    let mut lines = manifest.lines().zip(1..);
    std::iter::from_fn(move || {
        loop {
            let (text, line) = lines.next()?;
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            if text.starts_with('[') {
                section = parts_of(text.trim_matches(['[', ']']));
                continue;
            }
            let mut whole = text.to_owned();
            while open_brackets(&whole) > 0 {
                let Some((more, _)) = lines.next() else { break };
                whole = format!("{whole}\n{}", more.trim());
            }
            let key = text.split(['=', '.', ' ']).next().unwrap_or(text).trim_matches('"');
            return Some(Entry { section: section.clone(), key, text: whole, line });
        }
    })
}

/// `target.'cfg(loom)'.dependencies` has three parts, whatever stands between the quotes.
fn parts_of(header: &str) -> Vec<&str> {
    let mut quote = None;
    let is_end = move |c: char| {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '"' || c == '\'' => quote = Some(c),
            _ => {}
        }
        c == '.' && quote.is_none()
    };
    header.split(is_end).map(|part| part.trim_matches(['"', '\'', ' '])).collect()
}

fn open_brackets(text: &str) -> i32 {
    let mut is_quoted = false;
    let mut open = 0;
    for c in text.chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            '[' | '{' if !is_quoted => open += 1,
            ']' | '}' if !is_quoted => open -= 1,
            _ => {}
        }
    }
    open
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    fn member(name: &str, rest: &str) -> String {
        format!("[package]\nname = \"{name}\"\n\n[lints]\nworkspace = true\n\n{rest}")
    }

    fn check_member(rule: super::super::Rule, name: &str, rest: &str, expected: &[(&str, &str)]) {
        let path = format!("crates/{name}/Cargo.toml");
        let places: Vec<String> =
            expected.iter().map(|(line, _)| format!("{path}{line}")).collect();
        let words = expected.iter().map(|(_, words)| *words);
        let expected: Vec<(&str, &str)> = places.iter().map(String::as_str).zip(words).collect();
        check(rule, &[(&path, &member(name, rest))], &expected);
    }

    #[test]
    fn a_crate_imports_what_the_table_says() {
        let core = "[dependencies]\ntollgate-core.workspace = true\nsha2.workspace = true\n";
        check_member(imports, "tollgate-policy", core, &[]);
        let store = "[dependencies]\ntollgate-store = { workspace = true }\n";
        check_member(
            imports,
            "tollgate-policy",
            store,
            &[(":8", "tollgate-policy may not import tollgate-store")],
        );
        check_member(imports, "tollgate-cli", store, &[]);
    }

    #[test]
    fn every_form_of_a_dependency_is_seen() {
        for table in [
            "[target.'cfg(loom)'.dependencies]\ntollgate-sim.workspace = true\n",
            "[build-dependencies]\ntollgate-sim.workspace = true\n",
            "[dependencies]\ntollgate-sim = {\n  workspace = true,\n}\n",
        ] {
            check_member(imports, "tollgate-store", table, &[(":8", "may not import")]);
        }
        let long = "[dependencies.tollgate-sim]\nworkspace = true\nfeatures = []\n";
        check_member(imports, "tollgate-store", long, &[(":8", "may not import tollgate-sim")]);
    }

    #[test]
    fn core_has_no_dependencies_but_may_be_tested_with_some() {
        check_member(
            imports,
            "tollgate-core",
            "[dependencies]\nsha2.workspace = true\n",
            &[(":8", "no dependencies at all")],
        );
        check_member(imports, "tollgate-core", "[dev-dependencies]\nsha2.workspace = true\n", &[]);
    }

    #[test]
    fn a_crate_is_not_tested_with_one_that_imports_it() {
        let server = "[dev-dependencies]\ntollgate-server.workspace = true\n";
        check_member(imports, "tollgate-core", server, &[(":8", "tollgate-server imports")]);
        let simulator = "[dev-dependencies]\ntollgate-sim.workspace = true\n";
        check_member(imports, "tollgate-store", simulator, &[]);
    }

    #[test]
    fn a_crate_outside_the_table_or_under_another_name_is_refused() {
        check_member(imports, "tollgate-extra", "", &[("", "not in the import table")]);
        check(
            imports,
            &[("crates/tollgate-sim/Cargo.toml", &member("simulator", ""))],
            &[("crates/tollgate-sim/Cargo.toml", "must be called `tollgate-sim`")],
        );
        check(imports, &[("bench/Cargo.toml", &member("peers", ""))], &[]);
    }

    #[test]
    fn a_version_outside_the_root_manifest_is_refused() {
        let inherited = "[dependencies]\nloom = { workspace = true, features = [\"a\"] }\n";
        check_member(shared_settings, "tollgate-store", inherited, &[]);
        for version in
            ["loom = \"0.7\"", "loom = { version = \"0.7\" }", "loom = { path = \"../x\" }"]
        {
            let table = format!("[dev-dependencies]\n{version}\n");
            let expected = [(":8", "write `loom.workspace = true` here")];
            check_member(shared_settings, "tollgate-store", &table, &expected);
        }
    }

    #[test]
    fn a_crate_without_the_lint_table_is_refused() {
        let path = "crates/tollgate-sim/Cargo.toml";
        let expected = [(path, "add `[lints]` with `workspace = true`")];
        check(shared_settings, &[(path, "[package]\nname = \"tollgate-sim\"\n")], &expected);
    }

    #[test]
    fn a_dependency_without_a_reason_is_refused() {
        let root = "[workspace.dependencies]\n\
                    tollgate = { path = \"crates/tollgate\" }\n\
                    # The command line.\n\
                    clap = { version = \"4\", features = [\n  \"derive\",\n] }\n\
                    clap_complete = \"4\"\n\
                    clapper = \"1\"\n\
                    # JSON.\n\
                    serde_json = \"1\"\n\
                    \n\
                    serde_json_more = \"1\"\n";
        check(
            reasons,
            &[("Cargo.toml", root)],
            &[
                ("Cargo.toml:8", "why we depend on it"),
                ("Cargo.toml:12", "above `serde_json_more` why"),
            ],
        );
    }
}
