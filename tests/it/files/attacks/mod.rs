//! Attacks on uploads, objects and shares. The numbers are those of the threat model.

mod addresses;
mod bodies;
mod names;
mod reads;
mod store;
