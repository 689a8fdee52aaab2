//! Every command, right and wrong.

use tollgate_server::conversation;

use super::{Counter, POLICY, shown};

/// A policy of which these tests ask nothing.
const NO_LIMITS: &str = "limits: []";

/// Says what is answered to some lines, one after the other, by a server that was never asked.
fn check(lines: &str, expected: &str) {
    check_under(NO_LIMITS, lines, expected);
}

fn check_under(policy: &str, lines: &str, expected: &str) {
    assert_eq!(Counter::new(policy).ask(lines), expected, "{lines}");
}

/// The policy with a key that it knows.
fn check_policy(line: &str, expected: &str) {
    check_under(POLICY, &format!("TG.CHECK key good {line}"), expected);
}

#[test]
fn a_throttle_answers_limited_limit_remaining_retry_and_reset() {
    let counter = Counter::new(NO_LIMITS);
    // Five at once, one more each second.
    let ask = |quantity: u32| counter.ask(&format!("CL.THROTTLE k 4 1 1 {quantity}"));
    assert_eq!(ask(6), "[1, 5, 5, -1, 0]", "more than it ever holds");
    assert_eq!(ask(1), "[0, 5, 4, -1, 1]");
    assert_eq!(ask(3), "[0, 5, 1, -1, 4]");
    assert_eq!(ask(0), "[0, 5, 1, -1, 4]", "a peek takes nothing");
    assert_eq!(ask(2), "[1, 5, 1, 1, 4]", "nor does what is denied");
    assert_eq!(ask(1), "[0, 5, 0, -1, 5]");
    assert_eq!(counter.ask("CL.THROTTLE k 4 1 1"), "[1, 5, 0, 1, 5]", "one is the default");
    counter.advance("2500ms");
    assert_eq!(ask(0), "[0, 5, 2, -1, 3]", "half a second is a whole one");
    assert_eq!(ask(5), "[1, 5, 2, 3, 3]");
    counter.advance("1h");
    assert_eq!(ask(5), "[0, 5, 0, -1, 5]");
}

#[test]
fn a_wait_that_a_throttle_tells_is_a_wait_that_works() {
    let counter = Counter::new(NO_LIMITS);
    // One every third of a second, which is no whole number of microseconds.
    let ask = || counter.ask("CL.THROTTLE k 0 3 1");
    assert_eq!(ask(), "[0, 1, 0, -1, 1]");
    counter.advance("333333us");
    assert_eq!(ask(), "[1, 1, 0, 1, 1]", "a microsecond is left, which is told as a second");
    counter.advance("1s");
    assert_eq!(ask(), "[0, 1, 0, -1, 1]");
}

#[test]
fn throttles_in_one_read_are_answered_in_order_with_all_else() {
    check(
        "CL.THROTTLE a 1 1 1\nCL.THROTTLE a 1 1 1\nPING\nCL.THROTTLE a 1 1 1\nCL.THROTTLE b 1 1 x\n\
         CL.THROTTLE b 1 1 1\nNO\nCL.THROTTLE a 2 1 1",
        "[0, 2, 1, -1, 1]\n[0, 2, 0, -1, 2]\nPONG\n[1, 2, 0, 1, 2]\n\
         -ERR period 'x' is not a whole number from 0 to 4294967295\n\
         [0, 2, 1, -1, 1]\n-ERR unknown command 'NO'\n[0, 3, 0, -1, 3]",
    );
    let counter = Counter::new(NO_LIMITS);
    let lines = "CL.THROTTLE a 99 1 1\n".repeat(100);
    let expected: Vec<_> =
        (1..=100).map(|used| format!("[0, 100, {}, -1, {used}]", 100 - used)).collect();
    assert_eq!(counter.ask(&lines), expected.join("\n"));
}

