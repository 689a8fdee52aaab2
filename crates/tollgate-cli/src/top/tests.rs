//! The page, drawn from what a server told and what was pressed.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Value, json};

use super::model::{Answer, Deed, Focus, List, Mode, Model, Order, Span, Wanted};
use super::page;
use super::told::{Key, Keys, Limit, Live};
use crate::bounds::{TOP_IN_ROW_MAX, TOP_ROWS_MAX, TOP_SAID_ANSWERS};
use crate::output::Palette;

const NOW_MS: u64 = 1_760_000_000_000;

fn live() -> Value {
    json!({
        "now_ms": NOW_MS, "started_ms": NOW_MS - 200_000, "version": "0.1.0",
        "second": 4,
        "seconds": [
            {"allowed": 10, "denied": 0, "other": 0, "p50_us": 0.4, "p99_us": 1.0},
            {"allowed": 40, "denied": 1, "other": 0, "p50_us": null, "p99_us": null},
            {"allowed": 20, "denied": 4, "other": 0, "p50_us": 0.4, "p99_us": 2.1},
            {"allowed": 20, "denied": 0, "other": 0, "p50_us": null, "p99_us": null},
        ],
        "limits": [
            {"limit": "api", "tier": "free", "mode": "enforce", "allowed": 1_200, "denied": 5,
             "shadow_denied": 0, "store_failed": 0, "used": 0.42, "spark": [[0, 0], [5, 3], [16, 0]]},
            {"limit": "login", "tier": "", "mode": "shadow", "allowed": 70, "denied": 0,
             "shadow_denied": 2, "store_failed": 0, "used": null, "spark": []},
            {"limit": "#callers", "tier": "", "mode": "enforce", "allowed": 0, "denied": 0,
             "shadow_denied": 0, "store_failed": 0, "used": null, "spark": []},
        ],
        "storm": {"is_storm": false, "denied": 5, "early": 0, "keys": []},
        "advice": [],
        "memory": {"keys": 3, "bytes": 1_024, "max_bytes": 1_073_741_824, "evictions": 0},
        "redis": null,
        "doors": [{"door": "http", "open": 1}, {"door": "admin", "open": 2}],
        "held": {"now": 0, "shed": 0},
        "policy": {"loaded_ms": NOW_MS - 200_000, "reloads": {"succeeded": 2, "failed": 0},
                   "error": null, "warnings": []},
    })
}

fn key(key: &str, denied: u64, obeys: Option<bool>) -> Value {
    json!({
        "key": key, "requests": 2 * denied, "denied": denied, "error": 0, "rate": 0.5,
        "denied_rate": 0.25, "first_seen_ms": NOW_MS - 720_000, "limits": ["api"], "early": 3,
        "obeys": obeys,
    })
}

fn keys() -> Value {
    json!({"period_ms": 3_600_000, "requests": 1_300, "denied": 5, "keys": [
        key("api:anna", 4, Some(false)), key("api:bob", 1, None),
    ]})
}

fn answer(live: Value, keys: Value, wanted: Wanted) -> Answer {
    let read = "it is as a server writes it";
    Answer {
        live: serde_json::from_value(live).expect(read),
        wanted,
        keys: serde_json::from_value(keys).expect(read),
    }
}

/// A model that was told this.
fn told(live: Value, keys: Value) -> Model {
    let mut model = Model::new("http://127.0.0.1:8082");
    model.answered(Ok(answer(live, keys, Wanted::default())));
    model
}

fn drawn_at(model: &Model, width: u16, height: u16) -> Vec<String> {
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
    let Ok(_) = terminal.draw(|frame| page::draw(frame, model, Palette::plain()));
    page::lines_drawn(terminal.backend().buffer())
}

fn drawn(model: &Model) -> Vec<String> {
    drawn_at(model, 100, 24)
}

fn press(model: &mut Model, codes: &[KeyCode]) -> Vec<Order> {
    let press = |code: &KeyCode| model.press(KeyEvent::new(*code, KeyModifiers::NONE));
    codes.iter().filter_map(press).collect()
}

fn types(model: &mut Model, letters: &str) -> Vec<Order> {
    press(model, &letters.chars().map(KeyCode::Char).collect::<Vec<_>>())
}

