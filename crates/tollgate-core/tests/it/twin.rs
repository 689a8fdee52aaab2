//! The Redis scripts answer as the Rust functions do: every field of every decision, and every
//! state they leave behind, over random traces on a real server.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use tollgate_core::bounds::LOG_ENTRIES_MAX;
use tollgate_core::lua::{self, Answer, Charge, Mode, Return, Settlement};
use tollgate_core::{
    Algorithm, Align, ChargeId, Cost, Counter, Decision, Entry, Limit, Log, Logged, Micros,
    Outcome, Quota, Receipt, Timestamp, Word,
};
use tollgate_harness::{Client, Flavour, Reply, Server, Text, write_command};

use crate::support::{Rng, START, random_cost, random_limit, random_long_log, random_step, span};

#[test]
fn the_scripts_answer_as_the_rust_functions_do_on_redis() {
    compare_traces(Flavour::Redis);
}

#[test]
fn the_scripts_answer_as_the_rust_functions_do_on_valkey() {
    compare_traces(Flavour::Valkey);
}

/// The scripts of format 1 as they were first, and as they are: nodes of two versions on one server.
#[test]
fn the_first_scripts_of_the_format_and_these_decide_by_turns_as_one_of_them_alone() {
    let mut twins = Twins::start(Flavour::Redis);
    let (take, refund) = (include_str!("v1/take.lua"), include_str!("v1/refund.lua"));
    let first = Scripts { take, refund, is_first: true };
    twins.scripts.push_back(first.load(&mut twins.redis));
    for seed in 0..120 {
        let mut trace = Trace::new(seed);
        for _ in 0..150 {
            trace.step(&mut twins);
        }
    }
    twins.compare_all();
    let seen = twins.seen;
    assert!(seen.by_algorithm.iter().all(|&times| times >= 2_000), "{seen:#?}");
}

fn compare_traces(flavour: Flavour) {
    let mut twins = Twins::start(flavour);
    for seed in 0..640 {
        let mut trace = Trace::new(seed);
        for _ in 0..150 {
            trace.step(&mut twins);
        }
    }
    twins.compare_all();

    let seen = twins.seen;
    println!("{} decisions compared, all equal: {seen:#?}", seen.decisions);
    assert!(seen.decisions >= 100_000);
    let rare = [
        seen.denials,
        seen.delays,
        seen.too_costly,
        seen.forced,
        seen.punished,
        seen.withheld,
        seen.shadow_denials,
        seen.refunds,
        seen.renewals,
        seen.credits,
        seen.settled_less,
        seen.settled_more,
        seen.carried_over,
        seen.brought_back,
        seen.keys_twice,
        seen.largest_quotas,
    ];
    assert!(rare.iter().all(|&times| times >= 500), "the traces are too tame: {seen:#?}");
    assert!(seen.by_algorithm.iter().all(|&times| times >= 10_000), "{seen:#?}");
}

/// What the traces came across.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    decisions: u64,
    by_algorithm: [u64; 6],
    denials: u64,
    delays: u64,
    too_costly: u64,
    forced: u64,
    punished: u64,
    /// Charges not made because another limit denied.
    withheld: u64,
    shadow_denials: u64,
    /// Refunds that gave something back.
    refunds: u64,
    renewals: u64,
    /// Credits that gave something back.
    credits: u64,
    /// Settlements that gave something back, and that charged more.
    settled_less: u64,
    settled_more: u64,
    /// States whose units were converted to another quota.
    carried_over: u64,
    /// Requests that name a key twice.
    keys_twice: u64,
    /// Decisions at a clock behind the last one.
    brought_back: u64,
    /// Decisions under a limit that holds more than four thousand million.
    largest_quotas: u64,
}

impl Seen {
    fn count(&mut self, order: &Order, answer: &Answer) {
        let outcome = answer.decision.outcome;
        let is_denied = matches!(outcome, Outcome::Denied { .. });
        let place = Algorithm::ALL.iter().position(|it| *it == order.limit.algorithm());
        self.decisions += 1;
        self.by_algorithm[place.expect("one of all")] += 1;
        self.denials += u64::from(is_denied);
        self.too_costly += u64::from(outcome == Outcome::TooCostly);
        self.delays += u64::from(!answer.decision.delay().is_zero());
        self.forced += u64::from(order.mode == Mode::Force);
        self.shadow_denials += u64::from(is_denied && order.mode == Mode::Shadow);
        self.largest_quotas += u64::from(order.limit.capacity() > 4_000_000_000);
    }
}

/// Four keys, and what happens to them.
struct Trace {
    rng: Rng,
    now: Timestamp,
    names: [String; 4],
    limits: [Limit; 4],
    charged: Vec<Charged>,
    charges: u64,
}

/// A charge that was made, and may be given back.
#[derive(Clone, Copy, Debug)]
struct Charged {
    key: usize,
    limit: Limit,
    receipt: Receipt,
    id: ChargeId,
}

