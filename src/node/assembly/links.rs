//! The links between this node and the others.

use std::sync::Arc;

use super::Base;
use crate::{
    delivery::{self, Backplane, Hub, Parts, Seal},
    features::{
        conversations::Audience,
        streams::{StreamPeer, StreamTable, Streams},
        typing::Typing,
    },
    node::Stores,
};

/// The listeners of this node, its links to the others, and the ephemeral features that use them.
pub(super) struct Links {
    pub(super) hub: Hub,
    pub(super) backplane: Backplane,
    pub(super) typing: Typing,
    pub(super) streams: Streams,
}

/// Links the node to the others.
pub(super) fn link(base: Base<'_>, seal: Seal, stores: &Stores) -> Links {
    let Base {
        secret,
        clock,
        tasks,
        ..
    } = base;
    let (workers, stopping) = (&tasks.workers, &tasks.stopping);
    let table = StreamTable::new(clock.clone());
    let (peer, requests) = StreamPeer::new(seal.node(), table.clone());
    let audience = Audience::new(stores.db.clone());
    let noted = audience.clone();
    let backplane = delivery::start(Parts {
        quiet_db: &stores.quiet_db,
        redis: &stores.redis,
        subscriber: stores.subscriber.clone(),
        seal,
        secret,
        observer: Arc::new(move |event| noted.note(event)),
        handler: Arc::new(peer),
        tasks: workers,
        stop: stopping,
    });
    let hub = backplane.hub().clone();
    let typing = Typing {
        clock: clock.clone(),
        audience: audience.clone(),
        backplane: backplane.clone(),
    };
    let streams = Streams::start(
        clock, table, audience, &backplane, requests, workers, stopping,
    );
    Links {
        hub,
        backplane,
        typing,
        streams,
    }
}
