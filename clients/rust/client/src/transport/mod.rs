//! The ways to a server: REST calls, and a socket that comes back.

mod clock;
mod frame;
mod http;
mod load;
mod pacer;
mod progress;
mod reach;
mod server;
mod socket;

pub use self::{clock::Clock, reach::Reached, server::Server};
pub(crate) use self::{
    clock::{new_id, rng},
    frame::Frame,
    http::{Answer, Bearer, Call, Http, is_missing},
    load::Load,
    socket::{Socket, SocketOwner},
};

use std::time::Duration;

use rand::RngExt;

/// Anything from 0 to a bound that doubles with each try.
pub(crate) fn full_jitter(attempt: u32, first: Duration, max: Duration) -> Duration {
    let bound = first.saturating_mul(1 << attempt.min(16)).min(max);
    bound.mul_f64(rng().random::<f64>())
}
