//! Opening what came: envelopes in messages, deltas, tool requests and their responses.

use blindpipe_e2ee::{
    consent::Asked,
    envelope::{Header, Place, fingerprint},
    room::{Incoming, Refusal, Shown},
    trust::Standing,
};
use blindpipe_protocol::{
    ids::{ConversationId, MessageId, Principal},
    messages::{Message, Sent},
    raw::RawJson,
};

use super::{
    Entry, EntryGuard, OpenedMessage, OpenedSender, Session, clear_message, count, envelope_of,
    is_sealed, principal, unix_ms,
};
use crate::{Error, Result, store::Handled, transport::is_missing};

/// Something that was found in a conversation.
pub(crate) struct Found<'a> {
    pub(crate) conversation_id: ConversationId,
    pub(crate) sender: Principal,
    pub(crate) place: &'a Place,
    pub(crate) envelope: &'a [u8],
    /// The server's time, Unix milliseconds.
    pub(crate) created_at: u64,
    /// From the inbox, not from the history.
    pub(crate) live: bool,
}

impl Session {
    /// Opens something; nothing is remembered.
    pub(crate) async fn open(&self, found: &Found<'_>) -> Result<Shown> {
        let mut entry = self.prepare(found).await?;
        let now = self.clock.now_ms();
        let mut trust = self.trust.lock();
        let incoming = incoming(&entry, found);
        let shown = entry.room.open(&mut trust, &incoming, now);
        drop(trust);
        self.shown(found, shown)
    }

    /// Opens the answer to a tool request: consent to exactly this request.
    pub(crate) async fn prove(&self, asked: &Asked, found: &Found<'_>) -> Result<Shown> {
        let mut entry = self.prepare(found).await?;
        let now = self.clock.now_ms();
        let mut trust = self.trust.lock();
        let incoming = incoming(&entry, found);
        let shown = asked.prove(&mut entry.room, &mut trust, &incoming, now);
        drop(trust);
        self.shown(found, shown)
    }

    fn shown(
        &self,
        found: &Found<'_>,
        shown: std::result::Result<Shown, Refusal>,
    ) -> Result<Shown> {
        shown.map_err(|refusal| {
            self.tell(&refusal.notices, Some(found.conversation_id));
            Error::Decrypt(refusal.error)
        })
    }

    /// Reads the secret and the key that an envelope names, where they are not in memory.
    async fn prepare(&self, found: &Found<'_>) -> Result<EntryGuard> {
        let header = Header::parse(found.envelope)?;
        let entry = self.load(found.conversation_id).await;
        let mut entry = entry.map_err(foreign)?;
        self.note_envelope_seen(&mut entry);
        if self.has_keys() {
            if entry.room.epoch_key(header.epoch, header.sid).is_none() {
                self.read_wraps(&mut entry, Some(header.epoch)).await?;
            }
            let sender = principal(found.sender);
            let is_known = self.trust.lock().pin(sender, header.sender_key).is_some();
            if !is_known {
                self.read_speaker(found.conversation_id, found.sender)
                    .await?;
            }
        }
        Ok(entry)
    }

    /// `live`: from the inbox, not from the history.
    pub(crate) async fn open_message(
        &self,
        message: &Message,
        live: bool,
    ) -> Result<OpenedMessage> {
        let envelope = envelope_of(message.payload.as_ref())?;
        // A decision has no id of its own: it is named by the approval that it answers.
        let id = message.client_message_id.or(message.in_reply_to);
        let id = id.ok_or(blindpipe_e2ee::Error::Malformed)?.0.into_bytes();
        let place = Place::Message {
            client_message_id: id,
            in_reply_to: message.in_reply_to.map(|id| id.0.into_bytes()),
        };
        let found = Found {
            conversation_id: message.conversation_id,
            sender: message.sender.id,
            place: &place,
            envelope: &envelope,
            created_at: unix_ms(message.created_at),
            live,
        };
        let shown = self.open(&found).await?;
        let mut entry = self.lock(message.conversation_id).await;
        let opened = opened_message(&entry, &found, shown, message, id)?;
        self.note_envelope(&mut entry, message.message_id, &envelope);
        if live && !opened.is_replay {
            count(&mut entry, opened.epoch);
        }
        drop(entry);
        Box::pin(self.resolved(opened)).await
    }

