//! The decisions of a room about an envelope, or about clear text: shown, refused, here before.

use std::collections::hash_map::Entry;

use serde_json::Value;

use super::{DAY_MS, Incoming, MINUTE_MS, Refusal, Room, Shown, Taken};
use crate::{
    Error, Id, Principal,
    envelope::{self, Header, Place},
    from_base64,
    trust::{Notice, NoticeKind, Pin, Standing, Trust},
};

/// How far a signed time may be from the server's without being shown, milliseconds.
const MAX_TIME_APART: u64 = 5 * MINUTE_MS;
/// How old a delta or a tool request may be, milliseconds.
const MAX_LIVE_AGE: u64 = 5 * MINUTE_MS;
/// How far before or after now a message may be signed that a handler is given, milliseconds.
pub const MAX_MESSAGE_AGE: u64 = 31 * DAY_MS;

impl Room {
    /// Decides about a message or a delta.
    ///
    /// # Errors
    ///
    /// Every reason.
    pub fn message(
        &mut self,
        trust: &mut Trust,
        incoming: &Incoming<'_>,
        now: u64,
    ) -> Result<Taken, Refusal> {
        if incoming.envelope.is_none() {
            return self.clear(trust, incoming);
        }
        let shown = self.open(trust, incoming, now)?;
        match incoming.place {
            Place::Message {
                client_message_id, ..
            } => {
                let time = shown.opened.as_ref().map_or(now, |opened| opened.time);
                let message = (incoming.sender, *client_message_id);
                if self.remember(message, time, now).is_none() {
                    return Ok(Taken::Repeated);
                }
            }
            Place::Delta { stream_id, .. } => {
                let ended = crate::ids::from_ulid(stream_id);
                if ended.is_some_and(|id| self.remembered.contains_key(&(incoming.sender, id))) {
                    return Ok(Taken::Repeated);
                }
            }
            Place::Request(_) | Place::Response { .. } => {}
        }
        Ok(Taken::Shown(Box::new(shown)))
    }

    /// Opens what came, and says what is to be said of it; nothing is remembered yet.
    ///
    /// # Errors
    ///
    /// Every reason.
    pub fn open(
        &mut self,
        trust: &mut Trust,
        incoming: &Incoming<'_>,
        now: u64,
    ) -> Result<Shown, Refusal> {
        let (sender, place) = (incoming.sender, incoming.place);
        let bytes = incoming.envelope.ok_or(Error::Clear)?;
        let opened = envelope::open(
            bytes,
            self.conversation,
            sender,
            place,
            |epoch, sid| self.held.get(&(epoch, sid)),
            |key| trust.pin(sender, key).map(|pin| pin.keys),
        );
        let opened = opened.map_err(|error| self.refusal(error, bytes))?;
        let key = opened.header.sender_key;
        self.encrypted = true;
        trust.heard(sender);
        let pin = trust.pin(sender, key).ok_or(Error::UnknownSenderKey)?;
        let mut notices = self.judge(trust.me(), pin, incoming, now)?;
        if self.is_stale(trust.me(), incoming, opened.time, now) {
            return Err(Error::Stale.into());
        }
        if opened.time.abs_diff(incoming.created_at) > MAX_TIME_APART {
            notices.push(NoticeKind::OtherTime.of(sender, None));
        }
        if lacks_quote(incoming, &opened.json) {
            notices.push(NoticeKind::NoQuote.of(sender, None));
        }
        Ok(Shown {
            opened: Some(opened),
            standing: Some(pin.standing),
            stored: pin.stored,
            notices,
        })
    }

    /// The notices about a sender's key, or why nothing by it counts.
    fn judge(
        &self,
        me: Principal,
        pin: &Pin,
        incoming: &Incoming<'_>,
        now: u64,
    ) -> Result<Vec<Notice>, Refusal> {
        let (sender, key) = (incoming.sender, pin.keys.key_id());
        let is_retired = pin.is_retired(now);
        let mut notices = Vec::new();
        if pin.standing == Standing::Waiting {
            notices.push(NoticeKind::WaitingKey.of(sender, Some(key)));
        }
        if is_retired {
            notices.push(NoticeKind::RetiredKey.of(sender, Some(key)));
        }
        if !self.is_member(sender) {
            notices.push(NoticeKind::NotMember.of(sender, None));
        }
        let message = matches!(incoming.place, Place::Message { .. });
        // A message that the server stored before the key left came in time.
        let in_time = pin.retired_at.is_some_and(|at| incoming.created_at <= at);
        let error = if is_retired && incoming.live && !in_time {
            Error::RetiredKey
        } else if pin.standing == Standing::Waiting && !(message && me.is_user()) {
            Error::UnknownSenderKey
        } else {
            return Ok(notices);
        };
        Err(Refusal { error, notices })
    }

    /// A message of the current epoch under an unknown secret: somebody was given something else.
    fn refusal(&self, error: Error, envelope: &[u8]) -> Refusal {
        let mut refusal = Refusal::from(error);
        let header = Header::parse(envelope);
        if let (Error::NoEpochKey, Some(newest), Ok(header)) = (error, self.newest, header)
            && header.epoch == newest.epoch
            && !self.held.contains_key(&(header.epoch, header.sid))
        {
            let notice = NoticeKind::OtherSecret.of(newest.rotator, None);
            refusal.notices.push(notice);
        }
        refusal
    }