#[test]
fn a_throttle_with_wrong_numbers_is_an_error_and_changes_nothing() {
    let counter = Counter::new(NO_LIMITS);
    for (wrong, words) in [
        ("-1 1 1", "max_burst '-1' is not a whole number"),
        ("4294967295 1 1", "max_burst is at most 4294967294"),
        ("1 0 1", "count and period are at least 1"),
        ("1 1 0", "count and period are at least 1"),
        ("1 1 31536001", "is outside 1ms to 365d"),
        ("4294967294 1 31536000", "more than 100 years"),
        ("1 1.5 1", "count '1.5' is not"),
        ("1 1 1 -1", "quantity '-1' is not"),
        ("1 1 1 1.5", "quantity '1.5' is not"),
        ("1 1 1 NaN", "quantity 'NaN' is not"),
        ("1 1 1 0x10", "quantity '0x10' is not"),
        ("1 1 1 1e400", "quantity '1e400' is not"),
        ("1 1 1 18446744073709551615", "quantity '18446744073709551615' is not"),
        ("1 1", "wrong number of arguments for 'CL.THROTTLE' command"),
        ("1 1 1 1 1", "wrong number of arguments for 'CL.THROTTLE' command"),
    ] {
        let told = counter.ask(&format!("CL.THROTTLE k {wrong}"));
        assert!(told.starts_with("-ERR ") && told.contains(words), "{wrong}: {told}");
    }
    assert_eq!(counter.store.keys(), 0);
    assert_eq!(counter.ask("CL.THROTTLE k 1 1 1 4294967295"), "[1, 2, 2, -1, 0]");
}

#[test]
fn a_process_takes_so_many_different_throttles_and_says_so() {
    let counter = Counter::new(NO_LIMITS);
    let asked: String =
        (1..=65_537).map(|count| format!("CL.THROTTLE k 0 {count} 60 0\n")).collect();
    // The limits are told apart by what a whole conversation has asked for.
    let again = "CL.THROTTLE k 0 1 60 0\n";
    let told = counter.ask(&(asked + again));
    let refused: Vec<_> = told.lines().filter(|line| line.starts_with('-')).collect();
    assert_eq!(refused.len(), 1, "those that are known are still answered");
    assert!(refused[0].contains("65536 different limits"), "{}", refused[0]);
}

#[test]
fn keys_of_throttles_are_no_keys_of_a_policy() {
    // A limit of the policy has the command's name, and its key the same value.
    let counter = Counter::new(
        "limits: [{name: CL.THROTTLE, per: [key], rate: 1/minute, algorithm: token_bucket}]",
    );
    assert_eq!(counter.ask("CL.THROTTLE a 0 1 60"), "[0, 1, 0, -1, 60]");
    let checked = "TG.CHECK key a";
    assert_eq!(counter.ask(checked), "[1, 1, 0, -1, 60000, CL.THROTTLE, 0]");
    assert_eq!(counter.ask(checked), "[0, 1, 0, 60000, 60000, CL.THROTTLE, 0]");
    // And none can have the name that its keys are under.
    let policy = "limits: [{name: (CL.THROTTLE), rate: 1/second}]";
    let no_files = |_: &str| Err(String::new());
    assert!(tollgate::Policy::parse("policy.yaml", policy, &mut { no_files }).is_err());
}

#[test]
fn a_check_tells_the_tightest_limit() {
    check_policy("user 42", "[1, 10, 9, -1, 1000, api, 0]");
    let counter = Counter::new(POLICY);
    // Twenty a day is less than what is left of ten at once, in the end.
    for _ in 0..2 {
        counter.ask("TG.CHECK key good user 42 COST 9");
        counter.advance("1m");
    }
    let left = "TG.CHECK key good user 42";
    assert_eq!(counter.ask(left), "[1, 20, 1, -1, 86280000, daily, 0]");
}