impl Trace {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let algorithm = |key| Algorithm::ALL[(seed as usize + key) % 6];
        let limits = [0, 1, 2, 3].map(|key| random_limit(&mut rng, algorithm(key)));
        let start = match rng.below(12) {
            0 => rng.below(span(&limits[0]) + 1),
            1 => Timestamp::END.as_micros() - rng.below(2 * span(&limits[0]) + 1),
            _ => START + rng.below(1_000_000_000_000),
        };
        Self {
            rng,
            now: Timestamp::from_micros(start),
            names: [0, 1, 2, 3].map(|key| format!("{{{seed}}}:{key}")),
            limits,
            charged: Vec::new(),
            charges: seed << 40,
        }
    }

    fn step(&mut self, twins: &mut Twins) {
        let key = self.rng.below(4) as usize;
        let before = self.now;
        self.now = random_step(&mut self.rng, self.now, &self.limits[key]);
        match self.rng.below(20) {
            0 => self.change(key),
            1..=3 if !self.charged.is_empty() => self.give_back(twins),
            4 | 5 if !self.charged.is_empty() => self.settle(twins),
            _ => self.take(key, self.now < before, twins),
        }
    }

    /// Puts a key under another quota, or another algorithm.
    fn change(&mut self, key: usize) {
        let algorithm = match self.rng.below(4) {
            0 => self.rng.pick(&Algorithm::ALL),
            _ => self.limits[key].algorithm(),
        };
        self.limits[key] = random_limit(&mut self.rng, algorithm);
    }

    fn take(&mut self, first: usize, is_back: bool, twins: &mut Twins) {
        let more = if self.rng.one_in(3) { self.rng.below(4) as usize } else { 0 };
        let mut keys: Vec<usize> = (0..=more).map(|next| (first + next) % 4).collect();
        if self.rng.one_in(12) {
            keys.push(first);
            twins.seen.keys_twice += 1;
        }
        let orders: Vec<Order> = keys.iter().map(|&key| self.order(key)).collect();
        let answers = twins.take(&self.names, &orders, self.now);
        twins.seen.brought_back += u64::from(is_back);
        for (order, answer) in orders.iter().zip(answers) {
            if answer.receipt.cost != Cost::PEEK {
                let Order { key, limit, id, .. } = *order;
                self.charged.push(Charged { key, limit, receipt: answer.receipt, id });
            }
        }
    }

    fn order(&mut self, key: usize) -> Order {
        self.charges += 1;
        let mode = match self.rng.below(12) {
            0 => Mode::Force,
            1 | 2 => Mode::Shadow,
            3 => Mode::Credit,
            _ => Mode::Enforce,
        };
        Order {
            key,
            limit: self.limits[key],
            cost: random_cost(&mut self.rng, &self.limits[key]),
            mode,
            count_denied: self.rng.one_in(5),
            id: ChargeId(self.charges),
        }
    }

    /// Gives back a charge or part of it, or renews it; once, unless it is of a log, which is to
    /// find nothing the second time.
    fn give_back(&mut self, twins: &mut Twins) {
        let place = match self.rng.one_in(2) {
            true => self.charged.len() - 1,
            false => self.rng.below(self.charged.len() as u64) as usize,
        };
        let charged = self.charged[place];
        let limit = charged.limit;
        let is_log = matches!(limit, Limit::Logged(_));
        if !is_log || self.rng.one_in(2) {
            self.charged.swap_remove(place);
        }
        let renews = is_log && self.rng.one_in(3);
        let units = match self.rng.one_in(3) {
            true => Cost::new(self.rng.below(u64::from(charged.receipt.cost.units()) + 1) as u32),
            false => charged.receipt.cost,
        };
        twins.give_back(&self.names, &charged, units, renews, self.now);
    }
}

impl Trace {
    /// Settles a charge to more, less or the same, once.
    fn settle(&mut self, twins: &mut Twins) {
        let place = match self.rng.one_in(2) {
            true => self.charged.len() - 1,
            false => self.rng.below(self.charged.len() as u64) as usize,
        };
        let charged = self.charged.swap_remove(place);
        let reserved = charged.receipt.cost.units();
        let cost = match self.rng.below(6) {
            0 => reserved,
            1 => 0,
            2 => u32::MAX,
            3 | 4 => self.rng.below(u64::from(reserved) + 1) as u32,
            _ => reserved.saturating_add(self.rng.below(2 * u64::from(reserved) + 2) as u32),
        };
        self.charges += 1;
        twins.settle(&self.names, &charged, Cost::new(cost), ChargeId(self.charges), self.now);
    }
}

/// A charge asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) key: usize,
    pub(crate) limit: Limit,
    pub(crate) cost: Cost,
    pub(crate) mode: Mode,
    pub(crate) count_denied: bool,
    pub(crate) id: ChargeId,
}

impl Order {
    pub(crate) fn enforced(limit: Limit, cost: Cost, id: u64) -> Self {
        let (mode, id) = (Mode::Enforce, ChargeId(id));
        Self { key: 0, limit, cost, mode, count_denied: false, id }
    }

    pub(crate) fn argument(&self) -> Vec<u8> {
        let Self { limit, cost, mode, count_denied, id, .. } = self;
        Charge { limit, cost: *cost, mode: *mode, count_denied: *count_denied, id: *id }.argument()
    }
}

/// The scripts of one version, or their names.
struct Scripts<S> {
    take: S,
    refund: S,
    /// Whether they are those that remove what another algorithm left as soon as they look at it, if
    /// only one of the two keeps a log, or both do.
    is_first: bool,
}

impl Scripts<&str> {
    fn load(&self, redis: &mut Client) -> Scripts<String> {
        let [take, refund] = [self.take, self.refund].map(|text| redis.load(text));
        Scripts { take, refund, is_first: self.is_first }
    }
}

/// A server and the Rust that it is held to. Commands are collected and compared in batches.
struct Twins {
    redis: Client,
    _server: Server,
    /// Whose turn it is comes first.
    scripts: VecDeque<Scripts<String>>,
    settle: String,
    model: Model,
    pipeline: Vec<u8>,
    /// What the commands of the pipeline should be answered.
    expected: Vec<(Reply, Rc<str>)>,
    /// The same of those that were sent before, and are being worked on meanwhile.
    sent: Vec<(Reply, Rc<str>)>,
    seen: Seen,
}

impl Twins {
    fn start(flavour: Flavour) -> Self {
        let server = Server::start(flavour);
        let mut redis = server.client();
        let scripts = Scripts { take: lua::TAKE, refund: lua::REFUND, is_first: false };
        Self {
            scripts: [scripts.load(&mut redis)].into(),
            settle: redis.load(lua::SETTLE),
            redis,
            _server: server,
            model: Model::default(),
            pipeline: Vec::new(),
            expected: Vec::new(),
            sent: Vec::new(),
            seen: Seen::default(),
        }
    }

    fn take(&mut self, names: &[String], orders: &[Order], now: Timestamp) -> Vec<Answer> {
        let names_of_keys: Vec<&str> = orders.iter().map(|order| &*names[order.key]).collect();
        let arguments: Vec<Vec<u8>> = orders.iter().map(Order::argument).collect();
        let now_text = now.as_micros().to_string();
        self.scripts.rotate_left(1);
        let command = evalsha(&self.scripts[0].take, &names_of_keys, &now_text, &arguments);

        self.model.is_first = self.scripts[0].is_first;
        let answers = self.model.take(names, orders, now, &mut self.seen);
        let fields = answers.iter().flat_map(fields).map(Reply::Integer).collect();
        self.expect(&command, Reply::List(fields));
        orders.iter().for_each(|order| self.expect_state(&names[order.key]));
        answers
    }

