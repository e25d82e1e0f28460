//! The end-to-end encryption `bp1` of blindpipe.
//!
//! This crate does no input or output and has no clock: bytes, times and chance are passed in.
//! `docs/encryption.md` describes the scheme byte by byte, and what it does not protect.
//!
//! Why: ADR 50.

#![cfg_attr(not(test), warn(clippy::unwrap_used))]

// The vectors name the crate as any program does.
#[cfg(test)]
extern crate self as blindpipe_e2ee;

pub mod approval;
pub mod backup;
mod bytes;
pub mod consent;
pub mod content;
pub mod envelope;
mod epoch;
mod error;
pub mod file;
pub mod ids;
pub mod keylog;
mod keys;
pub mod room;
pub mod safety;
pub mod search;
pub mod trust;
#[cfg(test)]
mod vectors;
pub mod wrap;

pub use bytes::{from_base64, to_base64};
pub use envelope::View;
pub use epoch::{EpochKey, Sid};
pub use error::{Error, Result};
pub use keys::{
    AgentKey, ED25519_SMALL_ORDER, Id, KeyId, Principal, PrivateKeys, PublicKeys, Secret,
    X25519_SMALL_ORDER, introduce, verify_introduction,
};
