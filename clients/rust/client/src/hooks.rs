//! Hooks for the operator of a client. Nothing here ever carries a secret or a text.

use std::{
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

use blindpipe_e2ee::trust::Notice;
use blindpipe_protocol::{
    cursor::Cursor,
    ids::{ConnectionId, ConversationId, EventId},
};
use tracing::{debug, warn};

/// The warning at a start without a store.
pub(crate) const NO_STORE: &str = "no store: this start is a first contact with everybody";

/// A warning that an operator has to see. It goes to `tracing`, and to standard error as long as the
/// program has no subscriber.
pub(crate) fn warn_loudly(warning: &str) {
    if tracing::dispatcher::has_been_set() {
        warn!("{warning}");
    } else {
        // There is nobody left to tell of a failure.
        writeln!(io::stderr().lock(), "blindpipe: {warning}").ok();
    }
}

/// Something that happened to a client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Hook {
    /// A socket is live.
    Connected,
    /// All that waited has come.
    CaughtUp,
    /// A socket ended.
    Disconnected {
        /// Its close code; 1006 if there was none, 4999 if it said nothing for too long.
        code: u16,
        /// The connections that hold the places, after a 4409.
        holders: Vec<ConnectionId>,
    },
    /// A call, a handler or the reading of an event is tried again.
    Retry {
        /// The number of the try that failed, from 1.
        attempt: u32,
        /// The wait before the next one.
        wait: Duration,
        /// Method and route, the handler's event, or what is read.
        what: String,
    },
    /// A budget is used up.
    RateLimited {
        /// The name of the limit.
        scope: String,
        /// The wait.
        wait: Duration,
    },
    /// Something that came does not open. It is not handled.
    Undecryptable {
        /// Why.
        reason: blindpipe_e2ee::Error,
        /// The event that brought it; none for a piece of a stream, which comes in no event.
        event_id: Option<EventId>,
        /// Where it stands.
        conversation_id: Option<ConversationId>,
    },
    /// A notice about a key or a member.
    Notice {
        /// The notice.
        notice: Notice,
        /// The conversation that it is about, or in which its key was read; none if it stands in no
        /// single one.
        conversation_id: Option<ConversationId>,
    },
    /// A handler failed for the last time. The event counts as handled.
    DeadLetter {
        /// The event.
        event_id: EventId,
        /// Its name.
        event: String,
    },
    /// Events are missing: conversations must be read anew.
    Resync {
        /// The event before the oldest one that is kept.
        oldest: Cursor,
        /// The newest event.
        head: Cursor,
    },
    /// A fresh secret is due, and the server does not take it: nothing is sent under the old one.
    NotRotated {
        /// Where.
        conversation_id: ConversationId,
    },
    /// A part of a large body has gone out, or come in.
    Transferred {
        /// The bytes so far.
        bytes: u64,
        /// All of them.
        of: u64,
    },
    /// The state could not be stored.
    StoreFailed,
}

type Told = Arc<dyn Fn(&Hook) + Send + Sync>;

/// Calls the developer's hook.
#[derive(Clone, Default)]
pub(crate) struct Hooks(Option<Told>);

impl Hooks {
    pub(crate) fn new(hook: impl Fn(&Hook) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    pub(crate) fn call(&self, hook: &Hook) {
        match hook {
            Hook::DeadLetter { .. } | Hook::NotRotated { .. } | Hook::StoreFailed => {
                warn!(?hook, "client");
            }
            Hook::Transferred { .. } => {}
            _ => debug!(?hook, "client"),
        }
        if let Some(told) = &self.0 {
            told(hook);
        }
    }
}