    fn give_back(
        &mut self,
        names: &[String],
        charged: &Charged,
        units: Cost,
        renews: bool,
        now: Timestamp,
    ) {
        let Charged { key, limit, receipt, id } = charged;
        let (key, id) = (*key, *id);
        let held = receipt.cost;
        let receipt = Receipt { cost: units, ..*receipt };
        let argument = match limit {
            Limit::Counter(limit) => Return::Refund { limit, receipt: &receipt }.argument(),
            Limit::Logged(limit) if renews => Return::Renew { limit, id, held }.argument(),
            Limit::Logged(limit) => Return::GiveBack { limit, id, held, units }.argument(),
        };
        let now_text = now.as_micros().to_string();
        self.scripts.rotate_left(1);
        let command = evalsha(&self.scripts[0].refund, &[&names[key]], &now_text, &[argument]);

        let given = match limit {
            Limit::Counter(limit) => self.model.refund(&names[key], limit, &receipt, now),
            Limit::Logged(limit) if renews => self.model.renew(&names[key], limit, id, held, now),
            Limit::Logged(limit) => self.model.give_back(&names[key], limit, id, held, units, now),
        };
        match renews {
            true => self.seen.renewals += u64::from(given > 0),
            false => self.seen.refunds += u64::from(given > 0),
        }
        self.expect(&command, Reply::List(vec![Reply::Integer(given)]));
        self.expect_state(&names[key]);
    }

    fn settle(
        &mut self,
        names: &[String],
        charged: &Charged,
        cost: Cost,
        more_id: ChargeId,
        now: Timestamp,
    ) {
        let Charged { key, limit, receipt, id } = charged;
        let settlement = Settlement { limit, receipt, id: *id, cost, more_id };
        let now_text = now.as_micros().to_string();
        let argument = settlement.argument();
        let command = evalsha(&self.settle, &[&names[*key]], &now_text, &[argument]);
        let decision = self.model.settle(&names[*key], &settlement, now, &mut self.seen);
        let answer = decision.map(|decision| fields(&Answer { decision, receipt: NOTHING }));
        let reply = answer.into_iter().flatten().map(Reply::Integer).collect();
        self.expect(&command, Reply::List(reply));
        self.expect_state(&names[*key]);
    }

    /// Puts a log under a key of both that is not there yet.
    fn store_log(&mut self, name: &str, limit: Logged, log: Log) {
        for part in members(&limit, &log).chunks(2_000) {
            let mut words = vec!["ZADD".to_owned(), name.to_owned()];
            words.extend(part.chunks(2).flat_map(|pair| [pair[1].clone(), pair[0].clone()]));
            let added = i64::try_from(part.len() / 2).expect("a thousand");
            self.expect(&words, Reply::Integer(added));
        }
        self.model.stored.insert(name.to_owned(), Stored::Log(limit, log));
    }

    fn expect_state(&mut self, name: &str) {
        let (command, expected) = self.model.state(name);
        self.expect(&command, expected);
    }

    fn expect<W: AsRef<[u8]>>(&mut self, command: &[W], reply: Reply) {
        write_command(&mut self.pipeline, command);
        let words = command.iter().map(|word| word.as_ref().escape_ascii().to_string());
        self.expected.push((reply, words.collect::<Vec<_>>().join(" ").into()));
        if self.expected.len() >= 500 {
            self.compare_sent();
        }
    }

    /// Compares what was sent before, and sends what was collected since.
    fn compare_sent(&mut self) {
        let mut before: Rc<str> = "".into();
        for (expected, command) in self.sent.drain(..) {
            assert_eq!(self.redis.receive(), expected, "{command}\nafter {before}");
            before = command;
        }
        self.redis.send(&self.pipeline);
        self.pipeline.clear();
        self.sent.append(&mut self.expected);
    }

    fn compare_all(&mut self) {
        self.compare_sent();
        self.compare_sent();
    }
}

pub(crate) fn fields(answer: &Answer) -> [i64; lua::ANSWER_FIELDS] {
    let Answer { decision, receipt } = answer;
    let outcome = match decision.outcome {
        Outcome::Allowed { .. } => 0,
        Outcome::Denied { .. } => 1,
        Outcome::TooCostly => 2,
    };
    let micros = |micros: Micros| i64::try_from(micros.as_micros()).expect("below 2^53");
    let wait = |wait: Option<Micros>| wait.map_or(-1, micros);
    [
        outcome,
        decision.limit.into(),
        decision.remaining.into(),
        micros(decision.reset_after),
        wait(decision.next_after),
        wait(decision.retry_after()),
        micros(decision.delay()),
        receipt.cost.units().into(),
        i64::try_from(receipt.at.as_micros()).expect("below 2^53"),
        i64::try_from(receipt.debt_before).expect("below 2^53"),
    ]
}

/// What a denied request can give back.
const NOTHING: Receipt = Receipt { at: Timestamp::EPOCH, cost: Cost::PEEK, debt_before: 0 };

/// What the server should hold, kept by the Rust functions.
#[derive(Default)]
struct Model {
    stored: HashMap<String, Stored>,
    /// See [`Scripts::is_first`].
    is_first: bool,
}

/// What is under a key, and the limit it was written under.
#[derive(Clone, PartialEq)]
enum Stored {
    Counter(Counter, Word),
    Log(Logged, Log),
}

