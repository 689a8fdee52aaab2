//! What the scripts promise whoever runs a server: keys that expire, states that keep their format, no
//! way from a key into a script, and clocks that may step.

use std::collections::HashMap;

use tollgate_core::lua::{self, Answer, Mode, Return, Settlement};
use tollgate_core::{
    Algorithm, Align, ChargeId, Cost, Counter, Limit, Micros, Quota, Receipt, Word,
};
use tollgate_harness::{Client, Flavour, Reply, Server};

use crate::support::{START, period};
use crate::twin::{Order, answer, call, five_in, one_of_each};

/// A server with its scripts, asked about one key at given times.
struct Scripts {
    redis: Client,
    take: String,
    refund: String,
    settle: String,
    charges: u64,
    _server: Server,
}

impl Scripts {
    fn start(flavour: Flavour) -> Self {
        let server = Server::start(flavour);
        let mut redis = server.client();
        let (take, refund) = (redis.load(lua::TAKE), redis.load(lua::REFUND));
        let settle = redis.load(lua::SETTLE);
        Self { redis, take, refund, settle, charges: 0, _server: server }
    }

    /// Takes at `now`, which is empty for the server's own clock. Every charge has a name of its own.
    fn take(&mut self, key: &str, now: &str, order: &Order) -> Answer {
        self.charges += 1;
        let order = Order { id: ChargeId(self.charges), ..*order };
        answer(call(&mut self.redis, &self.take, key, now, &order.argument()))
    }

    fn give_back(&mut self, key: &str, back: &Return<'_>) -> i64 {
        call(&mut self.redis, &self.refund, key, "", &back.argument())[0]
    }

    fn settle(&mut self, key: &str, settlement: &Settlement<'_>) -> Answer {
        answer(call(&mut self.redis, &self.settle, key, "", &settlement.argument()))
    }

    /// How many single units are admitted at a moment.
    fn admitted(&mut self, limit: Limit, now: u64) -> u64 {
        let order = Order::enforced(limit, Cost::ONE, 0);
        let mut admitted = 0;
        while self.take("key", &now.to_string(), &order).decision.is_allowed() {
            admitted += 1;
        }
        admitted
    }
}

#[test]
fn by_the_servers_own_clock_whatever_is_done_leaves_no_key_that_never_expires() {
    for flavour in Flavour::ALL {
        let mut scripts = Scripts::start(flavour);
        // So long that nothing ends on the way, however slow the machine is.
        for limit in five_in(Micros::from_secs(86_400 * 30)) {
            let name = limit.algorithm().name();
            let two = Order::enforced(limit, Cost::new(2), 0);
            let change = |mode, cost| Order { mode, cost: Cost::new(cost), ..two };
            let taken = scripts.take(&format!("{name}:refund"), "", &two);
            match &limit {
                Limit::Counter(limit) => {
                    let receipt = Receipt { cost: Cost::ONE, ..taken.receipt };
                    let back = Return::Refund { limit, receipt: &receipt };
                    assert_eq!(scripts.give_back(&format!("{name}:refund"), &back), 1);
                }
                Limit::Logged(limit) => {
                    let (id, held) = (ChargeId(scripts.charges), Cost::new(2));
                    let back = Return::GiveBack { limit, id, held, units: Cost::ONE };
                    assert_eq!(scripts.give_back(&format!("{name}:refund"), &back), 1);
                    let (id, held) = (id, Cost::ONE);
                    let renewal = Return::Renew { limit, id, held };
                    assert_eq!(scripts.give_back(&format!("{name}:refund"), &renewal), 1);
                }
            }
            for (key, cost) in [("more", 50), ("less", 1)] {
                let key = format!("{name}:{key}");
                let receipt = &scripts.take(&key, "", &two).receipt;
                let (id, cost) = (ChargeId(scripts.charges), Cost::new(cost));
                let more_id = ChargeId(u64::MAX);
                let settlement = Settlement { limit: &limit, receipt, id, cost, more_id };
                scripts.settle(&key, &settlement);
            }
            scripts.take(&format!("{name}:credit"), "", &two);
            scripts.take(&format!("{name}:credit"), "", &change(Mode::Credit, 1));
            scripts.take(&format!("{name}:force"), "", &change(Mode::Force, 50));
            scripts.take(&format!("{name}:punish"), "", &change(Mode::Enforce, 5));
            let denied = Order { count_denied: true, ..two };
            scripts.take(&format!("{name}:punish"), "", &denied);
            scripts.take(&format!("{name}:peek"), "", &change(Mode::Enforce, 0));
        }
        let keys = scripts.redis.command(&["KEYS", "*"]);
        assert_eq!(keys.list().len(), 6 * 6, "all but what was only looked at");
        for key in keys.list() {
            let key = key.bytes();
            let left = scripts.redis.command(&[b"PTTL", key]).integer();
            assert!(left > 0, "{} lives for {left}", key.escape_ascii());
        }
    }
}

