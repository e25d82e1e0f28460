//! The built `bp`: against two nodes of a real cluster, at a terminal where it asks.

mod account;
mod agents;
mod app;
mod ask;
mod bridge;
mod commands;
mod contexts;
mod exits;
mod keys;
mod mcp;
mod mcp_killed;
mod prompts;
mod push;
mod quickstart;
mod recipes;
mod schema;
mod support;
mod talk;
mod way;
mod webhooks;
