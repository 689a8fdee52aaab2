//! The one form of a path.

use std::borrow::Cow;

use tollgate::http::path::{Ambiguous, resolve, tidy};
use tollgate::{Paths, Policy};

use crate::Gate;

/// What a policy says of paths.
fn paths(text: &str) -> Paths {
    let text = format!("paths: {text}\nlimits: []");
    let policy = Policy::parse("policy.yaml", &text, &mut |_| Err(String::new()));
    policy.unwrap_or_else(|mistakes| panic!("{mistakes}")).settings().paths
}

#[test]
fn a_path_has_one_form() {
    let paths = paths("{ trailing_slash: apart, params: apart }");
    for (raw, resolved) in [
        ("/", "/"),
        ("/login", "/login"),
        ("/login/", "/login/"),
        ("/login;a=1", "/login;a=1"),
        ("*", "*"),
        ("/%6cogin", "/login"),
        ("/%6Cogin", "/login"),
        ("/%6c%6f%67%69%6e", "/login"),
        ("//login", "/login"),
        ("///login//", "/login/"),
        ("/./login", "/login"),
        ("/login/.", "/login/"),
        ("/x/../login", "/login"),
        ("/x/%2e%2E/login", "/login"),
        ("/x/.%2e/login", "/login"),
        ("/%2e/login", "/login"),
        ("/../../login", "/login"),
        ("/..", "/"),
        ("/x/..", "/"),
        ("/x/y/..", "/x/"),
        ("/x//../login", "/login"),
        ("/x/y/../../z/./../login", "/login"),
        ("/.well-known/acme", "/.well-known/acme"),
        ("/...", "/..."),
        ("/..x/y", "/..x/y"),
        ("/x./y../z", "/x./y../z"),
        ("/a%20b", "/a%20b"),
        ("/caf%c3%a9", "/caf%C3%A9"),
        ("/%e2%82%ac%f0%9f%98%80", "/%E2%82%AC%F0%9F%98%80"),
        ("/a%3ab%40c%2bd%21", "/a:b@c+d!"),
        ("/a%3bb", "/a%3Bb"),
        ("/a%3fb%23c", "/a%3Fb%23c"),
        ("/%252f", "/%252f"),
        ("/%25%32%66", "/%252f"),
        ("/a{b}|\"<>^`", "/a%7Bb%7D%7C%22%3C%3E%5E%60"),
        ("/a%0ab%7f", "/a%0Ab%7F"),
        ("/;a/login", "/;a/login"),
        ("/%3ba/login", "/%3Ba/login"),
    ] {
        assert_eq!(resolve(raw, &paths).as_deref(), Ok(resolved), "{raw}");
        assert_eq!(resolve(resolved, &paths).as_deref(), Ok(resolved), "{resolved} stays as it is");
    }
}

#[test]
fn a_path_that_is_read_in_two_ways_is_refused() {
    let paths = Paths::default();
    for (raw, why) in [
        ("", Ambiguous::Relative),
        ("login", Ambiguous::Relative),
        ("http://example.com/login", Ambiguous::Relative),
        ("/a%2fb", Ambiguous::Slash),
        ("/a%2Fb", Ambiguous::Slash),
        ("/..%2flogin", Ambiguous::Slash),
        ("/a%5cb", Ambiguous::Slash),
        ("/a%5C..%5Cb", Ambiguous::Slash),
        ("/a\\b", Ambiguous::Slash),
        ("/login%00", Ambiguous::Nul),
        ("/login%00.png", Ambiguous::Nul),
        ("/%", Ambiguous::BadEncoding),
        ("/%4", Ambiguous::BadEncoding),
        ("/%zz", Ambiguous::BadEncoding),
        ("/%u002f", Ambiguous::BadEncoding),
        ("/%+1a", Ambiguous::BadEncoding),
        ("/%c0%af", Ambiguous::BadEncoding),
        ("/%e0%80%af", Ambiguous::BadEncoding),
        ("/%f0%80%80%af", Ambiguous::BadEncoding),
        ("/%c0%ae%c0%ae/login", Ambiguous::BadEncoding),
        ("/%ed%a0%80", Ambiguous::BadEncoding),
        ("/%c3/%a9", Ambiguous::BadEncoding),
        ("/%c3a", Ambiguous::BadEncoding),
        ("/caf%e9", Ambiguous::BadEncoding),
        ("/caf\u{e9}", Ambiguous::NotInAPath),
        ("/a b", Ambiguous::NotInAPath),
        ("/a\0", Ambiguous::NotInAPath),
        ("/a\r\nb", Ambiguous::NotInAPath),
        ("/a\x7f", Ambiguous::NotInAPath),
        ("/a?b", Ambiguous::NotInAPath),
        ("/a#b", Ambiguous::NotInAPath),
        ("/x/..;/login", Ambiguous::HiddenDots),
        ("/x/..;a=1/login", Ambiguous::HiddenDots),
        ("/x/..%3b/login", Ambiguous::HiddenDots),
        ("/.;/login", Ambiguous::HiddenDots),
        ("/%2e%2e;/login", Ambiguous::HiddenDots),
        ("/x/;/../login", Ambiguous::HiddenDots),
        ("/x/;a/y/../../login", Ambiguous::HiddenDots),
        ("/x/%3b/../login", Ambiguous::HiddenDots),
        ("/%3b/login", Ambiguous::EncodedParameters),
        ("/search/%3Bword", Ambiguous::EncodedParameters),
    ] {
        assert_eq!(resolve(raw, &paths), Err(why), "{raw:?}");
    }
}

