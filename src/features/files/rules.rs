//! The rules for requested uploads, and for the headers of reads.

use std::fmt::Write;

use axum::http::{HeaderMap, header};
use blindpipe_protocol::files::{RequestUpload, Sha256Hash};

use crate::{
    error::{Code, Error, Result},
    limits::quotas::MAX_FILE_BYTES,
};

/// Checks a requested upload. Errors: `FILE_TOO_LARGE`, `VALIDATION_ERROR`.
pub fn check_request(asked: &RequestUpload) -> Result<()> {
    if asked.size > MAX_FILE_BYTES {
        return Err(Code::FileTooLarge.into());
    }
    if is_mime(&asked.content_type.0) {
        Ok(())
    } else {
        let message = "must be a MIME type such as image/png";
        Err(Error::field("content_type", "format", message))
    }
}

/// Whether a text has the form `type/subtype`, with or without parameters.
fn is_mime(text: &str) -> bool {
    let essence = text.split(';').next().unwrap_or_default().trim();
    let token = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte))
    };
    text.is_ascii()
        && essence
            .split_once('/')
            .is_some_and(|(kind, subtype)| token(kind) && token(subtype))
}

/// The refusal of a body that is longer than declared.
pub fn too_long(received: u64) -> Error {
    if received > MAX_FILE_BYTES {
        Code::FileTooLarge.into()
    } else {
        Error::field("", "size", "the body is longer than the declared size")
    }
}

/// `Content-Disposition` of a download, by RFC 6266. A name cannot lead out of the client's folder.
pub fn disposition(filename: Option<&str>) -> String {
    let mut value = "attachment".to_owned();
    let Some(name) = filename else { return value };
    value.push_str("; filename*=UTF-8''");
    for byte in name.bytes() {
        match byte {
            b'/' | b'\\' => value.push('_'),
            byte if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                value.push(char::from(byte));
            }
            byte => write!(value, "%{byte:02X}").unwrap_or_default(),
        }
    }
    value
}

/// The part of an object that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The reader has these bytes: 304.
    Unchanged,
    /// All bytes: 200.
    Whole,
    /// The bytes from the first to before the second: 206.
    Part(u64, u64),
    /// A range that the object does not have, or several: 416.
    Unsatisfiable,
}

/// The entity tag of an object.
pub fn etag(sha256: &Sha256Hash) -> String {
    format!("\"{sha256}\"")
}

/// Judges `If-None-Match`, `If-Range` and `Range` of a request for an object of `size` bytes.
pub fn select(headers: &HeaderMap, etag: &str, size: u64) -> Selection {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let names = |list: &str| {
        list.split(',')
            .map(|one| one.trim().trim_start_matches("W/"))
            .any(|one| one == etag || one == "*")
    };
    if text(header::IF_NONE_MATCH).is_some_and(names) {
        return Selection::Unchanged;
    }
    let Some(range) = text(header::RANGE) else {
        return Selection::Whole;
    };
    if text(header::IF_RANGE).is_some_and(|known| known != etag) {
        return Selection::Whole;
    }
    // An unknown unit is no range, by RFC 9110.
    match range.trim().strip_prefix("bytes=") {
        Some(range) => part(range, size),
        None => Selection::Whole,
    }
}

fn part(range: &str, size: u64) -> Selection {
    let bounds = range
        .split_once('-')
        .map(|(from, to)| (from.trim(), to.trim()));
    let number = |text: &str| text.parse::<u64>().ok().filter(|_| !text.starts_with('+'));
    let (from, to) = match bounds {
        Some(("", last)) => match number(last) {
            Some(last) => (size.saturating_sub(last), size),
            None => return Selection::Unsatisfiable,
        },
        Some((from, "")) => (number(from).unwrap_or(size), size),
        Some((from, to)) => match (number(from), number(to)) {
            (Some(from), Some(to)) if from <= to => (from, to.saturating_add(1).min(size)),
            _ => return Selection::Unsatisfiable,
        },
        None => return Selection::Unsatisfiable,
    };
    if from < to {
        Selection::Part(from, to)
    } else {
        Selection::Unsatisfiable
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn ask(pairs: &[(HeaderName, &str)], size: u64) -> Selection {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(name, HeaderValue::from_str(value).expect("a header"));
        }
        select(&headers, "\"e\"", size)
    }

    #[test]
    fn a_single_range_is_served() {
        for (range, expected) in [
            ("bytes=0-0", Selection::Part(0, 1)),
            ("bytes=2-", Selection::Part(2, 10)),
            ("bytes=-3", Selection::Part(7, 10)),
            ("bytes=-30", Selection::Part(0, 10)),
            ("bytes=4-99", Selection::Part(4, 10)),
            ("bytes=10-", Selection::Unsatisfiable),
            ("bytes=-0", Selection::Unsatisfiable),
            ("bytes=5-4", Selection::Unsatisfiable),
            ("bytes=0-1,3-4", Selection::Unsatisfiable),
            ("bytes=x-y", Selection::Unsatisfiable),
            ("bytes=", Selection::Unsatisfiable),
            ("bytes=0-18446744073709551615", Selection::Part(0, 10)),
            ("lines=0-1", Selection::Whole),
        ] {
            assert_eq!(ask(&[(header::RANGE, range)], 10), expected, "{range}");
        }
        assert_eq!(
            ask(&[(header::RANGE, "bytes=0-")], 0),
            Selection::Unsatisfiable
        );
    }

    #[test]
    fn conditions_come_before_the_range() {
        let range = (header::RANGE, "bytes=0-0");
        let tags = (header::IF_NONE_MATCH, "\"x\", W/\"e\"");
        assert_eq!(ask(&[tags, range.clone()], 10), Selection::Unchanged);
        assert_eq!(
            ask(&[(header::IF_NONE_MATCH, "*")], 10),
            Selection::Unchanged
        );
        assert_eq!(
            ask(&[(header::IF_NONE_MATCH, "\"x\"")], 10),
            Selection::Whole
        );
        let stale = (header::IF_RANGE, "\"x\"");
        assert_eq!(ask(&[stale, range.clone()], 10), Selection::Whole);
        let fresh = (header::IF_RANGE, "\"e\"");
        assert_eq!(ask(&[fresh, range], 10), Selection::Part(0, 1));
    }

    #[test]
    fn a_name_stays_a_name() {
        assert_eq!(
            disposition(Some("../../a b\".txt")),
            "attachment; filename*=UTF-8''.._.._a%20b%22.txt"
        );
        assert_eq!(
            disposition(Some("ä\\;")),
            "attachment; filename*=UTF-8''%C3%A4_%3B"
        );
        assert_eq!(disposition(None), "attachment");
    }

    #[test]
    fn a_mime_type_has_two_tokens() {
        for text in [
            "image/png",
            "text/plain; charset=utf-8",
            "application/vnd.a+json",
        ] {
            assert!(is_mime(text), "{text}");
        }
        for text in ["", "png", "/", "a/", "text/<x>", "a b/c", "é/x"] {
            assert!(!is_mime(text), "{text}");
        }
    }
}