impl Stored {
    fn decide(&mut self, now: Timestamp, order: &Order, cost: Cost) -> Answer {
        match self {
            Self::Counter(limit, word) => {
                let transition = match order.mode {
                    Mode::Force => limit.force(*word, now, cost),
                    Mode::Enforce | Mode::Shadow | Mode::Credit => limit.decide(*word, now, cost),
                };
                *word = transition.word;
                Answer { decision: transition.decision, receipt: transition.receipt }
            }
            Self::Log(limit, log) => {
                let transition = match order.mode {
                    Mode::Force => limit.force(log, now, cost, order.id),
                    Mode::Enforce | Mode::Shadow | Mode::Credit => {
                        limit.decide(log, now, cost, order.id)
                    }
                };
                log.apply(transition.change);
                let mut receipt = NOTHING;
                if transition.decision.is_allowed() && cost != Cost::PEEK {
                    let last = log.entries().last().expect("what was just charged");
                    receipt = Receipt { at: last.at, cost, debt_before: 0 };
                }
                Answer { decision: transition.decision, receipt }
            }
        }
    }

    /// The Rust that a credit is held to. The server cannot tell which of the charges of one moment
    /// is the latest, and goes by their names.
    fn credit(&mut self, now: Timestamp, cost: Cost) {
        match self {
            Self::Counter(limit, word) => *word = limit.credit(*word, now, cost),
            Self::Log(limit, log) => {
                let mut entries: Vec<Entry> = log.entries().collect();
                entries.sort_by_key(|entry| (entry.at, member(entry)));
                *log = entries.into_iter().collect();
                limit.credit(log, now, cost);
            }
        }
    }

    fn peek(&mut self, now: Timestamp, order: &Order) -> Answer {
        let order = Order { mode: Mode::Enforce, ..*order };
        Answer { receipt: NOTHING, ..self.decide(now, &order, Cost::PEEK) }
    }
}

impl Model {
    /// What the script does, told with the functions of the core.
    fn take(
        &mut self,
        names: &[String],
        orders: &[Order],
        now: Timestamp,
        seen: &mut Seen,
    ) -> Vec<Answer> {
        let mut accounts: HashMap<usize, Stored> = HashMap::new();
        for order in orders {
            let Order { key, limit, .. } = order;
            let load = || self.load(&names[*key], limit, now, seen);
            accounts.entry(*key).or_insert_with(load).peek(now, order);
        }
        let before = accounts.clone();

        let mut decide = |order: &Order| {
            let account = accounts.get_mut(&order.key).expect("it was loaded");
            match order.mode {
                Mode::Credit => account.peek(now, order),
                _ => account.decide(now, order, order.cost),
            }
        };
        let mut answers: Vec<Answer> = orders.iter().map(&mut decide).collect();
        let is_fine = |(order, answer): (&Order, &Answer)| {
            let denies = matches!(order.mode, Mode::Enforce | Mode::Force);
            !denies || answer.decision.is_allowed()
        };
        let all_allow = orders.iter().zip(&answers).all(is_fine);
        if !all_allow {
            accounts.clone_from(&before);
        }
        let mut punished = Vec::new();
        for (order, answer) in orders.iter().zip(&mut answers) {
            let account = accounts.get_mut(&order.key).expect("it was loaded");
            seen.count(order, answer);
            if settle(account, order, answer, all_allow, now, seen) {
                punished.push(order.key);
            }
        }
        for (key, account) in accounts {
            // What was carried over is written only with a charge.
            let is_charged = account != before[&key] || punished.contains(&key);
            if is_charged || !self.is_carried(&names[key], &account) {
                self.keep(&names[key], account);
            }
        }
        answers
    }

    /// Whether a counter's state is under another quota of its algorithm.
    fn is_carried(&self, name: &str, account: &Stored) -> bool {
        match (self.stored.get(name), account) {
            (Some(Stored::Counter(old, _)), Stored::Counter(new, _)) => {
                algorithm(old) == algorithm(new) && !is_alike(old, new)
            }
            _ => false,
        }
    }

    /// What is under a key, as this limit counts.
    fn load(&mut self, name: &str, limit: &Limit, now: Timestamp, seen: &mut Seen) -> Stored {
        match limit {
            Limit::Counter(limit) => Stored::Counter(*limit, self.word(name, limit, now, seen)),
            Limit::Logged(limit) if !self.is_first && self.is_of_another(name, limit) => {
                Stored::Log(*limit, Log::default())
            }
            Limit::Logged(limit) => Stored::Log(*limit, self.log(name, limit, now).clone()),
        }
    }

    /// What is vacant does not displace what another algorithm left.
    fn keep(&mut self, name: &str, account: Stored) {
        match account {
            Stored::Counter(limit, word) => self.keep_word(name, limit, word),
            Stored::Log(limit, log) if log.is_empty() && self.is_of_another(name, &limit) => {}
            Stored::Log(..) => {
                self.stored.insert(name.to_owned(), account);
                self.keep_log(name);
            }
        }
    }

    /// A refund is made under the quota that the state is in.
    fn refund(&mut self, name: &str, limit: &Counter, receipt: &Receipt, now: Timestamp) -> i64 {
        let mut receipt = *receipt;
        let (written_under, before) = match self.stored.get(name) {
            Some(Stored::Counter(old, word)) if is_alike(old, limit) => (*limit, *word),
            Some(Stored::Counter(old, word)) if algorithm(old) == algorithm(limit) => {
                receipt.debt_before = 0;
                (with_period_of(old, limit), *word)
            }
            // What another algorithm has started afresh there knows nothing of the charge.
            Some(_) | None => return 0,
        };
        let after = written_under.refund(before, now, &receipt);
        self.keep_word(name, written_under, after);
        i64::from(after != before)
    }

