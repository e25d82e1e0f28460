//! Why a text is malformed.

use std::{borrow::Cow, fmt};

/// The fault of a malformed text: the `rule` and the `message` of a faulty field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadText {
    /// The rule that is broken: lower-case letters, such as `length`.
    pub rule: &'static str,
    /// The demand of the rule, in words.
    pub message: Cow<'static, str>,
}

/// Between a rule and its message, where an error is a text.
const SEPARATOR: char = '|';

impl BadText {
    /// A fault with a fixed message.
    pub const fn new(rule: &'static str, message: &'static str) -> Self {
        Self {
            rule,
            message: Cow::Borrowed(message),
        }
    }

    /// A fault whose message is made for it.
    pub const fn made(rule: &'static str, message: String) -> Self {
        Self {
            rule,
            message: Cow::Owned(message),
        }
    }

    /// The rule and the message of a displayed fault. `None` for the texts of other errors: these begin
    /// with words, and may quote a caller.
    pub fn split(text: &str) -> Option<(&str, &str)> {
        text.split_once(SEPARATOR)
            .filter(|(rule, _)| rule.bytes().all(|byte| byte.is_ascii_lowercase()))
    }
}

/// Errors of `serde` are texts, so a fault passes through them as one.
impl fmt::Display for BadText {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}{SEPARATOR}{}", self.rule, self.message)
    }
}

impl std::error::Error for BadText {}
