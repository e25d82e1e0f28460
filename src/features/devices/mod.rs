//! Devices and their sessions: signing in, refreshing, revoking. Every end of a session starts
//! here.
//!
//! Promises: a device has one session, and a session belongs to one device. Every node refuses a
//! revoked session from the commit on. An old refresh token gives the same successor for ten
//! seconds and ends the session later. A device without a name has a provisional id until its first
//! key backup names it. Conversations whose keys a revoked device holds require other keys
//! (`group_keys`).

pub(crate) mod http;
mod naming;
mod sessions;
mod store;

pub use blindpipe_protocol::text::DeviceId;

pub use self::{
    naming::name,
    sessions::{FORGET, ListedKey, list_key, mark_revoked, note_proof, repoint_key, strip_all},
    store::{
        NewSession, RefreshedSession, bump_list, end_all, end_reused, end_session, is_known,
        refresh, remove_key, revoke, sign_in, still_there,
    },
};
