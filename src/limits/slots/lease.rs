//! The slots that this node holds, and their leases.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{ConnectionKind, Slots};
use crate::ids::{ConnectionId, Principal};

/// The slots that this node holds.
#[derive(Default)]
pub(super) struct HeldSlots {
    pub(super) rows: HashMap<Principal, Row>,
    /// Principals to assert after the next heartbeat: due, admitted without Redis, or with a call
    /// whose outcome is unknown.
    pub(super) unconfirmed: HashSet<Principal>,
    /// Whether some of them are being asserted now.
    pub(super) asserting: bool,
    /// Connections that have ended and that Redis still counts.
    pub(super) released: Vec<EndedConnection>,
}

/// A connection that has ended.
#[derive(Clone, Copy)]
pub(super) struct EndedConnection {
    pub(super) principal: Principal,
    pub(super) id: ConnectionId,
    pub(super) kind: ConnectionKind,
}

/// The answer to a webhook call that asks for a slot.
pub enum WebhookSlot {
    /// The call may be made while the lease lives.
    Taken(Lease),
    /// All slots of the agent are in use.
    Full,
    /// A socket of the agent is open somewhere, so no call is made.
    Online,
}

/// The decision about a connection.
pub(super) enum Decision {
    /// Redis grants the slot, at this time of its clock, in ms.
    Granted(i64),
    /// This node admits the connection without Redis.
    Unconfirmed,
    /// All slots are in use.
    Full,
    /// The principal has a socket, so a webhook call must not be made.
    Online,
}

/// The slots of a principal.
pub(super) struct Row {
    pub(super) max_connections: usize,
    pub(super) holds: Vec<Hold>,
}

/// A slot as this node knows it.
#[derive(Clone)]
pub(super) struct Hold {
    pub(super) id: ConnectionId,
    /// The time of the lease, in ms of Redis's clock.
    pub(super) granted: i64,
    pub(super) kind: ConnectionKind,
    pub(super) device: Arc<str>,
    pub(super) loss: Arc<LeaseLost>,
}

/// Notifies the connection that its slot is lost.
#[derive(Default)]
pub(super) struct LeaseLost {
    lost: AtomicBool,
    on_lost: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl LeaseLost {
    /// Notifies the connection.
    pub(super) fn notify_lost(&self) {
        self.lost.store(true, Ordering::SeqCst);
        if let Some(on_lost) = self.on_lost.get() {
            on_lost();
        }
    }
}

/// A slot; given back on drop.
pub struct Lease {
    pub(super) slots: Slots,
    pub(super) principal: Principal,
    /// The connection that holds the slot.
    pub id: ConnectionId,
    pub(super) kind: ConnectionKind,
    pub(super) loss: Arc<LeaseLost>,
}

impl Lease {
    /// Sets the callback for a slot that is lost before it is given back.
    pub fn on_lost(&self, on_lost: impl Fn() + Send + Sync + 'static) {
        let first = self.loss.on_lost.set(Box::new(on_lost)).is_ok();
        if first && self.loss.lost.load(Ordering::SeqCst) {
            self.loss.notify_lost();
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut held = self.slots.held();
        held.forget(self.principal, self.id);
        held.released.push(EndedConnection {
            principal: self.principal,
            id: self.id,
            kind: self.kind,
        });
        drop(held);
        self.slots.0.notify.notify_one();
    }
}

impl HeldSlots {
    /// Decides while Redis is away. The node keeps its connections, and admits none beyond the
    /// bound.
    pub(super) fn decide_without_redis(
        &self,
        principal: Principal,
        kind: ConnectionKind,
        max_connections: usize,
    ) -> Decision {
        let holds = self.rows.get(&principal).map_or(&[][..], |row| &row.holds);
        let has_socket = holds
            .iter()
            .any(|hold| hold.kind == ConnectionKind::Websocket);
        if kind == ConnectionKind::Webhook && has_socket {
            return Decision::Online;
        }
        if holds.len() >= max_connections {
            return Decision::Full;
        }
        Decision::Unconfirmed
    }

    pub(super) fn add(&mut self, principal: Principal, max_connections: usize, hold: Hold) {
        self.rows
            .entry(principal)
            .or_insert_with(|| Row {
                max_connections,
                holds: Vec::with_capacity(1),
            })
            .holds
            .push(hold);
    }

    pub(super) fn forget(&mut self, principal: Principal, id: ConnectionId) {
        let Some(row) = self.rows.get_mut(&principal) else {
            return;
        };
        row.holds.retain(|hold| hold.id != id);
        if row.holds.is_empty() {
            self.rows.remove(&principal);
        }
    }
}

impl Hold {
    /// The kind and the device, as Redis keeps them.
    pub(super) fn what(&self) -> String {
        format!("{} {}", self.kind, self.device)
    }
}
