//! The fleet against real servers, well and unwell.

use std::env;
use std::future::Future;
use std::process::Command;
use std::sync::LazyLock;
use std::sync::mpsc;
use std::time::Duration;

use tollgate_harness::{Cluster, Flavour, Proxy, Sentinel, Server, Setup, eventually, free_port};

use super::*;
use crate::redis::bounds::{BATCH_MAX, FLIGHTS_MAX, PAUSE_MIN};
use crate::redis::call::{Failure, Late, Reply};
use crate::redis::client::Connection;
use crate::redis::script::Script;

/// Long enough for a machine that does much else.
const PATIENT: Duration = Duration::from_secs(5);

/// Shorter than anybody would wait, for servers that do not answer.
const BRIEF: Duration = Duration::from_millis(20);

static COUNT: LazyLock<Script> =
    LazyLock::new(|| Script::new("return redis.call('INCRBY', KEYS[1], ARGV[1])"));

/// Adds `by` to a number.
fn count(fleet: &Fleet, key: &str, by: u64) -> Call {
    let mut words = Words::new();
    words.push_number(1);
    words.push(key.as_bytes());
    words.push_number(by);
    Call { script: Some(&COUNT), words, slot: fleet.slot(key.as_bytes()), late: None }
}

fn plain(fleet: &Fleet, command: &[&str]) -> Call {
    let slot = command.get(1).map_or(0, |key| fleet.slot(key.as_bytes()));
    Call { script: None, words: command.iter().collect(), slot, late: None }
}

fn open(servers: &Servers, timeout: Duration) -> Fleet {
    Fleet::open(servers, timeout, "test").expect("the URLs are right")
}

fn open_one(server: &Server, timeout: Duration) -> Fleet {
    open(&Servers::Single(server.url()), timeout)
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

fn health(fleet: &Fleet) -> Health {
    fleet.health().remove(0)
}

fn until_well(fleet: &Fleet) {
    eventually("every server is well", || {
        let answer = wait(fleet.send(plain(fleet, &["GET", "somewhere"])));
        (answer.is_ok() && fleet.health().iter().all(|server| server.is_well)).then_some(())
    });
}

/// Well, and the script known.
fn until_ready(fleet: &Fleet) {
    until_well(fleet);
    wait(fleet.send(count(fleet, "ready", 1))).expect("the server is well");
}

fn until_unwell(fleet: &Fleet) {
    eventually("the server is found unwell", || {
        let _ = wait(fleet.send(count(fleet, "asked", 1)));
        (!health(fleet).is_well).then_some(())
    });
}

/// A hook that tells what it was given.
fn hook() -> (Late, mpsc::Receiver<Reply>) {
    let (sender, receiver) = mpsc::channel();
    let hook = move |reply| sender.send(reply).expect("the test waits");
    (Box::new(hook), receiver)
}

#[test]
fn a_call_is_answered_on_any_of_them_and_by_any_way() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let users = "user anna on >secret ~test:* +@all\nuser default off\n";
        let server = Setup::new(flavour).users(users).start();
        let socket = server.socket().display().to_string();
        for url in [
            format!("redis://anna:secret@{}/3", server.address()),
            format!("redis+unix://{socket}?user=anna&pass=secret&db=3"),
        ] {
            let fleet = open(&Servers::Single(url), PATIENT);
            let key = format!("test:{flavour:?}");
            wait(fleet.send(plain(&fleet, &["DEL", &key]))).unwrap();
            assert_eq!(wait(fleet.send(count(&fleet, &key, 2))), Ok(Reply::Integer(2)));
            assert_eq!(wait(fleet.send(count(&fleet, &key, 3))), Ok(Reply::Integer(5)));
            let reply = wait(fleet.send(plain(&fleet, &["GET", &key])));
            assert_eq!(reply, Ok(Reply::Bytes(b"5".to_vec())));
            let reply = wait(fleet.send(plain(&fleet, &["GET", "test:none"])));
            assert_eq!(reply, Ok(Reply::Nil));
            let reply = wait(fleet.send(plain(&fleet, &["MGET", &key, "test:none"])));
            assert_eq!(reply, Ok(Reply::List(vec![Reply::Bytes(b"5".to_vec()), Reply::Nil])));
            let reply = wait(fleet.send(plain(&fleet, &["LPUSH", &key, "1"])));
            assert!(
                matches!(reply, Err(Failure::Refused(error)) if error.starts_with("WRONGTYPE "))
            );
            assert!(!format!("{fleet:?}").contains("secret"));
        }
    }
}

