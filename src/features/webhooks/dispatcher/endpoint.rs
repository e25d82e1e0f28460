//! The address of a receiver and what signs for it.

use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::super::{SecretSeal, client::Secrets, store::turns::EndpointRow};
use crate::ids::{AgentId, TokenId};

/// The address of a turn, opened.
#[derive(Clone)]
pub struct Endpoint {
    pub url: Arc<str>,
    secrets: Secrets,
    /// The end of the previous secret.
    previous_until: Option<DateTime<Utc>>,
    /// The time of the last change.
    pub updated_at: DateTime<Utc>,
    /// The most events of a call.
    pub max_events: usize,
    pub token: Option<TokenId>,
}

impl Endpoint {
    /// None if the secret does not open.
    pub fn open(agent: AgentId, row: &EndpointRow, seal: &SecretSeal) -> Option<Self> {
        let open = |sealed: &Option<Vec<u8>>| seal.open(agent, sealed.as_ref()?);
        Some(Endpoint {
            url: row.url.as_str().into(),
            secrets: Secrets {
                current: open(&row.sealed_secret)?,
                previous: open(&row.sealed_previous),
            },
            previous_until: row.previous_valid_until,
            updated_at: row.updated_at,
            max_events: usize::try_from(row.max_events).unwrap_or(1),
            token: row.token,
        })
    }

    /// The secrets that sign at this time.
    pub fn secrets(&self, now: DateTime<Utc>) -> Secrets {
        let is_valid = self.previous_until.is_some_and(|until| until > now);
        let Secrets { current, previous } = self.secrets.clone();
        Secrets {
            current,
            previous: previous.filter(|_| is_valid),
        }
    }
}
