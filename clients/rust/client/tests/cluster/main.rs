//! Agents and people on two nodes of a real cluster.

mod basics;
mod crashes;
mod examples;
mod marks;
mod people;
mod support;
mod transports;
