//! The secrets of the cluster. `secrets.env` keeps them, so that sessions survive a restart.

use std::{fs, path::Path};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};

use crate::{error::Result, files::write_secret, random};

/// `(variable, value)` of each secret setting.
pub type Secrets = Vec<(String, String)>;

const NAMES: [&str; 2] = ["ACCESS_TOKEN_KEYS", "SERVER_SECRET"];

/// Reads the secrets in `file` and adds missing ones.
pub fn prepare(file: &Path) -> Result<Secrets> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let mut secrets = parse(&text);
    let known = secrets.len();
    for name in NAMES {
        if !secrets.iter().any(|(known, _)| known == name) {
            let key = BASE64.encode(random::bytes::<32>());
            let value = if name == "ACCESS_TOKEN_KEYS" {
                format!("dev:{key}")
            } else {
                key
            };
            secrets.push((name.to_owned(), value));
        }
    }
    if secrets.len() > known {
        let lines: String = secrets
            .iter()
            .map(|(name, value)| format!("{name}={value}\n"))
            .collect();
        write_secret(file, &lines)?;
    }
    Ok(secrets)
}

fn parse(text: &str) -> Secrets {
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let ours = pairs.filter(|(name, value)| NAMES.contains(name) && !value.is_empty());
    ours.map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_made_once() {
        let file = std::env::temp_dir().join(format!("blindpipe-secrets-{}", std::process::id()));
        let first = prepare(&file).unwrap();
        assert_eq!(first.len(), NAMES.len());
        assert_eq!(prepare(&file).unwrap(), first);
        fs::write(&file, format!("SERVER_SECRET={}\nOTHER=1\n", first[1].1)).unwrap();
        let second = prepare(&file).unwrap();
        assert!(second.contains(&first[1]), "what is there is kept");
        assert_ne!(
            second.iter().find(|(name, _)| name == NAMES[0]),
            Some(&first[0]),
            "what is missing is made"
        );
        fs::remove_file(file).unwrap();
    }
}
