//! Keys of devices: encrypted backups of the private ones, and the directory of the public ones.
//!
//! Promises: an answered backup is durable and comes back byte for byte; replacing one destroys nothing, the last ten of
//! a device stay; only their owner reads them, and the owner's devices hear of it. The directory shows whom you share a
//! conversation with, and nobody else.

pub(crate) mod http;
mod rules;
mod store;

pub use self::store::backed_up_devices;
