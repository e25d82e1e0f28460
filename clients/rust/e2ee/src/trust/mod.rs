//! Pins: which keys of whom are known, introduced, verified, waiting for a person, or retired.

mod comparison;
mod notice;
mod shared;
mod stored;

use std::collections::{BTreeMap, BTreeSet};

pub use self::notice::{Notice, NoticeKind};
use crate::{KeyId, Principal, PublicKeys, keys::verify_introduction};

/// The treatment of a principal's first key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Trust on first use.
    #[default]
    Tofu,
    /// First keys wait for a person too.
    Strict,
}

/// How a key came to be trusted, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It waits for a person's tap: nothing is wrapped for it, nothing is believed from it.
    Waiting,
    /// A first key, or confirmed by a person.
    Known,
    /// Signed by a key that was accepted.
    Introduced,
    /// Compared by people, or introduced by such a key.
    Verified,
}

impl Standing {
    /// Every standing, in rising order.
    pub const ALL: [Self; 4] = [Self::Waiting, Self::Known, Self::Introduced, Self::Verified];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Known => "known",
            Self::Introduced => "introduced",
            Self::Verified => "verified",
        }
    }
}

/// A key that was once shown. Pins are kept for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    pub keys: PublicKeys,
    pub device_id: Option<String>,
    pub standing: Standing,
    /// It left the directory, as far as this client has read. See [`Self::is_retired`].
    pub retired: bool,
    /// The server's time of its end, Unix milliseconds, which may lie ahead; none if it was not told.
    pub retired_at: Option<u64>,
    pub introduced_by: Option<KeyId>,
    /// It was known before this start of the program.
    pub stored: bool,
}

impl Pin {
    /// Whether it left the directory, or its end has passed since.
    #[must_use]
    pub fn is_retired(&self, now: u64) -> bool {
        self.retired || has_passed(self.retired_at, now)
    }

    /// Whether something new may be wrapped for it and believed from it.
    #[must_use]
    pub fn is_accepted(&self, now: u64) -> bool {
        !self.is_retired(now) && self.standing > Standing::Waiting
    }

    /// Takes over what the directory says; the answer is what a person is to be told.
    fn read(&mut self, shown: Option<&DirectoryKey>, now: u64) -> Option<NoticeKind> {
        let is_shown = shown.is_some_and(|key| !key.is_retired(now));
        let notice = match (self.is_retired(now), is_shown) {
            (true, true) => Some(NoticeKind::ReturnedKey),
            (false, true) => None,
            (_, false) => (!self.retired).then_some(NoticeKind::RetiredKey),
        };
        self.retired = self.is_retired(now) || !is_shown;
        let told = shown.and_then(|key| key.retired_at);
        // A key that has left lets nothing in by an end that lies ahead.
        self.retired_at = if self.retired {
            let passed = |at: &u64| *at <= now;
            told.filter(passed).or(self.retired_at.filter(passed))
        } else {
            told
        };
        notice
    }
}

/// A key as the directory lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryKey {
    pub device_id: Option<String>,
    pub public_key: [u8; 32],
    pub signing_public_key: [u8; 32],
    pub schemes: Vec<String>,
    pub introduction: Option<Introduction>,
    /// It has left, also if no time of that is told.
    pub retired: bool,
    /// Its end, Unix milliseconds by the server's clock; it may lie ahead.
    pub retired_at: Option<u64>,
}

impl DirectoryKey {
    fn is_retired(&self, now: u64) -> bool {
        self.retired || has_passed(self.retired_at, now)
    }
}

/// The signer of a new key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Introduction {
    pub by: KeyId,
    pub signature: [u8; 64],
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Pins {
    /// A node of such a map has places for eleven; most principals have a single key.
    keys: BTreeMap<KeyId, Box<Pin>>,
    speaks_bp1: bool,
    linked: Option<KeyId>,
}

/// All pins of one client.
#[derive(Clone, Debug)]
pub struct Trust {
    me: Principal,
    policy: Policy,
    own: BTreeSet<KeyId>,
    pins: BTreeMap<Principal, Pins>,
    /// Whose pins have changed since [`Self::take_changed`].
    changed: BTreeSet<Principal>,
}

