//! The keys that the members of a conversation share: rotated by a user who wraps the new one for everybody's devices.
//!
//! Promises: epochs rise by one, however many rotations race; a rotation is for exactly the devices that the members
//! have at that moment; nobody is shown a key that was wrapped for another; a key that a revoked device holds is asked to be
//! replaced.

pub mod http;
mod rules;
mod store;

use crate::{error::Result, work::UnitOfWork};

/// Has the conversations whose keys revoked devices hold ask for others, each in a transaction: there may be thousands.
pub async fn ask_for_others(work: &UnitOfWork) -> Result<()> {
    while work
        .run("group_keys.ask_for_others", async |tx| {
            store::ask_for_another(tx).await
        })
        .await?
    {}
    Ok(())
}