#[test]
fn a_page_shows_rates_limits_keys_and_how_the_server_is() {
    let right = |bars: &str| format!("{}{bars}", " ".repeat(96));
    let expected = [
        "tollgate 0.1.0 at http://127.0.0.1:8082, up 3 min",
        "allowed     20/s   most 40/s",
        &right(" █  "),
        &right("▄███"),
        "denied       0/s   most 4/s",
        &right(" ▂█ "),
        "latency  p99 2.1 µs   p50 0.4 µs",
        &right("▃ █ "),
        "  limit  tier  mode     used  allowed  denied  shadow  failed  last 15 minutes",
        "  api    free  enforce   42%     1.2k       5       0       0   ▄█",
        "  login        shadow      -       70       0       2       0",
        "most denied keys of the last hour: 5 denied",
        "    denied      /s  requests      /s   early  obeys  since   key",
        ">        4    0.25         8     0.5       3  no     12 min  api:anna",
        "         1    0.25         2     0.5       3  -      12 min  api:bob",
        "",
        "",
        "",
        "",
        "",
        "store   3 keys, 1.0KiB of 1.0GiB, 0 forgotten too early",
        "doors   http 1, admin 2; 0 requests held, 0 shed",
        "policy  loaded 3 min ago; 2 reloads, 0 failed",
        "? help  q quit  / search  d denied  b busy  m h y span  r reset  x ban",
    ];
    let page = drawn(&told(live(), keys()));
    assert_eq!(page, expected.map(|line| line.trim_end().to_owned()), "\n{}", page.join("\n"));
}

#[test]
fn limits_that_callers_bring_along_are_shown_once_there_are_any() {
    let mut live = live();
    live["limits"][2]["denied"] = 1.into();
    let page = drawn(&told(live, keys()));
    assert!(page.iter().any(|line| line.starts_with("  #callers")), "{page:?}");
}

#[test]
fn what_is_wrong_has_a_line_of_its_own() {
    let mut live = live();
    live["storm"] =
        json!({"is_storm": true, "denied": 130, "early": 120, "keys": ["api:anna", "api:bob"]});
    live["policy"]["error"] = "policy.yaml:3:5: rate is none\nand more".into();
    live["redis"] = json!({"servers": [
        {"address": "10.0.0.1:6379", "is_well": true}, {"address": "10.0.0.2:6379", "is_well": false},
    ], "settled_without": 7});
    let mut model = told(live, keys());
    model.answered(Err("cannot ask http://127.0.0.1:8082: Connection refused".to_owned()));
    let page = drawn(&model);
    assert_eq!(
        page[1..5],
        [
            "cannot ask http://127.0.0.1:8082: Connection refused; trying again",
            "RETRY STORM: 120 of 130 denied in the last minute did not wait as told: api:anna, api:bob",
            "POLICY REJECTED, the last good one is in force: policy.yaml:3:5: rate is none\\nand more",
            "REDIS at 10.0.0.2:6379 is left alone: it fails",
        ]
    );
    let store = page.iter().find(|line| line.starts_with("store")).unwrap();
    assert!(store.ends_with("; Redis: 1 of 2 well, 7 settled without"), "{store}");
    // What was known before is still there, and the trouble ends with the next answer.
    assert!(page.iter().any(|line| line.ends_with("api:anna")), "{page:?}");
    model.answered(Ok(answer(self::live(), keys(), Wanted::default())));
    assert!(drawn(&model)[1].starts_with("allowed"));
}

#[test]
fn a_server_that_never_answered_is_told_and_nothing_else_is_made_up() {
    let mut model = Model::new("http://127.0.0.1:8082");
    let trouble = "http://127.0.0.1:8082 answered 401 Unauthorized: a token is needed";
    model.answered(Err(trouble.to_owned()));
    let page = drawn(&model);
    assert_eq!(page[0], "tollgate at http://127.0.0.1:8082");
    assert_eq!(page[1], format!("{trouble}; trying again"));
    assert!(page.iter().any(|line| line.starts_with("latency  p99 -   p50 -")), "{page:?}");
}

#[test]
fn advice_is_wrapped_and_never_takes_the_whole_page() {
    let sentence = "api: 12 of 20 free users were denied today, which is more than 40 %; the limit may be too small for them";
    let mut live = live();
    live["advice"] = json!(vec![json!({"kind": "hit_by_many", "sentence": sentence}); 40]);
    let page = drawn(&told(live, keys()));
    let advice: Vec<&String> = page.iter().filter(|line| line.starts_with("* ")).collect();
    assert_eq!(advice.len(), 3);
    let first = page.iter().position(|line| line.starts_with("* ")).unwrap();
    assert_eq!(page[first + 1], "  for them");
}

