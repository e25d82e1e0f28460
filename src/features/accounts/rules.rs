//! The rules for passwords and codes.

use std::str::FromStr;

pub use blindpipe_protocol::accounts::Scene;
use blindpipe_protocol::bad_text::BadText;
use secrecy::SecretString;
use subtle::{Choice, ConstantTimeEq};
use uuid::Uuid;

use super::Codes;
use crate::limits::quotas::CODE_DIGITS;

/// The number of guesses that a password must withstand. A guesser with the library's whole list
/// needs as many; eleven thousand of its words are long enough here. A password that needs no more
/// guesses is refused, listed or not.
const MIN_GUESSES: u64 = 30_000;
/// The longest word of that list, in bytes. A longer password is not judged: the library's work
/// grows with it. Past 30 characters its numbers overflow.
const MAX_LISTED_BYTES: usize = 20;

/// The purpose of a mailed code. A code of one purpose is invalid for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A code that anybody may ask for.
    Scene(Scene),
    /// Another address of an account.
    Address,
}

impl Purpose {
    /// Its name in jobs, which the code depends on too.
    pub const fn as_str(self) -> &'static str {
        match self {
            Purpose::Scene(scene) => scene.as_str(),
            Purpose::Address => "address",
        }
    }

    /// The purpose with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "address" => Some(Purpose::Address),
            scene => scene.parse().ok().map(Purpose::Scene),
        }
    }
}

impl From<Scene> for Purpose {
    fn from(scene: Scene) -> Self {
        Purpose::Scene(scene)
    }
}

const MIN_PASSWORD_CHARS: usize = 8;
const MAX_PASSWORD_BYTES: usize = 1024;

/// At least 8 characters (Unicode code points) in at most 1,024 bytes, without NUL, and none that is
/// easily guessed.
#[derive(Clone)]
pub struct Password(pub SecretString);

impl FromStr for Password {
    type Err = BadText;

    fn from_str(text: &str) -> Result<Self, BadText> {
        if text.chars().count() < MIN_PASSWORD_CHARS || text.len() > MAX_PASSWORD_BYTES {
            let message = format!(
                "must have at least {MIN_PASSWORD_CHARS} characters and at most {MAX_PASSWORD_BYTES} bytes"
            );
            return Err(BadText::made("length", message));
        }
        if is_common(text) {
            let message = "is one of the passwords that are guessed first";
            return Err(BadText::new("common", message));
        }
        Ok(Password(text.into()))
    }
}

/// Whether a list of common passwords contains it, in any case. The lists are ASCII.
fn is_common(password: &str) -> bool {
    password.is_ascii()
        && password.len() <= MAX_LISTED_BYTES
        && zxcvbn::zxcvbn(&password.to_ascii_lowercase(), &[SERVICE]).guesses() <= MIN_GUESSES
}

/// Guessers try the service's name early.
const SERVICE: &str = "blindpipe";

/// A password to be compared. It must accept every password that was accepted once.
#[derive(Clone)]
pub struct GivenPassword(pub SecretString);

impl FromStr for GivenPassword {
    type Err = BadText;

    fn from_str(text: &str) -> Result<Self, BadText> {
        if (1..=MAX_PASSWORD_BYTES).contains(&text.len()) {
            Ok(GivenPassword(text.into()))
        } else {
            Err(BadText::new("length", "must have 1 to 1024 bytes"))
        }
    }
}

impl Codes {
    /// The code of a nonce: digits from a MAC over e-mail and purpose. It is never stored, so a
    /// stolen database holds no code.
    pub fn derive(&self, email: &str, purpose: Purpose, nonce: Uuid) -> String {
        digits(self.0.sign(&coded(email, purpose, &nonce)))
    }

    /// Whether `given` is the code of a nonce, in constant time.
    pub fn verify(&self, email: &str, purpose: Purpose, nonce: Uuid, given: &str) -> bool {
        let parts = coded(email, purpose, &nonce);
        let codes = self.0.all(&parts).map(digits);
        let any = codes.fold(Choice::from(0), |any, code| {
            any | code.as_bytes().ct_eq(given.as_bytes())
        });
        any.into()
    }
}

fn coded<'a>(email: &'a str, purpose: Purpose, nonce: &'a Uuid) -> [&'a [u8]; 3] {
    [
        email.as_bytes(),
        purpose.as_str().as_bytes(),
        nonce.as_bytes(),
    ]
}

fn digits(mac: [u8; 32]) -> String {
    let number = mac[..16]
        .iter()
        .fold(0u128, |sum, byte| sum << 8 | u128::from(*byte));
    format!(
        "{:0width$}",
        number % 10u128.pow(CODE_DIGITS as u32),
        width = CODE_DIGITS
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::server_secret::ServerSecret;

    /// From the heads of well-known lists and from further down.
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
        // Too long for any list, however simple.
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
        // 1,400 of the most expensive kinds. The bound is no measurement: a check takes
        // milliseconds on any machine.
        assert!(
            started.elapsed() < std::time::Duration::from_secs(14),
            "{:?}",
            started.elapsed()
        );
    }

    #[test]
    fn a_code_is_bound_to_whom_and_what() {
        let codes = Codes::new(&ServerSecret([vec![7; 32]].into()));
        let [login, reset] = [Scene::Login, Scene::Reset].map(Purpose::from);
        let code = codes.derive("a@b.c", login, Uuid::nil());
        assert_eq!(code.len(), CODE_DIGITS);
        assert!(code.bytes().all(|byte| byte.is_ascii_digit()));
        assert_ne!(code, codes.derive("a@b.c", reset, Uuid::nil()));
        assert_ne!(code, codes.derive("a@b.c", Purpose::Address, Uuid::nil()));
        assert_ne!(code, codes.derive("b@b.c", login, Uuid::nil()));
        assert_ne!(code, codes.derive("a@b.c", login, Uuid::max()));
    }
}