    /// What is used less is given back, and what is used more is charged, under the quota that the
    /// state is in; what is said is said by the limit of the charge.
    fn settle(
        &mut self,
        name: &str,
        settlement: &Settlement<'_>,
        now: Timestamp,
        seen: &mut Seen,
    ) -> Option<Decision> {
        let Settlement { limit, receipt, id, cost, more_id } = *settlement;
        let more = Cost::new(cost.units().saturating_sub(receipt.cost.units()));
        let gives_back = cost < receipt.cost;
        match limit {
            Limit::Counter(own) => {
                let (under, word) = match self.stored.get(name) {
                    None => (*own, Word::VACANT),
                    Some(Stored::Counter(old, word)) if is_alike(old, own) => (*own, *word),
                    Some(Stored::Counter(old, word)) if algorithm(old) == algorithm(own) => {
                        (with_period_of(old, own), *word)
                    }
                    Some(_) => return None,
                };
                let after = if gives_back {
                    let mut rest = own.rest(receipt, cost);
                    if !is_alike(&under, own) {
                        rest.debt_before = 0;
                    }
                    under.refund(word, now, &rest)
                } else {
                    under.force(word, now, more).word
                };
                seen.settled_less += u64::from(gives_back && after != word);
                seen.settled_more += u64::from(!gives_back && after != word);
                self.keep_word(name, under, after);
                let word = own.carry_over(&under, after, now);
                Some(own.decide(word, now, Cost::PEEK).decision)
            }
            Limit::Logged(own) => {
                let under = match self.stored.get(name) {
                    None => *own,
                    Some(_) => self.written_under(name, own)?,
                };
                if gives_back {
                    let units = Cost::new(receipt.cost.units() - cost.units());
                    let given = self.give_back(name, &under, id, receipt.cost, units, now);
                    seen.settled_less += u64::from(given > 0);
                }
                let log = self.log(name, &under, now);
                log.apply(under.force(log, now, more, more_id).change);
                seen.settled_more += u64::from(more != Cost::PEEK);
                let decision = own.look(&under, log, now);
                self.keep_log(name);
                Some(decision)
            }
        }
    }

    fn give_back(
        &mut self,
        name: &str,
        limit: &Logged,
        id: ChargeId,
        held: Cost,
        units: Cost,
        now: Timestamp,
    ) -> i64 {
        let Some(limit) = &self.written_under(name, limit) else { return 0 };
        let log = self.log(name, limit, now);
        // The scripts name an entry by what it holds, Rust by its id alone.
        let is_held = log.entries().any(|it| it.id == id && it.units == held.units());
        let units = if is_held { units.units() } else { 0 };
        let given = limit.give_back(log, now, id, units);
        self.keep_log(name);
        given.into()
    }

    fn renew(
        &mut self,
        name: &str,
        limit: &Logged,
        id: ChargeId,
        held: Cost,
        now: Timestamp,
    ) -> i64 {
        let Some(limit) = &self.written_under(name, limit) else { return 0 };
        let log = self.log(name, limit, now);
        let is_held = log.entries().any(|it| it.id == id && it.units == held.units());
        let id = if is_held { id } else { ChargeId(u64::MAX) };
        let is_renewed = limit.renew(log, now, id);
        self.keep_log(name);
        is_renewed.into()
    }

    /// The word under a key, carried over.
    fn word(&mut self, name: &str, limit: &Counter, now: Timestamp, seen: &mut Seen) -> Word {
        match self.stored.get(name) {
            None => Word::VACANT,
            Some(Stored::Counter(old, word)) => {
                let carried = limit.carry_over(old, *word, now);
                seen.carried_over += u64::from(carried != *word && carried != Word::VACANT);
                carried
            }
            Some(Stored::Log(..)) => {
                if self.is_first {
                    self.stored.remove(name);
                }
                Word::VACANT
            }
        }
    }

    /// A vacant word is not kept, and does not displace what another algorithm left.
    fn keep_word(&mut self, name: &str, limit: Counter, word: Word) {
        if word != Word::VACANT {
            self.stored.insert(name.to_owned(), Stored::Counter(limit, word));
        } else if let Some(Stored::Counter(old, _)) = self.stored.get(name)
            && algorithm(old) == algorithm(&limit)
        {
            self.stored.remove(name);
        }
    }

    /// Whether there is something, but no log of this algorithm.
    fn is_of_another(&self, name: &str, limit: &Logged) -> bool {
        self.stored.contains_key(name) && self.written_under(name, limit).is_none()
    }

    /// The limit that a log of this algorithm is under, if there is one.
    fn written_under(&self, name: &str, limit: &Logged) -> Option<Logged> {
        let algorithm = |limit: &Logged| Limit::from(*limit).algorithm();
        match self.stored.get(name) {
            Some(Stored::Log(old, _)) if algorithm(old) == algorithm(limit) => Some(*old),
            _ => None,
        }
    }

    fn log(&mut self, name: &str, limit: &Logged, now: Timestamp) -> &mut Log {
        let mut log = Log::default();
        if let Some(Stored::Log(old, stored)) = self.stored.remove(name) {
            log = stored;
            limit.carry_over(&old, &mut log, now);
        }
        self.stored.insert(name.to_owned(), Stored::Log(*limit, log));
        match self.stored.get_mut(name) {
            Some(Stored::Log(_, log)) => log,
            _ => unreachable!("it was just put there"),
        }
    }

    fn keep_log(&mut self, name: &str) {
        if matches!(self.stored.get(name), Some(Stored::Log(_, log)) if log.is_empty()) {
            self.stored.remove(name);
        }
    }

    /// The command that shows what is under a key, and what it should show.
    fn state(&self, name: &str) -> (Vec<String>, Reply) {
        let command = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        match self.stored.get(name) {
            None => (command(&["EXISTS", name]), Reply::Integer(0)),
            Some(Stored::Counter(limit, word)) => {
                let bytes = lua::state_bytes(limit, *word).expect("a word that is not vacant");
                (command(&["GET", name]), Reply::Text(Text(bytes)))
            }
            Some(Stored::Log(limit, log)) => {
                let words = command(&["ZRANGE", name, "0", "-1", "WITHSCORES"]);
                (words, Reply::texts(members(limit, log)))
            }
        }
    }
}

fn algorithm(limit: &Counter) -> Algorithm {
    Limit::Counter(*limit).algorithm()
}

/// Whether a state says the same under both: then the scripts take one for the other.
pub(crate) fn is_alike(one: &Counter, other: &Counter) -> bool {
    let header_and_numbers = |limit: &Counter| {
        let probe = Word { low: 1, high: 0 };
        lua::state_bytes(limit, probe).expect("a word that is not vacant")
    };
    header_and_numbers(one) == header_and_numbers(other)
}

