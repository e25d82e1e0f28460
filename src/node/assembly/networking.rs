//! The network of nodes: the listeners of this one, and its backplane to the others.

use std::sync::Arc;

use super::Base;
use crate::{
    delivery::{self, Backplane, Hub, MessageSigner, Parts, RedisPubSub},
    features::{
        conversations::Audience,
        revocations,
        streams::{HeardStreams, StreamPeer, StreamState, Streams},
        typing::Typing,
    },
    node::Stores,
};

/// The listeners of this node, its backplane, and the ephemeral features that use them.
pub(super) struct Networking {
    pub(super) hub: Hub,
    pub(super) backplane: Backplane,
    pub(super) typing: Typing,
    pub(super) streams: Streams,
}

/// Starts the delivery between the nodes.
pub(super) fn start(base: Base<'_>, signer: MessageSigner, stores: &Stores) -> Networking {
    let Base {
        secret,
        clock,
        random,
        tasks,
        ..
    } = base;
    let (workers, stopping) = (&tasks.workers, &tasks.stopping);
    let heard = HeardStreams::new(clock.clone());
    let audience = Audience::new(stores.db.clone());
    let noted = audience.clone();
    let backplane = delivery::start(Parts {
        store: &stores.background_db,
        redis: &stores.redis,
        transport: RedisPubSub::new(signer.node(), &stores.redis, stores.subscriber.clone()),
        signer,
        secret,
        observer: Arc::new(move |event| noted.note(event)),
        handler: Arc::new(StreamPeer(heard.clone())),
        mark_revoked: revocations::marking(stores.background_db.clone()),
        tasks: workers,
        stop: stopping,
    });
    let hub = backplane.hub().clone();
    let typing = Typing {
        clock: clock.clone(),
        audience: audience.clone(),
        backplane: backplane.clone(),
    };
    let state = StreamState::new(stores.redis.clone(), clock.clone(), secret);
    let streams = Streams::new(clock, random, state, heard, audience, &backplane);
    streams.start(workers, stopping);
    Networking {
        hub,
        backplane,
        typing,
        streams,
    }
}
