//! Agents and people on blindpipe, encrypted end to end with `bp1`.
//!
//! An agent, whole:
//!
//! ```ignore
//! Agent::from_env()?
//!     .on_message(async |ctx| ctx.reply(format!("You said: {}", ctx.text())).await)
//!     .run()
//!     .await
//! ```
//!
//! - [`agent`]: what comes is opened and handled in order, and answered exactly once.
//! - [`client`]: a person's side: devices, backups, conversations, tool calls.
//! - [`testing`]: a real cluster for tests.
//!
//! `bp1` has no forward secrecy, and no independent cryptographer has reviewed it yet.

mod approvals;
mod content;
mod error;
mod files;
mod hooks;
#[cfg(feature = "postgres")]
mod postgres_store;
mod session;
mod shared_folder;
mod shared_store;
mod store;
mod transport;

pub mod agent;
pub mod client;
pub mod testing;

pub use blindpipe_e2ee as e2ee;
pub use blindpipe_protocol as protocol;

#[cfg(feature = "postgres")]
pub use self::postgres_store::{POSTGRES_TABLES, PostgresStore};
pub use self::{
    agent::{Agent, Context},
    approvals::{Approval, ApprovalDecision, ApprovalState, Receipt},
    client::Client,
    content::{Content, ContentKind, ContentView, text},
    error::{ApiError, Error, Result},
    files::{FileDetails, NewFile, Thumbnail},
    hooks::Hook,
    session::{InboxEvent, OpenedMessage, OpenedSender},
    shared_folder::SharedFolder,
    shared_store::{News, Saved, SharedStore},
    store::{Entries, FileStore, Handled, MemoryStore, Part, Store},
    transport::{Clock, Reached, Server},
};