/// The limit as the scripts know it from a state: a bucket's period, which only bounds how far ahead
/// a time may be, is not in there.
pub(crate) fn with_period_of(limit: &Counter, other: &Counter) -> Counter {
    let (numbers, others) = (Limit::from(*limit).numbers(), Limit::from(*other).numbers());
    let bucket = [numbers[0], numbers[1], numbers[2], others[3], numbers[4]];
    let numbers = match limit {
        Counter::TokenBucket(_) | Counter::LeakyBucket(_) => bucket,
        Counter::SlidingWindow(_) | Counter::FixedWindow(_) => numbers,
    };
    match Limit::from_numbers(algorithm(limit), numbers) {
        Some(Limit::Counter(counter)) => counter,
        other => panic!("{other:?} should be a counter"),
    }
}

/// Settles a charge that is not as it was decided, because it or another was denied; tells whether it
/// was charged as a penalty.
fn settle(
    account: &mut Stored,
    order: &Order,
    answer: &mut Answer,
    all_allow: bool,
    now: Timestamp,
    seen: &mut Seen,
) -> bool {
    let is_denied = matches!(answer.decision.outcome, Outcome::Denied { .. });
    let is_counter = matches!(account, Stored::Counter(..));
    let counts = order.count_denied && order.cost != Cost::PEEK && order.mode != Mode::Credit;
    let is_punished = is_counter && is_denied && counts;
    match account {
        _ if order.mode == Mode::Credit => {
            if all_allow {
                let before = account.clone();
                account.credit(now, order.cost);
                seen.credits += u64::from(*account != before);
            }
            *answer = account.peek(now, order);
        }
        Stored::Counter(limit, word) if is_punished => {
            seen.punished += 1;
            *word = limit.punish(*word, now, order.cost);
            let order = Order { mode: Mode::Enforce, ..*order };
            *answer = account.clone().decide(now, &order, order.cost);
        }
        _ if answer.decision.is_allowed() && !all_allow => {
            let outcome = answer.decision.outcome;
            *answer = match account {
                Stored::Counter(..) if order.count_denied => account.decide(now, order, order.cost),
                _ => {
                    seen.withheld += 1;
                    account.peek(now, order)
                }
            };
            answer.decision.outcome = outcome;
        }
        _ => {}
    }
    if !all_allow {
        answer.receipt = NOTHING;
    }
    is_punished
}

/// A log as a sorted set: the marker with the sum, then the entries, each with its score.
fn members(limit: &Logged, log: &Log) -> Vec<String> {
    let (name, hold) = match limit {
        Logged::SlidingLog(limit) => ("sliding_log", limit.numbers()[1]),
        Logged::Concurrency(limit) => ("concurrency", limit.numbers()[1]),
    };
    let units: u64 = log.entries().map(|entry| u64::from(entry.units)).sum();
    let mut entries: Vec<(u64, String)> =
        log.entries().map(|entry| (entry.at.as_micros(), member(&entry))).collect();
    entries.sort();
    let marker = [format!("1{name} {hold}"), format!("-{units}")];
    marker
        .into_iter()
        .chain(entries.into_iter().flat_map(|(at, it)| [it, at.to_string()]))
        .collect()
}

fn member(entry: &Entry) -> String {
    format!("{}:{}", entry.id.0, entry.units)
}

/// One limit of each algorithm, none of them extreme: five a minute.
pub(crate) fn one_of_each() -> [Limit; 6] {
    five_in(Micros::from_secs(60))
}

/// One limit of each algorithm that holds five for so long.
pub(crate) fn five_in(period: Micros) -> [Limit; 6] {
    let quota = Quota::new(5, period).expect("a period that is allowed");
    [
        Limit::sliding_window(quota),
        Limit::token_bucket(quota, 5).expect("a bucket"),
        Limit::leaky_bucket(quota, 5, None).expect("a queue"),
        Limit::fixed_window(quota, Align::Key),
        Limit::sliding_log(quota).expect("a log"),
        Limit::concurrency(5, period).expect("slots"),
    ]
}

fn evalsha(sha: &str, keys: &[&str], now: &str, arguments: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let count = keys.len().to_string();
    let first = ["EVALSHA", sha, &count].into_iter().chain(keys.iter().copied()).chain([now]);
    first.map(|word| word.as_bytes().to_vec()).chain(arguments.iter().cloned()).collect()
}

/// Calls a script on one key.
pub(crate) fn call(
    redis: &mut Client,
    sha: &str,
    key: &str,
    now: &str,
    argument: &[u8],
) -> Vec<i64> {
    let words = evalsha(sha, &[key], now, &[argument.to_vec()]);
    redis.command(&words).integers()
}

pub(crate) fn answer(fields: Vec<i64>) -> Answer {
    let fields = fields.try_into().expect("the fields of one answer");
    Answer::from_fields(fields).expect("an answer")
}

#[test]
fn a_request_refused_by_one_limit_is_not_charged_to_another() {
    for flavour in Flavour::ALL {
        let mut twins = Twins::start(flavour);
        let names = ["wide", "narrow"].map(str::to_owned);
        let now = Timestamp::from_micros(START);
        let narrow = Limit::sliding_log(Quota::per_minute(1)).expect("a short log");
        for (number, wide) in one_of_each().into_iter().enumerate() {
            twins.redis.command(&["FLUSHALL"]);
            twins.model = Model::default();
            let id = ChargeId(number as u64);
            let orders = [
                Order::enforced(wide, Cost::ONE, 1),
                Order { key: 1, id, ..Order::enforced(narrow, Cost::ONE, 2) },
            ];
            let remaining = |answers: &[Answer]| answers[0].decision.remaining;
            assert_eq!(remaining(&twins.take(&names, &orders, now)), 4);
            for _ in 0..3 {
                let answers = twins.take(&names, &orders, now);
                assert!(answers[0].decision.is_allowed() && !answers[1].decision.is_allowed());
                assert_eq!(remaining(&answers), 4, "{wide:?}");
                assert_eq!(answers[0].receipt.cost, Cost::PEEK, "there is nothing to give back");
            }
            twins.compare_all();
        }
    }
}

