//! Agents and people on two nodes of a real cluster.

mod approvals;
mod attacks;
mod backlogs;
mod basics;
mod calls;
mod changes;
mod crashes;
mod examples;
mod faults;
mod marks;
mod outages;
mod people;
mod proxy;
mod quickstart;
mod redis;
mod renewals;
mod rotations;
mod search;
mod shared;
mod shared_store;
mod stops;
mod strangers;
mod streams;
mod strictness;
mod support;
mod transports;