#[test]
fn a_call_is_answered_over_tls_if_the_certificate_is_trusted() {
    const URL: &str = "TOLLGATE_TEST_URL";
    if let Ok(url) = env::var(URL) {
        let fleet = open(&Servers::Single(url), PATIENT);
        assert_eq!(wait(fleet.send(count(&fleet, "n", 1))), Ok(Reply::Integer(1)));
        return;
    }
    let server = Setup::new(Flavour::Redis).password("secret").tls().start();
    let authority = &server.certificates().unwrap().authority;
    let name = "redis::fleet::tests::a_call_is_answered_over_tls_if_the_certificate_is_trusted";
    // Whom to trust is read from the environment, and that is one's own in another process only.
    let trusting = Command::new(env::current_exe().unwrap())
        .args([name, "--exact"])
        .env("SSL_CERT_FILE", authority)
        .env(URL, server.url())
        .output()
        .unwrap();
    assert!(trusting.status.success(), "{trusting:?}");
    let fleet = open_one(&server, BRIEF);
    until_unwell(&fleet);
    assert_eq!(server.command(&["GET", "n"]).text(), "1");
}

#[test]
fn a_script_that_was_forgotten_is_sent_again_and_runs_once() {
    let server = Server::start(Flavour::Redis);
    let fleet = open_one(&server, PATIENT);
    for round in 1..=3 {
        server.command(&["SCRIPT", "FLUSH"]).ok();
        let pending: Vec<_> = (0..100).map(|_| fleet.send(count(&fleet, "n", 1))).collect();
        assert!(pending.into_iter().all(|pending| wait(pending).is_ok()));
        assert_eq!(server.command(&["GET", "n"]).text(), (round * 100).to_string());
    }
    let evals = server.info("cmdstat_eval").expect("scripts were sent as text");
    let evals = evals.split([':', '=', ',']).find_map(|word| word.parse().ok());
    assert!(evals.is_some_and(|evals: u32| evals < 150), "one text serves a batch: {evals:?}");
}

#[test]
fn calls_made_together_share_pipelines() {
    let server = Server::start(Flavour::Redis);
    let fleet = open_one(&server, PATIENT);
    until_well(&fleet);
    let before = health(&fleet);
    let pending: Vec<_> = (0..1_000).map(|_| fleet.send(count(&fleet, "n", 1))).collect();
    assert!(pending.into_iter().all(|pending| wait(pending).is_ok()));
    let after = health(&fleet);
    assert!(after.calls - before.calls >= 1_000);
    let pipelines = after.pipelines - before.pipelines;
    assert!(pipelines < 200, "{pipelines} pipelines for 1,000 calls");
}

#[test]
fn a_server_that_is_absent_is_no_error_and_is_found_when_it_comes() {
    let server = Server::start(Flavour::Redis);
    server.kill();
    let fleet = open_one(&server, BRIEF);
    assert_eq!(wait(fleet.send(count(&fleet, "n", 1))), Err(Failure::NotSent));
    until_unwell(&fleet);
    server.restart();
    until_well(&fleet);
    assert_eq!(wait(fleet.send(count(&fleet, "n", 1))), Ok(Reply::Integer(1)));
}

#[test]
fn a_server_that_is_killed_and_comes_back_is_used_again() {
    let server = Server::start(Flavour::Redis);
    let fleet = open_one(&server, PATIENT);
    until_well(&fleet);
    server.kill();
    until_unwell(&fleet);
    assert_eq!(wait(fleet.send(count(&fleet, "n", 1))), Err(Failure::NotSent));
    server.restart();
    until_well(&fleet);
    assert_eq!(wait(fleet.send(count(&fleet, "n", 1))), Ok(Reply::Integer(1)));
}

