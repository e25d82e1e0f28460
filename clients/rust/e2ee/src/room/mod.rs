//! A conversation as this client may believe it: what opens, what is shown under which notice, and
//! which secret may seal. Events go in, decisions come out.

mod reading;
mod stored;
mod types;

use std::collections::{BTreeMap, HashMap, VecDeque};

pub use self::{
    reading::MAX_MESSAGE_AGE,
    types::{
        Given, Incoming, Marks, Refusal, Sealing, ServerEpoch, Shown, Taken, Visibility, WrapTaken,
        Writing,
    },
};
use crate::{
    EpochKey, Error, Id, Principal, Sid,
    trust::{DirectoryKey, Notice, NoticeKind, Standing, Trust},
    wrap::{self, OpeningKey, Wrap},
};

const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 24 * 60 * MINUTE_MS;
/// How far ahead a rotator's clock may be, milliseconds.
const MAX_WRAP_AHEAD: u64 = 10 * MINUTE_MS;
/// How old a secret may become before people rotate, milliseconds.
const MAX_EPOCH_AGE: u64 = 7 * DAY_MS;
/// How many messages are sealed with one secret before people rotate.
const MAX_EPOCH_MESSAGES: u64 = 10_000;

#[derive(Clone, Copy, Debug)]
struct Newest {
    epoch: u32,
    sid: Sid,
    time: u64,
    rotator: Principal,
    may_seal: bool,
}

/// A conversation.
#[derive(Clone, Debug)]
pub struct Room {
    conversation: Id,
    members: Option<BTreeMap<Principal, Visibility>>,
    /// The members that the last seal was for.
    sealed_for: Option<BTreeMap<Principal, Visibility>>,
    held: BTreeMap<(u32, Sid), EpochKey>,
    newest: Option<Newest>,
    highest_epoch: u32,
    latest_time: u64,
    server: ServerEpoch,
    /// Keys or visibilities changed since the newest secret.
    changed: bool,
    encrypted: bool,
    plaintext_allowed: bool,
    /// How old a message may be that a handler is given, milliseconds.
    max_message_age: u64,
    /// The messages that were handled, each with the time until which its signed one may be.
    remembered: HashMap<(Principal, Id), u64>,
    order: VecDeque<(Principal, Id)>,
}

