//! Servers whose clocks are wrong.

use std::process::Command;
use std::time::Duration;

use tollgate_harness::{Clock, Flavour, Server, Setup, eventually};

const HOUR: i64 = 3_600;

fn seconds(server: &Server) -> i64 {
    let time = server.command(&["TIME"]);
    time.list()[0].text().parse().expect("seconds")
}

/// Waits until the first is so many hours ahead of the second. Other differences are far smaller.
fn until_apart(one: &Server, other: &Server, hours: i64) {
    eventually(&format!("the clocks are {hours} hours apart"), || {
        let apart = seconds(one) - seconds(other);
        ((apart + HOUR / 2).div_euclid(HOUR) == hours).then_some(())
    });
}

#[test]
fn a_clock_is_set_while_its_server_runs() {
    for flavour in Flavour::ALL {
        let clock = Clock::new();
        let right = Server::start(flavour);
        let other = Setup::new(flavour).clock(&clock).start();
        until_apart(&other, &right, 0);
        clock.set_ahead(Duration::from_secs(3_600));
        until_apart(&other, &right, 1);
        clock.set_behind(Duration::from_secs(7_200));
        until_apart(&other, &right, -2);
        let script = "return redis.call('TIME')[1]";
        let in_script = other.command(&["EVAL", script, "0"]).text().parse::<i64>().unwrap();
        assert_eq!((in_script - seconds(&right) + HOUR / 2).div_euclid(HOUR), -2);
        other.restart();
        until_apart(&other, &right, -2);
        clock.set_behind(Duration::ZERO);
        until_apart(&other, &right, 0);
    }
}

#[test]
fn keys_of_a_server_expire_by_its_own_clock() {
    for flavour in Flavour::ALL {
        let clock = Clock::new();
        let server = Setup::new(flavour).clock(&clock).start();
        server.command(&["SET", "key", "value", "EX", "3600"]).ok();
        clock.set_ahead(Duration::from_secs(3_601));
        eventually("the key is gone", || {
            (server.command(&["EXISTS", "key"]).integer() == 0).then_some(())
        });
    }
}

#[test]
fn any_program_can_be_given_a_clock() {
    let clock = Clock::new();
    clock.set_behind(Duration::from_micros(1_500_000));
    let ask = |clock: Option<&Clock>| {
        let mut date = Command::new("date");
        date.arg("+%s%N").envs(clock.into_iter().flat_map(Clock::environment));
        let nanos = String::from_utf8(date.output().unwrap().stdout).unwrap();
        nanos.trim().parse::<i64>().unwrap() / 1_000
    };
    let (before, at, after) = (ask(None), ask(Some(&clock)), ask(None));
    assert!((before..=after).contains(&(at + 1_500_000)), "{before} {at} {after}");
}
