//! What Redis must allow and keep, looked at once it is there.
//!
//! A user without the right to a command, or a server that forgets keys when its memory is full, would
//! be found out by the first customer. So it is told at the start, in the words of the documentation.

use std::collections::BTreeSet;
use std::sync::Weak;

use tokio::time::sleep;
use tracing::warn;

use super::bounds::CHECK_PAUSE;
use super::call::{Call, Failure, Pending, Reply};
use super::store::Inner;

/// Each command that tollgate sends or that its scripts call, with what follows the key: first on a
/// text, then on a sorted set, then on a hash. None leaves anything behind.
const COMMANDS: [(&str, &[&str]); 16] = [
    ("SET", &["1", "PX", "1000"]),
    ("GET", &[]),
    ("PEXPIRE", &["1000"]),
    ("UNLINK", &[]),
    ("ZADD", &["1", "member"]),
    ("ZCARD", &[]),
    ("ZRANGE", &["0", "0"]),
    ("ZRANGEBYSCORE", &["0", "1"]),
    ("ZSCORE", &["member"]),
    ("ZREMRANGEBYSCORE", &["0", "0"]),
    ("ZREM", &["member"]),
    ("HSET", &["field", "1"]),
    ("HGET", &["field"]),
    ("HINCRBY", &["field", "1"]),
    ("HDEL", &["field"]),
    ("UNLINK", &[]),
];

/// Warns of what is not as it should be, once every server has answered. Begins when one has for the
/// first time.
pub(super) async fn run(store: Weak<Inner>) {
    loop {
        let Some(inner) = store.upgrade() else { return };
        let looks: Vec<Look> =
            inner.fleet.tags().iter().map(|tag| Look::begin(&inner, tag)).collect();
        drop(inner);
        let mut found = Some(Vec::new());
        for look in looks {
            // Each is heard to its end, also if another was not.
            let one = look.end().await;
            found = found.zip(one).map(|(mut all, one)| {
                all.push(one);
                all
            });
        }
        match found {
            Some(found) => return found.into_iter().for_each(Found::tell),
            None => sleep(CHECK_PAUSE).await,
        }
    }
}

/// What is asked of one server.
struct Look {
    server: String,
    settings: [Pending; 2],
    commands: Vec<Pending>,
}

impl Look {
    /// Asks the server whose keys have a hash tag.
    fn begin(inner: &Inner, tag: &str) -> Self {
        let key = format!("{}:{{{tag}}}:%check", inner.prefix);
        let slot = inner.fleet.slot(key.as_bytes());
        let ask = |words: &[&str]| {
            let words = words.iter().collect();
            inner.fleet.send(Call { script: None, words, slot, late: None })
        };
        let settings = ["maxmemory", "maxmemory-policy"].map(|what| ask(&["CONFIG", "GET", what]));
        let on_keys =
            COMMANDS.iter().map(|(command, rest)| ask(&[&[*command, &key], *rest].concat()));
        // A script that is known runs without the right to tell its text, until Redis forgets it.
        let others = [ask(&["TIME"]), ask(&["EVAL", "return 1", "1", &key])];
        let commands = on_keys.chain(others).collect();
        Self { server: inner.fleet.address(slot), settings, commands }
    }

    /// What it answered; nothing if it did not answer everything.
    async fn end(self) -> Option<Found> {
        let refused = refusals(self.commands).await?;
        let [maxmemory, policy] = self.settings;
        let [maxmemory, policy] = [answered(maxmemory.await)?, answered(policy.await)?];
        // A server that does not tell its settings, as those of some providers, is not asked for more.
        let policy = maxmemory
            .ok()
            .zip(policy.ok())
            .and_then(|(maxmemory, policy)| forgets(&maxmemory, &policy));
        Some(Found { server: self.server, refused, policy })
    }
}

/// What is not as it should be at one server.
struct Found {
    server: String,
    refused: BTreeSet<String>,
    /// By which it forgets keys.
    policy: Option<String>,
}

impl Found {
    fn tell(self) {
        let server = self.server;
        if !self.refused.is_empty() {
            let errors = self.refused.into_iter().collect::<Vec<_>>().join("; ");
            warn!(
                server,
                errors, "Redis refuses what tollgate needs; docs/redis.md lists the access rules"
            );
        }
        if let Some(policy) = self.policy {
            warn!(
                server,
                %policy,
                "Redis forgets keys when its memory is full, and with them what was consumed; set \
                 maxmemory-policy to noeviction"
            );
        }
    }
}

/// What there is no right to; nothing if something was not answered. Two nodes that look at the same
/// time may find each other's values, so that other errors mean nothing.
async fn refusals(asked: Vec<Pending>) -> Option<BTreeSet<String>> {
    let mut refused = BTreeSet::new();
    let mut is_answered = true;
    for pending in asked {
        match answered(pending.await) {
            Some(Err(error)) if error.starts_with("NOPERM ") => {
                refused.insert(error);
            }
            Some(_) => {}
            None => is_answered = false,
        }
    }
    is_answered.then_some(refused)
}

/// What a server said, be it an error; nothing if it said nothing.
fn answered(result: Result<Reply, Failure>) -> Option<Result<Reply, String>> {
    match result {
        Ok(reply) => Some(Ok(reply)),
        Err(Failure::Refused(error)) => Some(Err(error)),
        Err(Failure::NotSent | Failure::Timeout | Failure::Lost | Failure::TryAgain) => None,
    }
}

