//! `--name value` pairs of a command line.

use std::io::{Error, ErrorKind, Result};
use std::str::FromStr;

pub(crate) struct Options(Vec<(String, String)>);

impl Options {
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let mut pairs = Vec::new();
        while let Some(word) = words.next() {
            let name = word
                .strip_prefix("--")
                .ok_or_else(|| bad(&format!("not an option: {word}")))?;
            let value = words
                .next()
                .ok_or_else(|| bad(&format!("{word} needs a value")))?;
            pairs.push((name.to_owned(), value));
        }
        Ok(Self(pairs))
    }

    /// Every value given for `name`, in order.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// The last value given for `name`, or `default`.
    pub(crate) fn get<T: FromStr>(&self, name: &str, default: T) -> Result<T> {
        match self.all(name).last() {
            None => Ok(default),
            Some(text) => text
                .parse()
                .map_err(|_| bad(&format!("--{name} {text}: not a value it takes"))),
        }
    }
}

pub(crate) fn bad(what: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_counts_and_words_without_a_value_are_refused() {
        let words = |text: &str| Options::parse(text.split(' ').map(str::to_owned));
        let options = words("--port 1 --body a --port 2 --body b").unwrap();
        assert_eq!(options.get("port", 0_u16).unwrap(), 2);
        assert_eq!(options.all("body").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(options.get("rate", 15).unwrap(), 15, "the default");
        assert!(options.get("body", 0_u16).is_err(), "b is no number");
        assert!(words("--port").is_err() && words("port").is_err());
    }
}
