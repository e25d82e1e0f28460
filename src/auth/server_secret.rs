//! `SERVER_SECRET`: the secrets that every MAC and every sealed value of the node come from.

use std::{fmt, str::FromStr, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};

/// The secrets that all nodes share, the current one first. Cannot be printed.
#[derive(Clone)]
pub struct ServerSecret(pub Arc<[Vec<u8>]>);

/// Most secrets of [`ServerSecret`]. Each more is another MAC that a guess may hit.
const MAX_SERVER_SECRETS: usize = 4;

impl fmt::Debug for ServerSecret {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("ServerSecret")
    }
}

impl FromStr for ServerSecret {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let secret = |text: &str| {
            let secret = BASE64.decode(text.trim()).ok();
            secret
                .filter(|secret| secret.len() >= 32)
                .ok_or("is not base64 of 32 bytes or more")
        };
        let secrets: Vec<Vec<u8>> = text.split(',').map(secret).collect::<Result<_, _>>()?;
        if secrets.len() > MAX_SERVER_SECRETS {
            return Err(format!("has more than {MAX_SERVER_SECRETS} secrets"));
        }
        if (1..secrets.len()).any(|n| secrets[..n].contains(&secrets[n])) {
            return Err("names a secret twice".into());
        }
        Ok(ServerSecret(secrets.into()))
    }
}

impl ServerSecret {
    /// Checks the operator's text; the error describes its fault.
    pub fn check(text: &str) -> Result<(), String> {
        text.parse::<ServerSecret>().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_secret_is_up_to_four_different_ones() {
        let secret = |n: u8| BASE64.encode([n; 32]);
        let ring = |numbers: &[u8]| numbers.iter().map(|n| secret(*n)).collect::<Vec<_>>();
        for (text, secrets) in [
            (secret(1), Some(1)),
            (ring(&[1, 2]).join(", "), Some(2)),
            (ring(&[1, 2, 3, 4]).join(","), Some(4)),
            (ring(&[1, 2, 3, 4, 5]).join(","), None),
            (ring(&[1, 1]).join(","), None),
            (BASE64.encode([1; 31]), None),
            (secret(1) + ",", None),
            (String::new(), None),
        ] {
            let read = text.parse::<ServerSecret>().ok().map(|ring| ring.0.len());
            assert_eq!(read, secrets, "{text}");
        }
    }
}
