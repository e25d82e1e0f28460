//! Rules of the sources, the tables, the schema and the operation.

mod activity;
mod catalogues;
mod decisions;
mod doctor;
mod grants;
mod identities;
mod jobs;
mod layers;
mod logs;
mod maps;
mod measures;
mod migrations;
mod names;
mod object_store;
mod operations;
mod owners;
mod plans;
mod portability;
mod probes;
mod refilled;
mod schema;
mod shapes;
pub mod sources;
mod threats;
mod traces;
mod walkthroughs;
