//! `tollgate compare`

use std::fs;

use serde_json::Value;

use crate::tollgate;

const ALGORITHMS: [&str; 6] = [
    "sliding_window",
    "token_bucket",
    "leaky_bucket",
    "fixed_window",
    "sliding_log",
    "concurrency",
];

fn json(arguments: &[&str]) -> Value {
    let run = tollgate(&[arguments, &["--output", "json"]].concat());
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    serde_json::from_str(&run.stdout).expect("the output is JSON")
}

#[test]
fn the_boundary_is_shown_as_everybody_knows_it() {
    let run = tollgate(&["compare", "10/minute", "--traffic", "boundary"]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    let expected = "\
10/minute, boundary traffic (burst 10, seed 1)
a column is 1s, a full bar 10 requests; delayed requests are drawn when they go on

                         ╷60s      ╷70s      ╷80s      ╷90s      ╷100s     ╷110s
sliding_window  allowed █▁
                denied   ▇
token_bucket    allowed █
                denied   █
leaky_bucket    allowed ▁
                delayed       ▁     ▁     ▁     ▁     ▁     ▁     ▁     ▁     ▁
                denied   █
fixed_window    allowed ██
sliding_log     allowed █
                denied   █
concurrency     allowed ▄
                denied  ▄█

                admitted  delayed   denied       most in any 1m  bytes per key
sliding_window        11        0        9          11 (1 over)             32
token_bucket          10        0       10                   10             32
leaky_bucket          10        9       10                   10             32
fixed_window          20        0        0         20 (10 over)             32
sliding_log           10        0       10                   10            272
concurrency            5        0       15                    5            152

concurrency knows no rate: here at most 5 are at work at a time, each for 30s
";
    assert_eq!(run.stdout, expected);
}

#[test]
fn all_traffic_has_a_lane_for_each_algorithm_within_eighty_columns() {
    for traffic in ["boundary", "burst", "steady", "poisson", "retry-storm"] {
        for rate in ["10/minute", "1/day", "0/hour", "1000/second", "7/90s", "500/year"] {
            let run = tollgate(&["compare", rate, "--traffic", traffic]);
            assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "{rate} {traffic}");
            for algorithm in ALGORITHMS {
                let begins = |line: &&str| line.starts_with(algorithm);
                let lines = run.stdout.lines().filter(begins).count();
                assert!(lines >= 2, "{algorithm} of {rate} {traffic}");
            }
            for line in run.stdout.lines().skip(3).take_while(|line| !line.is_empty()) {
                assert!(line.chars().count() <= 80, "{rate} {traffic}: {line}");
                assert_eq!(line.trim_end(), line, "{rate} {traffic}");
            }
        }
    }
}

#[test]
fn json_has_every_figure_and_every_event() {
    let comparison = json(&["compare", "10/minute", "--traffic", "boundary"]);
    assert_eq!(comparison["rate"], "10/minute");
    assert_eq!(comparison["period_micros"], 60_000_000);
    let lanes = comparison["lanes"].as_array().unwrap();
    let names: Vec<&str> = lanes.iter().map(|lane| lane["algorithm"].as_str().unwrap()).collect();
    assert_eq!(names, ALGORITHMS);
    let fixed = &lanes[3];
    assert_eq!((&fixed["admitted"], &fixed["most_in_any_window"]), (&20.into(), &20.into()));
    assert_eq!(fixed["events"].as_array().unwrap().len(), 20);
    let leaky = lanes[2]["events"].as_array().unwrap();
    let second = &leaky[1];
    assert_eq!(second["verdict"], "delayed");
    assert!(second["delay_micros"].as_u64().unwrap() > 5_000_000);
    let concurrency = lanes[5]["events"].as_array().unwrap();
    assert_eq!(concurrency[19]["verdict"], "denied");
    assert_eq!(concurrency[19]["retry_after_micros"], Value::Null);
}

#[test]
fn a_seed_makes_the_same_traffic_again() {
    let poisson = ["compare", "10/minute", "--traffic", "poisson", "--seed"];
    let of_seed = |seed| json(&[&poisson[..], &[seed]].concat());
    assert_eq!(of_seed("7"), of_seed("7"));
    assert_ne!(of_seed("7")["lanes"], of_seed("8")["lanes"]);
}

#[test]
fn a_burst_of_its_own_is_what_the_bucket_holds() {
    let comparison = json(&["compare", "60/minute", "--burst", "7", "--traffic", "burst"]);
    assert_eq!(comparison["lanes"][1]["limit"], 7);
    assert_eq!(comparison["lanes"][2]["limit"], 7);
    assert_eq!(comparison["lanes"][4]["limit"], 60);
}

#[test]
fn the_picture_in_the_documentation_is_what_the_command_draws() {
    let file = std::env::temp_dir().join(format!("tollgate-compare-{}.svg", std::process::id()));
    let name = file.to_str().unwrap();
    let run = tollgate(&["compare", "10/minute", "--traffic", "boundary", "--svg", name]);
    let drawn = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    assert_eq!((run.code, run.stderr), (Some(0), format!("drew {name}\n")));
    assert!(run.stdout.contains("fixed_window"), "the lanes are still printed");
    assert!(
        drawn == include_str!("../../../../docs/images/compare.svg"),
        "draw it again: tollgate compare 10/minute --traffic boundary --svg \
         docs/images/compare.svg"
    );
}

#[test]
fn a_picture_needs_nothing_but_itself() {
    let picture = include_str!("../../../../docs/images/compare.svg");
    assert!(picture.contains("prefers-color-scheme: dark"));
    for foreign in ["<script", "href", "@import", "<image", "<foreignObject"] {
        assert!(!picture.contains(foreign), "{foreign}");
    }
}

#[test]
fn a_picture_that_cannot_be_written_is_a_failure() {
    let run = tollgate(&["compare", "10/minute", "--svg", "no/such/folder/lanes.svg"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
    assert!(run.stderr.starts_with("error: cannot write no/such/folder/lanes.svg: "));
}

#[test]
fn what_cannot_be_compared_is_a_mistake_in_usage() {
    let check = |arguments: &[&str], sentence: &str| {
        let run = tollgate(&[&["compare"], arguments].concat());
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(run.stderr.contains(sentence), "{}", run.stderr);
    };
    check(&["5/minuet"], "is not a rate; write for example 5/minute or 1000/90s");
    check(&["5/0s"], "a period of 0s is outside 1ms to 365d");
    check(&["4294967296/s"], "is more than can be counted");
    check(&["10001/s"], "too much to show request by request");
    check(&["1/day", "--burst", "4000000"], "more than 100 years to refill");
    check(&["10/minute", "--traffic", "bursts"], "retry-storm");
    check(&["10/minute", "--seed", "x"], "--seed");
    check(&[], "<RATE>");
}
