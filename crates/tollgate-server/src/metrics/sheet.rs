//! What is told in metrics, whatever form it is told in.

use tollgate::metrics::Histogram;

/// What a metric is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// It is figures by their size.
    Histogram,
}

/// A label's name and value.
pub(crate) type Label<'l> = (&'static str, &'l str);

/// A number of a metric.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Figure {
    Whole(u64),
    Real(f64),
}

impl From<u64> for Figure {
    fn from(figure: u64) -> Self {
        Self::Whole(figure)
    }
}

impl From<usize> for Figure {
    fn from(figure: usize) -> Self {
        Self::Whole(figure as u64)
    }
}

impl From<bool> for Figure {
    fn from(figure: bool) -> Self {
        Self::Whole(u64::from(figure))
    }
}

impl From<f64> for Figure {
    fn from(figure: f64) -> Self {
        Self::Real(figure)
    }
}

/// A form in which metrics are told.
pub(crate) trait Form {
    /// Another metric, to which all samples belong that come before the next. What is said of it is
    /// one line.
    fn begin(&mut self, name: &'static str, kind: Kind, help: &str);

    /// One of its samples.
    fn sample(&mut self, labels: &[Label<'_>], figure: Figure);

    /// The samples of a histogram.
    fn histogram(&mut self, labels: &[Label<'_>], histogram: &Histogram);
}

/// Where metrics are written.
pub(crate) struct Sheet<'f>(&'f mut dyn Form);

/// The samples of one metric.
pub(crate) struct Family<'f>(&'f mut dyn Form);

impl<'f> Sheet<'f> {
    /// A sheet to be filled in this form.
    pub(crate) fn new(form: &'f mut dyn Form) -> Self {
        Self(form)
    }

    /// Another metric.
    pub(crate) fn family(&mut self, name: &'static str, kind: Kind, help: &str) -> Family<'_> {
        self.0.begin(name, kind, help);
        Family(&mut *self.0)
    }
}

impl Family<'_> {
    /// One of its samples.
    pub(crate) fn sample(&mut self, labels: &[Label<'_>], figure: impl Into<Figure>) {
        self.0.sample(labels, figure.into());
    }

    /// The samples of a histogram.
    pub(crate) fn histogram(&mut self, labels: &[Label<'_>], histogram: &Histogram) {
        self.0.histogram(labels, histogram);
    }
}
