//! The node's handles. Handlers and extractors name the ones they use, so a signature shows what an
//! endpoint can touch.

use std::sync::Arc;

use axum::extract::FromRef;

use crate::{
    auth::{agent::AgentTokens, jwt::AccessTokens, secret::Hasher},
    clock::Clock,
    db::Db,
    delivery::{Backplane, Hub},
    features::{
        accounts::Accounts,
        agents::{Agents, ReachabilityTracker},
        conversations::ReadMarks,
        files::{CountDownloads, StorageQuota},
        health::NodeStatus,
        messages::MessageWriter,
        passkeys::Passkeys,
        published::ServedOpenApi,
        push::Push,
        stops::Stops,
        streams::Streams,
        typing::Typing,
        web_app::WebApp,
        webhooks::Webhooks,
    },
    gateway::Gateway,
    http::client::IngressPolicy,
    inbox::Inbox,
    limits::{Limits, slots::Slots},
    objects::Objects,
    random::Random,
    work::UnitOfWork,
};

/// Everything that a request may need. It is a single pointer, because each request clones it.
#[derive(Clone)]
pub struct App(Arc<Handles>);

macro_rules! handles {
    ($($field:ident: $kind:ty,)+) => {
        /// The handles that [`App`] points to.
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
    hub: Hub,
    backplane: Backplane,
    inbox: Inbox,
    objects: Objects,
    storage_quota: StorageQuota,
    count_downloads: CountDownloads,
    reachability: ReachabilityTracker,
    message_writer: MessageWriter,
    read_marks: ReadMarks,
    gateway: Arc<Gateway>,
    accounts: Accounts,
    agents: Agents,
    typing: Typing,
    passkeys: Passkeys,
    served_openapi: ServedOpenApi,
    web_app: WebApp,
    webhooks: Webhooks,
    push: Push,
    stops: Stops,
    streams: Streams,
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
