//! Writes `clients/vectors`, or checks that what is committed there is what this crate makes.
//! `UPDATE_VECTORS=1 cargo test -p blindpipe-e2ee --lib vectors` writes.
//!
//! They stand inside the crate, because only here can a salt or a nonce be given.

mod approvals;
mod basics;
mod cast;
mod craft;
mod envelopes;
mod files;
mod machine;
mod prototype;
mod refuse;
mod states;
#[path = "../../tests/support/mod.rs"]
#[allow(dead_code, reason = "shared with the interop program")]
mod support;

use std::{env, fs, path::PathBuf};

use serde_json::Value;

/// Holds a file of the vectors to what the crate makes.
fn hold(name: &str, made: &Value) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../vectors");
    let path = folder.join(name);
    let text = format!("{made:#}\n");
    if env::var_os("UPDATE_VECTORS").is_some() {
        fs::write(&path, text).expect("a file that can be written");
        return;
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == text,
        "clients/vectors/{name} is stale: UPDATE_VECTORS=1 cargo test -p blindpipe-e2ee writes it"
    );
}
