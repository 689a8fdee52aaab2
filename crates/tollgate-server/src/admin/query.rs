//! What is asked for after the question mark of a path.

/// Parameters, each known and there once.
#[derive(Debug)]
pub(super) struct Query<'q>(Vec<(&'q str, &'q str)>);

impl<'q> Query<'q> {
    /// Reads parameters of these names, or says what is wrong with them. Their values are plain words
    /// and numbers, which need no escapes.
    pub(super) fn read(text: &'q str, names: &[&str]) -> Result<Self, String> {
        let mut read = Self(Vec::new());
        for part in text.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            if !names.contains(&name) {
                let names = names.join(", ");
                return Err(format!("there is no parameter {name:?} here; there are {names}"));
            }
            if read.get(name).is_some() {
                return Err(format!("{name} is there more than once"));
            }
            read.0.push((name, value));
        }
        Ok(read)
    }

    pub(super) fn get(&self, wanted: &str) -> Option<&'q str> {
        self.0.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value)
    }
}

/// The sentence about a value that is not what it should be.
pub(super) fn not(name: &str, value: &str, what: &str) -> String {
    format!("{name}={} is not {what}", value.escape_debug())
}