#[test]
fn checks_in_one_read_are_answered_in_order_with_all_else() {
    let lines = "\
        TG.CHECK user a\nTG.CHECK user a\nCL.THROTTLE a 1 1 1\nTG.CHECK user a\nCL.THROTTLE a 1 1 1\n\
        CL.THROTTLE a 1 1 1\nTG.CHECK user a COST\nTG.CHECK user b\nTG.CHECK user b\nPING\nTG.CHECK user a\n\
        TG.CHECK user c user d\nTG.CHECK user c\nNO\nTG.CHECK\nTG.CHECK user c COST 3\nCL.THROTTLE b 1 1 x\n\
        TG.CHECK user d\nTG.CHECK user e\nTG.CHECK user f\nTG.CHECK user g\nTG.CHECK user h\n\
        TG.CHECK user i\nTG.CHECK user a\nTG.CHECK user d\nTG.CHECK user e\nECHO end";
    let policy = "limits: [{ name: api, per: [user], rate: 3/minute }]";
    let (together, alone) = (Counter::new(policy), Counter::new(policy));
    let one_by_one: Vec<String> = lines.lines().map(|line| alone.ask(line)).collect();
    let together = together.ask(lines);
    assert_eq!(together, one_by_one.join("\n"));
    assert!(together.starts_with("[1, 3, 2, -1, 60001, api, 0]\n[1, 3, 1, "), "{together}");
    assert_eq!(together.matches("-ERR").count(), 4, "{together}");
}

#[test]
fn a_check_that_is_denied_tells_the_limit_that_denies_for_longest() {
    let counter = Counter::new(POLICY);
    counter.ask("TG.CHECK key good user 42 COST 10");
    let denied = "TG.CHECK key good user 42 COST 2";
    assert_eq!(counter.ask(denied), "[0, 10, 0, 2000, 10000, api, 0]");
    counter.advance("10s");
    counter.ask("TG.CHECK key good user 42 COST 9");
    // Both deny now, one until tomorrow.
    assert_eq!(counter.ask(denied), "[0, 20, 1, 86390000, 86390000, daily, 0]");
    assert_eq!(counter.ask("TG.CHECK key good user 42 COST 11"), "[0, 10, 1, -1, 9000, api, 0]");
}

#[test]
fn a_leaky_bucket_tells_the_delay_and_a_concurrency_limit_does_not_apply() {
    let counter = Counter::new(POLICY);
    let ask = || counter.ask("TG.CHECK key good job 1");
    assert_eq!(ask(), "[1, 3, 2, -1, 1000, queue, 0]");
    assert_eq!(ask(), "[1, 3, 1, -1, 2000, queue, 1000]");
    assert_eq!(ask(), "[1, 3, 0, -1, 3000, queue, 2000]");
    assert_eq!(ask(), "[0, 3, 0, 1000, 3000, queue, 0]");
}

#[test]
fn a_check_without_a_limit_to_tell_of_says_why() {
    for (words, expected) in [
        ("key good colour red", "[1, -1, -1, -1, -1, (none), 0]"),
        ("key good trial 1 COST 5", "[1, -1, -1, -1, -1, (none), 0]"),
        ("key good user monitor", "[1, -1, -1, -1, -1, (exempt), 0]"),
        ("key good user mallory", "[0, -1, -1, -1, -1, (blocked), 0]"),
        ("key bad user 42", "[0, -1, -1, -1, -1, (unknown-key), 0]"),
        ("user 42", "[0, -1, -1, -1, -1, (unknown-key), 0]"),
    ] {
        check_under(POLICY, &format!("TG.CHECK {words}"), expected);
    }
    check("TG.CHECK", "[1, -1, -1, -1, -1, (none), 0]");
}

#[test]
fn a_check_that_cannot_be_counted_is_settled_as_its_limit_says() {
    for (failing, expected) in [
        ("deny", "[0, -1, -1, -1, -1, (uncounted), 0]"),
        ("allow", "[1, -1, -1, -1, -1, (uncounted), 0]"),
    ] {
        let policy =
            format!("limits: [{{name: a, per: [user], rate: 1/day, on_store_failure: {failing}}}]");
        let counter = Counter::of_size(&policy, 64 << 10);
        let asked: String = (0..4_000).map(|user| format!("TG.CHECK user {user}\n")).collect();
        assert_eq!(counter.ask(&asked).lines().last(), Some(expected));
        // Without a policy to say so, a throttle admits what it cannot count.
        assert_eq!(counter.ask("CL.THROTTLE new 4 1 60 2"), "[0, 5, 3, -1, 0]");
    }
}

