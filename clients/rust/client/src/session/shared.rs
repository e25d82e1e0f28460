//! The knowledge of several processes of a client: taken from a store, and given to it.

use std::{
    collections::{BTreeMap, HashSet},
    io,
};

use blindpipe_e2ee::room::Marks;
use blindpipe_protocol::ids::ConversationId;
use serde_json::Value;

use super::{Entry, Session};
use crate::{
    shared_store::{News, Saved},
    store::Entries,
};

impl Session {
    /// Gives a store the pins and marks that have changed. Those that it does not keep count as changed
    /// still.
    pub(crate) fn keep_changed(
        &self,
        keep: impl FnOnce(&Entries) -> io::Result<Saved>,
    ) -> io::Result<Saved> {
        let (principals, pins) = self.trust.lock().take_changed();
        let (conversations, marks) = self.take_changed();
        let entries = Entries {
            pins,
            marks,
            ..Entries::default()
        };
        if entries.is_empty() {
            return Ok(Saved::Kept);
        }
        let kept = keep(&entries);
        if !matches!(kept, Ok(Saved::Kept)) {
            self.trust.lock().not_kept(principals);
            self.not_kept(conversations);
        }
        if kept.is_err() {
            self.mark_dirty();
        }
        kept
    }

    /// Adds what an earlier session of this client has changed, which no store has taken.
    pub(crate) fn inherit(&self, earlier: &Self) {
        let (principals, _) = earlier.trust.lock().take_changed();
        self.trust.lock().not_kept(principals);
        self.not_kept(earlier.take_changed().0);
        self.mark_dirty();
    }

    /// The conversations whose marks have changed since the last question, and these marks as a store
    /// keeps them.
    pub(super) fn take_changed(
        &self,
    ) -> (HashSet<ConversationId>, BTreeMap<ConversationId, Value>) {
        let changed = std::mem::take(&mut *self.changed_marks.lock());
        let marks = self.marks.lock();
        let stored = changed.iter();
        let stored = stored.filter_map(|id| Some((*id, marks.get(id)?.store())));
        let stored = stored.collect();
        drop(marks);
        (changed, stored)
    }

    /// A store did not keep what [`Self::take_changed`] gave.
    fn not_kept(&self, changed: HashSet<ConversationId>) {
        self.changed_marks.lock().extend(changed);
    }

    /// Takes over what another process of this client has stored.
    pub(crate) fn take_over(&self, news: News) {
        let mut changed = Vec::new();
        for (name, entry) in &news.entries.pins {
            // An entry that is none says nothing about anybody.
            let of = self.trust.lock().take_over(name, entry);
            changed.extend(of.ok().flatten());
        }
        for (id, stored) in &news.entries.marks {
            if let Some(theirs) = Marks::restore(stored) {
                self.take_marks(*id, theirs);
            }
        }
        let mut handled = self.handled.lock();
        for each in news.handled {
            let of = handled.entry(each.conversation_id).or_default();
            of.push(((each.sender, each.client_message_id), each.at));
        }
        drop(handled);
        for of in changed {
            self.reconsider(of);
        }
    }

    fn take_marks(&self, id: ConversationId, theirs: Marks) {
        let has_changed = self.changed_marks.lock().contains(&id);
        let mut marks = self.marks.lock();
        if marks.get(&id) == Some(&theirs) {
            return;
        }
        let mine = marks.remove(&id).filter(|_| has_changed);
        let taken = mine.map_or_else(|| theirs.clone(), |mine| mine.merged(theirs.clone()));
        marks.insert(id, taken.clone());
        drop(marks);
        self.taken_marks.lock().insert(id, taken);
    }

    /// Gives a conversation what another process has stored. Its room begins anew with such marks.
    pub(super) fn show_taken(&self, entry: &mut Entry) {
        let taken = self.taken_marks.lock().remove(&entry.id);
        if let Some(taken) = taken {
            entry.room.begin_anew(taken);
            entry.is_stale = true;
        }
        for (message, at) in self.handled.lock().remove(&entry.id).unwrap_or_default() {
            entry.room.resume_remembered(message, at);
        }
    }
}