#[test]
fn nothing_that_a_caller_sends_moves_a_cell() {
    let mut live = live();
    live["limits"][0]["tier"] = "\u{1b}[2Ja漢".into();
    live["storm"] = json!({"is_storm": true, "denied": 1, "early": 1, "keys": ["a\r\nb"]});
    let keys = json!({"keys": [key("api:\u{1b}]0;x\u{7}\u{202e}漢e\u{301}", 1, None)]});
    let page = drawn_at(&told(live, keys), 120, 24).join("\n");
    assert!(page.contains("api:\\u{1b}]0;x\\u{7}\\u{202e}\\u{6f22}e\\u{301}"), "{page}");
    assert!(page.contains("\\u{1b}[2Ja\\u{6f…"), "{page}");
    assert!(page.contains("told: a\\r\\nb"), "{page}");
    assert!(!page.chars().any(|letter| letter.is_control() && letter != '\n'), "{page:?}");
}

#[test]
fn any_size_of_terminal_will_do() {
    let mut live = live();
    live["limits"] = json!(vec![live["limits"][0].clone(); 300]);
    let all: Vec<Value> = (0..300).map(|n| key(&format!("api:{n}"), n, None)).collect();
    let mut model = told(live, json!({"keys": all}));
    for (width, height) in [(0, 0), (1, 1), (10, 5), (80, 24), (300, 100), (1_000, 3)] {
        for mode in
            [Mode::Watching, Mode::Searching, Mode::Asking(Deed::Reset, "api:1".into()), Mode::Help]
        {
            model.mode = mode;
            drawn_at(&model, width, height);
        }
    }
}

#[test]
fn a_small_page_still_shows_a_limit_and_a_key() {
    let mut live = live();
    live["advice"] = json!([{"kind": "riding", "sentence": "api:anna rides at its limit"}]);
    let page = drawn_at(&told(live, keys()), 80, 20).join("\n");
    assert!(page.contains("\n  api ") && page.contains("api:anna\n"), "{page}");
}

#[test]
fn arrows_reach_every_row_of_both_tables_and_stay_with_a_key() {
    let all: Vec<Value> = (0..50).map(|n| key(&format!("api:{n}"), 100 - n, None)).collect();
    let mut model = told(live(), json!({"keys": all}));
    press(&mut model, &[KeyCode::End]);
    assert!(drawn(&model).iter().any(|line| line.starts_with('>') && line.ends_with("api:49")));
    press(&mut model, &[KeyCode::Up, KeyCode::PageUp]);
    assert_eq!(model.shown_keys()[model.key].key, "api:38");
    // Others pass it by.
    let mut all = all;
    all.rotate_right(3);
    model.answered(Ok(answer(live(), json!({"keys": all}), Wanted::default())));
    assert_eq!(model.shown_keys()[model.key].key, "api:38");
    press(&mut model, &[KeyCode::Home, KeyCode::Tab, KeyCode::Down, KeyCode::Down]);
    assert_eq!((model.focus, model.limit, model.key), (Focus::Limits, 1, 0));
    assert!(drawn(&model).iter().any(|line| line.starts_with("> login")));
    // The tables become short.
    model.answered(Ok(answer(json!({}), json!({}), Wanted::default())));
    assert_eq!((model.limit, model.key), (0, 0));
}

#[test]
fn letters_choose_which_keys_are_listed_and_of_when() {
    let mut model = told(live(), keys());
    let busy = Wanted { list: List::Busy, span: Span::Hour };
    assert_eq!(types(&mut model, "b"), [Order::List(busy)]);
    // What was asked before is not shown as what is asked now.
    model.answered(Ok(answer(live(), keys(), Wanted::default())));
    assert!(model.shown_keys().is_empty());
    model.answered(Ok(answer(live(), keys(), busy)));
    assert!(drawn(&model).join("\n").contains("busiest keys of the last hour: 1.3k requests\n"));
    let of = |list, span| Order::List(Wanted { list, span });
    assert_eq!(
        types(&mut model, "mydbbh"),
        [
            of(List::Busy, Span::Minute),
            of(List::Busy, Span::Day),
            of(List::Denied, Span::Day),
            of(List::Busy, Span::Day),
            of(List::Busy, Span::Hour),
        ]
    );
}

