//! The text that Prometheus reads, version 0.0.4 of its format.

use std::fmt::Write;

use tollgate::metrics::Histogram;

use super::sheet::{Figure, Form, Kind, Label};

/// Metrics as text.
#[derive(Debug, Default)]
pub(crate) struct Text {
    text: String,
    /// The metric that is being told.
    name: &'static str,
}

impl Text {
    pub(crate) fn into_string(self) -> String {
        self.text
    }

    fn line(&mut self, suffix: &str, labels: &[Label<'_>], figure: Figure) {
        let Self { text, name } = self;
        push(text, format_args!("{name}{suffix}"));
        for (place, (name, value)) in labels.iter().enumerate() {
            push(text, format_args!("{}{name}=\"", if place == 0 { '{' } else { ',' }));
            escape(value, text);
            text.push('"');
        }
        let end = if labels.is_empty() { "" } else { "}" };
        match figure {
            Figure::Whole(figure) => push(text, format_args!("{end} {figure}\n")),
            Figure::Real(figure) => push(text, format_args!("{end} {figure}\n")),
        }
    }
}

impl Form for Text {
    fn begin(&mut self, name: &'static str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        push(&mut self.text, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        self.name = name;
    }

    fn sample(&mut self, labels: &[Label<'_>], figure: Figure) {
        self.line("", labels, figure);
    }

    fn histogram(&mut self, labels: &[Label<'_>], histogram: &Histogram) {
        let mut bucket = |bound: &str, count: u64| {
            let mut all: Vec<Label<'_>> = labels.to_vec();
            all.push(("le", bound));
            self.line("_bucket", &all, count.into());
        };
        for (bound, count) in &histogram.buckets {
            bucket(&bound.to_string(), *count);
        }
        bucket("+Inf", histogram.count);
        self.line("_sum", labels, histogram.sum.into());
        self.line("_count", labels, histogram.count.into());
    }
}

/// Writes a label's value so that it ends where it ends.
fn escape(value: &str, text: &mut String) {
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

fn push(text: &mut String, what: std::fmt::Arguments<'_>) {
    text.write_fmt(what).expect("a text takes whatever is written to it");
}

#[cfg(test)]
mod tests {
    use super::super::sheet::Sheet;
    use super::*;

    #[test]
    fn a_sample_has_its_labels_in_braces() {
        let mut text = Text::default();
        let mut sheet = Sheet::new(&mut text);
        let mut family = sheet.family("requests_total", Kind::Counter, "How many.");
        family.sample(&[("limit", "login"), ("tier", "")], 7_u64);
        family.sample(&[], 0.5);
        assert_eq!(
            text.into_string(),
            "# HELP requests_total How many.\n\
             # TYPE requests_total counter\n\
             requests_total{limit=\"login\",tier=\"\"} 7\n\
             requests_total 0.5\n"
        );
    }

    #[test]
    fn no_value_of_a_label_ends_it_early() {
        let mut text = Text::default();
        let mut sheet = Sheet::new(&mut text);
        let mut family = sheet.family("a", Kind::Gauge, "A.");
        family.sample(&[("tier", "a\"} 1\nb\\")], true);
        let last = text.into_string().lines().last().map(str::to_owned);
        assert_eq!(last.as_deref(), Some(r#"a{tier="a\"} 1\nb\\"} 1"#));
    }

    #[test]
    fn a_histogram_ends_with_all_there_is() {
        let histogram = Histogram { buckets: vec![(1e-6, 1), (1.0, 2)], count: 3, sum: 2.5 };
        let mut text = Text::default();
        Sheet::new(&mut text)
            .family("a", Kind::Histogram, "A.")
            .histogram(&[("limit", "b")], &histogram);
        let text = text.into_string();
        let samples: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            samples,
            [
                r#"a_bucket{limit="b",le="0.000001"} 1"#,
                r#"a_bucket{limit="b",le="1"} 2"#,
                r#"a_bucket{limit="b",le="+Inf"} 3"#,
                r#"a_sum{limit="b"} 2.5"#,
                r#"a_count{limit="b"} 3"#,
            ]
        );
    }
}