#[test]
fn a_wrong_check_is_an_error_and_changes_nothing() {
    let counter = Counter::new(POLICY);
    for (words, expected) in [
        ("user", "a name without one"),
        ("user 42 COST", "a name without one"),
        ("user 1 user 2", "'user' is given twice"),
        ("user 1 COST 1 cost 2", "'cost' is given twice"),
        ("user 1 COST -1", "cost '-1' is not a whole number from 0 to 4294967295"),
        ("user 1 COST 1.5", "cost '1.5' is not"),
        ("user 1 COST NaN", "cost 'NaN' is not"),
        ("user 1 COST 0x10", "cost '0x10' is not"),
        ("user 1 COST 18446744073709551615", "cost '18446744073709551615' is not"),
        ("key good upload 1 bytes 1.5", "what was sent there is not a whole number"),
        ("us\u{1}er 1 us\u{1}er 1", "'us\\x01er' is given twice"),
    ] {
        let told = counter.ask(&format!("TG.CHECK {words}"));
        assert!(told.starts_with("-ERR ") && told.contains(expected), "{words}: {told}");
    }
    let told = counter.raw(b"TG.CHECK \xff 1\r\n");
    assert_eq!(told, r"-ERR the attribute name '\\xff' is not UTF-8\r\n");
    assert_eq!(counter.store.keys(), 0);
}

#[test]
fn small_commands_are_answered_as_redis_does() {
    check(
        "PING\nping hi\nEcho 'a b'\nECHO\nPING a b",
        concat!(
            "PONG\nhi\na b\n-ERR wrong number of arguments for 'ECHO' command\n",
            "-ERR wrong number of arguments for 'PING' command"
        ),
    );
    check(
        "SELECT 0\nSELECT 1\nSELECT x",
        concat!(
            "OK\n-ERR DB index is out of range; there is database 0\n",
            "-ERR database 'x' is not a whole number from 0 to 4294967295"
        ),
    );
    check("QUIT\nPING", "OK");
    check(
        "GET key\nflushall\n\"a b\"",
        "-ERR unknown command 'GET'\n-ERR unknown command 'flushall'\n-ERR unknown command 'a b'",
    );
}

#[test]
fn clients_may_introduce_themselves() {
    check(
        "CLIENT GETNAME\nCLIENT SETNAME worker\nCLIENT GETNAME\nCLIENT ID\n\
         CLIENT SETINFO LIB-NAME redis-py\nCLIENT SETINFO LIB-VER 6.0\nCLIENT NO-EVICT ON\nCLIENT NO-TOUCH OFF",
        "nil\nOK\nworker\n1\nOK\nOK\nOK\nOK",
    );
    let long = format!("CLIENT SETNAME {}", "x".repeat(257));
    for wrong in ["CLIENT SETNAME 'a b'", &long, "HELLO 3 SETNAME 'a b'"] {
        let told = Counter::new(NO_LIMITS).ask(wrong);
        assert!(told.starts_with("-ERR a client's name is"), "{told}");
    }
    for wrong in ["CLIENT KILL", "CLIENT ID 1", "CLIENT SETNAME", "CLIENT MAINT_NOTIFICATIONS ON"] {
        let told = Counter::new(NO_LIMITS).ask(wrong);
        assert!(told.starts_with("-ERR unknown subcommand"), "{told}");
    }
}

