//! Agents and people on two nodes of a real cluster.

mod attacks;
mod basics;
mod crashes;
mod examples;
mod marks;
mod people;
mod proxy;
mod redis;
mod resync;
mod strangers;
mod support;
mod transports;