#[test]
fn a_list_that_has_not_come_is_loading_and_one_without_keys_has_none() {
    let below_title = |model: &Model, title: &str| {
        let page = drawn(model);
        let row = page.iter().position(|line| line == title);
        row.map_or_else(|| page.join("\n"), |row| page[row + 2].clone())
    };
    let mut model = Model::new("http://127.0.0.1:8082");
    assert_eq!(below_title(&model, "most denied keys of the last hour"), "  loading");
    model.answered(Ok(answer(live(), keys(), Wanted::default())));
    for (letter, title) in [
        ("b", "busiest keys of the last hour"),
        ("d", "most denied keys of the last hour"),
        ("m", "most denied keys of the last minute"),
        ("y", "most denied keys of the last day"),
    ] {
        types(&mut model, letter);
        assert_eq!(below_title(&model, title), "  loading", "{letter}");
        // Neither an answer that crossed with it nor a failure has brought the list.
        let other = Wanted { list: List::Busy, span: Span::Minute };
        model.answered(Ok(answer(live(), json!({"keys": []}), other)));
        model.answered(Err("Connection refused".to_owned()));
        assert_eq!(below_title(&model, title), "  loading", "{letter}");
    }
    types(&mut model, "/bob");
    assert_eq!(below_title(&model, "most denied keys of the last day"), "  loading");
    press(&mut model, &[KeyCode::Esc]);
    model.answered(Ok(answer(live(), json!({"keys": []}), model.wanted)));
    assert_eq!(below_title(&model, "most denied keys of the last day: 0 denied"), "  none");
    model.answered(Ok(answer(live(), keys(), model.wanted)));
    types(&mut model, "/nobody");
    assert!(drawn(&model).iter().any(|line| line == "  none"), "of what is searched for");
}

#[test]
fn a_search_narrows_the_keys_until_it_is_ended() {
    let mut model = told(live(), keys());
    types(&mut model, "/BOq");
    assert_eq!((model.search.as_str(), drawn(&model)[23].as_str()), ("BOq", "/BOq_"));
    press(&mut model, &[KeyCode::Backspace, KeyCode::Enter]);
    let page = drawn(&model).join("\n");
    assert!(page.contains("5 denied; 1 of 2 keys with \"BO\"\n"), "{page}");
    assert!(page.contains("api:bob") && !page.contains("api:anna"), "{page}");
    press(&mut model, &[KeyCode::Esc]);
    assert_eq!(model.shown_keys().len(), 2);
    types(&mut model, &format!("/{}", "x".repeat(1_000)));
    assert_eq!(model.search.len(), 100);
    assert_eq!(types(&mut model, "q"), []);
    press(&mut model, &[KeyCode::Esc]);
    assert_eq!((model.search.as_str(), &model.mode), ("", &Mode::Watching));
}

#[test]
fn a_key_is_reset_only_after_a_yes() {
    let mut model = told(live(), keys());
    assert_eq!(types(&mut model, "jr"), []);
    assert_eq!(drawn(&model)[23], "reset api:bob, so that it begins anew? y, or any other key");
    assert_eq!(types(&mut model, "n"), []);
    assert_eq!(types(&mut model, "rq"), [], "q is no yes, and ends nothing but the question");
    types(&mut model, "r");
    // The list changes while somebody thinks.
    model.answered(Ok(answer(live(), json!({"keys": []}), Wanted::default())));
    assert_eq!(types(&mut model, "y"), [Order::Do(Deed::Reset, "api:bob".to_owned())]);
    model.say("api:bob begins anew".to_owned());
    assert_eq!(drawn(&model)[23], "api:bob begins anew");
    assert_eq!(types(&mut model, "r"), []);
    assert_eq!(model.mode, Mode::Watching, "there is no key to be reset");
}

#[test]
fn a_key_is_banned_only_after_a_yes() {
    let mut model = told(live(), keys());
    assert_eq!(types(&mut model, "x"), []);
    assert_eq!(
        drawn(&model)[23],
        "ban api:anna, so that it is allowed nothing? y, or any other key"
    );
    assert_eq!(types(&mut model, "n"), []);
    assert_eq!(types(&mut model, "xy"), [Order::Do(Deed::Ban, "api:anna".to_owned())]);
}

#[test]
fn what_came_of_an_order_is_shown_long_enough_to_be_read_and_no_longer() {
    let good = |model: &mut Model| model.answered(Ok(answer(live(), keys(), Wanted::default())));
    let mut model = told(live(), keys());
    model.say("Redis does not answer".to_owned());
    for _ in 1..TOP_SAID_ANSWERS {
        good(&mut model);
        assert_eq!(drawn(&model)[23], "Redis does not answer");
    }
    // While the server is away nothing is news.
    model.answered(Err("Connection refused".to_owned()));
    assert_eq!(drawn(&model)[23], "Redis does not answer");
    good(&mut model);
    assert!(drawn(&model)[23].starts_with("? help"));
}

