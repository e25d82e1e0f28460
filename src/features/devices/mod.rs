//! Devices and their sessions: signing in, refreshing, revoking. The root of every session's end.
//!
//! Promises: a device has one session, and a session belongs to one device; what is revoked is refused by every node
//! from the commit on; an old refresh token gives the same successor for ten seconds and ends the session later. A
//! device that came without a name has one of ours until its first key backup names it; the conversations whose keys a
//! revoked device holds ask for others (`group_keys`).

pub(crate) mod http;
mod naming;
mod store;

pub use self::{
    naming::name,
    store::{NewSession, Refreshed, audience, end_all, end_session, refresh, remove_key, sign_in},
};
