//! THE IDS: those of `crates/protocol/src/ids.rs`, and the generator of new ones.

pub use blindpipe_protocol::ids::*;
use uuid::Uuid;

use crate::random::Random;

impl IdSource for Random {
    fn ulid(&self) -> Uuid {
        Random::ulid(self)
    }

    fn uuid_v7(&self) -> Uuid {
        Random::uuid_v7(self)
    }
}