#[test]
fn of_lists_without_end_no_more_is_kept_than_a_server_tells() {
    let list = |one: &str| format!("[{}{one}]", format!("{one},").repeat(1_000_000));
    let live =
        format!(r#"{{"limits":{},"seconds":{},"doors":{}}}"#, list("{}"), list("{}"), list("{}"));
    let live: Live = serde_json::from_str(&live).unwrap();
    assert_eq!([live.limits.len(), live.seconds.len(), live.doors.len()], [TOP_ROWS_MAX; 3]);
    let limit: Limit = serde_json::from_str(&format!(r#"{{"spark":{}}}"#, list("[0,0]"))).unwrap();
    assert_eq!(limit.spark.len(), TOP_IN_ROW_MAX);
    let keys: Keys = serde_json::from_str(&format!(r#"{{"keys":{}}}"#, list("{}"))).unwrap();
    assert_eq!(keys.keys.len(), TOP_ROWS_MAX);
    let key: Key = serde_json::from_str(&format!(r#"{{"limits":{}}}"#, list(r#""""#))).unwrap();
    assert_eq!(key.limits.len(), TOP_IN_ROW_MAX);
}

#[test]
fn a_page_to_be_printed_is_never_as_large_as_an_answer() {
    let mut live = live();
    let server = json!({"address": "10.0.0.1:6379", "is_well": false});
    live["redis"] = json!({"servers": vec![server; 1_000]});
    live["limits"] = json!(vec![live["limits"][0].clone(); 1_000]);
    let all: Vec<Value> = (0..1_000).map(|_| key(&"a".repeat(10_000), 1, None)).collect();
    let (width, height) = page::wanted_size(&told(live, json!({"keys": all})));
    assert!(width <= 1_000 && height < 250, "{width} {height}");
}

#[test]
fn help_is_shown_and_left_and_quitting_is_always_possible() {
    let mut model = told(live(), keys());
    types(&mut model, "?");
    assert!(drawn(&model).iter().any(|line| line.starts_with("  q, ctrl-c")));
    assert_eq!(types(&mut model, "x"), []);
    assert!(drawn(&model).iter().any(|line| line.ends_with("api:anna")));
    assert_eq!(types(&mut model, "q"), [Order::Quit]);
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    for mode in
        [Mode::Watching, Mode::Searching, Mode::Asking(Deed::Reset, "api:1".into()), Mode::Help]
    {
        model.mode = mode;
        assert_eq!(model.press(control_c), Some(Order::Quit));
    }
}

/// What is allowed in each of the seconds that are remembered, after these were told: the number of the
/// last one, and all of them.
fn remembered(lots: &[(u64, u64, &[u64])]) -> Vec<u64> {
    let mut model = Model::new("");
    for (started_ms, second, allowed) in lots {
        let seconds: Vec<Value> = allowed.iter().map(|count| json!({"allowed": count})).collect();
        let live = json!({"started_ms": started_ms, "second": second, "seconds": seconds});
        model.answered(Ok(answer(live, json!({}), Wanted::default())));
    }
    model.seconds.iter().map(|second| second.allowed).collect()
}

#[test]
fn seconds_are_remembered_once_and_in_order() {
    assert_eq!(remembered(&[(7, 3, &[1, 2, 3]), (7, 5, &[4, 5])]), [1, 2, 3, 4, 5]);
    assert_eq!(remembered(&[(7, 3, &[1, 2, 3]), (7, 4, &[2, 3, 4])]), [1, 2, 3, 4]);
    assert_eq!(remembered(&[(7, 3, &[1, 2, 3]), (7, 3, &[])]), [1, 2, 3]);
    // Some are missing between them, and another server begins anew.
    assert_eq!(remembered(&[(7, 3, &[1, 2, 3]), (7, 9, &[8, 9])]), [8, 9]);
    assert_eq!(remembered(&[(7, 3, &[1, 2, 3]), (8, 1, &[1])]), [1]);
    let long: Vec<u64> = (1..=900).collect();
    assert_eq!(remembered(&[(7, 900, &long), (7, 901, &[901])]).len(), 900);
}
