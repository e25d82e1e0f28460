//! The accepted JSON. Each body is parsed once for its form and once into its shape.
//!
//! `serde_json` alone keeps the last of two equal keys, accepts NUL (which Postgres cannot store)
//! and nests to 128.

use std::{collections::HashSet, fmt};

use blindpipe_protocol::{bad_text::BadText, raw::RawJson};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor,
};

use crate::{
    error::{Error, Result},
    limits::quotas::MAX_JSON_DEPTH,
};

/// Parses `bytes` into `T`; a fault becomes `VALIDATION_ERROR` with the path, the rule and a
/// message.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    check(bytes)?;
    shape("", bytes)
}

/// Parses the JSON of the field `field`, whose body was parsed before. Paths of faults begin with
/// the field.
pub fn parse_field<T: DeserializeOwned>(field: &str, value: &RawJson) -> Result<T> {
    shape(field, value.as_str().as_bytes())
}

/// Parses checked bytes. `field` is the path to them.
fn shape<T: DeserializeOwned>(field: &str, bytes: &[u8]) -> Result<T> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = match error.path().to_string() {
            path if path == "." => field.to_owned(),
            path if field.is_empty() => path,
            path => format!("{field}.{path}"),
        };
        fault(&path, &error.into_inner())
    })
}

/// Refuses JSON that is not well-formed, has a key twice, a NUL character, or nests too deep.
pub fn check(bytes: &[u8]) -> Result<()> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let formed = Form(MAX_JSON_DEPTH)
        .deserialize(&mut json)
        .and_then(|()| json.end());
    formed.map_err(|error| fault("", &error))
}

fn fault(path: &str, error: &serde_json::Error) -> Error {
    let text = error.to_string();
    // serde appends the position, and the path replaces it.
    let text = text
        .rfind(" at line ")
        .map_or(text.as_str(), |at| &text[..at]);
    let (rule, message) = match BadText::split(text) {
        Some((rule, message)) => (rule, message),
        None if text.starts_with("missing field") => ("required", text),
        None if text.starts_with("unknown field") => ("unknown", text),
        None if text.starts_with("invalid type") => ("type", text),
        None if error.is_data() => ("value", text),
        None => ("json", text),
    };
    // serde quotes the offending value, which may be a password or a token.
    let message = if rule == "type" {
        text.split_once(", ")
            .map_or("wrong type", |(_, expected)| expected)
    } else {
        message
    };
    let path = match (rule, text.split('`').nth(1)) {
        ("required" | "unknown", Some(name)) if path.is_empty() => name.to_owned(),
        ("required", Some(name)) => format!("{path}.{name}"),
        _ => path.to_owned(),
    };
    Error::field(path, rule, message)
}

/// Walks a value without keeping it. The number is the remaining depth of nesting.
struct Form(usize);

impl<'de> DeserializeSeed<'de> for Form {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl Form {
    fn inner<E: serde::de::Error>(&self) -> Result<usize, E> {
        self.0
            .checked_sub(1)
            .ok_or_else(|| E::custom(BadText::new("depth", "nested too deep")))
    }
}

fn no_nul<E: serde::de::Error>(text: &str) -> Result<(), E> {
    if text.as_bytes().contains(&0) {
        Err(E::custom(BadText::new(
            "nul",
            "NUL characters are not allowed",
        )))
    } else {
        Ok(())
    }
}

impl<'de> Visitor<'de> for Form {
    type Value = ();

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        no_nul(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let inner = self.inner()?;
        while items.next_element_seed(Form(inner))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let inner = self.inner()?;
        let mut seen = HashSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            no_nul(&key)?;
            if let Some(twice) = seen.replace(key) {
                let message = format!("the key {twice:?} is there twice");
                return Err(A::Error::custom(BadText::made("duplicate", message)));
            }
            entries.next_value_seed(Form(inner))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    fn rule(text: &str) -> String {
        rule_of(&check(text.as_bytes()).expect_err(text))
    }

    fn rule_of(error: &Error) -> String {
        error.body().params.extra["fields"][0]["rule"]
            .as_str()
            .expect("a rule")
            .to_owned()
    }

    #[test]
    fn refuses_what_cannot_be_kept() {
        assert_eq!(rule(r#"{"a":1,"a":2}"#), "duplicate");
        assert_eq!(rule(r#"{"a":{"b":1,"\u0062":2}}"#), "duplicate");
        assert_eq!(rule(r#"{"a":"\u0000"}"#), "nul");
        assert_eq!(rule(r#"{"\u0000":1}"#), "nul");
        assert_eq!(rule(r#""\ud800""#), "json");
        assert_eq!(rule("1e400"), "json");
        assert_eq!(rule("{} {}"), "json");
        assert_eq!(rule(""), "json");
        assert_eq!(rule(&"[".repeat(100_000)), "depth");
    }

    #[test]
    fn a_value_makes_no_rule() {
        #[derive(Debug, Deserialize)]
        enum Choice {}
        let error = parse::<Choice>(br#""length|too long""#).expect_err("no choice");
        assert_eq!(rule_of(&error), "value");
    }

    #[test]
    fn nests_to_the_limit_and_no_deeper() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(check(nested(MAX_JSON_DEPTH).as_bytes()).is_ok());
        assert!(check(nested(MAX_JSON_DEPTH + 1).as_bytes()).is_err());
    }

    #[test]
    fn a_refused_value_is_not_repeated() {
        #[derive(Debug, Deserialize)]
        struct Shape {
            #[serde(rename = "password")]
            _password: u32,
        }
        let error = parse::<Shape>(br#"{"password":"hunter2"}"#).expect_err("a wrong type");
        assert!(!format!("{:?}", error.body()).contains("hunter2"));
    }
}
