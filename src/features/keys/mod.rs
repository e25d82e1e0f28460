//! Keys of devices: encrypted backups of the private ones, and the directory of the public ones.
//!
//! Promises: an answered backup is durable and comes back byte for byte. Replacing a backup
//! destroys nothing: the last ten of a device stay, and for 30 days the first and the last of each
//! day. Backups of a deleted account go after a grace of 7 days, by a database role of their own. Only their owner reads them, and the owner's
//! devices get an event. Only users who share a conversation with a user, and related agents, see
//! its directory.

pub mod erase;
pub(crate) mod http;
mod public;
mod rules;
mod store;

pub use self::{
    public::{Description, describe, introduction},
    store::backed_up_devices,
};
