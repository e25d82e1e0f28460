//! Keys of devices: encrypted backups of the private ones, and the directory of the public ones.
//!
//! Promises: an answered backup is durable and comes back byte for byte. Replacing a backup
//! destroys nothing; the last ten of a device stay. Only their owner reads them, and the owner's
//! devices get an event. Only users who share a conversation with a user, and related agents, see
//! its directory.

pub(crate) mod http;
mod public;
mod rules;
mod store;

pub use self::{
    public::{Description, describe, introduction},
    store::backed_up_devices,
};