impl Trust {
    /// `own` are the keys that this client holds, or this person added.
    #[must_use]
    pub fn new(me: Principal, policy: Policy, own: impl IntoIterator<Item = KeyId>) -> Self {
        Self {
            me,
            policy,
            own: own.into_iter().collect(),
            pins: BTreeMap::new(),
            changed: BTreeSet::new(),
        }
    }

    /// Keys that this client holds since.
    pub fn own(&mut self, keys: impl IntoIterator<Item = KeyId>) {
        self.own.extend(keys);
    }

    /// Whether any key of `of` was ever shown.
    #[must_use]
    pub fn is_known(&self, of: Principal) -> bool {
        self.pins.get(&of).is_some_and(|pins| !pins.keys.is_empty())
    }

    #[must_use]
    pub const fn me(&self) -> Principal {
        self.me
    }

    #[must_use]
    pub fn pin(&self, of: Principal, key: KeyId) -> Option<&Pin> {
        self.pins.get(&of)?.keys.get(&key).map(|pin| &**pin)
    }

    /// Whether `of` speaks `bp1`, or ever did.
    #[must_use]
    pub fn speaks_bp1(&self, of: Principal) -> bool {
        self.pins.get(&of).is_some_and(|pins| pins.speaks_bp1)
    }

    pub(crate) fn heard(&mut self, of: Principal) {
        if !self.speaks_bp1(of) {
            self.changing(of).speaks_bp1 = true;
        }
    }

    /// Takes in the directory's list of one principal's keys.
    pub fn directory(&mut self, of: Principal, list: &[DirectoryKey], now: u64) -> Vec<Notice> {
        let mut notices = Vec::new();
        let mut listed = Vec::new();
        for key in list {
            match PublicKeys::new(key.public_key, key.signing_public_key) {
                Ok(keys) => listed.push((keys.key_id(), keys, key)),
                Err(_) => notices.push(NoticeKind::UnusableKey.of(of, None)),
            }
        }
        let before = self.pins.get(&of).cloned().unwrap_or_default();
        let known = before.keys.len();
        self.retire(of, &listed, now, &mut notices);
        self.pin_first(of, &listed, known == 0, now);
        self.introduce(of, &listed, now, &mut notices);
        self.pin_waiting(of, &listed, now, &mut notices);
        let pins = self.pins.entry(of).or_default();
        let is_news = pins.keys.len() > known;
        notices.extend(comparison::follow(of, pins, is_news, now));
        if list
            .iter()
            .any(|key| key.schemes.iter().any(|scheme| scheme == "bp1"))
        {
            self.heard(of);
        }
        if self.pins.get(&of) != Some(&before) {
            self.changed.insert(of);
        }
        notices.sort_unstable();
        notices
    }

