//! Passkeys: enrolment by a signed-in user, and sign-in with a passkey alone.
//!
//! Promises: a challenge counts once, for five minutes, on any node, and any answer uses it up. The
//! authenticator must have verified its user. A passkey whose signature counter decreased was
//! copied, and is removed.

pub(crate) mod http;
mod store;

use std::sync::Arc;

pub(crate) use self::store::end_all;
use webauthn_rs::{Webauthn, WebauthnBuilder, prelude::WebauthnError};

use crate::{
    config::{Config, Origin},
    db::Db,
    error::Result,
    ids::{PasskeyId, UserId},
    work::Tx,
};

/// The relying party of this cluster. Clones share it.
#[derive(Clone)]
pub struct Passkeys {
    webauthn: Arc<Webauthn>,
}

impl Passkeys {
    /// The relying party `RP_ID`, for pages of `RP_ORIGIN`.
    pub fn new(config: &Config) -> Result<Self, WebauthnError> {
        let (first, more) = config
            .rp_origins
            .0
            .split_first()
            .ok_or(WebauthnError::Configuration)?;
        let builder = WebauthnBuilder::new(&config.rp_id, &first.0)?.rp_name("Blindpipe");
        let builder = more.iter().fold(builder, |builder, origin| {
            builder.append_allowed_origin(&origin.0)
        });
        Ok(Passkeys {
            webauthn: Arc::new(builder.build()?),
        })
    }
}

/// Checks `RP_ID` and `RP_ORIGIN`, and adds a line per fault.
pub fn check_settings(config: &Config, faults: &mut Vec<String>) {
    let below = format!(".{}", config.rp_id);
    let foreign = |origin: &&Origin| {
        let host = origin.0.domain();
        !host.is_some_and(|host| host == config.rp_id || host.ends_with(&below))
    };
    if config.rp_id.is_empty() || config.rp_origins.0.is_empty() {
        faults.push("RP_ID and RP_ORIGIN: passkeys need both".into());
    } else if let Some(origin) = config.rp_origins.0.iter().find(foreign) {
        faults.push(format!(
            "RP_ORIGIN: {} is neither on RP_ID nor below it",
            origin.0.origin().ascii_serialization()
        ));
    }
}

/// Removes a passkey of the user's. False if there is none.
pub async fn remove(tx: &Tx, user: UserId, id: PasskeyId) -> Result<bool> {
    let removed = store::remove(tx, user, id).await?;
    Ok(removed.is_some())
}

/// Deletes some of the expired challenges. True if there may be more.
pub async fn forget_challenges(db: &Db) -> Result<bool> {
    db.run("passkeys.forget_challenges", async |tx| {
        store::forget_challenges(tx).await
    })
    .await
}