#[test]
fn every_way_to_write_a_path_has_the_budget_of_that_path() {
    for pattern in ["/login", "/login/", "/login;a=1"] {
        let policy = format!("limits: [{{name: a, when: {{path: {pattern}}}, rate: 3/minute}}]");
        let gate = Gate::new(&policy);
        let paths = gate.limiter.pin().policy().settings().paths;
        let ways = [
            "/login",
            "/%6cogin",
            "//login",
            "/./login",
            "/x/../login",
            "/%2e//x/..//%6C%6fgin",
            "/login/",
            "/login//",
            "/login/.",
            "/login;a=1",
            "/login;",
            "/login%3b",
            "/login%3Ba/;b",
            "/;/login",
            "/;a=1/login;b/",
        ];
        let allowed = ways.map(|raw| gate.allows(&[("path", &resolve(raw, &paths).unwrap())]));
        assert_eq!(allowed.iter().filter(|it| **it).count(), 3, "{pattern} {allowed:?}");
        assert!(gate.allows(&[("path", &resolve("/Login", &paths).unwrap())]), "it is another");
    }
}

#[test]
fn a_policy_says_what_is_one_path() {
    let none = "{ trailing_slash: apart, params: apart, case: apart }";
    for (raw, by_default, cases, slashes_apart, params_apart, apart) in [
        ("/", "/", "/", "/", "/", "/"),
        ("/Login", "/Login", "/login", "/Login", "/Login", "/Login"),
        ("/login/", "/login", "/login", "/login/", "/login", "/login/"),
        ("/login;A=1", "/login", "/login", "/login", "/login;A=1", "/login;A=1"),
        ("/login;a/", "/login", "/login", "/login/", "/login;a", "/login;a/"),
        ("/login/;a", "/login", "/login", "/login/", "/login/;a", "/login/;a"),
        ("/a;b/C;d/e", "/a/C/e", "/a/c/e", "/a/C/e", "/a;b/C;d/e", "/a;b/C;d/e"),
        ("/;jsessionid=1", "/", "/", "/", "/;jsessionid=1", "/;jsessionid=1"),
        ("/a%3bB", "/a", "/a", "/a", "/a%3BB", "/a%3BB"),
        ("/%c3%89", "/%C3%89", "/%c3%89", "/%C3%89", "/%C3%89", "/%C3%89"),
        ("*", "*", "*", "*", "*", "*"),
    ] {
        for (options, form) in [
            ("{}", by_default),
            ("{ case: same }", cases),
            ("{ trailing_slash: apart }", slashes_apart),
            ("{ params: apart }", params_apart),
            (none, apart),
        ] {
            let paths = paths(options);
            assert_eq!(resolve(raw, &paths).as_deref(), Ok(form), "{raw} {options}");
            assert_eq!(resolve(form, &paths).as_deref(), Ok(form), "{form} {options}");
        }
    }
}

