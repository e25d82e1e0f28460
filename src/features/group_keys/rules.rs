//! The comparison of a rotation's wrapped keys with the required recipients.

use std::collections::BTreeSet;

pub use blindpipe_protocol::group_keys::KeyRecipient as Recipient;

/// The recipients without a wrapped key, and the wrapped keys without a recipient.
#[derive(Debug, PartialEq, Eq)]
pub struct Mismatch {
    pub missing: Vec<Recipient>,
    pub extra: Vec<Recipient>,
}

/// The difference between required and given recipients, if there is one.
pub fn mismatch(there: &BTreeSet<Recipient>, given: &BTreeSet<Recipient>) -> Option<Mismatch> {
    let missing: Vec<Recipient> = there.difference(given).cloned().collect();
    let extra: Vec<Recipient> = given.difference(there).cloned().collect();
    (!missing.is_empty() || !extra.is_empty()).then_some(Mismatch { missing, extra })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{AgentId, Principal, UserId};

    #[test]
    fn a_mismatch_names_both_sides() {
        let device = |n: u128, device: &str| Recipient {
            principal_id: Principal::User(UserId::from_bytes(n.to_be_bytes())),
            device_id: Some(device.to_owned()),
        };
        let agent = Recipient {
            principal_id: Principal::Agent(AgentId::from_bytes(9_u128.to_be_bytes())),
            device_id: None,
        };
        let nameless = Recipient {
            device_id: None,
            ..device(1, "b")
        };
        let there = BTreeSet::from([device(1, "a"), device(1, "b"), agent.clone()]);
        assert_eq!(mismatch(&there, &there), None);
        let given = BTreeSet::from([device(1, "a"), device(2, "a"), nameless.clone()]);
        let found = mismatch(&there, &given).expect("they differ");
        assert_eq!(found.missing, [device(1, "b"), agent]);
        assert_eq!(found.extra, [nameless, device(2, "a")]);
    }
}
