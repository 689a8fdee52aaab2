//! Rules about every text: what we publish must make sense on somebody else's machine.

use super::Violation;
use super::tree::Tree;

/// Top folders under which people and build machines keep their checkouts.
const CHECKOUT_FOLDERS: &[&str] = &["home", "root", "work"];

/// A path that exists on one machine only has come in by mistake, mostly in pasted output.
pub(super) fn build_machine_paths(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.files() {
        for (line, number) in text.lines().zip(1..) {
            let tops = CHECKOUT_FOLDERS.iter().filter(|top| names_path(line, top));
            violations.extend(tops.map(|top| {
                let sentence = format!(
                    "a path under /{top}/ is one machine's own; name it from the root of the \
                     repository"
                );
                Violation::at_line(path, number, sentence)
            }));
        }
    }
    violations
}

/// Whether a path under this top folder begins in the line. `/home/**` is a pattern and `/home/x`
/// may well be a request's path, so there a second folder must follow.
fn names_path(line: &str, top: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '.' || c == '-';
    let start = format!("/{top}/");
    line.match_indices(&start).any(|(at, _)| {
        let begins = !line[..at].ends_with(|c: char| is_name(c) || "}*)".contains(c));
        let rest = &line[at + start.len()..];
        let after = rest.trim_start_matches(is_name);
        begins && after.len() < rest.len() && (top != "home" || after.starts_with('/'))
    })
}

/// Links between our own pages lead somewhere.
pub(super) fn links(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (page, text) in tree.files().filter(|(path, _)| path.ends_with(".md")) {
        for (line, number) in prose(text) {
            for target in targets(&line) {
                let file = target.split('#').next().unwrap_or_default();
                let leads_out = target.contains("://") || target.starts_with("mailto:");
                let leads_here = file.is_empty();
                let leads_in = resolve(page, file).is_some_and(|to| tree.has(&to));
                if !(leads_out || leads_here || leads_in) {
                    let sentence =
                        format!("the link to `{target}` leads nowhere; correct it or add the file");
                    violations.push(Violation::at_line(page, number, sentence));
                }
            }
        }
    }
    violations
}

/// Lines of a page with their numbers, without what stands in code, be it a block or a span.
fn prose(text: &str) -> impl Iterator<Item = (String, usize)> {
    let mut is_code = false;
    text.lines().zip(1..).filter_map(move |(line, number)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        let outside_spans = || line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        (!is_code && !is_fence).then(|| (outside_spans(), number))
    })
}

/// What `[text](target "title")`, `[name]: target` and the attributes of HTML in a page point to.
fn targets(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (opening, closing) in [("](", ')'), ("src=\"", '"'), ("href=\"", '"'), ("]: ", '\n')] {
        if closing == '\n' && !line.starts_with('[') {
            continue;
        }
        let pieces = line.split(opening).skip(1);
        found.extend(pieces.filter_map(|piece| {
            piece
                .split(closing)
                .next()?
                .split_whitespace()
                .next()
                .map(|it| it.trim_matches(['<', '>']))
        }));
    }
    found
}

/// The path from the root that a relative link means, if it stays inside the repository.
fn resolve(page: &str, link: &str) -> Option<String> {
    let mut folders: Vec<&str> = page.split('/').collect();
    folders.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(folders.pop()?),
            name => folders.push(name),
        }
    }
    Some(folders.join("/"))
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    fn check_line(line: &str, is_refused: bool) {
        let expected = [("docs/a.md:1", "from the root of the repository")];
        let expected = if is_refused { &expected[..] } else { &[] };
        check(build_machine_paths, &[("docs/a.md", line)], expected);
    }

    // The paths are put together here: written out, this file would break the rule itself.
    #[test]
    fn a_path_of_one_machine_is_refused() {
        check_line(&format!("at /{}/tollgate/src/lib.rs:3", "work"), true);
        check_line(&format!("\"/{}/.cargo/registry\"", "root"), true);
        check_line(&format!("(file:///{}/ada/tollgate)", "home"), true);
    }

    #[test]
    fn a_path_of_any_machine_is_not() {
        check_line("/tmp/x, /etc/tollgate/policy.yaml, target/work/x, ./home/a/b", false);
        check_line("https://a.example/work/x", false);
        check_line("path: /home/**, path: /home/feed", false);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_refused() {
        let pages = [
            (
                "README.md",
                "[a](docs/a.md)\n[b](docs/gone.md#part), [c](docs/a.md)\n<img src=\"docs/b.svg\">",
            ),
            ("docs/a.md", "[up](../README.md#top) [out](../../x.md)\n[ref]: c.md \"title\"\n"),
        ];
        check(
            links,
            &pages,
            &[
                ("README.md:2", "`docs/gone.md#part` leads nowhere"),
                ("README.md:3", "`docs/b.svg` leads nowhere"),
                ("docs/a.md:1", "`../../x.md` leads nowhere"),
                ("docs/a.md:2", "`c.md` leads nowhere"),
            ],
        );
    }

    #[test]
    fn links_to_files_folders_places_and_the_web_are_fine() {
        let page = "[a](docs/), [b](./docs/b.md \"title\"), [c](#part)\n\
                    [d](https://a.example/x.md)\n\
                    ```\n[in a block](gone.md)\n```\n`[in a span](gone.md)` [e]: gone\n";
        check(links, &[("README.md", page), ("docs/b.md", "")], &[]);
    }
}