impl Room {
    /// `plaintext_allowed`: an agent's developer said that it takes clear text.
    #[must_use]
    pub fn new(conversation: Id, plaintext_allowed: bool) -> Self {
        Self {
            conversation,
            members: None,
            sealed_for: None,
            held: BTreeMap::new(),
            newest: None,
            highest_epoch: 0,
            latest_time: 0,
            server: ServerEpoch::default(),
            changed: false,
            encrypted: false,
            plaintext_allowed,
            max_message_age: MAX_MESSAGE_AGE,
            remembered: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// Takes up the marks of an earlier run: nothing goes back behind them.
    #[must_use]
    pub fn with_marks(mut self, marks: Marks) -> Self {
        self.highest_epoch = marks.epoch;
        self.latest_time = marks.time;
        self.encrypted = marks.encrypted || marks.epoch > 0;
        self.changed = marks.changed;
        self.members.clone_from(&marks.members);
        self.sealed_for = marks.members;
        self
    }

    /// Begins anew with the marks that another process of this client has stored. Secrets are read
    /// again; what was handled stays known.
    pub fn begin_anew(&mut self, marks: Marks) {
        let anew = Self::new(self.conversation, self.plaintext_allowed).with_marks(marks);
        let before = std::mem::replace(self, anew);
        self.max_message_age = before.max_message_age;
        (self.remembered, self.order) = (before.remembered, before.order);
    }

    /// An agent's own bound for the age of messages, milliseconds; at most 31 days.
    #[must_use]
    pub fn with_max_message_age(mut self, age: u64) -> Self {
        self.max_message_age = age.min(MAX_MESSAGE_AGE);
        self
    }

    /// For a store.
    #[must_use]
    pub fn marks(&self) -> Marks {
        Marks {
            epoch: self.highest_epoch,
            time: self.latest_time,
            members: self.sealed_for.clone(),
            encrypted: self.encrypted,
            changed: self.changed,
        }
    }

    /// The highest epoch of all newest secrets.
    #[must_use]
    pub const fn highest_epoch(&self) -> u32 {
        self.highest_epoch
    }

    /// The latest time of all newest secrets, Unix milliseconds.
    #[must_use]
    pub const fn latest_time(&self) -> u64 {
        self.latest_time
    }

    /// Something is sealed for the members of now. True if these are others than before.
    pub fn sealed(&mut self) -> bool {
        let is_other = self.sealed_for != self.members;
        if is_other {
            self.sealed_for.clone_from(&self.members);
        }
        is_other
    }

    /// The epoch as the server told it last.
    #[must_use]
    pub const fn server(&self) -> ServerEpoch {
        self.server
    }

    /// The newest secret, whether or not it may seal.
    #[must_use]
    pub fn newest(&self) -> Option<&EpochKey> {
        let newest = self.newest?;
        self.epoch_key(newest.epoch, newest.sid)
    }

    /// The newest secret if it may seal, also where a rotation is due that a limit forbids.
    #[must_use]
    pub fn sealable(&self) -> Option<&EpochKey> {
        let may_seal = |newest: &Newest| newest.may_seal && self.server.epoch >= newest.epoch;
        self.newest.filter(may_seal).and_then(|_| self.newest())
    }

    /// The secret held for an epoch and a `sid`.
    #[must_use]
    pub fn epoch_key(&self, epoch: u32, sid: Sid) -> Option<&EpochKey> {
        self.held.get(&(epoch, sid))
    }

    /// All secrets that are held for an epoch.
    pub fn epoch_keys(&self, epoch: u32) -> impl Iterator<Item = &EpochKey> {
        let all = (epoch, Sid::default())..=(epoch, [u8::MAX; 16]);
        self.held.range(all).map(|(_, key)| key)
    }

    /// Whether anything here was ever encrypted. Such a conversation never goes back.
    #[must_use]
    pub const fn was_encrypted(&self) -> bool {
        self.encrypted
    }

    /// An envelope came, whether or not it opens: nothing in clear counts from now on.
    pub const fn saw_envelope(&mut self) {
        self.encrypted = true;
    }

    /// The members as the person is shown them from now on.
    pub fn members(&mut self, list: &[(Principal, Visibility)]) -> Vec<Notice> {
        let now: BTreeMap<_, _> = list.iter().copied().collect();
        let Some(before) = self.members.replace(now) else {
            return Vec::new();
        };
        let mut notices = Vec::new();
        for (member, visibility) in list {
            match (before.get(member), visibility) {
                (None, _) => notices.push(NoticeKind::MemberAdded.of(*member, None)),
                (Some(Visibility::Addressed), Visibility::All) => {
                    notices.push(NoticeKind::AgentSeesAll.of(*member, None));
                }
                (Some(old), new) if old != new => self.changed = true,
                _ => {}
            }
        }
        let gone = before.keys().filter(|member| !self.is_member(**member));
        notices.extend(gone.map(|member| NoticeKind::MemberRemoved.of(*member, None)));
        self.changed |= !notices.is_empty();
        notices.sort_unstable();
        notices
    }

    #[must_use]
    pub fn is_member(&self, who: Principal) -> bool {
        let members = self.members.as_ref();
        members.is_some_and(|members| members.contains_key(&who))
    }

    /// The keys of somebody changed, in the directory or by a tap.
    pub fn keys_changed(&mut self, of: Principal) {
        self.changed |= self.is_member(of);
    }

    /// The epoch that the server calls current.
    pub const fn server_epoch(&mut self, server: ServerEpoch) {
        self.server = server;
    }

    /// Takes a wrap. It replaces no secret that is held.
    ///
    /// # Errors
    ///
    /// Every reason of [`wrap::open`].
    pub fn wrap(
        &mut self,
        trust: &mut Trust,
        keys: &[OpeningKey],
        epoch: u32,
        bytes: &[u8],
        now: u64,
    ) -> crate::Result<WrapTaken> {
        let recipient = wrap::recipient_key(bytes)?;
        let key = keys.iter().find(|key| key.key_id == recipient);
        let key = key.ok_or(Error::NoEpochKey)?;
        let trusted = |of, id| {
            trust
                .pin(of, id)
                .filter(|pin| pin.standing > Standing::Waiting)
        };
        let signer = |of, id| trusted(of, id).map(|pin| pin.keys);
        let opened = wrap::open(bytes, self.conversation, epoch, trust.me(), key, signer)?;
        self.encrypted = true;
        let pin = trusted(opened.rotator, opened.rotator_key);
        let signed = pin.filter(|pin| opened.verify(&pin.keys).is_ok());
        let may_seal =
            signed.is_some_and(|pin| pin.is_accepted(now)) && self.is_member(opened.rotator);
        let newest = signed.is_some() && self.becomes_newest(&opened, now);
        if newest {
            self.newest_is(&opened, may_seal);
        }
        trust.heard(opened.rotator);
        Ok(self.hold(opened, newest))
    }

    fn becomes_newest(&self, opened: &Wrap, now: u64) -> bool {
        let epoch = opened.key.epoch();
        let above = epoch > self.highest_epoch || opened.time > self.latest_time;
        let above = above || self.is_resumed(opened);
        above && opened.time <= now.saturating_add(MAX_WRAP_AHEAD)
    }

    /// Marks outlive the program; the secret itself is read from the server again.
    fn is_resumed(&self, opened: &Wrap) -> bool {
        let marked = (self.highest_epoch, self.latest_time);
        self.newest.is_none() && (opened.key.epoch(), opened.time) == marked
    }

    fn newest_is(&mut self, opened: &Wrap, may_seal: bool) {
        // The secret of before a restart answers no change that was found after it.
        self.changed &= self.is_resumed(opened);
        self.highest_epoch = self.highest_epoch.max(opened.key.epoch());
        self.latest_time = self.latest_time.max(opened.time);
        self.newest = Some(Newest {
            epoch: opened.key.epoch(),
            sid: opened.key.sid(),
            time: opened.time,
            rotator: opened.rotator,
            may_seal,
        });
    }

    fn hold(&mut self, opened: Wrap, newest: bool) -> WrapTaken {
        let (epoch, sid) = (opened.key.epoch(), opened.key.sid());
        let mut before = self
            .held
            .keys()
            .filter(|held| held.0 + 1 == epoch)
            .peekable();
        let other = opened.previous != [0; 16]
            && before.peek().is_some()
            && before.all(|held| held.1 != opened.previous);
        let key = opened.rotator_key;
        let notice = NoticeKind::OtherSecretBefore.of(opened.rotator, Some(key));
        let notices = other.then_some(notice).into_iter().collect();
        self.held.entry((epoch, sid)).or_insert(opened.key);
        let rotator = opened.rotator;
        WrapTaken {
            epoch,
            sid,
            rotator,
            newest,
            notices,
        }
    }

    /// The secret that `me` seals with now. `answered` is the epoch of the answered message.
    #[must_use]
    pub fn sealing(&self, me: Principal, answered: Option<u32>, now: u64) -> Sealing {
        let rotate = Sealing::Rotate {
            base: self.server.epoch,
        };
        let otherwise = if me.is_user() { rotate } else { Sealing::Wait };
        let Some(newest) = self.newest else {
            return otherwise;
        };
        let below = self.server.epoch < newest.epoch || answered.is_some_and(|e| e > newest.epoch);
        if !newest.may_seal || below {
            return otherwise;
        }
        let due = self.must_rotate()
            || self.server.messages >= MAX_EPOCH_MESSAGES
            || now.saturating_sub(newest.time) > MAX_EPOCH_AGE;
        if me.is_user() && due {
            return rotate;
        }
        let Newest { epoch, sid, .. } = newest;
        Sealing::With { epoch, sid }
    }

    /// Whether the newest secret is due for more than its age: somebody may hold it who is to read
    /// no more.
    #[must_use]
    pub const fn must_rotate(&self) -> bool {
        self.changed || self.server.rotation_required
    }

    /// This client took the secret from somebody: from a member, or from a device of its own.
    pub const fn require_rotation(&mut self) {
        self.changed = true;
    }

    /// How to write here. `clear_chosen`: the person chose to write in clear here; for an agent, it
    /// answers what came in clear. A conversation that was encrypted never goes back.
    #[must_use]
    pub fn writing(&self, trust: &Trust, clear_chosen: bool) -> Writing {
        let me = trust.me();
        let mut others = self.members.iter().flatten().filter(|(who, _)| **who != me);
        let all_speak = self.members.is_some() && others.all(|(who, _)| trust.speaks_bp1(*who));
        let clear = clear_chosen && (me.is_user() || self.plaintext_allowed);
        if self.encrypted || self.server.epoch > 0 || all_speak {
            Writing::Encrypted
        } else if clear {
            Writing::Clear
        } else {
            Writing::AskPerson
        }
    }

    /// The shares of a rotation, for the recipients that the server lists.
    #[must_use]
    pub fn give(&self, trust: &Trust, to: Principal, key: &DirectoryKey, now: u64) -> Given {
        let members = self.members.as_ref();
        let Some(visibility) = members.and_then(|members| members.get(&to)) else {
            return Given::Nothing(NoticeKind::NotMember);
        };
        let keys = crate::PublicKeys::new(key.public_key, key.signing_public_key);
        let Ok(keys) = keys else {
            return Given::Nothing(NoticeKind::UnusableKey);
        };
        match (trust.pin(to, keys.key_id()), visibility) {
            (Some(pin), _) if pin.is_retired(now) => Given::Nothing(NoticeKind::RetiredKey),
            (Some(pin), Visibility::All) if pin.is_accepted(now) => Given::Secret,
            (Some(pin), Visibility::Addressed) if pin.is_accepted(now) => Given::Lane,
            _ => Given::Nothing(NoticeKind::WaitingKey),
        }
    }
}
