//! The dashboard: a page that asks the admin API as any other client would.
//!
//! Its files are part of the binary and hold nothing secret, so they need no token. They may ask this
//! door and nobody else, and what they are told cannot become a script: the policy below says so to
//! the browser, whatever a key is called.

use http::{HeaderName, HeaderValue, StatusCode, header};

use crate::http1::{self, Answer};

const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

/// What every file is sent with. Nothing is kept by a browser: after an update the page is the new one.
const FIELDS: [(HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
];

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// A file of the page: its path, what it is, and its text.
type File = (&'static str, &'static str, &'static str);

const FILES: &[File] = &[
    ("/", HTML, include_str!("../dashboard/index.html")),
    ("/icon.svg", SVG, include_str!("../dashboard/icon.svg")),
    ("/dashboard.css", CSS, include_str!("../dashboard/dashboard.css")),
    ("/dashboard.js", SCRIPT, include_str!("../dashboard/dashboard.js")),
    ("/act.js", SCRIPT, include_str!("../dashboard/act.js")),
    ("/chart.js", SCRIPT, include_str!("../dashboard/chart.js")),
    ("/dom.js", SCRIPT, include_str!("../dashboard/dom.js")),
    ("/explain.js", SCRIPT, include_str!("../dashboard/explain.js")),
    ("/format.js", SCRIPT, include_str!("../dashboard/format.js")),
    ("/health.js", SCRIPT, include_str!("../dashboard/health.js")),
    ("/history.js", SCRIPT, include_str!("../dashboard/history.js")),
    ("/key.js", SCRIPT, include_str!("../dashboard/key.js")),
    ("/keylink.js", SCRIPT, include_str!("../dashboard/keylink.js")),
    ("/keys.js", SCRIPT, include_str!("../dashboard/keys.js")),
    ("/limits.js", SCRIPT, include_str!("../dashboard/limits.js")),
    ("/override.js", SCRIPT, include_str!("../dashboard/override.js")),
    ("/overview.js", SCRIPT, include_str!("../dashboard/overview.js")),
    ("/play.js", SCRIPT, include_str!("../dashboard/play.js")),
    ("/server.js", SCRIPT, include_str!("../dashboard/server.js")),
    ("/table.js", SCRIPT, include_str!("../dashboard/table.js")),
];

/// The file at a path, if the page has one there.
pub(super) fn answer(path: &str, is_get: bool) -> Option<Answer> {
    let (_, content_type, text) = FILES.iter().find(|(known, ..)| *known == path)?;
    if !is_get {
        return Some(http1::wrong_method("GET, HEAD"));
    }
    let mut answer = http1::answer(StatusCode::OK, content_type, *text);
    for (name, value) in FIELDS {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    Some(answer)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_file_of_the_folder_is_served_and_asks_for_none_that_is_not() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dashboard");
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut paths: Vec<String> = names
            .map(|name| format!("/{}", name.to_str().unwrap()).replace("index.html", ""))
            .collect();
        let mut served: Vec<String> = FILES.iter().map(|(path, ..)| (*path).to_owned()).collect();
        paths.sort();
        served.sort();
        assert_eq!(paths, served);
        for (path, _, text) in FILES {
            for named in text.split('"').filter_map(|quoted| quoted.strip_prefix("./")) {
                assert!(served.contains(&format!("/{named}")), "{path} asks for {named}");
            }
        }
    }

    #[test]
    fn nothing_makes_markup_or_code_of_a_text() {
        let ways = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
        ];
        for (path, _, text) in FILES {
            for way in ways {
                assert!(!text.contains(way), "{path} has {way}");
            }
        }
    }
}
