//! The links between this node and the others.

use std::sync::Arc;

use super::Base;
use crate::{
    delivery::{
        Backplane, Hub, Seal,
        backplane::{PubSubWorker, RedisPubSub, tombstones::Tombstones},
    },
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
    let (redis, workers, stopping) = (&stores.redis, &tasks.workers, &tasks.stopping);
    let (hub, changes) = Hub::new();
    let table = StreamTable::new(clock.clone());
    let (peer, requests) = StreamPeer::new(seal.node(), table.clone());
    let audience = Audience::new(stores.db.clone());
    let tombstones = Tombstones::start(redis.clone(), secret, workers, stopping);
    let noted = audience.clone();
    let (backplane, outgoing) = Backplane::new(
        seal,
        redis.clone(),
        hub.clone(),
        tombstones,
        Arc::new(move |event| noted.note(event)),
        Arc::new(peer),
    );
    let transport = RedisPubSub {
        redis: redis.clone(),
        subscriber: stores.subscriber.clone(),
    };
    PubSubWorker::start(&backplane, transport, outgoing, changes, workers, stopping);
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
