//! The node's handles. Handlers and extractors name the ones they use, so a signature says what an endpoint can touch.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use axum::extract::FromRef;
use metrics_exporter_prometheus::PrometheusHandle;

use crate::{
    auth::{agent::AgentTokens, jwt::AccessTokens, secret::Hasher},
    clock::Clock,
    db::Db,
    delivery::{backplane::Backplane, hub::Registry},
    features::{
        accounts::Accounts, agents::ReachabilityTracker, messages::MessageWriter,
        passkeys::Passkeys,
    },
    gateway::Gateway,
    http::client::IngressPolicy,
    inbox::Inbox,
    limits::{Limits, slots::Slots},
    random::Random,
    work::UnitOfWork,
};

/// Everything a request may need, behind one pointer: it is cloned for each request.
#[derive(Clone)]
pub struct App(Arc<Handles>);

macro_rules! handles {
    ($($field:ident: $kind:ty,)+) => {
        /// What [`App`] points to.
        pub struct Handles {
            $(#[doc = concat!("The node's `", stringify!($field), "`.")] pub $field: $kind,)+
        }

        $(impl FromRef<App> for $kind {
            fn from_ref(app: &App) -> Self {
                app.0.$field.clone()
            }
        })+
    };
}

handles! {
    clock: Clock,
    random: Random,
    db: Db,
    work: UnitOfWork,
    ingress: IngressPolicy,
    hasher: Hasher,
    access_tokens: AccessTokens,
    agent_tokens: AgentTokens,
    limits: Limits,
    slots: Slots,
    quotas: Quotas,
    registry: Registry,
    backplane: Backplane,
    inbox: Inbox,
    reachability: ReachabilityTracker,
    message_writer: MessageWriter,
    gateway: Arc<Gateway>,
    accounts: Accounts,
    passkeys: Passkeys,
    status: NodeStatus,
}

impl From<Handles> for App {
    fn from(handles: Handles) -> Self {
        App(Arc::new(handles))
    }
}

impl std::ops::Deref for App {
    type Target = Handles;

    fn deref(&self) -> &Handles {
        &self.0
    }
}

/// Quotas that the operator sets.
#[derive(Clone, Copy)]
pub struct Quotas {
    /// Agents a user may have.
    pub agents_per_user: u32,
}

/// Whether the node wants traffic, and what it has measured.
#[derive(Clone)]
pub struct NodeStatus {
    draining: Arc<AtomicBool>,
    /// The process's metrics.
    pub metrics: PrometheusHandle,
}

impl NodeStatus {
    /// A node that wants traffic.
    pub fn new(metrics: PrometheusHandle) -> Self {
        NodeStatus {
            draining: Arc::default(),
            metrics,
        }
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
