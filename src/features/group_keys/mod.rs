//! The keys that the members of a conversation share: rotated by a user who wraps the new one for everybody's devices.
//!
//! Promises: epochs rise by one, however many rotations race; a rotation is for exactly the devices that the members
//! have at that moment; nobody is shown a key that was wrapped for another; a key that a revoked device holds is asked to be
//! replaced.

pub(crate) mod http;
mod rules;
mod store;

use uuid::Uuid;

use crate::{
    error::Result,
    ids::{ConversationId, UserId},
    work::UnitOfWork,
};

/// Has the conversations ask for other keys, the current ones of which a revoked device holds. Each in a transaction: there
/// may be thousands.
pub async fn replace_held(work: &UnitOfWork, user: UserId, device: &str) -> Result<()> {
    let mut after = ConversationId(Uuid::nil());
    while let Some(next) = work
        .run("group_keys.replace_next", async |tx| {
            store::replace_next(tx, user, device, after).await
        })
        .await?
    {
        after = next;
    }
    Ok(())
}
