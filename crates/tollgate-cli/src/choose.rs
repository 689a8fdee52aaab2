//! `tollgate choose`: a few questions, and a limit that fits the answers.
//!
//! A question is asked only if its answer still changes the outcome and no flag gave it. The limit
//! goes to standard output and everything said on the way to standard error, so that the output is
//! a policy as it stands.

use std::fmt::{self, Display};
use std::io::{self, BufRead, IsTerminal};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use tollgate_core::{Algorithm, Micros, Quota, QuotaError};
use tollgate_policy::{Mistake, Policy};

use crate::output::{self, Failure};

const EXAMPLES: &str = "\
Examples:
  tollgate choose                      asks
  tollgate choose --rate 60/minute --exact no --fragile no --reset no --bursty yes
  tollgate choose --concurrency 10 --per tenant --name in-flight > policy.yaml";

const IN_FLIGHT: Question = Question {
    flag: "--in-flight",
    text: "Must the number of requests at work be limited, rather than how many come in a time?",
};
const CONCURRENCY: Question =
    Question { flag: "--concurrency", text: "How many requests may be at work at once?" };
const RATE: Question =
    Question { flag: "--rate", text: "How many requests in how much time, such as 60/minute?" };
const EXACT: Question =
    Question { flag: "--exact", text: "Must the count be exact, as for logins or billing?" };
const FRAGILE: Question = Question {
    flag: "--fragile",
    text: "Is what lies behind fragile, so that requests should reach it evenly?",
};
const RESET: Question = Question {
    flag: "--reset",
    text: "Should the count start again at moments everybody knows, such as midnight?",
};
const BURSTY: Question =
    Question { flag: "--bursty", text: "Do clients send bursts that should pass?" };

/// Find the limit that fits, and print it ready for a policy
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[arg(long, help = IN_FLIGHT.text, value_name = "yes|no", hide_possible_values = true)]
    in_flight: Option<Answer>,
    #[arg(long, help = CONCURRENCY.text, value_name = "N", conflicts_with = "rate")]
    concurrency: Option<u32>,
    #[arg(long, help = RATE.text)]
    rate: Option<Quota>,
    #[arg(long, help = EXACT.text, value_name = "yes|no", hide_possible_values = true)]
    exact: Option<Answer>,
    #[arg(long, help = FRAGILE.text, value_name = "yes|no", hide_possible_values = true)]
    fragile: Option<Answer>,
    #[arg(long, help = RESET.text, value_name = "yes|no", hide_possible_values = true)]
    reset: Option<Answer>,
    #[arg(long, help = BURSTY.text, value_name = "yes|no", hide_possible_values = true)]
    bursty: Option<Answer>,
    /// The attribute that is counted by, such as client_ip, tenant or header:x-api-key
    #[arg(long, default_value = "client_ip", value_name = "ATTRIBUTE")]
    per: Name,
    /// The name of the limit
    #[arg(long, default_value = "api")]
    name: Name,
}

