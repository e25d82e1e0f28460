//! Pins that several processes of one client share: what has changed here, and what others have
//! stored.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{
    Pin, Pins, Standing, Trust,
    stored::{restore_pins, store_pins},
};
use crate::{Principal, Result};

impl Trust {
    /// Whose pins have changed since the last question, and these by the name of each, as a store
    /// keeps them.
    pub fn take_changed(&mut self) -> (BTreeSet<Principal>, Map<String, Value>) {
        let changed = std::mem::take(&mut self.changed);
        let entries = changed.iter().filter_map(|of| {
            let pins = self.pins.get(of)?;
            Some((of.to_hex(), store_pins(pins)))
        });
        let entries = entries.collect();
        (changed, entries)
    }

    /// A store did not keep what [`Self::take_changed`] gave.
    pub fn not_kept(&mut self, changed: impl IntoIterator<Item = Principal>) {
        self.changed.extend(changed);
    }

    /// Pins that another process of this client has stored; answers whose, none if they are as they
    /// were. Where both processes have changed a key, the stricter standing counts.
    ///
    /// # Errors
    ///
    /// `malformed`: the entry is something else.
    pub fn take_over(&mut self, name: &str, entry: &Value) -> Result<Option<Principal>> {
        let of = Principal::from_hex(name)?;
        let mine = self.pins.get(&of);
        if mine.is_some_and(|mine| store_pins(mine) == *entry) {
            return Ok(None);
        }
        let theirs = restore_pins(entry)?;
        let pins = match self.pins.remove(&of) {
            Some(mine) if self.changed.contains(&of) => merged(mine, theirs),
            _ => theirs,
        };
        self.pins.insert(of, pins);
        Ok(Some(of))
    }

    pub(super) fn changing(&mut self, of: Principal) -> &mut Pins {
        self.changed.insert(of);
        self.pins.entry(of).or_default()
    }
}

/// In doubt a key waits, or has left.
fn merged(mine: Pins, theirs: Pins) -> Pins {
    let mut merged = Pins {
        keys: mine.keys,
        speaks_bp1: mine.speaks_bp1 || theirs.speaks_bp1,
        linked: mine.linked.or(theirs.linked),
    };
    for (key_id, pin) in theirs.keys {
        let own = merged.keys.remove(&key_id);
        let pin = match own {
            Some(own) => Box::new(merged_pin(*own, &pin)),
            None => pin,
        };
        merged.keys.insert(key_id, pin);
    }
    if merged.has_verified() {
        let others = merged.keys.values_mut();
        for pin in others.filter(|pin| pin.standing != Standing::Verified) {
            (pin.standing, pin.introduced_by) = (Standing::Waiting, None);
        }
    }
    merged
}

fn merged_pin(own: Pin, other: &Pin) -> Pin {
    let both = [own.standing, other.standing];
    let is_verified = both.contains(&Standing::Verified);
    let ends = own.retired_at.into_iter().chain(other.retired_at);
    Pin {
        standing: if is_verified {
            Standing::Verified
        } else {
            own.standing.min(other.standing)
        },
        retired: own.retired || other.retired,
        retired_at: ends.min(),
        introduced_by: own.introduced_by.or(other.introduced_by),
        ..own
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        KeyId, PrivateKeys, Secret,
        trust::{DirectoryKey, Policy},
    };

    const OWNER: Principal = Principal::User([1; 16]);

    fn listed(seed: u8) -> (KeyId, DirectoryKey) {
        let keys = PrivateKeys::new(Secret::new([seed; 32]), &Secret::new([seed + 100; 32]));
        let key = DirectoryKey {
            device_id: None,
            public_key: *keys.public().public_key(),
            signing_public_key: *keys.public().signing_public_key(),
            schemes: Vec::new(),
            introduction: None,
            retired: false,
            retired_at: None,
        };
        (keys.key_id(), key)
    }

    fn take(from: &mut Trust, to: &mut Trust) {
        let (changed, entries) = from.take_changed();
        for (name, entry) in &entries {
            let taken = to.take_over(name, entry).expect("an entry");
            assert!(taken.is_some_and(|of| changed.contains(&of)));
        }
    }

    #[test]
    fn only_what_has_changed_is_told() {
        let mut trust = Trust::new(Principal::Agent([9; 16]), Policy::Tofu, []);
        let (_, key) = listed(3);
        trust.directory(OWNER, std::slice::from_ref(&key), 1);
        let (changed, entries) = trust.take_changed();
        assert_eq!(changed, BTreeSet::from([OWNER]));
        assert_eq!(
            entries[&OWNER.to_hex()],
            trust.store()["principals"][OWNER.to_hex()]
        );
        trust.directory(OWNER, &[key], 2);
        assert!(trust.take_changed().0.is_empty(), "the same list");
        trust.not_kept(changed);
        assert_eq!(trust.take_changed().0.len(), 1);
        trust.heard(OWNER);
        assert_eq!(trust.take_changed().0.len(), 1);
        trust.heard(OWNER);
        assert!(trust.take_changed().0.is_empty());
        let stored = trust.store()["principals"][OWNER.to_hex()].clone();
        assert_eq!(trust.take_over(&OWNER.to_hex(), &stored), Ok(None));
    }

    #[test]
    fn of_pins_that_two_processes_changed_the_stricter_count() {
        let new = || Trust::new(Principal::Agent([9; 16]), Policy::Tofu, []);
        let (mut here, mut there) = (new(), new());
        let (first, first_key) = listed(3);
        let (second, second_key) = listed(4);
        let both = [first_key, second_key.clone()];
        here.directory(OWNER, &both[..1], 1);
        here.directory(OWNER, &both, 1);
        take(&mut here, &mut there);
        let standing = |trust: &Trust, key| trust.pin(OWNER, key).map(|pin| pin.standing);
        assert_eq!(standing(&there, second), Some(Standing::Waiting));
        // Only the other process has changed something: its entry counts.
        assert!(there.confirm(OWNER, second, 1));
        take(&mut there, &mut here);
        assert_eq!(standing(&here, second), Some(Standing::Known));
        // Both have: here a key leaves, there people compare it.
        here.directory(OWNER, &[second_key], 2);
        there.verify(OWNER, first, 2).expect("a key");
        take(&mut there, &mut here);
        let pin = here.pin(OWNER, first).expect("a pin");
        assert!(pin.retired && pin.standing == Standing::Verified);
        assert_eq!(standing(&here, second), Some(Standing::Waiting));
        assert!(there.take_over("no name", &Value::Null).is_err());
    }
}
