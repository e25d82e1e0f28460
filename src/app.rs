//! The node's handles. Handlers and extractors name the ones they use, so a signature says what an endpoint can touch.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use axum::extract::FromRef;
use metrics_exporter_prometheus::PrometheusHandle;

use crate::{
    auth::{agent::AgentTokens, jwt::AccessTokens, secret::Hasher},
    backplane::Backplane,
    db::Db,
    features::{accounts::http::Accounts, inbox::Inbox, messages::Outbox},
    gateway::{Gateway, registry::Registry},
    http::client::Door,
    limits::Limits,
    random::Random,
};

/// Everything a request may need.
#[derive(Clone, FromRef)]
pub struct App {
    pub random: Random,
    pub db: Db,
    pub door: Door,
    pub hasher: Hasher,
    pub access_tokens: AccessTokens,
    pub agent_tokens: AgentTokens,
    pub limits: Limits,
    pub quotas: Quotas,
    pub registry: Registry,
    pub backplane: Backplane,
    pub inbox: Inbox,
    pub outbox: Outbox,
    pub gateway: Arc<Gateway>,
    pub accounts: Accounts,
    pub life: Life,
}

/// Quotas that the operator sets.
#[derive(Clone, Copy)]
pub struct Quotas {
    /// Agents a user may have.
    pub agents_per_user: u32,
}

/// Whether the node wants traffic, and what it has measured.
#[derive(Clone)]
pub struct Life {
    draining: Arc<AtomicBool>,
    /// The process's metrics.
    pub metrics: PrometheusHandle,
}

impl Life {
    /// A node that wants traffic.
    pub fn new(metrics: PrometheusHandle) -> Self {
        Life { draining: Arc::default(), metrics }
    }

    /// Whether it is on its way out.
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// It is from now on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }
}