#[test]
fn a_connection_that_nobody_uses_is_dialled_again_when_it_is_lost() {
    let server = Server::start(Flavour::Redis);
    let fleet = open_one(&server, PATIENT);
    until_well(&fleet);
    let failures = health(&fleet).failures;
    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    eventually("somebody connects again", || {
        let clients = server.command(&["CLIENT", "LIST"]).text();
        (clients.lines().count() == 2).then_some(())
    });
    assert_eq!(wait(fleet.send(count(&fleet, "n", 1))), Ok(Reply::Integer(1)));
    assert_eq!(health(&fleet).failures, failures);
}

#[test]
fn callers_of_a_hung_server_hear_of_the_deadline_and_soon_nothing_is_sent() {
    let server = Server::start(Flavour::Redis);
    let fleet = open_one(&server, BRIEF);
    until_well(&fleet);
    server.stop();
    let began = clock::moment();
    assert_eq!(wait(fleet.send(count(&fleet, "n", 1))), Err(Failure::Timeout));
    assert!(clock::moment() - began >= BRIEF);
    until_unwell(&fleet);
    let sent = health(&fleet).calls;
    assert_eq!(wait(fleet.send(count(&fleet, "n", 1))), Err(Failure::NotSent));
    assert_eq!(health(&fleet).calls, sent);
    server.cont();
    until_well(&fleet);
}

#[test]
fn everybody_hears_of_the_deadline_when_a_server_hangs_under_load() {
    let server = Server::start(Flavour::Redis);
    let fleet = open_one(&server, BRIEF);
    until_ready(&fleet);
    server.stop();
    let pending: Vec<_> = (0..5_000).map(|_| fleet.send(count(&fleet, "n", 1))).collect();
    let answers: Vec<_> = pending.into_iter().map(wait).collect();
    let timeouts = answers.iter().filter(|answer| **answer == Err(Failure::Timeout)).count();
    let not_sent = answers.iter().filter(|answer| **answer == Err(Failure::NotSent)).count();
    assert_eq!(timeouts + not_sent, 5_000);
    // What is on its way is bounded, so that most are known not to have run.
    assert!((1..=FLIGHTS_MAX * BATCH_MAX).contains(&timeouts), "{timeouts}");
    assert!(!health(&fleet).is_well);
    server.cont();
    until_well(&fleet);
    assert!(server.command(&["GET", "n"]).text().parse::<usize>().unwrap() <= timeouts);
}

#[test]
fn a_call_with_little_time_left_is_answered_in_that_time_whatever_waits_before_it() {
    let server = Server::start(Flavour::Redis);
    let fleet = open_one(&server, PATIENT);
    until_ready(&fleet);
    server.stop();
    let sent = health(&fleet).calls;
    let patient: Vec<_> =
        (0..2 * FLIGHTS_MAX * BATCH_MAX).map(|_| fleet.send(count(&fleet, "n", 1))).collect();
    eventually("there is room for no more", || {
        (health(&fleet).calls - sent >= FLIGHTS_MAX as u64).then_some(())
    });
    let began = clock::moment();
    let brief = fleet.send_by(count(&fleet, "n", 1), began + BRIEF);
    assert!(matches!(wait(brief), Err(Failure::NotSent | Failure::Timeout)));
    assert!(clock::moment() - began < PATIENT / 2);
    server.cont();
    assert!(patient.into_iter().all(|pending| wait(pending).is_ok()));
}

#[test]
fn a_call_that_is_made_after_its_deadline_is_not_sent() {
    let server = Server::start(Flavour::Redis);
    let fleet = open_one(&server, PATIENT);
    until_ready(&fleet);
    let late = fleet.send_by(count(&fleet, "n", 1), clock::moment());
    assert_eq!(wait(late), Err(Failure::NotSent));
    assert_eq!(server.command(&["EXISTS", "n"]).integer(), 0);
}

