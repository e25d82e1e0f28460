//! The kinds of values that settings have.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use secrecy::SecretString;

/// A value that can be read from the environment.
pub(super) trait Setting: Sized {
    fn read(text: &str) -> Result<Self, String>;
}

/// The environment that the node runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Real mail, real Turnstile.
    Production,
    /// A single machine, loopback only.
    Dev,
}

impl Setting for Profile {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "production" => Ok(Profile::Production),
            "dev" => Ok(Profile::Dev),
            _ => Err("is neither production nor dev".into()),
        }
    }
}

/// A whole number within bounds.
#[derive(Clone, Copy, Debug)]
pub struct BoundedNumber<const MIN: u32, const MAX: u32>(pub u32);

impl<const MIN: u32, const MAX: u32> BoundedNumber<MIN, MAX> {
    /// The value, taken as milliseconds.
    pub fn millis(self) -> Duration {
        Duration::from_millis(self.0.into())
    }
}

impl<const MIN: u32, const MAX: u32> Setting for BoundedNumber<MIN, MAX> {
    fn read(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(n) if (MIN..=MAX).contains(&n) => Ok(BoundedNumber(n)),
            _ => Err(format!("is no whole number from {MIN} to {MAX}")),
        }
    }
}

impl<const MIN: u32, const MAX: u32> Setting for Option<BoundedNumber<MIN, MAX>> {
    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(None);
        }
        BoundedNumber::read(text).map(Some)
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub u64);

impl Setting for Bytes {
    fn read(text: &str) -> Result<Self, String> {
        // Postgres counts them with a sign.
        let n = text
            .parse()
            .ok()
            .filter(|n| (1..=i64::MAX.unsigned_abs()).contains(n));
        n.map(Bytes)
            .ok_or_else(|| "is no whole number of bytes from 1 on".into())
    }
}

/// `true` or `false`.
#[derive(Clone, Copy, Debug)]
pub struct Switch(pub bool);

impl Setting for Switch {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
            .map(Switch)
            .map_err(|_| "is neither true nor false".into())
    }
}

/// A comma list; empty is an empty list.
#[derive(Clone, Debug)]
pub struct List<T>(pub Vec<T>);

impl<T: std::str::FromStr> Setting for List<T> {
    fn read(text: &str) -> Result<Self, String> {
        let items = text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty());
        items
            .map(|item| item.parse().map_err(|_| format!("cannot read {item:?}")))
            .collect::<Result<_, _>>()
            .map(List)
    }
}

/// A web origin: `https://host` or `https://host:port`.
#[derive(Clone, Debug)]
pub struct Origin(pub reqwest::Url);

impl std::str::FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url = reqwest::Url::parse(text)
            .ok()
            .filter(|url| url.scheme() == "https");
        let bare = url.filter(|url| url.origin().ascii_serialization() == text);
        bare.map(Origin)
            .ok_or_else(|| format!("{text:?} is no https origin such as https://example.org"))
    }
}

impl Origin {
    /// The origin as browsers write it.
    pub fn text(&self) -> String {
        self.0.origin().ascii_serialization()
    }
}

impl Setting for Option<Origin> {
    fn read(text: &str) -> Result<Self, String> {
        (!text.is_empty()).then(|| text.parse()).transpose()
    }
}

impl Setting for String {
    fn read(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
}

impl Setting for SecretString {
    fn read(text: &str) -> Result<Self, String> {
        Ok(text.to_owned().into())
    }
}

impl Setting for Option<PathBuf> {
    fn read(text: &str) -> Result<Self, String> {
        Ok((!text.is_empty()).then(|| PathBuf::from(text)))
    }
}

impl Setting for SocketAddr {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| "is no address and port".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_https_and_nothing_but_an_origin() {
        for text in ["https://example.org", "https://localhost:18443"] {
            assert!(text.parse::<Origin>().is_ok(), "{text}");
        }
        for text in [
            "",
            "example.org",
            "http://example.org",
            "https://example.org/",
            "https://example.org/x",
            "https://u@example.org",
        ] {
            assert!(text.parse::<Origin>().is_err(), "{text}");
        }
    }
}