/// The policy by which Redis forgets keys that are in use, if it does.
fn forgets(maxmemory: &Reply, policy: &Reply) -> Option<String> {
    let is_bounded = value(maxmemory)? != "0";
    value(policy).filter(|policy| is_bounded && policy != "noeviction")
}

fn value(setting: &Reply) -> Option<String> {
    match setting {
        Reply::List(fields) => match &fields[..] {
            [_, Reply::Bytes(value)] => String::from_utf8(value.clone()).ok(),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::time::Duration;

    use tokio::runtime::Builder;
    use tollgate_harness::{Flavour, Setup, eventually};

    use super::*;
    use crate::redis::fleet::Servers;
    use crate::redis::store::{RedisSettings, RedisStore};

    /// What the access rules name besides commands on keys and the time.
    const OTHERS: [&str; 8] =
        ["evalsha", "eval", "select", "config|get", "ping", "role", "cluster|slots", "asking"];

    fn read(path: &str) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn scripts(folder: &str) -> Vec<String> {
        let files = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let files = files.read_dir().expect("a folder of this workspace");
        let names =
            files.map(|file| file.expect("a file").file_name().into_string().expect("a name"));
        let names = names.filter(|name| name.ends_with(".lua"));
        names.map(|name| read(&format!("{folder}/{name}"))).collect()
    }

    /// The commands that a script calls, each by its name and not by a variable.
    fn called(script: &str) -> Vec<String> {
        let calls = script
            .split("redis.")
            .skip(1)
            .filter_map(|rest| rest.strip_prefix("call(").or_else(|| rest.strip_prefix("pcall(")));
        let calls = calls.map(|rest| {
            let name = rest.strip_prefix('\'').and_then(|rest| rest.split_once('\''));
            name.unwrap_or_else(|| panic!("no command is named: {rest:.40}")).0.to_lowercase()
        });
        calls.collect()
    }

    #[test]
    fn the_access_rules_and_the_commands_looked_at_are_those_that_are_used() {
        let scripts = ["src/redis", "../tollgate-core/src/lua"].map(scripts);
        // Whatever is sent by itself, some script calls too.
        let used: BTreeSet<String> =
            scripts.iter().flatten().flat_map(|text| called(text)).collect();
        assert!(used.contains("zscore") && used.contains("hset"), "of both crates: {used:?}");

        let looked_at = COMMANDS.iter().map(|(command, _)| command.to_lowercase());
        assert_eq!(looked_at.chain(["time".to_owned()]).collect::<BTreeSet<_>>(), used);

        let page = read("../../docs/redis.md");
        let rules = page.lines().find(|line| line.starts_with("ACL SETUSER tollgate "));
        let allowed = rules.unwrap().split(' ').filter_map(|word| word.strip_prefix('+'));
        let needed = used.iter().map(String::as_str).chain(OTHERS);
        assert_eq!(allowed.collect::<BTreeSet<_>>(), needed.collect());
    }

    #[test]
    fn a_user_who_may_run_scripts_that_are_known_and_no_others_is_found_out() {
        let page = read("../../docs/redis.md");
        let rules = page.lines().find(|line| line.starts_with("ACL SETUSER tollgate ")).unwrap();
        let rules = rules.replace("ACL SETUSER tollgate ", "user tollgate ").replace("+eval ", "");
        let users = format!("{rules}\nuser admin on nopass ~* +@all\nuser default off\n");
        let server = Setup::new(Flavour::Redis).users(&users).start();
        let settings = RedisSettings {
            servers: Servers::Single(format!("redis://tollgate:password@{}", server.address())),
            timeout: Duration::from_secs(5),
            prefix: "tollgate".to_owned(),
            nodes: None,
        };
        let store = RedisStore::open(settings).unwrap();
        let found = eventually("the server answers", || {
            let look = Look::begin(&store.0, "%").end();
            Builder::new_current_thread().build().expect("a runtime").block_on(look)
        });
        assert_eq!(found.server, server.address().to_string());
        let refused: Vec<&str> = found.refused.iter().map(String::as_str).collect();
        assert!(matches!(refused[..], [error] if error.contains("'eval'")), "{refused:?}");
    }

    fn setting(value: &str) -> Reply {
        Reply::List(vec![Reply::Bytes(b"name".to_vec()), Reply::Bytes(value.as_bytes().to_vec())])
    }

    #[tokio::test]
    async fn what_was_not_answered_is_not_taken_for_allowed() {
        assert_eq!(refusals(Vec::new()).await, Some(BTreeSet::new()));
        assert_eq!(refusals(vec![Pending::NOT_SENT]).await, None);
        let settings = [Pending::NOT_SENT, Pending::NOT_SENT];
        let look = Look { server: String::new(), settings, commands: Vec::new() };
        assert!(look.end().await.is_none());
    }

    #[test]
    fn only_a_server_with_bounded_memory_and_another_policy_forgets() {
        for (maxmemory, policy, is_told) in [
            ("0", "allkeys-lru", false),
            ("100000000", "noeviction", false),
            ("100000000", "allkeys-lru", true),
            ("100000000", "volatile-ttl", true),
        ] {
            let told = forgets(&setting(maxmemory), &setting(policy));
            assert_eq!(told.is_some(), is_told, "{maxmemory} {policy}");
        }
        assert_eq!(forgets(&Reply::Nil, &setting("allkeys-lru")), None);
    }
}