#[test]
fn a_server_that_is_asked_for_more_than_it_can_do_is_well_and_answers_what_is_sent() {
    let server = Server::start(Flavour::Redis);
    let proxy = Proxy::start(server.address());
    // Some are sent at once and some after half a second. What is left after another half has less
    // time than that.
    let flight = Duration::from_millis(500);
    let fleet = open(&Servers::Single(proxy.url()), Duration::from_millis(1_400));
    until_ready(&fleet);
    let before = health(&fleet);
    proxy.delay_replies(flight);
    let pending: Vec<_> = (0..5_000).map(|_| fleet.send(count(&fleet, "n", 1))).collect();
    let answers: Vec<_> = pending.into_iter().map(wait).collect();
    let answered = answers.iter().filter(|answer| answer.is_ok()).count();
    let not_sent = answers.iter().filter(|answer| **answer == Err(Failure::NotSent)).count();
    assert_eq!((answered > 0, answered + not_sent), (true, 5_000));
    let after = health(&fleet);
    assert!(after.is_well);
    assert_eq!((after.timeouts, after.failures), (before.timeouts, before.failures));
    assert_eq!(server.command(&["GET", "n"]).text(), answered.to_string());
}

#[test]
fn a_server_whose_task_panicked_is_used_again() {
    let server = Server::start(Flavour::Redis);
    let fleet = open_one(&server, PATIENT);
    until_ready(&fleet);
    server.stop();
    let sent = health(&fleet).calls;
    let mistake: Late = Box::new(|_| panic!("a mistake, as the test wants it"));
    let dropped = fleet.send(Call { late: Some(mistake), ..count(&fleet, "n", 1) });
    let other = fleet.send(count(&fleet, "n", 1));
    eventually("both are sent", || (health(&fleet).calls >= sent + 2).then_some(()));
    drop(dropped);
    server.cont();
    assert_eq!(wait(other), Err(Failure::Lost));
    until_well(&fleet);
}

#[test]
fn replies_that_come_late_or_to_nobody_go_to_the_hook() {
    let server = Server::start(Flavour::Redis);
    let fleet = open_one(&server, BRIEF);
    until_ready(&fleet);
    server.stop();
    let sent = health(&fleet).calls;
    let (late, told_late) = hook();
    let (dropped, told_dropped) = hook();
    let late = fleet.send(Call { late: Some(late), ..count(&fleet, "late", 7) });
    let dropped_call = Call { late: Some(dropped), ..count(&fleet, "dropped", 9) };
    let dropped = fleet.send(dropped_call);
    eventually("both are sent", || (health(&fleet).calls >= sent + 2).then_some(()));
    drop(dropped);
    assert_eq!(wait(late), Err(Failure::Timeout));
    server.cont();
    assert_eq!(told_late.recv_timeout(PATIENT), Ok(Reply::Integer(7)));
    assert_eq!(told_dropped.recv_timeout(PATIENT), Ok(Reply::Integer(9)));
}

#[test]
fn a_reply_that_came_and_was_not_read_goes_to_the_hook() {
    let server = Server::start(Flavour::Redis);
    let fleet = open_one(&server, PATIENT);
    until_ready(&fleet);
    let (late, told) = hook();
    let unread = fleet.send(Call { late: Some(late), ..count(&fleet, "n", 1) });
    // Replies come in the order of calls.
    assert_eq!(wait(fleet.send(count(&fleet, "n", 1))), Ok(Reply::Integer(2)));
    drop(unread);
    assert_eq!(told.recv_timeout(PATIENT), Ok(Reply::Integer(1)));
}

#[test]
fn a_call_that_may_have_run_is_not_sent_again() {
    let server = Server::start(Flavour::Redis);
    let proxy = Proxy::start(server.address());
    let fleet = open(&Servers::Single(proxy.url()), PATIENT);
    until_ready(&fleet);
    proxy.drop_replies();
    let lost = fleet.send(count(&fleet, "n", 1));
    eventually("it ran", || (server.command(&["EXISTS", "n"]).integer() == 1).then_some(()));
    proxy.cut();
    assert_eq!(wait(lost), Err(Failure::Lost));
    proxy.heal();
    until_well(&fleet);
    assert_eq!(server.command(&["GET", "n"]).text(), "1");
}

#[test]
fn a_server_slower_than_the_deadline_is_unwell_until_it_is_faster() {
    let server = Server::start(Flavour::Redis);
    let proxy = Proxy::start(server.address());
    let fleet = open(&Servers::Single(proxy.url()), BRIEF);
    until_well(&fleet);
    proxy.delay_replies(Duration::from_millis(100));
    until_unwell(&fleet);
    let dials = proxy.dials();
    eventually("it was looked at again", || {
        let probes = server.info("cmdstat_set")?;
        let probes: u32 = probes.split([':', '=', ',']).find_map(|word| word.parse().ok())?;
        (probes >= 4).then_some(())
    });
    assert!(!health(&fleet).is_well);
    assert_eq!(proxy.dials(), dials, "a connection that works is kept");
    proxy.heal();
    until_well(&fleet);
}

