//! The keys that the members of a conversation share: rotated by a user who wraps the new one for everybody's devices.
//!
//! Promises: epochs rise by one, however many rotations race; a rotation is for exactly the devices that the members
//! have at that moment; nobody is shown a key that was wrapped for another.

pub mod http;
mod rules;
mod store;
