//! Real responses, vendor by vendor, and what is read from them.
//!
//! Every sample is of a response made at [`DATE`]. `told` is one line an allowance: its name, what is
//! left of how much, the unit if it is not requests, in how long there is more, or all of it, and the window.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tollgate_client::{Budget, Scope, Unit};

use crate::support::fields;

pub(crate) const DATE: &str = "Mon, 16 Nov 2026 06:33:19 GMT";
const DATE_SECONDS: u64 = 1_794_810_799;

struct Sample {
    of: &'static str,
    fields: &'static str,
    told: &'static [&'static str],
    wait: Option<f64>,
}

const SAMPLES: &[Sample] = &[
    Sample {
        of: "draft 03",
        fields: "RateLimit-Limit: 100, 100;w=60, 1000;w=3600\nRateLimit-Remaining: 50\nRateLimit-Reset: 5",
        told: &["50/100 in 5s of 60s"],
        wait: None,
    },
    Sample {
        of: "draft 06",
        fields: "RateLimit-Limit: 10\nRateLimit-Remaining: 0\nRateLimit-Reset: 42\n\
                 RateLimit-Policy: 10;w=1, 10;w=60",
        told: &["0/10 in 42s of 60s"],
        wait: Some(42.0),
    },
    Sample {
        of: "draft 06, with a burst",
        fields: "RateLimit-Remaining: 219\nRateLimit-Limit: 300\nRateLimit-Reset: 2\n\
                 RateLimit-Policy: 300;w=5;burst=330;comment=\"token bucket\";category=\"trigger\"",
        told: &["219/300 in 2s of 5s"],
        wait: None,
    },
    Sample {
        of: "draft 07",
        fields: "RateLimit: limit=100, remaining=50, reset=5\nRateLimit-Policy: 100;w=60",
        told: &["50/100 in 5s of 60s"],
        wait: None,
    },
    Sample {
        of: "drafts 08 to 11",
        fields: "RateLimit-Policy: \"burst\";q=100;w=60,\"daily\";q=1000;w=86400\n\
                 RateLimit: \"burst\";r=50;t=30, \"daily\";r=7",
        told: &["burst 50/100 in 30s of 60s", "daily 7/1000 of 86400s"],
        wait: None,
    },
    Sample {
        of: "drafts 08 to 11, over several lines",
        fields: "RateLimit: \"burst\";r=50;t=30\nRateLimit: \"daily\";r=7",
        told: &["burst 50 in 30s", "daily 7"],
        wait: None,
    },
    Sample {
        of: "drafts 08 to 11, counting bytes",
        fields: "RateLimit-Policy: \"peruser\";q=65535;qu=\"content-bytes\";w=10;pk=:sdfjLJUOUH==:\n\
                 RateLimit: \"peruser\";r=30000;t=4;pk=:sdfjLJUOUH==:",
        told: &["peruser 30000/65535 amount in 4s of 10s"],
        wait: None,
    },
    Sample {
        of: "the announced names",
        fields: "RateLimit-Policy: default;q=100;w=60\nRateLimit: default;a=50;w=30",
        told: &["default 50/100 in 30s of 60s"],
        wait: None,
    },
    Sample {
        of: "tollgate",
        fields: "Retry-After: 69\nRetry-After-Ms: 68250\n\
                 RateLimit-Policy: \"login\";q=3;w=60, \"api\";q=60;w=60;tollgate-burst=10, \
                 \"in-flight\";q=100;qu=\"concurrent-requests\"\n\
                 RateLimit: \"login\";r=0;t=60, \"api\";r=7;t=1\n\
                 X-RateLimit-Retry-After: 69\nX-RateLimit-Limit: 3\nX-RateLimit-Remaining: 0\n\
                 X-RateLimit-Reset: 1794810859",
        told: &["login 0/3 in 60s of 60s", "api 7/10 in 1s of 10s"],
        wait: Some(68.25),
    },
    Sample {
        of: "express-rate-limit, legacy",
        fields: "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4\nX-RateLimit-Reset: 1794810859",
        told: &["4/5 in 60s"],
        wait: None,
    },
    Sample {
        of: "express-rate-limit, draft 8",
        fields: "RateLimit-Policy: \"5-in-1min\"; q=5; w=60; pk=:MTJjYTE3YjQ5YWYy:\n\
                 RateLimit: \"5-in-1min\"; r=4; t=60",
        told: &["5-in-1min 4/5 in 60s of 60s"],
        wait: None,
    },
    Sample {
        of: "Envoy",
        fields: "x-ratelimit-limit: 10, 10;w=60;name=\"per-user\"\nx-ratelimit-remaining: 3\n\
                 x-ratelimit-reset: 41",
        told: &["3/10 in 41s of 60s"],
        wait: None,
    },
    Sample {
        of: "GitHub",
        fields: "x-ratelimit-limit: 5000\nx-ratelimit-remaining: 4987\nx-ratelimit-used: 13\n\
                 x-ratelimit-reset: 1794812345\nx-ratelimit-resource: core",
        told: &["of core 4987/5000 in 1546s"],
        wait: None,
    },
    Sample {
        of: "GitHub, exhausted",
        fields: "x-ratelimit-limit: 60\nx-ratelimit-remaining: 0\nx-ratelimit-used: 60\n\
                 x-ratelimit-reset: 1794811399\nx-ratelimit-resource: core",
        told: &["of core 0/60 in 600s"],
        wait: Some(600.0),
    },
    Sample {
        of: "GitHub, the secondary limit",
        fields: "retry-after: 60\nx-ratelimit-limit: 5000\nx-ratelimit-remaining: 4999\n\
                 x-ratelimit-reset: 1794812345",
        told: &["4999/5000 in 1546s"],
        wait: Some(60.0),
    },
    Sample {
        of: "Stripe",
        fields: "stripe-should-retry: true\nstripe-rate-limited-reason: global-rate\nretry-after: 2",
        told: &[],
        wait: Some(2.0),
    },
    Sample {
        of: "Shopify",
        fields: "X-Shopify-Shop-Api-Call-Limit: 32/40",
        told: &["8/40 all in 16s of 20s"],
        wait: None,
    },
    Sample {
        of: "Shopify, refused",
        fields: "X-Shopify-Shop-Api-Call-Limit: 40/40\nRetry-After: 2.0",
        told: &["0/40 all in 20s of 20s"],
        wait: Some(2.0),
    },
    Sample {
        of: "Shopify, refused without a wait",
        fields: "X-Shopify-Shop-Api-Call-Limit: 40/40",
        told: &["0/40 all in 20s of 20s"],
        wait: Some(0.5),
    },
    Sample {
        of: "OpenAI",
        fields: "x-ratelimit-limit-requests: 60\nx-ratelimit-limit-tokens: 150000\n\
                 x-ratelimit-remaining-requests: 59\nx-ratelimit-remaining-tokens: 149984\n\
                 x-ratelimit-reset-requests: 1s\nx-ratelimit-reset-tokens: 6m0s",
        told: &["requests 59/60 all in 1s of 60s", "tokens 149984/150000 amount all in 360s"],
        wait: None,
    },
    Sample {
        of: "OpenAI, quick",
        fields: "x-ratelimit-limit-requests: 5000\nx-ratelimit-limit-tokens: 160000\n\
                 x-ratelimit-remaining-requests: 4999\nx-ratelimit-remaining-tokens: 0\n\
                 x-ratelimit-reset-requests: 12ms\nx-ratelimit-reset-tokens: 1m30s\n\
                 x-should-retry: true",
        told: &[
            "requests 4999/5000 all in 0.012s of 60s",
            "tokens 0/160000 amount all in 90s of 90s",
        ],
        wait: Some(90.0),
    },
    Sample {
        of: "OpenAI, told to the millisecond",
        fields: "retry-after-ms: 1234\nretry-after: 2",
        told: &[],
        wait: Some(1.234),
    },
    Sample {
        of: "Azure, without a limit",
        fields: "x-ratelimit-limit-tokens: -1\nx-ratelimit-remaining-tokens: -1\n\
                 x-ratelimit-reset-tokens: 0",
        told: &[],
        wait: None,
    },
    Sample {
        of: "Anthropic",
        fields: "anthropic-ratelimit-requests-limit: 1000\nanthropic-ratelimit-requests-remaining: 999\n\
                 anthropic-ratelimit-requests-reset: 2026-11-16T06:33:18Z\n\
                 anthropic-ratelimit-input-tokens-limit: 80000\n\
                 anthropic-ratelimit-input-tokens-remaining: 79000\n\
                 anthropic-ratelimit-input-tokens-reset: 2026-11-16T06:33:20Z\n\
                 anthropic-ratelimit-output-tokens-limit: 16000\n\
                 anthropic-ratelimit-output-tokens-remaining: 0\n\
                 anthropic-ratelimit-output-tokens-reset: 2026-11-16T06:34:19Z\n\
                 anthropic-ratelimit-tokens-limit: 96000\n\
                 anthropic-ratelimit-tokens-remaining: 79000\n\
                 anthropic-ratelimit-tokens-reset: 2026-11-16T06:34:19Z",
        told: &[
            "requests 999/1000 all in 0s",
            "tokens 79000/96000 amount all in 60s of 338.823529411s",
            "input-tokens 79000/80000 amount all in 1s of 80s",
            "output-tokens 0/16000 amount all in 60s of 60s",
        ],
        wait: Some(60.0),
    },
    Sample {
        of: "Discord",
        fields: "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1794810863.570\n\
                 X-RateLimit-Reset-After: 64.57\nX-RateLimit-Bucket: abcd1234",
        told: &["of abcd1234 0/5 in 64.57s"],
        wait: Some(64.57),
    },
    Sample {
        of: "Discord, globally",
        fields: "Retry-After: 65\nX-RateLimit-Global: true\nX-RateLimit-Scope: global",
        told: &[],
        wait: Some(65.0),
    },
    Sample {
        of: "Reddit",
        fields: "x-ratelimit-used: 2\nx-ratelimit-remaining: 598.0\nx-ratelimit-reset: 240",
        told: &["598/600 in 240s"],
        wait: None,
    },
    Sample {
        of: "X",
        fields: "x-rate-limit-limit: 900\nx-rate-limit-remaining: 899\nx-rate-limit-reset: 1794811699",
        told: &["of its endpoint 899/900 in 900s"],
        wait: None,
    },
    Sample {
        of: "Atlassian",
        fields: "X-RateLimit-Limit: 350\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 2026-11-16T07:00Z\n\
                 Retry-After: 1601",
        told: &["0/350 in 1601s"],
        wait: Some(1_601.0),
    },
    Sample {
        of: "Linear, in milliseconds",
        fields: "X-RateLimit-Requests-Limit: 1500\nX-RateLimit-Limit: 1500\nX-RateLimit-Remaining: 1499\n\
                 X-RateLimit-Reset: 1794814399000",
        told: &["1499/1500 in 3600s"],
        wait: None,
    },
    Sample { of: "Slack", fields: "Retry-After: 30", told: &[], wait: Some(30.0) },
    Sample {
        of: "a server that tells a date",
        fields: "Retry-After: Mon, 16 Nov 2026 06:34:19 GMT",
        told: &[],
        wait: Some(60.0),
    },
];

