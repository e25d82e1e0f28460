//! E-mail addresses.

use std::{fmt, str::FromStr};

use blindpipe_protocol::bad_text::BadText;

/// An address in the form of limits and rows: lower case. Its `Debug` form hides the address.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Email(String);

impl Email {
    /// The address as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The address of a row, which was validated before it was stored.
    pub fn from_stored(email: String) -> Self {
        Email(email)
    }
}

impl fmt::Debug for Email {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("Email")
    }
}

impl FromStr for Email {
    type Err = BadText;

    fn from_str(text: &str) -> Result<Self, BadText> {
        let plain = text.len() <= 254
            && text.is_ascii()
            && !text
                .bytes()
                .any(|byte| byte.is_ascii_control() || b" <>\",;:\\()[]".contains(&byte));
        // The mail library decides whether the text is an address.
        match text.parse::<lettre::Address>() {
            Ok(address) if plain && address.domain().contains('.') => {
                Ok(Email(text.to_ascii_lowercase()))
            }
            _ => Err(BadText::new("email", "is no e-mail address")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn email(text: &str) -> Option<String> {
        text.parse::<Email>().ok().map(|email| email.0)
    }

    #[test]
    fn an_address_is_one_address_in_lower_case() {
        assert_eq!(
            email("A.b+c@Example.org").as_deref(),
            Some("a.b+c@example.org")
        );
        for text in [
            "",
            "a",
            "a@b",
            "a@b.c\r\nBcc: x@y.z",
            "a@b.c,d@e.f",
            "<a@b.c>",
            "a b@c.d",
            "ä@b.c",
            "a@b.c\u{0}",
        ] {
            assert_eq!(email(text), None, "{text:?}");
        }
    }
}
