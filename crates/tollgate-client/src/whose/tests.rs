use http::{HeaderName, HeaderValue};

use super::*;

fn whose(lines: &[(&str, &str)]) -> Whose {
    let mut fields = HeaderMap::new();
    for (name, value) in lines {
        let name: HeaderName = name.parse().expect("a name of a field");
        fields.append(name, HeaderValue::from_str(value).expect("a value of a field"));
    }
    Whose::of(&fields)
}

/// Two values of `Authorization`, and whether they are of the same.
#[track_caller]
fn check(one: &str, other: &str, is_same: bool) {
    let [one_is, other_is] = [one, other].map(|value| whose(&[("authorization", value)]));
    assert_eq!(one_is == other_is, is_same, "{one} {other}");
    assert_ne!(one_is, Whose::NOBODY);
}

#[test]
fn who_shows_another_key_is_another() {
    for name in ["authorization", "x-api-key", "api-key", "x-goog-api-key", "x-auth-token"] {
        let [one, again, other] = ["key-1", "key-1", "key-2"].map(|key| whose(&[(name, key)]));
        assert_eq!(one, again, "{name}");
        assert_ne!(one, other, "{name}");
        assert_ne!(one, Whose::NOBODY, "{name}");
    }
    check("Bearer abc", "Bearer abd", false);
    check("Basic dXNlcjpwYXNz", "Basic dXNlcjpwYXN0", false);
}

#[test]
fn what_is_no_key_tells_nothing() {
    for name in ["proxy-authorization", "cookie", "user-agent", "idempotency-key", "x-request-id"] {
        assert_eq!(whose(&[(name, "something")]), Whose::NOBODY, "{name}");
    }
}

#[test]
fn several_keys_count_together_in_any_order() {
    let (key, token) = (("apikey", "k"), ("authorization", "Bearer t"));
    assert_eq!(whose(&[key, token]), whose(&[token, key]));
    assert_ne!(whose(&[key, token]), whose(&[key]));
    assert_ne!(whose(&[key, token]), whose(&[token]));
    // The same line twice does not take itself away.
    assert_ne!(whose(&[key, key]), Whose::NOBODY);
}

/// A signature is another for every request; who signs is not.
#[test]
fn who_signs_each_request_is_known_by_name() {
    for (scheme, named, others) in [
        (
            "AWS4-HMAC-SHA256",
            ["Credential=AKID1/20261116/us-east-1/s3/aws4_request", "Credential=AKID2/20261116/x"],
            ["SignedHeaders=host;x-amz-date,Signature=f00d", "SignedHeaders=host,Signature=beef"],
        ),
        (
            "AWS4-HMAC-SHA256",
            ["Credential=AKID1/20261116/eu-west-1/s3/aws4_request", "Credential=AKID2/20261117/x"],
            ["Signature=f00d", "Signature=beef"],
        ),
        (
            "Digest",
            [r#"username="Mufasa, \"the\" king/1""#, r#"username="Scar""#],
            [r#"nonce="a, username=no", response="1""#, r#"nonce="b", response="2""#],
        ),
        (
            "OAuth",
            [
                r#"oauth_consumer_key="c", oauth_token="t1""#,
                r#"oauth_consumer_key="c", oauth_token="t2""#,
            ],
            [r#"oauth_nonce="1", oauth_signature="x""#, r#"oauth_nonce="2", oauth_signature="y""#],
        ),
        (
            "Hawk",
            [r#"id="one""#, r#"id="two""#],
            [r#"ts="1", nonce="a", mac="x""#, r#"ts="2", nonce="b", mac="y""#],
        ),
        (
            "Signature",
            [r#"keyId="one""#, r#"keyId="two""#],
            [r#"signature="x=""#, r#"signature="y=""#],
        ),
    ] {
        let said = |who: usize, what: usize| format!("{scheme} {}, {}", named[who], others[what]);
        let turned = |who: usize, what: usize| format!("{scheme} {}, {}", others[what], named[who]);
        check(&said(0, 0), &said(0, 1), true);
        check(&said(0, 0), &turned(0, 1), true);
        check(&said(0, 0), &said(1, 0), false);
    }
    check("SharedKey account:c2lnMQ==", "SharedKey account:c2lnMg==", true);
    check("SharedKey account:c2lnMQ==", "SharedKey another:c2lnMQ==", false);
    check("AWS AKID:c2lnMQ==", "AWS AKID:c2lnMg==", true);
    check("OSS AKID:c2lnMQ==", "OSS AKID:c2lnMg==", true);
    check("acs AKID:c2lnMQ==", "acs AKID:c2lnMg==", true);
    check("SDK-HMAC-SHA256 Access=A, Signature=1", "SDK-HMAC-SHA256 Access=A, Signature=2", true);
}

#[test]
fn a_quoted_comma_ends_nothing() {
    for before in [r#"realm="Acme, Inc.,""#, r#"uri="/items?ids=1,2,""#, r#"realm="""#] {
        let said = |response| format!(r#"Digest {before}, username="bob", response="{response}""#);
        check(&said("1"), &said("2"), true);
    }
}

#[test]
fn the_same_name_under_another_scheme_or_parameter_is_somebody_else() {
    check(r#"Digest username="x""#, r#"Hawk id="x""#, false);
    check(r#"OAuth oauth_consumer_key="a""#, r#"OAuth oauth_token="a""#, false);
    check("AWS a:1", "SharedKey a:1", false);
}

#[test]
fn what_does_not_say_who_signs_is_taken_as_it_is() {
    for scheme in ["AWS4-HMAC-SHA256", "Digest", "OAuth", "Signature", "SharedKey"] {
        for rest in ["", " ", "=", "x", "username", "username=\"open", "Credential=no-slash", ",,="]
        {
            let value = format!("{scheme} {rest}");
            check(&value, &value, true);
            check(&value, &format!("{value}!"), false);
        }
    }
}

#[test]
fn a_key_is_not_shown() {
    let shown = format!("{:?} {:?}", whose(&[("x-api-key", "swordfish")]), Whose::NOBODY);
    assert_eq!(shown, "somebody's nobody's");
}