#[test]
fn a_credit_is_given_with_the_charges_of_its_call_or_not_at_all() {
    let mut scripts = Scripts::start(Flavour::Redis);
    let now = START.to_string();
    let gate = Limit::fixed_window(Quota::per_minute(1), Align::Clock);
    for limit in one_of_each() {
        scripts.redis.command(&["FLUSHALL"]);
        scripts.take("credited", &now, &Order::enforced(limit, Cost::new(5), 0));
        let credit = Order { mode: Mode::Credit, ..Order::enforced(limit, Cost::new(3), 0) };
        let both = [
            b"EVALSHA".to_vec(),
            scripts.take.clone().into_bytes(),
            b"2".to_vec(),
            b"credited".to_vec(),
            b"gate".to_vec(),
            now.clone().into_bytes(),
            credit.argument(),
            Order::enforced(gate, Cost::ONE, 9).argument(),
        ];
        for (allowed, remaining) in [(0, 3), (1, 3)] {
            let fields = scripts.redis.command(&both).integers();
            let credited = answer(fields[..10].to_vec());
            assert_eq!(fields[10], allowed);
            assert_eq!(credited.decision.remaining, remaining, "{limit:?}");
            assert_eq!(credited.receipt.cost, Cost::PEEK, "a credit is nothing to give back");
        }
    }
}

#[test]
fn a_key_is_never_script_text_whatever_bytes_it_holds() {
    let mut scripts = Scripts::start(Flavour::Redis);
    scripts.redis.command(&["SET", "witness", "here"]).ok();
    let hostile: [&[u8]; 8] = [
        b"'); redis.call('FLUSHALL') --",
        b"]] redis.call('FLUSHALL') --[[",
        b"\r\nFLUSHALL\r\n",
        b"*1\r\n$8\r\nFLUSHALL\r\n",
        b"\0",
        b"{}{a}{b",
        b"%s%n%d",
        b"\xff\xfe\xa21t",
    ];
    for limit in one_of_each() {
        let mut left: HashMap<&[u8], i64> = HashMap::new();
        for key in hostile.iter().chain(&hostile) {
            scripts.charges += 1;
            let order = Order::enforced(limit, Cost::ONE, scripts.charges);
            let argument = order.argument();
            let words: [&[u8]; 6] =
                [b"EVALSHA", scripts.take.as_bytes(), b"1", key, b"1760000000000000", &argument];
            let remaining = scripts.redis.command(&words).integers()[2];
            let before = left.insert(key, remaining).unwrap_or(5);
            assert_eq!(remaining, before - 1, "{} is one key", key.escape_ascii());
        }
        for key in hostile {
            assert_eq!(scripts.redis.command(&[b"DEL", key]).integer(), 1);
        }
        assert_eq!(scripts.redis.command(&["DBSIZE"]).integer(), 1, "and nothing else was written");
    }
    assert_eq!(scripts.redis.command(&["GET", "witness"]).text(), "here");
}

const MINUTE: u64 = 60_000_000;
const STEPS: [u64; 6] = [1, 1_000_000, 30_000_000, MINUTE, 60 * MINUTE, 365 * 24 * 60 * MINUTE];