    /// Marks keys that left the list. A key that comes back stays retired until a tap.
    fn retire(
        &mut self,
        of: Principal,
        listed: &[Listed<'_>],
        now: u64,
        notices: &mut Vec<Notice>,
    ) {
        let pins = self.pins.entry(of).or_default();
        for (key_id, pin) in &mut pins.keys {
            let here = listed.iter().find(|(id, ..)| id == key_id);
            let notice = pin.read(here.map(|(_, _, key)| *key), now);
            notices.extend(notice.map(|kind| kind.of(of, Some(*key_id))));
        }
    }

    /// Pins what is accepted at once: one's own keys, the key of a link, and first keys unless the
    /// policy is strict. While the key of a link is not listed, first keys wait too.
    fn pin_first(&mut self, of: Principal, listed: &[Listed<'_>], is_first: bool, now: u64) {
        let mine = of == self.me;
        let pins = self.pins.entry(of).or_default();
        let linked = pins.linked;
        let names = |(id, _, key): &Listed<'_>| linked == Some(*id) && !key.is_retired(now);
        let is_known = is_first
            && self.policy == Policy::Tofu
            && (linked.is_none() || listed.iter().any(names));
        for one in listed {
            let (key_id, keys, key) = one;
            let standing = match mine {
                true if self.own.contains(key_id) => Standing::Verified,
                false if is_known || names(one) => Standing::Known,
                _ => continue,
            };
            pins.keys
                .entry(*key_id)
                .or_insert_with(|| Box::new(new_pin(keys, key, standing, now)));
        }
    }

    /// Accepts every key that an accepted one introduced; such a key may introduce the next. Beside a
    /// verified key, only verified ones introduce.
    fn introduce(
        &mut self,
        of: Principal,
        listed: &[Listed<'_>],
        now: u64,
        notices: &mut Vec<Notice>,
    ) {
        let next = |trust: &Self| listed.iter().find_map(|one| trust.introduced(of, one, now));
        while let Some((key_id, pin)) = next(self) {
            let keys = &mut self.pins.entry(of).or_default().keys;
            let before = keys.insert(key_id, Box::new(pin));
            if before.is_none_or(|pin| pin.standing == Standing::Waiting) {
                notices.push(NoticeKind::IntroducedKey.of(of, Some(key_id)));
            }
        }
    }

    /// The pin of a key whose introduction counts and was not counted yet.
    fn introduced(&self, of: Principal, listed: &Listed<'_>, now: u64) -> Option<(KeyId, Pin)> {
        let (key_id, keys, key) = listed;
        let introduction = key.introduction?;
        let before = self.pin(of, *key_id);
        let counted = |pin: &Pin| pin.is_retired(now) || pin.introduced_by.is_some();
        if key.is_retired(now) || before.is_some_and(counted) {
            return None;
        }
        let has_verified = self.pins.get(&of).is_some_and(Pins::has_verified);
        let least = if has_verified {
            Standing::Verified
        } else {
            Standing::Known
        };
        let by = self
            .pin(of, introduction.by)
            .filter(|pin| pin.is_accepted(now) && pin.standing >= least)?;
        let device = key.device_id.as_deref();
        verify_introduction(&by.keys, of, device, keys, &introduction.signature).ok()?;
        let earned = match by.standing {
            Standing::Verified => Standing::Verified,
            _ => Standing::Introduced,
        };
        let standing = before.map_or(earned, |pin| pin.standing.max(earned));
        let mut pin = new_pin(keys, key, standing, now);
        pin.introduced_by = Some(introduction.by);
        Some((*key_id, pin))
    }

    /// Keys that are not accepted wait. On one's own list such a key is an alarm, each time.
    fn pin_waiting(
        &mut self,
        of: Principal,
        listed: &[Listed<'_>],
        now: u64,
        notices: &mut Vec<Notice>,
    ) {
        let mine = of == self.me;
        for (key_id, keys, key) in listed {
            let pins = self.pins.entry(of).or_default();
            let is_new = !pins.keys.contains_key(key_id);
            let pin = pins.keys.entry(*key_id);
            let pin = pin.or_insert_with(|| Box::new(new_pin(keys, key, Standing::Waiting, now)));
            if pin.standing != Standing::Waiting || pin.is_retired(now) {
                continue;
            }
            if mine {
                notices.push(NoticeKind::OwnListKey.of(of, Some(*key_id)));
            } else if is_new {
                notices.push(NoticeKind::WaitingKey.of(of, Some(*key_id)));
            }
        }
    }

    /// A person's tap: the key is accepted, and comes back if it was retired.
    pub fn confirm(&mut self, of: Principal, key: KeyId, now: u64) -> bool {
        let pin = self
            .pins
            .get_mut(&of)
            .and_then(|pins| pins.keys.get_mut(&key));
        let Some(pin) = pin else { return false };
        pin.standing = pin.standing.max(Standing::Known);
        pin.retired = false;
        pin.retired_at = pin.retired_at.filter(|at| *at > now);
        self.changed.insert(of);
        true
    }
}

/// A usable key of the directory.
type Listed<'a> = (KeyId, PublicKeys, &'a DirectoryKey);

fn has_passed(end: Option<u64>, now: u64) -> bool {
    end.is_some_and(|end| end <= now)
}

fn new_pin(keys: &PublicKeys, key: &DirectoryKey, standing: Standing, now: u64) -> Pin {
    Pin {
        keys: *keys,
        device_id: key.device_id.clone(),
        standing,
        retired: key.is_retired(now),
        retired_at: key.retired_at,
        introduced_by: None,
        stored: false,
    }
}