#[test]
fn a_server_that_takes_connections_and_says_nothing_is_dialled_now_and_then() {
    let server = Server::start(Flavour::Redis);
    let proxy = Proxy::start(server.address());
    proxy.hang();
    let fleet = open(&Servers::Single(proxy.url()), BRIEF);
    until_unwell(&fleet);
    eventually("it was dialled again", || (proxy.dials() >= 3).then_some(()));
    assert!(!health(&fleet).is_well);
    proxy.heal();
    until_well(&fleet);
}

#[test]
fn a_connection_that_leads_nowhere_is_given_up_for_another() {
    let server = Server::start(Flavour::Redis);
    let proxy = Proxy::start(server.address());
    let fleet = open(&Servers::Single(proxy.url()), BRIEF);
    until_ready(&fleet);
    let dials = proxy.dials();
    proxy.half_open();
    assert_eq!(wait(fleet.send(count(&fleet, "n", 1))), Err(Failure::Timeout));
    eventually("it is answered again", || wait(fleet.send(count(&fleet, "n", 1))).ok());
    assert_eq!(proxy.dials(), dials + 1);
    assert_eq!(server.command(&["GET", "n"]).text(), "1");
}

#[test]
fn a_server_that_refuses_is_dialled_no_more_often_than_is_bounded() {
    let server = Server::start(Flavour::Redis);
    let proxy = Proxy::start(server.address());
    let fleet = open(&Servers::Single(proxy.url()), BRIEF);
    until_well(&fleet);
    proxy.refuse();
    proxy.cut();
    until_unwell(&fleet);
    let (before, began) = (proxy.dials(), clock::moment());
    let dials = eventually("it is dialled again and again", || {
        Some(proxy.dials() - before).filter(|dials| *dials >= 5)
    });
    let took = clock::moment() - began;
    assert!(took >= PAUSE_MIN * (dials as u32 - 1), "{dials} dials in {took:?}");
    proxy.heal();
    until_well(&fleet);
}

#[test]
fn servers_that_are_unwell_are_left_alone_and_used_again_when_they_are_well() {
    type Change = fn(&Server);
    let cases: [(&str, Change, Change); 3] = [
        (
            "OOM",
            |server| server.command(&["CONFIG", "SET", "maxmemory", "1"]).ok(),
            |server| server.command(&["CONFIG", "SET", "maxmemory", "0"]).ok(),
        ),
        (
            "READONLY",
            |server| server.command(&["REPLICAOF", "127.0.0.1", "1"]).ok(),
            |server| server.command(&["REPLICAOF", "NO", "ONE"]).ok(),
        ),
        (
            "NOREPLICAS",
            |server| server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).ok(),
            |server| server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).ok(),
        ),
    ];
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let server = Server::start(flavour);
        let fleet = open_one(&server, PATIENT);
        for (code, make_unwell, make_well) in cases {
            until_well(&fleet);
            make_unwell(&server);
            let answer = wait(fleet.send(count(&fleet, "n", 1)));
            assert!(
                matches!(&answer, Err(Failure::Refused(error)) if error.starts_with(code)),
                "{flavour:?} {code}: {answer:?}"
            );
            until_unwell(&fleet);
            make_well(&server);
            until_well(&fleet);
        }
    }
}

#[test]
fn a_server_busy_with_a_script_is_left_alone_until_that_ends() {
    let server = Setup::new(Flavour::Redis).line("busy-reply-threshold 10").start();
    let fleet = open_one(&server, Duration::from_secs(1));
    until_well(&fleet);
    let mut busy = server.client();
    let mut words = Vec::new();
    tollgate_harness::write_command(&mut words, &["EVAL", "while true do end", "0"]);
    busy.send(&words);
    until_unwell(&fleet);
    eventually("the script ends", || {
        matches!(server.command(&["SCRIPT", "KILL"]), tollgate_harness::Reply::Text(_))
            .then_some(())
    });
    until_well(&fleet);
}

