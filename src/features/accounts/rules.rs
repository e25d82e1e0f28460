//! What a password and a code are.

use secrecy::SecretString;
use serde::{Deserialize, Deserializer, de::Error as _};
use uuid::Uuid;

use super::Codes;
use crate::limits::quotas::CODE_DIGITS;

/// Tries that whoever guesses by a list needs for its last word: as many as the library's has, of which eleven thousand
/// are long enough to be chosen here. What takes no more than that is refused, listed or not.
const MIN_GUESSES: u64 = 30_000;
/// The longest word of that list. What is longer is not judged: the library's work grows with it, and past 30 characters
/// its numbers overflow.
const MAX_LISTED_BYTES: usize = 20;

/// 8 to 1,024 bytes of anything but NUL, and none that is guessed first.
#[derive(Clone)]
pub struct Password(pub SecretString);

impl<'de> Deserialize<'de> for Password {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        if !(8..=1024).contains(&text.len()) {
            return Err(D::Error::custom("length|must have 8 to 1024 bytes"));
        }
        if is_common(&text) {
            return Err(D::Error::custom(
                "common|is one of the passwords that are guessed first",
            ));
        }
        Ok(Password(text.into()))
    }
}

/// Whether a list of common passwords finds it, in whatever case it is written. The lists are ASCII.
fn is_common(password: &str) -> bool {
    password.is_ascii()
        && password.len() <= MAX_LISTED_BYTES
        && zxcvbn::zxcvbn(&password.to_ascii_lowercase(), &[SERVICE]).guesses() <= MIN_GUESSES
}

/// Who is registered with is tried first, too.
const SERVICE: &str = "blindpipe";

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

    /// The one of a name that was stored.
    pub fn from_name(name: &str) -> Self {
        match name {
            "register" => Scene::Register,
            "login" => Scene::Login,
            _ => Scene::Reset,
        }
    }
}

impl Codes {
    /// The code of a nonce: digits from a MAC over whom and what it is for. Never stored, so a stolen database has none.
    pub fn derive(&self, email: &str, scene: Scene, nonce: Uuid) -> String {
        let mac = self
            .0
            .mac(&[email.as_bytes(), scene.name().as_bytes(), nonce.as_bytes()]);
        let number = mac[..16]
            .iter()
            .fold(0u128, |sum, byte| sum << 8 | u128::from(*byte));
        format!(
            "{:0width$}",
            number % 10u128.pow(CODE_DIGITS as u32),
            width = CODE_DIGITS
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of well-known lists, from their heads and from further down.
    const COMMON: &str = "password 12345678 123456789 1234567890 qwertyuiop iloveyou sunshine princess football baseball \
        superman trustno1 starwars password1 password123 1q2w3e4r 1qaz2wsx zaq12wsx qazwsxedc q1w2e3r4t5 asdfghjkl asdf1234 \
        abcd1234 abc12345 a1b2c3d4 11111111 00000000 87654321 123123123 12341234 11223344 147258369 789456123 computer \
        michelle jennifer jordan23 corvette mercedes liverpool arsenal1 chelsea1 butterfly chocolate cheesecake passw0rd \
        p@ssw0rd letmein1 welcome1 welcome123 whatever internet samantha danielle victoria alexander elizabeth christopher \
        metallica nirvana1 pokemon1 spiderman godzilla startrek dolphins steelers cowboys1 yankees1 mustang1 blink182 \
        rush2112 thx1138a qwerty123 qwerty12 zxcvbnm1 mnbvcxzl 1234qwer aaaaaaaa abcdefgh blindpipe blindpipe1";

    #[test]
    fn what_is_guessed_first_is_refused_however_it_is_written() {
        for word in COMMON.split_whitespace() {
            let capital = word[..1].to_uppercase() + &word[1..];
            for written in [word.to_owned(), word.to_uppercase(), capital] {
                assert!(is_common(&written), "{written}");
            }
        }
    }

    #[test]
    fn what_is_not_on_a_list_passes() {
        for password in [
            "correct horse battery",
            "a wrong password",
            "a new password",
            "secret-password",
            "kV3#xw9Lq0",
            "tanguera velocipede",
            "wobbly-teapot-41",
            "Sup3rs3cret-2041!",
            "grün wie die Wiese",
            "\u{1f511}\u{1f512}\u{1f513}",
            " leading and trailing ",
        ] {
            assert!(!is_common(password), "{password}");
        }
        // Too long for any list, however plain.
        assert!(!is_common(&"a".repeat(MAX_LISTED_BYTES + 1)));
    }

    #[test]
    fn whatever_is_written_is_judged_soon_and_without_a_fault() {
        use rand::{RngExt, SeedableRng, rngs::StdRng};
        let mut random = StdRng::seed_from_u64(1);
        let alphabets = [
            "4@8({[<369!1|70$5+%2",
            "0123456789",
            "01/.-_ ",
            "ab",
            "aQ1wsxcde2345r",
            "!\"#$%&'()*+,-./:;",
            "aé\u{1f511}\0\n",
        ];
        let started = std::time::Instant::now();
        for alphabet in alphabets {
            let letters: Vec<char> = alphabet.chars().collect();
            for n in 0..200 {
                let (len, period) = (8 + n % 30, 1 + n % 17);
                let base: Vec<char> = (0..period)
                    .map(|_| letters[random.random_range(0..letters.len())])
                    .collect();
                is_common(&(0..len).map(|at| base[at % period]).collect::<String>());
            }
        }
        // 1,400 of the dearest kinds. Not a measurement: milliseconds each, whatever the machine does beside it.
        assert!(
            started.elapsed() < std::time::Duration::from_secs(14),
            "{:?}",
            started.elapsed()
        );
    }

    #[test]
    fn a_code_is_bound_to_whom_and_what() {
        use base64::{Engine, engine::general_purpose::STANDARD};
        let wake = crate::config::Config::read(|name| match name {
            "SERVER_SECRET" => Some(STANDARD.encode([7; 32])),
            "ACCESS_TOKEN_KEYS" => Some(format!("k:{}", STANDARD.encode([8; 32]))),
            "DATABASE_URL" | "REDIS_URL" | "MAIL_URL" => Some("smtp://x".into()),
            "TRUSTED_PROXIES" => Some("10.0.0.0/8".into()),
            "TURNSTILE_SECRET" => Some("s".into()),
            _ => None,
        })
        .expect("settings");
        let codes = Codes::new(&wake.server_secret);
        let code = codes.derive("a@b.c", Scene::Login, Uuid::nil());
        assert_eq!(code.len(), CODE_DIGITS);
        assert!(code.bytes().all(|byte| byte.is_ascii_digit()));
        assert_ne!(code, codes.derive("a@b.c", Scene::Reset, Uuid::nil()));
        assert_ne!(code, codes.derive("b@b.c", Scene::Login, Uuid::nil()));
        assert_ne!(code, codes.derive("a@b.c", Scene::Login, Uuid::max()));
    }
}
