//! Webhooks: signed deliveries of an agent's events to an address of its owner.

pub mod signature;
