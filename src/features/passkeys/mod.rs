//! Passkeys: enrolment by a user who is signed in, and signing in with nothing else.
//!
//! Promises: a challenge counts once, for five minutes, on any node, whatever its answer was worth; the authenticator
//! must have verified its user; a passkey whose signature counter went back was copied, and is removed.

pub(crate) mod http;
mod store;

use std::sync::Arc;

use webauthn_rs::{Webauthn, WebauthnBuilder, prelude::WebauthnError};

use crate::{config::Config, db::Db, error::Result};

/// The relying party that this cluster is to authenticators; clones share it.
#[derive(Clone)]
pub struct Passkeys {
    webauthn: Arc<Webauthn>,
}

impl Passkeys {
    /// For `RP_ID`, as pages of `RP_ORIGIN` use it.
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

/// Deletes some of the challenges that have run out; whether there may be more.
pub async fn forget_challenges(db: &Db) -> Result<bool> {
    db.run("passkeys.forget_challenges", async |tx| {
        store::forget_challenges(tx).await
    })
    .await
}