/// What is asked, as a question to a person and as a flag.
#[derive(Clone, Copy)]
struct Question {
    flag: &'static str,
    text: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Answer {
    #[value(alias = "y")]
    Yes,
    #[value(alias = "n")]
    No,
}

/// What was chosen, and why.
struct Choice {
    limit: Chosen,
    why: String,
}

enum Chosen {
    Slots(u32),
    Rate { quota: Quota, algorithm: Algorithm, size: Option<(&'static str, u32)> },
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let stdin = io::stdin();
    let is_terminal = stdin.is_terminal();
    let mut interview = Interview { answers: stdin.lock(), is_terminal };
    let choice = choose(arguments, &mut interview)?;
    let policy = choice.limit.to_policy(&arguments.name, &arguments.per);
    check(&policy)?;
    output::message(&choice.why);
    output::data(policy)
}

/// Whether what was chosen is a policy: names and numbers came from the user.
fn check(policy: &str) -> Result<(), Failure> {
    let no_files = |_: &str| Err("there are no other files".to_owned());
    let mistakes = Policy::parse("policy", policy, &mut { no_files }).err();
    mistakes.map_or(Ok(()), |mistakes| {
        let sentences: Vec<&str> = mistakes.iter().map(Mistake::sentence).collect();
        Err(Failure::Usage(sentences.join("; ")))
    })
}

fn choose<R: BufRead>(
    arguments: &Arguments,
    interview: &mut Interview<R>,
) -> Result<Choice, Failure> {
    if is_in_flight(arguments, interview)? {
        let slots = match arguments.concurrency {
            Some(slots) => slots,
            None => interview.ask(CONCURRENCY, |text| {
                text.parse().map_err(|_| format!("{text:?} is not a whole number"))
            })?,
        };
        let why = format!(
            "concurrency: at most {slots} at work at a time, however long each takes; a slot comes \
             back when the work ends."
        );
        return Ok(Choice { limit: Chosen::Slots(slots), why });
    }
    let quota = match arguments.rate {
        Some(quota) => quota,
        None => interview
            .ask(RATE, |text| text.parse().map_err(|error: QuotaError| error.to_string()))?,
    };
    choose_algorithm(arguments, quota, interview)
}

fn choose_algorithm<R: BufRead>(
    arguments: &Arguments,
    quota: Quota,
    interview: &mut Interview<R>,
) -> Result<Choice, Failure> {
    let (count, period) = (quota.count(), quota.period());
    let chosen =
        |algorithm, size, why| Ok(Choice { limit: Chosen::Rate { quota, algorithm, size }, why });
    if interview.yes(arguments.exact, EXACT)? {
        let why = format!(
            "sliding_log: never more than {count} in any {period}, at the price of 24 bytes a \
             request."
        );
        return chosen(Algorithm::SlidingLog, None, why);
    }
    if interview.yes(arguments.fragile, FRAGILE)? {
        let queue = queue(quota);
        let why = format!(
            "leaky_bucket: requests go on one by one at {quota}; up to {queue} queue for that, \
             and more are denied."
        );
        return chosen(Algorithm::LeakyBucket, Some(("queue", queue)), why);
    }
    if interview.yes(arguments.reset, RESET)? {
        let why = format!(
            "fixed_window: {count} in each {period} of the clock; twice as many can pass around \
             the end of one."
        );
        return chosen(Algorithm::FixedWindow, None, why);
    }
    if interview.yes(arguments.bursty, BURSTY)? {
        let why = format!(
            "token_bucket: who was idle may send {count} at once, and then goes on at {quota}; \
             lower the burst to allow less at once."
        );
        return chosen(Algorithm::TokenBucket, Some(("burst", count)), why);
    }
    let why = format!(
        "sliding_window: about {count} in any {period}, without a reset that clients could wait \
         for, in 32 bytes a key."
    );
    chosen(Algorithm::SlidingWindow, None, why)
}

/// Whoever names a rate or a number of slots has answered this already.
fn is_in_flight<R: BufRead>(
    arguments: &Arguments,
    interview: &mut Interview<R>,
) -> Result<bool, Failure> {
    match (arguments.in_flight, arguments.rate, arguments.concurrency) {
        (Some(Answer::Yes), Some(_), _) => Err(Failure::Usage(
            "--in-flight yes limits how many are at work, and that has no --rate; give \
             --concurrency instead"
                .to_owned(),
        )),
        (Some(Answer::No), _, Some(_)) => Err(Failure::Usage(
            "--in-flight no limits how many come in a time, and that has no --concurrency; give \
             --rate instead"
                .to_owned(),
        )),
        (None, Some(_), _) => Ok(false),
        (None, _, Some(_)) => Ok(true),
        (given, _, _) => interview.yes(given, IN_FLIGHT),
    }
}

/// As many as leave within five seconds: people give up on a request that takes longer. At least
/// two, since a queue of one lets nobody wait, and no more than the rate's own count.
fn queue(quota: Quota) -> u32 {
    let five_seconds = Micros::from_secs(5).as_micros();
    let leaving = u64::from(quota.count()) * five_seconds / quota.period().as_micros();
    let leaving = u32::try_from(leaving).unwrap_or(u32::MAX);
    leaving.max(2).min(quota.count())
}

impl Chosen {
    fn to_policy(&self, name: &Name, per: &Name) -> String {
        let mut policy = format!("limits:\n  - name: {name}\n    per: [{per}]\n");
        match self {
            Self::Slots(slots) => policy += &format!("    concurrency: {slots}\n"),
            Self::Rate { quota, algorithm, size } => {
                policy += &format!("    rate: {quota}\n    algorithm: {algorithm}\n");
                if let Some((field, size)) = size {
                    policy += &format!("    {field}: {size}\n");
                }
            }
        }
        policy
    }
}

/// A name that YAML reads as just that, quoted where it would read something else.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name(String);

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.~:".contains(c);
        if text.is_empty() || !text.chars().all(is_plain) {
            return Err(format!(
                "{text:?} is not a name; write letters, digits and _ - . ~ : such as api or \
                 header:x-api-key"
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text) = self;
        let words = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
        let is_word = words.contains(&text.to_ascii_lowercase().as_str());
        let begins_plainly = text.starts_with(|c: char| c.is_ascii_alphabetic());
        if begins_plainly && !text.ends_with(':') && !is_word {
            f.write_str(text)
        } else {
            write!(f, "\"{text}\"")
        }
    }
}

/// Questions to whoever is at the other end: a person, or a file with a line for each answer.
struct Interview<R> {
    answers: R,
    is_terminal: bool,
}

impl<R: BufRead> Interview<R> {
    fn yes(&mut self, given: Option<Answer>, question: Question) -> Result<bool, Failure> {
        let answer = match given {
            Some(answer) => answer,
            None => self.ask(question, |text| {
                Answer::from_str(text, true)
                    .map_err(|_| format!("{text:?} is no answer; write yes or no"))
            })?,
        };
        Ok(answer == Answer::Yes)
    }

    fn ask<T>(
        &mut self,
        question: Question,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, Failure> {
        let Question { flag, text } = question;
        loop {
            output::prompt(text);
            let mut line = String::new();
            let read = self.answers.read_line(&mut line);
            let length =
                read.map_err(|error| Failure::Failed(format!("cannot read the answer: {error}")))?;
            if !self.is_terminal {
                // Nobody pressed return, so the question's line is still open.
                output::message(line.trim());
            }
            if length == 0 {
                return Err(Failure::Usage(format!(
                    "the input ended before this was answered; give {flag}, or one line for each \
                     question"
                )));
            }
            match parse(line.trim()) {
                Ok(answer) => return Ok(answer),
                Err(error) if self.is_terminal => output::message(&error),
                Err(error) => return Err(Failure::Usage(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Name, queue};

    fn check_name(text: &str, yaml: &str) {
        assert_eq!(text.parse::<Name>().unwrap().to_string(), yaml);
    }

    #[test]
    fn a_name_that_yaml_would_misread_is_quoted() {
        check_name("api", "api");
        check_name("header:x-api-key", "header:x-api-key");
        check_name("No", "\"No\"");
        check_name("2024", "\"2024\"");
        check_name("-", "\"-\"");
        check_name("header:", "\"header:\"");
        assert!("a b".parse::<Name>().is_err());
        assert!("".parse::<Name>().is_err());
        assert!("a\nb".parse::<Name>().is_err());
    }

    #[test]
    fn a_queue_holds_what_leaves_in_five_seconds() {
        let check = |rate: &str, expected| assert_eq!(queue(rate.parse().unwrap()), expected);
        check("60/minute", 5);
        check("100/second", 100);
        check("5/minute", 2);
        check("1/day", 1);
        check("4294967295/1ms", u32::MAX);
    }
}
