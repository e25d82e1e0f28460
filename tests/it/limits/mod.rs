//! Rate limits and connection slots.

mod connection_slots;
mod evasion;
mod frames;
mod limits_endpoint;
mod names;
mod proxy_protocol;
mod rate_limit_windows;
mod table;
mod tiers;
