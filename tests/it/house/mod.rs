//! Rules of the sources, the tables, the schema and the operation.

mod catalogues;
mod grants;
mod jobs;
mod layers;
mod object_store;
mod operations;
mod schema;
pub mod sources;
