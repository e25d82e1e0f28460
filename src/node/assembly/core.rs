//! The parts below the handlers, and the writers on behalf of callers.

use std::sync::Arc;

use super::{
    Base,
    callers::{self, Credentials},
    networking::{self, Networking},
    upkeep,
};
use crate::{
    auth::{key_ring::MIN_MAC_BYTES, server_secret::ServerSecret, usage::TokenUse},
    delivery::MessageSigner,
    features::{
        agents::{self, ReachabilityTracker},
        conversations::ReadMarks,
        messages::MessageWriter,
    },
    ids::NodeId,
    inbox::{Acks, Inbox},
    limits::{AddressNames, Limits, slots::Slots, table::Overrides},
    node::{Failure, Stores},
    work::UnitOfWork,
};

/// The parts below the handlers.
pub(super) struct Core {
    pub(super) inbox: Inbox,
    pub(super) networking: Networking,
    pub(super) slots: Slots,
    pub(super) acks: Acks,
    pub(super) limits: Limits,
    pub(super) credentials: Credentials,
}

impl Core {
    /// Makes the parts and starts their tasks.
    pub(super) async fn start(
        base: Base<'_>,
        id: NodeId,
        stores: &Stores,
        overrides: Overrides,
    ) -> Result<Core, Failure> {
        let (workers, stopping) = (&base.tasks.workers, &base.tasks.stopping);
        let inbox = Inbox::new(stores.db.clone());
        let epoch = inbox
            .epoch()
            .await
            .map_err(|error| format!("cannot read the inbox's epoch: {error:?}"))?;
        let networking =
            networking::start(base, MessageSigner::new(id, base.secret, epoch), stores);
        let slots = Slots::bounded(
            stores.redis.clone(),
            base.clock.clone(),
            base.random.clone(),
            id,
            base.config.agent_connections.0 as usize,
        );
        slots.on_beat(networking.backplane.on_beat());
        slots.start(workers, stopping, networking.hub.liveness());
        let acks = upkeep::start_acks(&stores.background_db, base.tasks);
        let limits = Limits::start(
            stores.redis.clone(),
            address_names(base.secret),
            stores.db.clone(),
            base.clock.clone(),
            overrides,
            base.config.limits_off.0,
            workers,
        );
        let used = TokenUse::start(
            agents::writing_uses(stores.background_db.clone()),
            workers,
            stopping,
        );
        let credentials = callers::credentials(base, stores, &limits, used)?;
        Ok(Core {
            inbox,
            networking,
            slots,
            acks,
            limits,
            credentials,
        })
    }
}

/// Names addresses by a MAC: who reads Redis, or its slow log, cannot guess them.
fn address_names(secret: &ServerSecret) -> AddressNames {
    let ring = secret.derive("name of an address in a limit");
    Arc::new(move |address| {
        base16ct::lower::encode_string(&ring.sign(&[address.as_bytes()])[..MIN_MAC_BYTES])
    })
}

/// The parts that write to Postgres on behalf of callers.
pub(super) struct Writers {
    pub(super) work: UnitOfWork,
    pub(super) reachability: ReachabilityTracker,
    pub(super) message_writer: MessageWriter,
    pub(super) read_marks: ReadMarks,
}

impl Writers {
    /// Makes the parts and starts their tasks.
    pub(super) fn start(base: Base<'_>, stores: &Stores, core: &Core) -> Writers {
        let (workers, stopping) = (&base.tasks.workers, &base.tasks.stopping);
        let backplane = &core.networking.backplane;
        let work = UnitOfWork::new(stores.db.clone(), base.random.clone(), backplane.clone());
        let background = work.over(stores.background_db.clone());
        let reachability = ReachabilityTracker::start(background.clone(), workers, stopping);
        let read_marks = ReadMarks::start(work.clone(), background, workers, stopping);
        let message_writer = MessageWriter::start(
            &stores.send_db,
            backplane,
            base.random.clone(),
            core.credentials.revoked.clone(),
            base.config.send_writers.0 as usize,
            workers,
        );
        Writers {
            work,
            reachability,
            message_writer,
            read_marks,
        }
    }
}
