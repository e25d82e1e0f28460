//! Sealing with the newest secret of a conversation.

use blindpipe_e2ee::{
    EpochKey, Id,
    envelope::{self, Draft, Place, View},
};
use blindpipe_protocol::ids::{ConversationId, Principal};

use super::{Session, count, principal};
use crate::{Error, Result, transport::rng};

/// The options of a seal, beside place and content.
#[derive(Clone, Copy, Default)]
pub(crate) struct SealOptions<'a> {
    /// The epoch of the message that is answered.
    pub(crate) answering: Option<u32>,
    /// The `addressed` agents that may read it.
    pub(crate) readers: &'a [Principal],
}

impl Session {
    /// Whether the content for this conversation is sealed; else it goes in clear.
    ///
    /// # Errors
    ///
    /// [`Error::KeyUnavailable`] where it may not go in clear and cannot be sealed.
    pub(crate) async fn is_to_be_sealed(&self, id: ConversationId, clear: bool) -> Result<bool> {
        match (self.is_encrypted(id).await?, self.has_keys()) {
            (true, true) => Ok(true),
            (true, false) => Err(Error::KeyUnavailable(
                "an envelope was seen here, and this agent has no key",
            )),
            (false, _) if clear => Ok(false),
            (false, _) => Err(Error::KeyUnavailable("nobody has rotated here yet")),
        }
    }

    /// Seals with the newest secret.
    pub(crate) async fn seal(
        &self,
        id: ConversationId,
        place: &Place,
        content: &[u8],
        options: SealOptions<'_>,
    ) -> Result<Vec<u8>> {
        let mut entry = self.load(id).await?;
        if entry.room.server().epoch > entry.room.highest_epoch() {
            self.read_wraps(&mut entry, None).await?;
        }
        // A person rotates before a send. Where the limit forbids that, the newest goes on, unless
        // somebody was to lose it: that can have been learned since.
        let is_person = matches!(self.me, Principal::User(_));
        let key = entry.room.sealable();
        let key = key.filter(|_| !(is_person && entry.room.must_rotate()));
        let key = key.filter(|key| options.answering.is_none_or(|epoch| epoch <= key.epoch()));
        let key = key.ok_or(Error::KeyUnavailable(
            "this member has no secret that it may seal with",
        ))?;
        let keys = self.keys.as_ref();
        let keys = keys.ok_or(Error::KeyUnavailable("this client has no keys"))?;
        let epoch = key.epoch();
        let readers = readers_of(key, options.readers);
        let draft = Draft {
            key,
            sender: principal(self.me),
            sender_keys: &keys.signer,
            place,
            readers: &readers,
            time: self.clock.now_ms(),
            view: View::default(),
            content,
        };
        let sealed = envelope::seal(&draft, &mut rng())?;
        if entry.room.sealed() {
            self.note_marks(&entry);
        }
        if matches!(place, Place::Message { .. }) {
            count(&mut entry, epoch);
        }
        Ok(sealed)
    }
}

/// The `addressed` agents in rising order; an agent in a lane of its own names nobody.
fn readers_of(key: &EpochKey, named: &[Principal]) -> Vec<Id> {
    let agents = named.iter().filter_map(|reader| match reader {
        Principal::Agent(id) => Some(id.0.into_bytes()),
        Principal::User(_) => None,
    });
    let mut readers: Vec<Id> = agents.filter(|_| key.lane_agent().is_none()).collect();
    readers.sort_unstable();
    readers.dedup();
    readers
}
