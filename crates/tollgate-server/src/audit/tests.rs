use std::fs;

use tollgate::{Clock, MemoryStore, Policy, Timestamp};

use super::*;

const PEER: ([u8; 4], u16) = ([127, 0, 0, 1], 50_312);

/// How often each of these actions was written down of all that came at one moment.
fn written(came: &[(Action<'_>, Effect, u16, usize)]) -> Vec<usize> {
    let clock = Clock::manual(Timestamp::from_micros(1_760_000_000_000_000));
    let store = MemoryStore::with_max_bytes(clock, 1 << 20).expect("a megabyte");
    let policy = Policy::parse("policy", "limits: [{name: api, per: [user], rate: 1/day}]", &mut {
        |_: &str| Err("there are no files".to_owned())
    });
    let limiter = Limiter::new(policy.expect("a policy"), store).expect("one limit");
    let folder = std::env::temp_dir().join(format!("tollgate-audit-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let (audit, file) = (Audit::default(), folder.join("audit.jsonl"));
    let settings = AuditSettings::into_file(file.display().to_string());
    audit.put_in_force(audit.prepare(Some(&settings), &folder).expect("it is opened"));
    for (action, effect, status, times) in came {
        for _ in 0..*times {
            audit.acted(&limiter, action, *effect, PEER.into(), *status);
        }
    }
    audit.close();
    let text = fs::read_to_string(&file).expect("lines");
    fs::remove_dir_all(&folder).expect("it is there");
    let count = |name: &str| text.matches(&format!("\"action\":\"{name}\"")).count();
    came.iter().map(|(action, ..)| count(action.name())).collect()
}

#[test]
fn what_changes_nothing_hides_nothing_that_was_changed() {
    let key: KeyBuf = "api:anna".parse().unwrap();
    let (changed, nothing) = (Effect::Changed, Effect::Nothing);
    let written = written(&[
        (Action::Access, nothing, 401, 1_000),
        (Action::Reset(&key), nothing, 200, 1_000),
        (Action::RemoveOverride(&key), nothing, 404, 1_000),
        (Action::Reload, nothing, 200, 1_000),
        (Action::Ban(&key), changed, 200, 150),
        (Action::Unban(&key), changed, 200, 150),
    ]);
    assert_eq!(written, [10, 50, 0, 0, 150, 50], "each within its own bound");
}