#[test]
fn a_servers_clock_that_steps_back_admits_nothing_extra_and_locks_nobody_out_for_more_than_a_period()
 {
    let mut scripts = Scripts::start(Flavour::Redis);
    for limit in one_of_each() {
        for step in STEPS {
            scripts.redis.command(&["FLUSHALL"]);
            assert_eq!(scripts.admitted(limit, START), 5);
            let steady =
                scripts.take("key", &START.to_string(), &Order::enforced(limit, Cost::ONE, 0));
            let wait = steady.decision.next_after.unwrap_or(steady.decision.reset_after);
            let back = START - step;
            assert_eq!(scripts.admitted(limit, back), 0, "{limit:?} back by {step}");
            // As long as it would have been, and a period.
            let later = back + wait.as_micros() + period(&limit);
            assert!(scripts.admitted(limit, later) > 0, "{limit:?} back by {step}");
        }
    }
}

#[test]
fn a_servers_clock_that_steps_ahead_and_back_gives_no_more_than_was_due_by_then() {
    let mut scripts = Scripts::start(Flavour::Redis);
    for limit in one_of_each() {
        for step in STEPS {
            scripts.redis.command(&["FLUSHALL"]);
            assert_eq!(scripts.admitted(limit, START), 5);
            let extra = scripts.admitted(limit, START + step);
            let due = match limit.algorithm() {
                Algorithm::TokenBucket | Algorithm::LeakyBucket => 5 * step / MINUTE,
                // What ends, ends as a whole: at most a period later.
                _ => 5 * u64::from(step >= 30_000_000),
            };
            assert!(extra <= due.min(5), "{limit:?} ahead by {step}: {extra}");
            assert_eq!(scripts.admitted(limit, START), 0, "{limit:?} and back");
        }
    }
}

/// What lies in the servers of those who run tollgate: a change to these bytes needs a new format, and
/// keys of its own.
#[test]
fn states_of_format_1_are_these_bytes() {
    let quota = Quota::per_minute(5);
    let counter = |limit: Limit, low, high| match limit {
        Limit::Counter(limit) => lua::state_bytes(&limit, Word { low, high }).expect("not vacant"),
        Limit::Logged(_) => unreachable!("a counter"),
    };
    let window = Limit::sliding_window(quota);
    let Limit::Counter(Counter::SlidingWindow(_)) = window else { unreachable!("a window") };
    assert_eq!(
        counter(window, 2 | 0x25_4e6d << 32, 3 | 6 << 32),
        b"\xa21s\xce\x03\x93\x87\x00\x02\x03\xce\x01\xa5\x4e\x6d"
    );
    let bucket = Limit::token_bucket(quota, 5).expect("a bucket");
    assert_eq!(
        counter(bucket, 24_000_000, START),
        b"\xa21t\xce\x00\xb7\x1b\x00\x01\xce\x01n6\x00\xcf\x00\x06@\xb5\xee\xce\x00\x00"
    );
    let queue = Limit::leaky_bucket(quota, 5, None).expect("a queue");
    assert_eq!(counter(queue, 1, 200), b"\xa21l\xce\x00\xb7\x1b\x00\x01\x01\xcc\xc8");
    let clock = Limit::fixed_window(quota, Align::Clock);
    assert_eq!(counter(clock, 300, 0), b"\xa21f\xce\x03\x93\x87\x00\x00\xcd\x01,\x00");

    let mut scripts = Scripts::start(Flavour::Redis);
    let logs = [
        (Limit::sliding_log(quota).expect("a log"), "1sliding_log 60000000"),
        (Limit::concurrency(5, Micros::from_secs(60)).expect("slots"), "1concurrency 60000000"),
    ];
    for (limit, marker) in logs {
        scripts.redis.command(&["FLUSHALL"]);
        scripts.charges = 6;
        scripts.take("key", &START.to_string(), &Order::enforced(limit, Cost::new(2), 0));
        let members = scripts.redis.command(&["ZRANGE", "key", "0", "-1", "WITHSCORES"]);
        let texts: Vec<String> = members.list().iter().map(Reply::text).collect();
        assert_eq!(texts, [marker, "-2", "7:2", "1760000000000000"]);
    }
}