#[test]
fn a_fleet_that_is_dropped_lets_go_of_its_connections() {
    let server = Server::start(Flavour::Redis);
    let fleet = open_one(&server, PATIENT);
    until_well(&fleet);
    let pending = fleet.send(count(&fleet, "n", 1));
    drop(fleet);
    assert!(matches!(wait(pending), Ok(_) | Err(Failure::Lost)));
    eventually("the connection is closed", || {
        (server.command(&["CLIENT", "LIST"]).text().lines().count() == 1).then_some(())
    });
}

#[test]
fn futures_run_on_the_thread_of_the_fleet() {
    let fleet = open(&Servers::Single(format!("redis://127.0.0.1:{}", free_port())), BRIEF);
    let (sender, receiver) = mpsc::channel();
    fleet.spawn(async move {
        sender.send(std::thread::current().name().map(str::to_owned)).expect("the test waits");
    });
    assert_eq!(receiver.recv_timeout(PATIENT).unwrap().as_deref(), Some("tollgate-redis"));
}

#[test]
fn urls_that_are_none_are_refused_without_their_secrets() {
    for servers in [
        Servers::Single("http://:secret@127.0.0.1".to_owned()),
        Servers::Single("redis://:secret@127.0.0.1/x".to_owned()),
        Servers::Cluster(vec!["redis://:secret@127.0.0.1/3".to_owned()]),
        Servers::Cluster(vec!["unix:///run/redis.sock?pass=secret".to_owned()]),
        Servers::Cluster(Vec::new()),
        Servers::Sentinel { master: "limits".to_owned(), nodes: Vec::new() },
    ] {
        let error = Fleet::open(&servers, BRIEF, "test").unwrap_err();
        assert!(!format!("{error} {error:?} {servers:?}").contains("secret"));
    }
}

#[test]
fn the_master_is_found_by_sentinels_and_found_again_after_a_failover() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let sentinel = Sentinel::start(flavour);
        let servers =
            Servers::Sentinel { master: sentinel.name().to_owned(), nodes: sentinel.urls() };
        let fleet = open(&servers, Duration::from_millis(200));
        until_well(&fleet);
        let address = |index: usize| sentinel.servers()[index].address().to_string();
        assert_eq!(health(&fleet).address, address(sentinel.master()));
        let promoted = sentinel.failover();
        eventually("the new master is used", || {
            let _ = wait(fleet.send(count(&fleet, "n", 1)));
            (health(&fleet).address == address(promoted)).then_some(())
        });
        until_well(&fleet);
        sentinel.until_whole();
        sentinel.kill_master();
        let promoted = sentinel.master();
        eventually("the next master is used", || {
            let _ = wait(fleet.send(count(&fleet, "n", 1)));
            (health(&fleet).address == address(promoted)).then_some(())
        });
        until_well(&fleet);
    }
}

#[test]
fn the_master_is_found_when_half_of_the_sentinels_are_silent() {
    let sentinel = Sentinel::start(Flavour::Redis);
    let silent = Proxy::start(sentinel.sentinels()[1].address());
    silent.hang();
    let nodes = vec![silent.url(), sentinel.urls().remove(0)];
    let fleet = open(&Servers::Sentinel { master: sentinel.name().to_owned(), nodes }, PATIENT);
    until_well(&fleet);
    let master = sentinel.servers()[sentinel.master()].address().to_string();
    assert_eq!(health(&fleet).address, master);
}

/// What is refused of a server that is asked as if it stood alone, and that counts as a failure.
fn refused_by(url: String) -> String {
    let fleet = open(&Servers::Single(url), PATIENT);
    eventually("something is refused", || {
        let asked = (0..100).map(|key| wait(fleet.send(count(&fleet, &format!("key{key}"), 1))));
        let refused = asked.filter_map(|answer| match answer {
            Err(Failure::Refused(error)) => Some(error),
            _ => None,
        });
        let refused: Vec<String> = refused.collect();
        assert!(health(&fleet).failures >= refused.len() as u64);
        refused.into_iter().next()
    })
}