#[test]
fn by_the_servers_own_clock_every_key_expires_and_not_before_it_is_vacant() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour);
        let mut redis = server.client();
        let (take, refund) = (redis.load(lua::TAKE), redis.load(lua::REFUND));
        for limit in one_of_each() {
            let key = limit.algorithm().name();
            let argument = Order::enforced(limit, Cost::new(2), 1).argument();
            let first = answer(call(&mut redis, &take, key, "", &argument));
            let whole_at = first.receipt.at.plus(first.decision.reset_after);
            assert!(first.decision.is_allowed());
            check_expiry(&mut redis, key, whole_at);

            let back = match &limit {
                Limit::Counter(limit) => {
                    let receipt = Receipt { cost: Cost::ONE, ..first.receipt };
                    Return::Refund { limit, receipt: &receipt }.argument()
                }
                Limit::Logged(limit) => {
                    let (id, held, units) = (ChargeId(1), Cost::new(2), Cost::ONE);
                    Return::GiveBack { limit, id, held, units }.argument()
                }
            };
            assert_eq!(call(&mut redis, &refund, key, "", &back), [1]);
            let peek = Order::enforced(limit, Cost::PEEK, 2).argument();
            let left = answer(call(&mut redis, &take, key, "", &peek));
            assert_eq!(left.decision.remaining, 4);
            let whole_at = match limit {
                Limit::Counter(_) => left.receipt.at.plus(left.decision.reset_after),
                Limit::Logged(_) => whole_at,
            };
            check_expiry(&mut redis, key, whole_at);
        }
    }
}

/// A key must live as long as its state matters, and hardly longer.
pub(crate) fn check_expiry(redis: &mut Client, key: &str, whole_at: Timestamp) {
    let Reply::Integer(expires_at) = redis.command(&["PEXPIRETIME", key]) else { panic!("no key") };
    assert!(expires_at > 0, "{key} never expires");
    let late = expires_at * 1_000 - i64::try_from(whole_at.as_micros()).expect("below 2^53");
    assert!((0..=3_000).contains(&late), "{key} expires {late} us after it is vacant");
}

#[test]
fn the_servers_own_clock_decides_as_the_same_time_given_does() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour);
        let mut redis = server.client();
        let take = redis.load(lua::TAKE);
        for limit in one_of_each() {
            let argument = Order::enforced(limit, Cost::new(2), 1).argument();
            let by_clock = call(&mut redis, &take, "by clock", "", &argument);
            let at = answer(by_clock.clone()).receipt.at.as_micros();
            assert!(at > START, "{at} is no time of today");
            let by_argument = call(&mut redis, &take, "by argument", &at.to_string(), &argument);
            assert_eq!(by_clock, by_argument);
            redis.command(&["FLUSHALL"]);
        }
    }
}

#[test]
fn what_is_not_ours_under_a_key_starts_afresh() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour);
        let mut redis = server.client();
        let take = redis.load(lua::TAKE);
        let strangers: [&[&[u8]]; 6] = [
            &[b"SET", b"key", b" 9t 1 1 1 1 1 1"],
            &[b"SET", b"key", b"1t"],
            &[b"SET", b"key", b""],
            &[b"HSET", b"key", b"field", b"value"],
            &[b"ZADD", b"key", b"-7", b"9sliding_log 60000000", b"1", b"1:7"],
            &[b"ZADD", b"key", b"1", b"somebody"],
        ];
        for limit in one_of_each() {
            let malformed = malformed(&limit);
            let malformed = malformed.iter().map(|words| words.iter().map(|word| &word[..]));
            let malformed: Vec<Vec<&[u8]>> = malformed.map(Iterator::collect).collect();
            for stranger in strangers.into_iter().chain(malformed.iter().map(|words| &words[..])) {
                redis.command(&["DEL", "key"]);
                redis.command(stranger);
                let before = redis.command(&["DUMP", "key"]);
                let peek = Order::enforced(limit, Cost::PEEK, 1).argument();
                let told = answer(call(&mut redis, &take, "key", "1760000000000000", &peek));
                assert_eq!(told.decision.remaining, 5, "{limit:?} {stranger:?}");
                assert_eq!(redis.command(&["DUMP", "key"]), before, "{limit:?} {stranger:?}");
                let argument = Order::enforced(limit, Cost::new(2), 1).argument();
                for remaining in [3, 1] {
                    let answer =
                        answer(call(&mut redis, &take, "key", "1760000000000000", &argument));
                    assert!(answer.decision.is_allowed());
                    let remaining = match limit.algorithm() {
                        // The same id again: the server holds an id once.
                        Algorithm::SlidingLog | Algorithm::Concurrency if remaining == 1 => break,
                        _ => remaining,
                    };
                    assert_eq!(answer.decision.remaining, remaining, "{limit:?} {stranger:?}");
                }
            }
        }
    }
}

/// Commands that leave something under `key` that begins as a state of the limit does.
fn malformed(limit: &Limit) -> Vec<Vec<Vec<u8>>> {
    let command = |words: &[&[u8]]| words.iter().map(|word| word.to_vec()).collect();
    let counter = match limit {
        Limit::Counter(counter) => counter,
        Limit::Logged(logged) => {
            let log = Log::default();
            let marker = members(logged, &log).swap_remove(0).into_bytes();
            let scores: [&[&[u8]]; 3] = [&[b"-3"], &[b"-inf", b"1"], &[b"-0.5", b"1"]];
            let sets = scores.map(|scores| match scores {
                [score, at] => command(&[b"ZADD", b"key", score, &marker, at, b"1:3"]),
                _ => command(&[b"ZADD", b"key", scores[0], &marker]),
            });
            return sets.into();
        }
    };
    let state = lua::state_bytes(counter, Word { low: 1, high: 1 }).expect("not vacant");
    let number = |number: f64| [&[0xcb], &number.to_be_bytes()[..]].concat();
    let rests = [
        Vec::new(),
        vec![0xcf, 0],
        [0xa1, b'x'].repeat(4),
        vec![0xc0; 4],
        vec![0; 4],
        [0x81, 1, 1].repeat(4),
        vec![1; 20],
        vec![0xdd, 0xff, 0xff, 0xff, 0xff],
        number(f64::NAN).repeat(4),
        number(f64::INFINITY).repeat(4),
        number(-1e18).repeat(4),
        number(0.5).repeat(4),
    ];
    let set = |rest: &Vec<u8>| command(&[b"SET", b"key", &[&state[..3], rest].concat()]);
    rests.iter().map(set).collect()
}