#[test]
fn encoded_slashes_are_kept_inside_a_segment_if_the_policy_says_so() {
    let paths = paths("{ encoded_slash: keep }");
    for (raw, form) in [
        ("/a%2fb", "/a%2Fb"),
        ("/a%5cb/", "/a%5Cb"),
        ("/files/x%2f%2Fy", "/files/x%2F%2Fy"),
        ("/x%2fy/../login", "/login"),
        ("/a%252fb", "/a%252fb"),
    ] {
        assert_eq!(resolve(raw, &paths).as_deref(), Ok(form), "{raw}");
    }
    for (raw, why) in [
        ("/a\\b", Ambiguous::Slash),
        ("/a%2f..%2fb", Ambiguous::HiddenDots),
        ("/..%2flogin", Ambiguous::HiddenDots),
        ("/a%5c%2e%2e", Ambiguous::HiddenDots),
        ("/a%2f.;x", Ambiguous::HiddenDots),
        ("/a%2f%00", Ambiguous::Nul),
        ("/%c0%af", Ambiguous::BadEncoding),
    ] {
        assert_eq!(resolve(raw, &paths), Err(why), "{raw}");
    }
    let gate = Gate::new("limits: [{name: a, when: {path: '/files/*'}, rate: 1/minute}]");
    let allowed = ["/files/x%2fy", "/files/z"]
        .map(|raw| gate.allows(&[("path", &resolve(raw, &paths).unwrap())]));
    assert_eq!(allowed, [true, false]);
}

#[test]
fn whatever_the_bytes_a_path_is_resolved_once_and_for_all_or_refused() {
    let settings = ["{}", "{ params: apart, trailing_slash: apart }", "{ encoded_slash: keep }"];
    let settings = settings.map(paths);
    let pieces = ["/", "a", ".", "..", ";", "%2e", "%41", "%c3%a9", "%3B", "//", "%2F", "~"];
    let mut number = 0_usize;
    while number < pieces.len().pow(5) {
        let (mut rest, mut raw) = (number, String::from("/"));
        for _ in 0..5 {
            raw.push_str(pieces[rest % pieces.len()]);
            rest /= pieces.len();
        }
        let paths = &settings[number % settings.len()];
        let resolved = resolve(&raw, paths);
        match tidy(&raw, paths) {
            Err(why) => assert_eq!(resolved, Err(why), "{raw}"),
            Ok(sent_on) => {
                assert_eq!(tidy(&sent_on, paths).as_deref(), Ok(&*sent_on), "{raw}");
                assert_eq!(resolve(&sent_on, paths), resolved, "{raw}");
                assert_eq!(sent_on == raw, matches!(sent_on, Cow::Borrowed(_)), "{raw}");
            }
        }
        if let Ok(resolved) = resolved {
            assert_eq!(resolve(&resolved, paths).as_deref(), Ok(&*resolved), "{raw}");
            let folders = resolved[1..].split('/').rev().skip(1);
            assert!(
                resolved.starts_with('/') && folders.into_iter().all(|it| !it.is_empty()),
                "{raw}"
            );
            assert!(resolved.split('/').all(|segment| segment != "." && segment != ".."), "{raw}");
        }
        number += 7;
    }
}

#[test]
fn a_path_is_sent_on_as_it_was_judged_with_all_that_was_only_folded_together() {
    for options in ["{}", "{ trailing_slash: apart, params: apart }", "{ case: same }"] {
        let paths = paths(options);
        for (raw, sent_on) in [
            ("*", "*"),
            ("/", "/"),
            ("/%6cogin", "/login"),
            ("//login", "/login"),
            ("/./login", "/login"),
            ("/x/../login", "/login"),
            ("/login/", "/login/"),
            ("/login//", "/login/"),
            ("/login;a=1", "/login;a=1"),
            ("/x/../%4Cogin;A=%42/", "/Login;A=B/"),
            ("/login%3ba", "/login%3Ba"),
            ("/;jsessionid=1", "/;jsessionid=1"),
            ("/caf%c3%a9", "/caf%C3%A9"),
            ("/caf%C3%A9", "/caf%C3%A9"),
        ] {
            assert_eq!(tidy(raw, &paths).as_deref(), Ok(sent_on), "{raw} {options}");
        }
    }
}
