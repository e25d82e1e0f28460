//! Verified keys: compared by people, or named by an agent's link. Beside them no other key counts,
//! but for those that they introduced.

use std::collections::BTreeSet;

use super::{KeyId, Notice, NoticeKind, Pin, Pins, Principal, PublicKeys, Standing, Trust};
use crate::safety;

impl Trust {
    /// 60 digits to compare with `of`: of all accepted keys of both sides; where a side has none, of
    /// those that wait. None if a side has no keys at all.
    #[must_use]
    pub fn safety_number(&self, of: Principal, now: u64) -> Option<String> {
        let side = |who: Principal| {
            let pins = self.pins.get(&who)?;
            let keys: Vec<PublicKeys> = compared(pins, now).map(|(_, pin)| pin.keys).collect();
            (!keys.is_empty()).then_some(keys)
        };
        let (mine, other) = (side(self.me)?, side(of)?);
        (of != self.me).then(|| safety::number((self.me, &mine), (of, &other)))
    }

    /// People compared the digits: every key of `of` that they stand for is verified. None if these
    /// are not, or no longer, the digits of now.
    pub fn verify_number(&mut self, of: Principal, number: &str, now: u64) -> Option<Vec<Notice>> {
        let digits = |text: &str| text.split_whitespace().collect::<String>();
        self.safety_number(of, now)
            .filter(|present| digits(present) == digits(number))?;
        self.changed.insert(of);
        let pins = self.pins.get_mut(&of)?;
        let keys: Vec<KeyId> = compared(pins, now).map(|(key_id, _)| key_id).collect();
        Some(raise(of, pins, &keys, now))
    }

    /// People compared this key alone. None if it was never shown, or is retired.
    pub fn verify(&mut self, of: Principal, key: KeyId, now: u64) -> Option<Vec<Notice>> {
        let pins = self.pins.get_mut(&of)?;
        pins.keys.get(&key).filter(|pin| !pin.is_retired(now))?;
        self.changed.insert(of);
        Some(raise(of, pins, &[key], now))
    }

    /// The devices that `device_id` introduced, directly or by another one. Whoever removes a lost
    /// device is asked about these too.
    #[must_use]
    pub fn introduced_by(&self, of: Principal, device_id: &str, now: u64) -> BTreeSet<String> {
        let pins = self.pins.get(&of).map(|pins| &pins.keys);
        let pins = || pins.into_iter().flatten();
        let own = pins().filter(|(_, pin)| pin.device_id.as_deref() == Some(device_id));
        let mut sources: Vec<KeyId> = own.map(|(key_id, _)| *key_id).collect();
        let mut found = BTreeSet::new();
        while let Some(source) = sources.pop() {
            for (key_id, pin) in pins().filter(|(_, pin)| pin.introduced_by == Some(source)) {
                sources.push(*key_id);
                found.extend(pin.device_id.clone().filter(|_| !pin.is_retired(now)));
            }
        }
        found.remove(device_id);
        found
    }

    /// Follows an agent's link, which names its key. It is remembered until its key is found; until
    /// then all keys that nobody verified wait.
    pub fn link(&mut self, agent: Principal, key: KeyId, now: u64) -> Vec<Notice> {
        let pins = self.changing(agent);
        pins.speaks_bp1 = true;
        let is_new = pins.linked.replace(key) != Some(key);
        if pins.keys.is_empty() {
            return Vec::new();
        }
        let mut notices = follow(agent, pins, true, now);
        // A link that is followed again takes back no tap.
        if is_new && pins.linked.is_some() {
            notices.extend(hold_back(agent, pins, now));
        }
        notices.sort_unstable();
        notices
    }
}

impl Pins {
    fn verified(&self) -> impl Iterator<Item = &Pin> {
        let keys = self.keys.values().map(|pin| &**pin);
        keys.filter(|pin| pin.standing == Standing::Verified)
    }

    pub(super) fn has_verified(&self) -> bool {
        self.verified().next().is_some()
    }
}

/// Verifies the key of the link, or the present one that introductions lead to from it. `is_news`: a
/// person is told if there is no such key.
pub(super) fn follow(of: Principal, pins: &mut Pins, is_news: bool, now: u64) -> Vec<Notice> {
    let Some(key) = pins.linked else {
        return Vec::new();
    };
    let mut notices = raise(of, pins, &[key], now);
    let is_live = pins.verified().any(|pin| !pin.is_retired(now));
    if is_live && pins.keys.contains_key(&key) {
        pins.linked = None;
    } else if is_news {
        notices.push(NoticeKind::LinkRetired.of(of, Some(key)));
    }
    notices
}

/// The keys that a safety number stands for.
fn compared(pins: &Pins, now: u64) -> impl Iterator<Item = (KeyId, &Pin)> {
    let has_accepted = pins.keys.values().any(|pin| pin.is_accepted(now));
    let live = pins
        .keys
        .iter()
        .filter(move |(_, pin)| !pin.is_retired(now));
    live.filter(move |(_, pin)| pin.is_accepted(now) || !has_accepted)
        .map(|(key_id, pin)| (*key_id, &**pin))
}

/// Verifies keys and those that they introduced. If any is verified only now, all others wait.
fn raise(of: Principal, pins: &mut Pins, keys: &[KeyId], now: u64) -> Vec<Notice> {
    let before = pins.verified().count();
    for key in keys {
        let pin = pins.keys.get_mut(key);
        if let Some(pin) = pin.filter(|pin| !pin.is_retired(now)) {
            pin.standing = Standing::Verified;
        }
        spread(pins, *key);
    }
    if pins.verified().count() == before {
        return Vec::new();
    }
    hold_back(of, pins, now)
}

/// Verifies all keys that introductions lead to from `from`.
fn spread(pins: &mut Pins, from: KeyId) {
    let mut sources = vec![from];
    while let Some(source) = sources.pop() {
        for (key_id, pin) in &mut pins.keys {
            if pin.introduced_by == Some(source) && pin.standing == Standing::Introduced {
                pin.standing = Standing::Verified;
                sources.push(*key_id);
            }
        }
    }
}

/// Lets all keys wait that nobody verified. A verified key may introduce them anew.
fn hold_back(of: Principal, pins: &mut Pins, now: u64) -> Vec<Notice> {
    let is_unverified = |pin: &Pin| pin.is_accepted(now) && pin.standing != Standing::Verified;
    let waiting = pins.keys.iter_mut().filter(|(_, pin)| is_unverified(pin));
    waiting
        .map(|(key_id, pin)| {
            pin.standing = Standing::Waiting;
            pin.introduced_by = None;
            NoticeKind::WaitingKey.of(of, Some(*key_id))
        })
        .collect()
}
