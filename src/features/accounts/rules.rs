//! What an e-mail, a password and a code are.

use std::fmt;

use secrecy::SecretString;
use serde::{Deserialize, Deserializer, de::Error as _};
use uuid::Uuid;

use super::Codes;
use crate::limits::quotas::CODE_DIGITS;

/// An address as limits and rows know it: lower case. Not printable by accident.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Email(String);

impl Email {
    /// The address.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Email {
    /// An account's own, which was read when it was made.
    pub(super) fn of_account(email: String) -> Self {
        Email(email)
    }
}

impl fmt::Debug for Email {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("Email")
    }
}

impl<'de> Deserialize<'de> for Email {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let plain = text.len() <= 254
            && text.is_ascii()
            && !text.bytes().any(|byte| byte.is_ascii_control() || b" <>\",;:\\()[]".contains(&byte));
        // The mail library knows what an address is.
        match text.parse::<lettre::Address>() {
            Ok(address) if plain && address.domain().contains('.') => Ok(Email(text.to_ascii_lowercase())),
            _ => Err(D::Error::custom("email|is no e-mail address")),
        }
    }
}

/// What is guessed first: some five hundred of the most common passwords that are long enough, gathered for this
/// project, in lower case, sorted.
const COMMON: &str = include_str!("common_passwords.txt");

/// 8 to 1,024 bytes of anything but NUL, and none that is guessed first.
#[derive(Clone)]
pub struct Password(pub SecretString);

impl<'de> Deserialize<'de> for Password {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        if !(8..=1024).contains(&text.len()) {
            return Err(D::Error::custom("length|must have 8 to 1024 bytes"));
        }
        let lower = text.to_lowercase();
        if COMMON.lines().any(|common| common == lower) {
            return Err(D::Error::custom("common|is one of the passwords that are guessed first"));
        }
        Ok(Password(text.into()))
    }
}

/// A password to be compared: whatever was accepted once must be accepted here.
#[derive(Clone)]
pub struct GivenPassword(pub SecretString);

impl<'de> Deserialize<'de> for GivenPassword {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        if (1..=1024).contains(&text.len()) {
            Ok(GivenPassword(text.into()))
        } else {
            Err(D::Error::custom("length|must have 1 to 1024 bytes"))
        }
    }
}

/// What a code is for. A code of one scene is worth nothing in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scene {
    /// A new account.
    Register,
    /// A login without a password.
    Login,
    /// A forgotten password.
    Reset,
}

impl Scene {
    /// As it is stored.
    pub fn name(self) -> &'static str {
        match self {
            Scene::Register => "register",
            Scene::Login => "login",
            Scene::Reset => "reset",
        }
    }
}

impl Codes {
    /// The code of a nonce: digits from a MAC over whom and what it is for. Never stored, so a stolen database has none.
    pub fn derive(&self, email: &str, scene: Scene, nonce: Uuid) -> String {
        let mac = self.0.mac(&[email.as_bytes(), scene.name().as_bytes(), nonce.as_bytes()]);
        let number = mac[..16].iter().fold(0u128, |sum, byte| sum << 8 | u128::from(*byte));
        format!("{:0width$}", number % 10u128.pow(CODE_DIGITS as u32), width = CODE_DIGITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn email(text: &str) -> Option<String> {
        let json = serde_json::to_string(text).expect("a string");
        serde_json::from_str::<Email>(&json).ok().map(|email| email.0)
    }

    #[test]
    fn an_address_is_one_address_in_lower_case() {
        assert_eq!(email("A.b+c@Example.org").as_deref(), Some("a.b+c@example.org"));
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

    #[test]
    fn the_list_of_common_passwords_is_in_order_and_holds_what_could_be_chosen() {
        let all: Vec<&str> = COMMON.lines().collect();
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(all.iter().all(|one| one.len() >= 8 && *one == one.to_lowercase()));
        assert!(all.len() > 400);
    }

    #[test]
    fn a_code_is_bound_to_whom_and_what() {
        use base64::{Engine, engine::general_purpose::STANDARD};
        let ring = crate::config::Config::read(|name| match name {
            "SERVER_SECRET" => Some(STANDARD.encode([7; 32])),
            "ACCESS_TOKEN_KEYS" => Some(format!("k:{}", STANDARD.encode([8; 32]))),
            "DATABASE_URL" | "REDIS_URL" | "MAIL_URL" => Some("smtp://x".into()),
            "TRUSTED_PROXIES" => Some("10.0.0.0/8".into()),
            "TURNSTILE_SECRET" => Some("s".into()),
            _ => None,
        })
        .expect("settings");
        let codes = Codes::new(&ring.server_secret);
        let code = codes.derive("a@b.c", Scene::Login, Uuid::nil());
        assert_eq!(code.len(), CODE_DIGITS);
        assert!(code.bytes().all(|byte| byte.is_ascii_digit()));
        assert_ne!(code, codes.derive("a@b.c", Scene::Reset, Uuid::nil()));
        assert_ne!(code, codes.derive("b@b.c", Scene::Login, Uuid::nil()));
        assert_ne!(code, codes.derive("a@b.c", Scene::Login, Uuid::max()));
    }
}
