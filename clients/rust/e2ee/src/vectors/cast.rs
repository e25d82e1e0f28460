//! The principals of the vectors.

use blindpipe_e2ee::{AgentKey, EpochKey, Id, Principal, PrivateKeys, Secret};

pub const CONVERSATION: Id = *b"\x01\x92\xf0\xc1\xa2\xb3\xc4\xd5\xe6\xf7\x08\x19\x2a\x3b\x4c\x5d";
pub const USER: Id = rising(0x00);
pub const AGENT: Id = rising(0x10);
pub const ADDRESSED: Id = rising(0x20);
pub const OTHER_USER: Id = rising(0x30);
pub const EPOCH: u32 = 7;
pub const TIME: u64 = 1_700_000_000_000;
pub const MESSAGE: Id = *b"\x01\x8b\xcf\xe5\x68\x00\xc1\xc1\xc1\xc1\xc1\xc1\xc1\xc1\xc1\xc1";

/// Sixteen bytes that count up.
const fn rising(first: u8) -> Id {
    let mut id = [first; 16];
    let mut at = 0;
    while at < 16 {
        id[at] += at as u8;
        at += 1;
    }
    id
}

pub fn device() -> PrivateKeys {
    PrivateKeys::new(Secret::new([1; 32]), &Secret::new([2; 32]))
}

pub fn other_device() -> PrivateKeys {
    PrivateKeys::new(Secret::new([0x11; 32]), &Secret::new([0x12; 32]))
}

pub fn agent_key() -> AgentKey {
    AgentKey::new(Secret::new([3; 32]))
}

pub fn epoch_key() -> EpochKey {
    EpochKey::new(CONVERSATION, EPOCH, Secret::new([9; 32]))
}

/// The wrap for the `addressed` agent.
pub fn lane_key() -> EpochKey {
    let all = epoch_key();
    let secret = all.addressed(ADDRESSED).expect("the epoch's secret");
    EpochKey::lane(CONVERSATION, EPOCH, ADDRESSED, secret, all.sid())
}

pub const AS_USER: Principal = Principal::User(USER);
pub const AS_AGENT: Principal = Principal::Agent(AGENT);
pub const AS_ADDRESSED: Principal = Principal::Agent(ADDRESSED);