#[test]
fn a_member_that_is_none_of_ours_does_not_stop_a_log_from_being_counted() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour);
        let mut redis = server.client();
        let take = redis.load(lua::TAKE);
        for limit in one_of_each() {
            let Limit::Logged(logged) = limit else { continue };
            let span = span(&limit);
            let marker = members(&logged, &Log::default()).swap_remove(0);
            redis.command(&["DEL", "key"]);
            let [first, later] = [START, START + span / 2].map(|at| at.to_string());
            let command =
                ["ZADD", "key", "-2", &marker, &first, "nobody", &first, "1:1", &later, "2:1"];
            redis.command(&command);
            let mut remaining = |now: u64| {
                let peek = Order::enforced(limit, Cost::PEEK, 9).argument();
                let told = answer(call(&mut redis, &take, "key", &now.to_string(), &peek));
                told.decision.remaining
            };
            assert_eq!(remaining(START + span - 1), 3, "{limit:?}");
            assert_eq!(remaining(START + span), 4, "{limit:?}");
            assert_eq!(remaining(START + 2 * span), 5, "{limit:?}");
        }
    }
}

#[test]
fn a_counter_takes_less_memory_than_a_hash_of_two_fields() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour);
        let mut redis = server.client();
        let take = redis.load(lua::TAKE);
        redis.command(&[
            "HSET",
            "tollgate:{203.0.113.7}:hash_",
            "tokens",
            "12.5",
            "at",
            "1760000000.123",
        ]);
        redis.command(&["PEXPIRE", "tollgate:{203.0.113.7}:hash_", "60001"]);
        let hash = usage(&mut redis, "tollgate:{203.0.113.7}:hash_");
        for limit in &one_of_each()[..4] {
            let argument = Order::enforced(*limit, Cost::new(2), 1).argument();
            call(&mut redis, &take, "tollgate:{203.0.113.7}:login", "", &argument);
            let counter = usage(&mut redis, "tollgate:{203.0.113.7}:login");
            println!("{}: {counter} bytes, a hash {hash}", limit.algorithm());
            assert!(counter < hash.min(160), "{}: {counter} bytes", limit.algorithm());
            redis.command(&["DEL", "tollgate:{203.0.113.7}:login"]);
        }
    }
}

fn usage(redis: &mut Client, key: &str) -> i64 {
    let Reply::Integer(bytes) = redis.command(&["MEMORY", "USAGE", key]) else { panic!("no key") };
    bytes
}

#[test]
fn a_log_as_long_as_logs_get_is_counted_alike_forced_charges_included() {
    for flavour in Flavour::ALL {
        let mut twins = Twins::start(flavour);
        let names = ["log".to_owned()];
        let limit = Limit::sliding_log(Quota::per_hour(LOG_ENTRIES_MAX)).expect("the longest log");
        let Limit::Logged(logged) = limit else { unreachable!("a log") };
        let at = |number: u64| Timestamp::from_micros(START + number * 1_000);
        // Room for one more entry, though not for another unit.
        let units = |number| if number == 0 { 2 } else { 1 };
        let entry = |number| Entry { at: at(number), id: ChargeId(number), units: units(number) };
        let log = (0..u64::from(LOG_ENTRIES_MAX) - 1).map(entry).collect();
        twins.store_log(&names[0], logged, log);

        let mut order = Order::enforced(limit, Cost::ONE, 200_000);
        for number in 0..12 {
            let now = at(100_000 + number * 40);
            order.id = ChargeId(200_000 + number);
            order.mode = if number % 3 == 0 { Mode::Enforce } else { Mode::Force };
            order.cost = Cost::new([1, 1_000, u32::MAX][number as usize % 3]);
            let argument = order.argument();
            let answers = twins.model.take(&names, &[order], now, &mut Seen::default());
            let fields = answers.iter().flat_map(fields).map(Reply::Integer).collect();
            let now = now.as_micros().to_string();
            let words = evalsha(&twins.scripts[0].take, &["log"], &now, &[argument]);
            twins.expect(&words, Reply::List(fields));
        }
        twins.expect_state("log");
        twins.compare_all();
        // Half of it ends at once.
        twins.take(&names, &[order], at(3_600_000 + 50_000));
        twins.compare_all();
    }
}

#[test]
fn of_long_logs_with_entries_of_several_units_and_of_one_moment_the_same_waits_are_told() {
    for flavour in Flavour::ALL {
        let mut twins = Twins::start(flavour);
        let mut waits = 0;
        for seed in 0..30 {
            let mut rng = Rng::new(seed);
            let (hold, log) = random_long_log(&mut rng);
            let units: u32 = log.entries().map(|entry| entry.units).sum();
            let of_count = |count: u32| {
                let quota = Quota::new(count.min(LOG_ENTRIES_MAX), hold).expect("a period");
                Limit::sliding_log(quota).expect("a log")
            };
            let Limit::Logged(logged) = of_count(units) else { unreachable!("a log") };
            let mut now = log.entries().last().expect("an entry").at;
            let names = [format!("log {seed}")];
            twins.store_log(&names[0], logged, log);
            for number in 0..12 {
                let low = 1 + rng.below(u64::from(units)) as u32;
                let limit = of_count(rng.pick(&[units, units, 1, low]));
                let most = u64::from(limit.capacity());
                let cost = rng.below_either(&[2, most + 1, most + 1]) as u32;
                let mut order = Order::enforced(limit, Cost::new(cost), 1_000_000 + number);
                if rng.one_in(6) {
                    order.mode = Mode::Force;
                }
                let answers = twins.take(&names, &[order], now);
                waits += u64::from(answers[0].decision.retry_after().is_some());
                now = Timestamp::from_micros(now.as_micros() + rng.below(hold.as_micros() / 8));
            }
        }
        twins.compare_all();
        assert!(waits > 100, "only {waits} denials with a wait");
    }
}
