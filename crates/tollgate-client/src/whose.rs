//! Who makes a request, as far as its fields tell: whoever has the same key has the same budget.
//!
//! A key is a secret, so nothing of it is kept but a hash, and that is another in every process.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;

use http::HeaderMap;
use http::header::AUTHORIZATION;

static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Who makes a request, without what it has shown.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Whose(u64);

impl Whose {
    /// Of one who shows nothing.
    pub(crate) const NOBODY: Self = Self(0);

    /// Who shows these fields. In whatever order they stand, the same ones are of the same.
    pub(crate) fn of(fields: &HeaderMap) -> Self {
        let mut sum = 0_u64;
        for (name, value) in fields {
            if is_credential(name.as_str()) {
                let is_signed = name == AUTHORIZATION;
                sum = sum.wrapping_add(hash(value.as_bytes(), is_signed));
            }
        }
        Self(sum)
    }

    /// Whoever goes by that name.
    #[cfg(any(test, feature = "reqwest", feature = "tower"))]
    pub(crate) fn called(name: &str) -> Self {
        Self(SECRET.hash_one(name))
    }
}

impl fmt::Debug for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::NOBODY { "nobody's" } else { "somebody's" })
    }
}

/// The fields in which callers show their keys. Of a gateway's own (`Proxy-Authorization`) the server knows nothing, and
/// cookies change from answer to answer.
fn is_credential(name: &str) -> bool {
    matches!(
        name,
        "authorization"
            | "api-key" // Azure OpenAI, Brevo, New Relic
            | "apikey" // Supabase, Kong
            | "circle-token" // CircleCI
            | "dd-api-key" // Datadog
            | "job-token" // GitLab
            | "ocp-apim-subscription-key" // Azure
            | "private-token" // GitLab
            | "x-access-token"
            | "x-api-key" // Anthropic, API Gateway of AWS
            | "x-api-token" // Pipedrive
            | "x-auth-key" // Cloudflare
            | "x-auth-token" // OpenStack
            | "x-figma-token"
            | "x-functions-key" // Azure
            | "x-goog-api-key" // Google
            | "x-mbx-apikey" // Binance
            | "x-rapidapi-key"
            | "x-riot-token"
            | "x-shopify-access-token"
            | "x-subscription-token" // Brave
            | "x-vault-token" // HashiCorp
            | "xi-api-key" // ElevenLabs
    )
}

/// How a value that is signed anew for each request names who signs it.
enum Named {
    /// By these parameters.
    By(&'static [&'static str]),
    /// By a parameter, up to a slash.
    ByScoped(&'static str),
    /// By what stands before the colon.
    First,
}

/// Schemes of `Authorization` whose values are signed, in lower case. Those of all others are taken as they are.
static SIGNED: [(&str, Named); 15] = [
    ("aws4-hmac-sha256", Named::ByScoped("credential")),
    ("aws4-ecdsa-p256-sha256", Named::ByScoped("credential")),
    ("goog4-hmac-sha256", Named::ByScoped("credential")),
    ("acs3-hmac-sha256", Named::ByScoped("credential")),
    ("tc3-hmac-sha256", Named::ByScoped("credential")),
    ("digest", Named::By(&["username"])),
    ("oauth", Named::By(&["oauth_consumer_key", "oauth_token"])),
    ("hawk", Named::By(&["id"])),
    ("signature", Named::By(&["keyid"])),
    ("aws", Named::First),
    ("sharedkey", Named::First),
    ("sharedkeylite", Named::First),
    ("oss", Named::First),
    ("acs", Named::First),
    ("sdk-hmac-sha256", Named::By(&["access"])),
];

/// Of what a value says of its caller. One that is signed, and does not say it as it should, is taken as it is.
fn hash(value: &[u8], may_be_signed: bool) -> u64 {
    let mut hasher = SECRET.build_hasher();
    let is_named = may_be_signed && hash_name(value, &mut hasher).is_some();
    if !is_named {
        // Behind what was hashed of a scheme, if it was one.
        hasher.write(value);
    }
    hasher.finish()
}

/// Hashes the name of whoever signs, if that is what it says.
fn hash_name(value: &[u8], hasher: &mut impl Hasher) -> Option<()> {
    let space = value.iter().position(|byte| *byte == b' ')?;
    let (scheme, rest) = value.split_at(space);
    let is_scheme = |known: &str| scheme.eq_ignore_ascii_case(known.as_bytes());
    let (known, named) = SIGNED.iter().find(|(known, _)| is_scheme(known))?;
    hash_part(known.as_bytes(), hasher);
    match named {
        Named::By(names) => {
            // An application is somebody also without the user for whom it asks.
            let said = |name: &&'static str| Some((*name, parameter(rest, name)?));
            let mut parameters = names.iter().filter_map(said).peekable();
            parameters.peek()?;
            for (name, said) in parameters {
                hash_part(name.as_bytes(), hasher);
                hash_part(said, hasher);
            }
        }
        Named::ByScoped(name) => hash_part(before(parameter(rest, name)?, b'/')?, hasher),
        Named::First => hash_part(before(rest, b':')?, hasher),
    }
    Some(())
}

fn hash_part(part: &[u8], hasher: &mut impl Hasher) {
    hasher.write(part);
    hasher.write_u8(0);
}

fn before(text: &[u8], end: u8) -> Option<&[u8]> {
    let at = text.iter().position(|byte| *byte == end)?;
    Some(&text[..at])
}

/// In `a=1, b="2"`, what is said of a name, whatever its case.
fn parameter<'a>(mut rest: &'a [u8], wanted: &str) -> Option<&'a [u8]> {
    loop {
        rest = rest.trim_ascii_start();
        let name = before(rest, b'=')?;
        let is_wanted = name.eq_ignore_ascii_case(wanted.as_bytes());
        rest = &rest[name.len() + 1..];
        let (said, behind) = match rest {
            [b'"', quoted @ ..] => {
                let (said, behind) = quoted.split_at(end_of_quoted(quoted)?);
                (said, &behind[1..])
            }
            _ => {
                let said = before(rest, b',').unwrap_or(rest);
                (said.trim_ascii_end(), &rest[said.len()..])
            }
        };
        if is_wanted {
            return Some(said);
        }
        rest = &behind[before(behind, b',')?.len() + 1..];
    }
}

/// Where the quote is that ends it.
fn end_of_quoted(text: &[u8]) -> Option<usize> {
    let mut is_escaped = false;
    text.iter().position(|byte| {
        let is_end = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        is_end
    })
}

#[cfg(test)]
mod tests;
