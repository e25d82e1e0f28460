//! The secret of an epoch, its name, and the keys of its lanes.

use rand_core::CryptoRng;

use crate::{
    Id, Secret,
    bytes::{hkdf, label},
};

/// Names the secret of an epoch and commits to it.
pub type Sid = [u8; 16];

/// The lane of everyone who holds the epoch's secret.
pub(crate) const EVERYONE: u8 = 0;
/// The lane of one `addressed` agent.
pub(crate) const ADDRESSED: u8 = 2;

/// A reader's secret of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Access {
    /// The epoch's secret: every lane.
    All(Secret),
    /// The lane of one `addressed` agent.
    Lane(Id, Secret),
}

/// A secret of an epoch of a conversation, or the part of it that an `addressed` agent is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochKey {
    conversation: Id,
    epoch: u32,
    sid: Sid,
    access: Access,
}

impl EpochKey {
    /// A new secret, for a rotation.
    pub fn random(conversation: Id, epoch: u32, rng: &mut impl CryptoRng) -> Self {
        Self::new(conversation, epoch, Secret::random(rng))
    }

    #[must_use]
    pub fn new(conversation: Id, epoch: u32, secret: Secret) -> Self {
        let info = [&label("epoch-id"), &conversation[..], &epoch.to_be_bytes()].concat();
        Self {
            conversation,
            epoch,
            sid: *hkdf(secret.expose(), &[], &info),
            access: Access::All(secret),
        }
    }

    /// The lane key of an `addressed` agent. Its `sid` is a rotator's word.
    #[must_use]
    pub const fn lane(conversation: Id, epoch: u32, agent: Id, secret: Secret, sid: Sid) -> Self {
        Self {
            conversation,
            epoch,
            sid,
            access: Access::Lane(agent, secret),
        }
    }

    #[must_use]
    pub const fn conversation(&self) -> Id {
        self.conversation
    }

    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    #[must_use]
    pub const fn sid(&self) -> Sid {
        self.sid
    }

    /// The agent whose lane this is; none if it is the epoch's secret.
    #[must_use]
    pub const fn lane_agent(&self) -> Option<Id> {
        match self.access {
            Access::All(_) => None,
            Access::Lane(agent, _) => Some(agent),
        }
    }

    /// The secret itself: the epoch's, or the lane's.
    #[must_use]
    pub const fn secret(&self) -> &Secret {
        match &self.access {
            Access::All(secret) | Access::Lane(_, secret) => secret,
        }
    }

    /// The key of everyone's lane, for who holds the epoch's secret.
    #[must_use]
    pub fn everyone(&self) -> Option<Secret> {
        match &self.access {
            Access::All(secret) => Some(self.derive(secret, &[EVERYONE])),
            Access::Lane(..) => None,
        }
    }

    /// The key of an `addressed` agent's lane, for who holds the epoch's secret and for that agent.
    #[must_use]
    pub fn addressed(&self, agent: Id) -> Option<Secret> {
        match &self.access {
            Access::All(secret) => Some(self.derive(secret, &[&[ADDRESSED], &agent[..]].concat())),
            Access::Lane(own, secret) => (*own == agent).then(|| secret.clone()),
        }
    }

    /// The key of search tokens, for who holds the epoch's secret.
    pub(crate) fn search(&self) -> Option<Secret> {
        let Access::All(secret) = &self.access else {
            return None;
        };
        let epoch = self.epoch.to_be_bytes();
        let info = [&label("search"), &self.conversation[..], &epoch].concat();
        Some(Secret::new(*hkdf(secret.expose(), &[], &info)))
    }

    fn derive(&self, secret: &Secret, lane: &[u8]) -> Secret {
        let epoch = self.epoch.to_be_bytes();
        let info = [&label("lane"), &self.conversation[..], &epoch, lane].concat();
        Secret::new(*hkdf(secret.expose(), &[], &info))
    }
}