#[test]
fn hello_chooses_the_protocol_and_reset_takes_it_back() {
    let introduced = |proto| {
        format!(
            "server, tollgate, version, 7.0.0, mode, standalone, role, master, proto, {proto}, \
             id, 1, modules, []"
        )
    };
    check("HELLO", &format!("[{}]", introduced(2)));
    check("HELLO 2", &format!("[{}]", introduced(2)));
    check("HELLO 3", &format!("{{{}}}", introduced(3)));
    check(
        "hello 3 setname worker\nCLIENT GETNAME\nHELLO\nRESET\nCLIENT GETNAME",
        &format!("{{{0}}}\nworker\n{{{0}}}\nRESET\nnil", introduced(3)),
    );
    let nothing =
        |hello: &str| Counter::new(NO_LIMITS).raw(format!("{hello}\nCLIENT GETNAME\n").as_bytes());
    assert!(nothing("HELLO 2").ends_with(r"*0\r\n$-1\r\n"));
    assert!(nothing("HELLO 3").ends_with(r"*0\r\n_\r\n"));
    check("HELLO 4", "-NOPROTO unsupported protocol version; there are 2 and 3");
    check("HELLO x", "-NOPROTO unsupported protocol version; there are 2 and 3");
    check("HELLO 3 SETNAME\nPING", "-ERR syntax error in HELLO at 'SETNAME'\nPONG");
    let refused = "-ERR AUTH was sent, but this door asks for no token";
    check("HELLO 3 AUTH default secret\nCLIENT GETNAME", &format!("{refused}\nnil"));
    check("AUTH secret", refused);
}

#[test]
fn nothing_is_answered_before_the_token_is_shown() {
    let check = |lines: &str, expected: &str| {
        let counter = Counter::new(NO_LIMITS);
        let input = lines.replace('\n', "\r\n") + "\r\n";
        let told = shown(&conversation(&counter.limiter, Some("sesame\n"), &[input.as_bytes()]));
        assert_eq!(told, expected, "{lines}");
    };
    let shut = "-NOAUTH Authentication required.";
    let wrong = "-WRONGPASS this is not the token";
    let hello = "-NOAUTH show the token first, as in HELLO 3 AUTH default token";
    check("PING", shut);
    check("TG.CHECK user 1\nCL.THROTTLE k 1 1 1\nNO\nINFO\nCOMMAND", &[shut; 5].join("\n"));
    check("AUTH sesam\nPING\nAUTH default x\nPING", &[wrong, shut, wrong, shut].join("\n"));
    check("AUTH sesame\nPING", "OK\nPONG");
    check("AUTH anybody sesame\nPING\nAUTH x\nPING", &["OK", "PONG", wrong, "PONG"].join("\n"));
    check("AUTH sesame\nRESET\nPING", &["OK", "RESET", shut].join("\n"));
    check("HELLO 3\nHELLO 3 AUTH u x SETNAME n\nPING", &[hello, wrong, shut].join("\n"));
    check("QUIT\nPING", "OK");
    let counter = Counter::new(NO_LIMITS);
    let input = b"HELLO 3 AUTH default sesame SETNAME n\r\nCLIENT GETNAME\r\n";
    let told = shown(&conversation(&counter.limiter, Some("sesame"), &[input]));
    assert!(told.starts_with("{server, tollgate") && told.ends_with("}\nn"), "{told}");
}

#[test]
fn commands_tell_of_themselves() {
    let counter = Counter::new(NO_LIMITS);
    check("COMMAND COUNT", "12");
    check(
        "COMMAND INFO ping no Cl.Throttle",
        "[[ping, -1, [fast], 0, 0, 0], nil, [cl.throttle, -5, [fast], 1, 1, 1]]",
    );
    let all = counter.ask("COMMAND");
    assert_eq!(all, counter.ask("COMMAND INFO"));
    assert_eq!(all.matches("fast").count(), 12);
    let docs = "ping, [summary, Answers PONG, or the message, since, 0.1.0, group, tollgate]";
    check("COMMAND DOCS PING no", &format!("[{docs}]"));
    assert!(counter.ask("COMMAND DOCS").contains(docs));
    check("COMMAND KILL", "-ERR unknown subcommand 'KILL' of COMMAND");
    counter.ask("CL.THROTTLE k 1 1 1");
    let info = counter.ask("INFO everything");
    for line in [r"redis_version:7.0.0\r\n", r"role:master\r\n", r"db0:keys=1,", r"loading:0\r\n"] {
        assert!(info.contains(line), "{info}");
    }
}