pub(crate) fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(DATE_SECONDS)
}

pub(crate) fn told(budget: &Budget) -> Vec<String> {
    let line = |allowance: &tollgate_client::Allowance| {
        let mut line = String::new();
        let mut add = |text: String| write!(line, "{text}").expect("a text takes what is written");
        if let Some(name) = &allowance.name {
            add(format!("{name} "));
        }
        match &allowance.scope {
            Scope::All => {}
            Scope::Named(name) => add(format!("of {name} ")),
            Scope::Endpoint => add("of its endpoint ".to_owned()),
        }
        add(allowance.remaining.to_string());
        if let Some(limit) = allowance.limit {
            add(format!("/{limit}"));
        }
        match allowance.unit {
            Unit::Requests => {}
            Unit::Concurrent => add(" concurrent".into()),
            Unit::Amount => add(" amount".into()),
        }
        if let Some(reset) = allowance.reset_after {
            add(if allowance.is_gradual { " all" } else { "" }.to_owned());
            add(format!(" in {}s", reset.as_secs_f64()));
        }
        if let Some(period) = allowance.period {
            add(format!(" of {}s", period.as_secs_f64()));
        }
        line
    };
    budget.allowances().iter().map(line).collect()
}

#[test]
fn every_vendor_is_understood() {
    for sample in SAMPLES {
        let with_date = format!("Date: {DATE}\n{}", sample.fields);
        // A client whose clock is off by an hour reads the same, since the server says its own.
        for (text, now) in [
            (sample.fields, now()),
            (&*with_date, now() + Duration::from_secs(3_600)),
            (&*with_date, now() - Duration::from_secs(3_600)),
        ] {
            let budget = Budget::read(&fields(text), now);
            assert_eq!(told(&budget), sample.told, "{}", sample.of);
            assert_eq!(budget.wait(), sample.wait.map(Duration::from_secs_f64), "{}", sample.of);
        }
    }
}
