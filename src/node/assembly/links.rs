//! The links between this node and the others.

use std::sync::Arc;

use fred::clients::SubscriberClient;
use tokio::sync::mpsc;

use super::Base;
use crate::{
    db::Db,
    delivery::{
        Backplane, Hub, Seal,
        backplane::{PubSubWorker, RedisPubSub, tombstones::Tombstones},
    },
    features::{
        conversations::Audience,
        streams::{StreamControl, StreamPeer, StreamTable},
    },
    redis::Redis,
};

/// The listeners of this node, its links to the others, and what the links need of features.
pub(super) struct Links {
    pub(super) hub: Hub,
    pub(super) backplane: Backplane,
    pub(super) audience: Audience,
    pub(super) streams: StreamTable,
    pub(super) requests: mpsc::Receiver<StreamControl>,
}

/// Links the node to the others.
pub(super) fn link(
    base: Base<'_>,
    seal: Seal,
    db: &Db,
    redis: &Redis,
    subscriber: SubscriberClient,
) -> Links {
    let Base {
        secret,
        clock,
        tasks,
        ..
    } = base;
    let (hub, changes) = Hub::new();
    let streams = StreamTable::new(clock.clone());
    let (peer, requests) = StreamPeer::new(seal.node(), streams.clone());
    let audience = Audience::new(db.clone());
    let workers = &tasks.workers;
    let tombstones = Tombstones::start(redis.clone(), secret, workers, &tasks.stopping);
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
        subscriber,
    };
    PubSubWorker::start(
        &backplane,
        transport,
        outgoing,
        changes,
        workers,
        &tasks.stopping,
    );
    Links {
        hub,
        backplane,
        audience,
        streams,
        requests,
    }
}