    /// Opens a message, or takes it as it came in clear; none if it is neither.
    pub(crate) async fn open_either(
        &self,
        message: &Message,
        may_be_clear: bool,
    ) -> Result<Option<OpenedMessage>> {
        if !is_sealed(message) {
            let is_clear = may_be_clear && !self.is_encrypted(message.conversation_id).await?;
            return Ok(is_clear.then(|| clear_message(message)));
        }
        match self.open_message(message, false).await {
            Ok(opened) => Ok(Some(opened)),
            Err(Error::Decrypt(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A message of one's own is stored: replies to it are told by its envelope.
    pub(crate) async fn sent(&self, sent: &Sent, payload: &RawJson) {
        if let Ok(envelope) = envelope_of(Some(payload)) {
            let mut entry = self.lock(sent.conversation_id).await;
            self.note_envelope(&mut entry, sent.message_id, &envelope);
        }
    }

    /// Only people are shown quotes.
    fn note_envelope(&self, entry: &mut Entry, message: MessageId, envelope: &[u8]) {
        if principal(self.me).is_user() {
            let id = message.0.into_bytes();
            entry.envelopes.note(id, fingerprint(envelope));
        }
    }

    /// A message that was handled is not handled again under another event. Answers what a store
    /// is to keep of it. `sent_at` is signed, Unix milliseconds.
    pub(crate) async fn remember(
        &self,
        message: &Message,
        sent_at: Option<u64>,
    ) -> Option<Handled> {
        let mut entry = self.lock(message.conversation_id).await;
        let (sender, id) = (principal(message.sender.id), message.client_message_id?);
        let (now, id) = (self.clock.now_ms(), id.0.into_bytes());
        let time = sent_at.unwrap_or(now);
        Some(Handled {
            at: entry.room.remember((sender, id), time, now)?,
            conversation_id: message.conversation_id,
            sender,
            client_message_id: id,
        })
    }
}

/// A conversation that is not this member's, or is none, has no secret to open anything with.
pub(crate) fn foreign(error: Error) -> Error {
    if is_missing(&error) {
        return blindpipe_e2ee::Error::NoEpochKey.into();
    }
    error
}

fn incoming<'a>(entry: &Entry, found: &Found<'a>) -> Incoming<'a> {
    let answered = match found.place {
        Place::Message { in_reply_to, .. } => *in_reply_to,
        _ => None,
    };
    Incoming {
        sender: principal(found.sender),
        place: found.place,
        envelope: Some(found.envelope),
        created_at: found.created_at,
        live: found.live,
        answered: answered.and_then(|id| entry.envelopes.get(id)),
    }
}

fn opened_message(
    entry: &Entry,
    found: &Found<'_>,
    shown: Shown,
    message: &Message,
    id: blindpipe_e2ee::Id,
) -> Result<OpenedMessage> {
    let sender = principal(found.sender);
    let opened = shown.opened.ok_or(blindpipe_e2ee::Error::Clear)?;
    let source = String::from_utf8(opened.content);
    let source = source.map_err(|_| blindpipe_e2ee::Error::NotJson)?;
    let serde_json::Value::Object(content) = opened.json else {
        return Err(blindpipe_e2ee::Error::NotJson.into());
    };
    let standing = shown.standing.unwrap_or(Standing::Waiting);
    Ok(OpenedMessage {
        content,
        source,
        encrypted: true,
        sender: OpenedSender {
            principal: found.sender,
            device_id: message.sender.device_id.clone(),
            key: Some(opened.header.sender_key),
            authentic: standing > Standing::Waiting,
            pinned: shown.stored,
            verified: standing == Standing::Verified,
            member: entry.room.is_member(sender),
        },
        sent_at: Some(opened.time),
        epoch: opened.header.epoch,
        re: Some(fingerprint(found.envelope)),
        is_replay: found.live && entry.room.is_remembered(sender, id),
        notices: shown.notices,
    })
}
