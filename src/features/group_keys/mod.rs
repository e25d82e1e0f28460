//! The keys that the members of a conversation share: rotated by a user who wraps the new one for everybody's devices.
//!
//! Promises: epochs rise by one, however many rotations race; a rotation is for exactly the devices that the members
//! have at that moment; nobody is shown a key that was wrapped for another; a key that a revoked device holds is asked to be
//! replaced.

pub mod http;
mod rules;
mod store;

use crate::{db::Db, delivery::Backplane, error::Result, random::Random};

/// Has the conversations whose keys revoked devices hold ask for others, each in a transaction: there may be thousands.
pub async fn ask_for_others(db: &Db, random: &Random, backplane: &Backplane) -> Result<()> {
    loop {
        let tx = db.begin("group_keys.ask_for_others").await?;
        let Some(told) = store::ask_for_another(&tx, random).await? else {
            return Ok(());
        };
        tx.commit().await?;
        told.iter().for_each(|told| backplane.tell(told));
    }
}