#[test]
fn whoever_names_one_server_of_a_cluster_is_told_what_to_write() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let error = refused_by(Cluster::start(flavour).urls().remove(0));
        assert!(error.starts_with("MOVED ") && error.contains("cluster: ["), "{error}");
    }
}

#[test]
fn whoever_names_a_sentinel_as_a_server_is_told_what_to_write() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let error = refused_by(Sentinel::start(flavour).urls().remove(0));
        assert!(error.contains("sentinel: {"), "{error}");
    }
}

#[test]
fn an_error_is_told_by_its_beginning() {
    let server = Server::start(Flavour::Redis);
    let fleet = open_one(&server, PATIENT);
    until_well(&fleet);
    let script = "return redis.error_reply('LONG ' .. string.rep('\\195\\182', 1000000))";
    let answer = wait(fleet.send(plain(&fleet, &["EVAL", script, "0"])));
    let Err(Failure::Refused(error)) = answer else { panic!("an error is an answer") };
    assert!(error.starts_with("LONG ö"), "{error}");
    assert!(error.len() < 600, "{}", error.len());
}

#[test]
fn a_server_that_wants_a_password_is_told_of_as_such_if_the_url_has_none() {
    let server = Setup::new(Flavour::Redis).password("secret").start();
    let address = Address::parse(&format!("redis://{}", server.address())).unwrap();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let why = runtime.block_on(Connection::open(&address)).map(|_| ()).unwrap_err();
    assert!(why.starts_with("NOAUTH ") && why.ends_with("(the URL has no password)"), "{why}");
}

#[test]
fn keys_of_a_cluster_are_asked_for_where_they_are() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let cluster = Cluster::start(flavour);
        let fleet = open(&Servers::Cluster(cluster.urls()), PATIENT);
        assert!(fleet.is_cluster());
        let keys: Vec<String> = (0..500).map(|number| format!("{{{number}}}:n")).collect();
        for round in 1..=2 {
            let calls = keys.iter().map(|key| (key, fleet.send(count(&fleet, key, 1))));
            for (key, pending) in calls.collect::<Vec<_>>() {
                assert_eq!(wait(pending), Ok(Reply::Integer(round)), "{flavour:?} {key}");
            }
        }
        assert_eq!(fleet.slot(b"{17}:n"), cluster.slot("{17}:n"));
        let mut used: Vec<_> = fleet.health().into_iter().filter(|node| node.calls > 0).collect();
        used.dedup_by(|one, other| one.address == other.address);
        assert!(used.len() >= 3, "{used:?}");
    }
}

#[test]
fn resharding_is_followed_and_nothing_runs_twice() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let cluster = Cluster::start(flavour);
        let fleet = open(&Servers::Cluster(cluster.urls()), PATIENT);
        let keys: Vec<String> = (0..20).map(|number| format!("{{moved}}:{number}")).collect();
        let slot = cluster.slot("{moved}:0");
        let from = cluster.master_of(slot);
        let to = (0..3).find(|index| *index != from).unwrap();
        let mut counted = 0;
        let mut count_all = || {
            counted += 1;
            let calls = keys.iter().map(|key| fleet.send(count(&fleet, key, 1)));
            for pending in calls.collect::<Vec<_>>() {
                assert_eq!(wait(pending), Ok(Reply::Integer(counted)), "{flavour:?}");
            }
        };
        count_all();
        let migration = cluster.begin_migration(slot, to);
        count_all();
        migration.move_keys(10);
        count_all();
        let both: Vec<&str> = keys.iter().map(String::as_str).collect();
        let command: Vec<&str> = [&["MGET"], both.as_slice()].concat();
        assert_eq!(wait(fleet.send(plain(&fleet, &command))), Err(Failure::TryAgain));
        migration.move_keys(100);
        count_all();
        migration.finish();
        count_all();
        count_all();
    }
}

#[test]
fn slots_of_a_master_that_died_are_found_again() {
    let cluster = Cluster::start(Flavour::Redis);
    let fleet = open(&Servers::Cluster(cluster.urls()), Duration::from_millis(200));
    let slot = cluster.slot("n");
    until_well(&fleet);
    cluster.kill_master_of(slot);
    eventually("another server has the slot", || {
        wait(fleet.send(count(&fleet, "n", 1))).ok().map(drop)
    });
    until_well(&fleet);
}
