//! The rows of inboxes and of their readers.
//!
//! Why: ADR 5.

mod acks;
mod append;
mod read;

use crate::{
    db::{Conn, Tx},
    error::Result,
    ids::{AgentId, Principal, PrincipalId},
};

pub use self::{
    acks::{Ack, Reads, ack, ack_by_token, log_reads, unlogged},
    append::{append_all, expire_entries, expire_events, recorded},
    read::{bounds, heads, read},
};

/// A position's owner: an agent, or a device of a user.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reader {
    /// The owner of the inbox.
    pub principal: Principal,
    /// Empty for agents, because all connections of an agent share a position.
    pub device_id: String,
}

impl Reader {
    /// The reader of an agent, or of a user on `device_id`.
    pub fn new(principal: Principal, device_id: &str) -> Self {
        Reader {
            principal,
            device_id: device_id.to_owned(),
        }
    }

    /// The agent whose position it is; none for a user's.
    pub fn agent(&self) -> Option<AgentId> {
        match self.principal {
            Principal::Agent(agent) => Some(agent),
            Principal::User(_) => None,
        }
    }
}

/// The epoch: the timeline in the high bits, the count of restores in the low bits.
pub async fn epoch(client: &Conn) -> Result<u64> {
    let row = client
        .query_one(
            "-- inbox.epoch
            select inbox_epoch() as epoch",
            &[],
        )
        .await?;
    Ok(from_column(row.get("epoch")))
}

/// The epoch in a column. Epochs are positive in Postgres, too, which has no unsigned integers.
pub fn from_column(epoch: i64) -> u64 {
    epoch.unsigned_abs()
}

pub fn to_column(epoch: u64) -> i64 {
    i64::try_from(epoch).unwrap_or(i64::MAX)
}

pub async fn create(tx: &Tx, principal: PrincipalId) -> Result<()> {
    tx.execute(
        "-- inbox.create
        insert into inbox (principal_id) values ($1)",
        &[&principal],
    )
    .await?;
    Ok(())
}

pub async fn create_reader(tx: &Tx, reader: &Reader) -> Result<()> {
    tx.execute(
        "-- inbox.create_reader
        insert into inbox_reader (principal_id, device_id, acked_seq)
        select principal_id, $2, head_seq from inbox where principal_id = $1
        on conflict (principal_id, device_id) do nothing",
        &[&reader.principal.id(), &reader.device_id],
    )
    .await?;
    Ok(())
}

/// Renames a reader, and removes the reader that had the new name before.
pub async fn rename_reader(tx: &Tx, reader: &Reader, device_id: &str) -> Result<()> {
    if reader.device_id == device_id {
        return Ok(());
    }
    forget_reader(
        tx,
        &Reader {
            device_id: device_id.to_owned(),
            ..reader.clone()
        },
    )
    .await?;
    tx.execute(
        "-- inbox.rename_reader
        update inbox_reader set device_id = $3 where principal_id = $1 and device_id = $2",
        &[&reader.principal.id(), &reader.device_id, &device_id],
    )
    .await?;
    Ok(())
}

pub async fn forget_reader(tx: &Tx, reader: &Reader) -> Result<()> {
    tx.execute(
        "-- inbox.forget_reader
        delete from inbox_reader where principal_id = $1 and device_id = $2",
        &[&reader.principal.id(), &reader.device_id],
    )
    .await?;
    Ok(())
}
