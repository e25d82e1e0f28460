//! Passkeys: enrolment by a signed-in user, and sign-in with a passkey alone.
//!
//! Promises: a challenge counts once, for five minutes, on any node, and any answer uses it up. The
//! authenticator must have verified its user. A passkey whose signature counter decreased was
//! copied, and is removed.

pub(crate) mod http;
mod store;

use std::sync::Arc;

use webauthn_rs::{Webauthn, WebauthnBuilder, prelude::WebauthnError};

use crate::{config::Config, db::Db, error::Result};

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

/// Deletes some of the expired challenges. True if there may be more.
pub async fn forget_challenges(db: &Db) -> Result<bool> {
    db.run("passkeys.forget_challenges", async |tx| {
        store::forget_challenges(tx).await
    })
    .await
}
