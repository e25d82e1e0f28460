//! Announcements: events for an audience without a bound, which a job publishes in pieces.
//!
//! Promises: fan-out to a large audience never delays the change itself. The change commits alone.
//! Each recipient gets the event exactly once, also when a node dies in the middle. A recipient
//! gets the announcements of one principal in the order of their commits. Their order among other
//! events is open.
//!
//! Why: ADR 20.

mod store;

use blindpipe_protocol::catalogue;

use crate::{
    error::Result,
    events::Event,
    ids::{AgentId, Principal, PrincipalId, UserId},
    jobs::Job,
    work::{Tx, UnitOfWork},
};

catalogue! {
    /// The stages in which an announcement's audience is notified: (name in the column).
    pub enum Stage: &'static str {
        First         = "first";
        Relations     = "relations";
        Conversations = "conversations";
        Done          = "done";
    }
}

/// The recipients of an announcement. They are looked up when they are notified.
pub struct Audience {
    about: Principal,
    first: Vec<UserId>,
}

impl Audience {
    /// The user, and everybody who shares a conversation with the user.
    pub fn of_user(user: UserId) -> Self {
        Audience {
            about: Principal::User(user),
            first: vec![user],
        }
    }

    /// Users with an active relation to the agent, and users in conversations where it may speak.
    pub fn of_agent(agent: AgentId) -> Self {
        Audience {
            about: Principal::Agent(agent),
            first: Vec::new(),
        }
    }

    /// Adds a recipient, who is notified before the others.
    pub fn and(mut self, user: UserId) -> Self {
        self.first.push(user);
        self
    }
}

/// Announces events once the transaction is committed. Each recipient gets them in this order.
///
/// The caller has locked the row of the user or agent. So the announcements about a principal have
/// an order.
pub async fn broadcast(tx: &Tx, audience: &Audience, events: &[Event]) -> Result<()> {
    let mut ids = Vec::with_capacity(events.len());
    for event in events {
        ids.push(tx.record(event)?);
    }
    store::add(tx, audience, &ids).await?;
    let principal = audience.about.id();
    tx.enqueue(Job::Announce { principal });
    Ok(())
}

/// Publishes the announcements about a principal, piece by piece. It resumes where an earlier
/// run stopped.
pub async fn publish(work: &UnitOfWork, principal: PrincipalId) -> Result<()> {
    while work
        .run("announcements.tell", async |tx| {
            store::publish_next(tx, principal).await
        })
        .await?
    {}
    Ok(())
}