    /// Nothing in clear is taken for said where encryption is possible.
    fn clear(&self, trust: &Trust, incoming: &Incoming<'_>) -> Result<Taken, Refusal> {
        let message = matches!(incoming.place, Place::Message { .. });
        let allowed = trust.me().is_user() || self.plaintext_allowed && self.server.epoch == 0;
        if self.encrypted || !message || !allowed {
            return Err(Error::Clear.into());
        }
        Ok(Taken::Shown(Box::new(Shown {
            opened: None,
            standing: None,
            stored: false,
            notices: vec![NoticeKind::NotEncrypted.of(incoming.sender, None)],
        })))
    }

    /// Whether a message of `sender` with this id was here before.
    #[must_use]
    pub fn is_remembered(&self, sender: Principal, client_message_id: Id) -> bool {
        self.remembered.contains_key(&(sender, client_message_id))
    }

    /// The messages that are not handled again, oldest first, each with the time of
    /// [`Self::remember`].
    pub fn remembered(&self) -> impl Iterator<Item = ((Principal, Id), u64)> {
        let at = |message| self.remembered.get(message).copied().unwrap_or_default();
        self.order
            .iter()
            .map(move |message| (*message, at(message)))
    }

    /// Remembers a message that was signed at `time`, and forgets those whose time is more than 31
    /// days before `now`. No handler is given these.
    ///
    /// Answers the time that a store is to keep, Unix milliseconds: `now`, or the signed one if
    /// that is later. None if the message was here before.
    pub fn remember(&mut self, message: (Principal, Id), time: u64, now: u64) -> Option<u64> {
        let at = time.clamp(now, now.saturating_add(MAX_MESSAGE_AGE));
        if !self.resume_remembered(message, at) {
            return None;
        }
        let since = now.saturating_sub(MAX_MESSAGE_AGE);
        while let Some(oldest) = self.order.front()
            && self.remembered.get(oldest).is_none_or(|at| *at < since)
        {
            self.remembered.remove(oldest);
            self.order.pop_front();
        }
        Some(at)
    }

    /// Takes up what a store kept of [`Self::remember`]; false if it was here before.
    pub fn resume_remembered(&mut self, message: (Principal, Id), at: u64) -> bool {
        let Entry::Vacant(vacant) = self.remembered.entry(message) else {
            return false;
        };
        vacant.insert(at);
        self.order.push_back(message);
        true
    }

    /// Handlers get no message of another time; nobody gets an old delta or tool request.
    fn is_stale(&self, me: Principal, incoming: &Incoming<'_>, time: u64, now: u64) -> bool {
        match incoming.place {
            Place::Delta { .. } | Place::Request(_) => now.abs_diff(time) > MAX_LIVE_AGE,
            Place::Message { .. } => {
                let is_old = now.saturating_sub(time) > self.max_message_age;
                // An id is forgotten in the end, so its time must have an end as well.
                let is_ahead = time.saturating_sub(now) > MAX_MESSAGE_AGE;
                !me.is_user() && incoming.live && (is_old || is_ahead)
            }
            Place::Response { .. } => false,
        }
    }
}

/// Whether a message answers something, and its `re` does not name the envelope that is known.
fn lacks_quote(incoming: &Incoming<'_>, content: &Value) -> bool {
    let Place::Message {
        in_reply_to: Some(_),
        ..
    } = incoming.place
    else {
        return false;
    };
    let re = content["re"].as_str().and_then(|re| from_base64(re).ok());
    re.is_none() || re != incoming.answered.map(Vec::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOB: Principal = Principal::User([7; 16]);

    fn message(number: u64) -> (Principal, Id) {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_be_bytes());
        (BOB, id)
    }

    #[test]
    fn a_message_is_remembered_for_31_days_however_many_come() {
        let (mut room, now) = (Room::new([1; 16], false), 100 * DAY_MS);
        assert_eq!(room.remember(message(0), now - DAY_MS, now), Some(now));
        let ahead = now + DAY_MS;
        assert_eq!(room.remember(message(1), ahead, now), Some(ahead));
        let end = Some(now + MAX_MESSAGE_AGE);
        assert_eq!(room.remember(message(2), u64::MAX, now), end);
        for number in 3..20_003 {
            assert_eq!(room.remember(message(number), now, now), Some(now));
        }
        for number in [0, 1, 2, 3, 20_002] {
            assert_eq!(room.remember(message(number), now, now), None);
        }
        let later = now + MAX_MESSAGE_AGE + 1;
        assert!(room.remember(message(30_000), later, later).is_some());
        assert!(!room.is_remembered(BOB, message(0).1));
        assert!(room.is_remembered(BOB, message(1).1), "it could be handled");
        let later = ahead + MAX_MESSAGE_AGE + 1;
        assert!(room.remember(message(30_001), later, later).is_some());
        assert!(!room.is_remembered(BOB, message(1).1));
        assert!(room.is_remembered(BOB, message(2).1));
        assert_eq!(room.remembered().count(), room.remembered.len());
    }
}
