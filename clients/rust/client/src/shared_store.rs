//! The store that several processes of an agent share.

use std::{collections::HashMap, io, sync::Arc};

use blindpipe_e2ee::{
    room::Marks,
    trust::{Policy, Trust},
};
use blindpipe_protocol::ids::ConversationId;

use crate::{
    hooks::{Hook, Hooks},
    session::Session,
    store::{Entries, Handled},
};

/// The additions of other processes since the last news.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct News {
    /// The entries.
    pub entries: Entries,
    /// Messages that were handled, oldest first.
    pub handled: Vec<Handled>,
    /// Another process had the conversation since this one had it last.
    pub came_back: bool,
}

/// The outcome of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// All is durable.
    Kept,
    /// Another process has saved one of the entries since the last news. The next news tells it. Some
    /// of the others may be durable.
    Changed,
}

/// A store for several processes of an agent. Each process has a value of its own. Calls are short:
/// the agent waits for each.
pub trait SharedStore: Send + Sync + 'static {
    /// All entries, and the messages that were handled at `since` (Unix milliseconds) or later.
    /// Earlier ones may be forgotten.
    ///
    /// # Errors
    ///
    /// They may be there and cannot be read.
    fn load(&self, since: u64) -> io::Result<News>;

    /// The news of all pins and, in one step with noting that this process has it, of a conversation.
    ///
    /// # Errors
    ///
    /// Nothing is known of other processes.
    fn news(&self, conversation_id: Option<ConversationId>) -> io::Result<News>;

    /// Saves entries, unless another process has saved one of them since the last news.
    ///
    /// # Errors
    ///
    /// Some may not be durable.
    fn save(&self, entries: &Entries) -> io::Result<Saved>;

    /// Adds handled messages. They are durable once this returns.
    ///
    /// # Errors
    ///
    /// Some may not have been added.
    fn add_handled(&self, handled: &[Handled]) -> io::Result<()>;
}

impl<S: SharedStore> SharedStore for Arc<S> {
    fn load(&self, since: u64) -> io::Result<News> {
        (**self).load(since)
    }

    fn news(&self, conversation_id: Option<ConversationId>) -> io::Result<News> {
        (**self).news(conversation_id)
    }

    fn save(&self, entries: &Entries) -> io::Result<Saved> {
        (**self).save(entries)
    }

    fn add_handled(&self, handled: &[Handled]) -> io::Result<()> {
        (**self).add_handled(handled)
    }
}

/// Trust and marks as the processes before have stored them.
pub(crate) fn restored(
    entries: Entries,
    me: blindpipe_e2ee::Principal,
    policy: Policy,
    own: impl IntoIterator<Item = blindpipe_e2ee::KeyId>,
) -> blindpipe_e2ee::Result<(Trust, HashMap<ConversationId, Marks>)> {
    let pins = serde_json::json!({ "principals": entries.pins });
    let trust = Trust::restore(me, policy, own, &pins)?;
    let marks = entries.marks.iter();
    let marks = marks.filter_map(|(id, marks)| Some((*id, Marks::restore(marks)?)));
    Ok((trust, marks.collect()))
}

/// Takes over what other processes have stored; false if it could not be read.
pub(crate) fn take_news(
    store: &dyn SharedStore,
    session: &Session,
    hooks: &Hooks,
    conversation_id: Option<ConversationId>,
) -> bool {
    match store.news(conversation_id) {
        Ok(news) => {
            let came_back = news.came_back;
            session.take_over(news);
            // Members and keys may have changed while another process had it.
            if let Some(id) = conversation_id.filter(|_| came_back) {
                session.forget(id);
            }
            true
        }
        Err(_) => {
            hooks.call(&Hook::StoreFailed);
            false
        }
    }
}

/// Saves what has changed here, together with what others have learned meanwhile.
pub(crate) fn save_changed(store: &dyn SharedStore, session: &Session, hooks: &Hooks) -> bool {
    loop {
        if !take_news(store, session, hooks, None) {
            session.mark_dirty();
            return false;
        }
        match session.keep_changed(|entries| store.save(entries)) {
            Ok(Saved::Kept) => return true,
            Ok(Saved::Changed) => {}
            Err(_) => {
                hooks.call(&Hook::StoreFailed);
                return false;
            }
        }
    }
}
