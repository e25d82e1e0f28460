//! The deliveries of webhooks, and the pushes.

use super::{
    Base,
    core::{Core, Writers},
    upkeep,
};
use crate::{
    db::Db,
    egress::{self, Egress},
    error::Result,
    features::push::{self, EndpointSeal, Push, ServerKeys, dispatcher::Topics},
    features::webhooks::{
        self, SecretSeal, Waker, WebhookClient, Webhooks,
        dispatcher::{Dispatcher, Parts, Settings},
        signature::{Brand, Signer},
    },
    limits::buffers::ByteBudget,
    node::{Failure, Stores},
    objects::Objects,
};

/// Tries of a start to make partitions, of a second each with the default time-out.
const MAX_PARTITION_TRIES: u32 = 30;

/// The webhooks of the handlers.
pub(super) fn webhooks(base: Base<'_>, writers: &Writers) -> Result<Webhooks, Failure> {
    Ok(Webhooks {
        work: writers.work.clone(),
        seal: SecretSeal::new(base.secret, base.random.clone()),
        client: client(base)?,
        waker: Waker::default(),
    })
}

/// The client that calls receivers.
fn client(base: Base<'_>) -> Result<WebhookClient, Failure> {
    let Base {
        config,
        clock,
        random,
        tasks,
        ..
    } = base;
    let egress = Egress::new(egress::settings(config), clock.clone());
    upkeep::start_tidy(&egress, tasks);
    Ok(WebhookClient {
        egress,
        signer: Signer::new(&config.webhook_brand.parse::<Brand>()?),
        clock: clock.clone(),
        random: random.clone(),
    })
}

/// Makes the partitions that the delivery log needs today. Nodes that start together wait for one
/// another, and each wait for the lock is short.
async fn make_partitions(db: &Db) -> Result<()> {
    let mut tries = 1;
    loop {
        match webhooks::rotate_log(db).await {
            Err(error) if error.is_out_of_time() && tries < MAX_PARTITION_TRIES => tries += 1,
            made => return made,
        }
    }
}

/// Starts the wake-ups, and the deliveries where this node makes them.
pub(super) async fn start(
    base: Base<'_>,
    stores: &Stores,
    core: &Core,
    writers: &Writers,
    webhooks: &Webhooks,
    objects: &Objects,
    buffers: ByteBudget,
) -> Result<(), Failure> {
    let Base { config, tasks, .. } = base;
    make_partitions(&stores.jobs_db)
        .await
        .map_err(|error| format!("cannot make the partitions of the delivery log: {error:?}"))?;
    let (workers, stopping) = (&tasks.workers, &tasks.stopping);
    let (db, backplane, slots) = (&stores.webhooks_db, &core.networking.backplane, &core.slots);
    let delivers = config.webhook_worker.0;
    let waker = &webhooks.waker;
    waker.start(db.clone(), backplane, slots, delivers, workers, stopping);
    if delivers {
        let parts = Parts {
            settings: Settings::new(config),
            db: db.clone(),
            work: writers.work.over(stores.jobs_db.clone()),
            backplane: backplane.clone(),
            buffers,
            slots: slots.clone(),
            client: webhooks.client.clone(),
            objects: objects.clone(),
            seal: webhooks.seal.clone(),
            limits: core.limits.clone(),
            message_writer: writers.message_writer.clone(),
            turns: tasks.turns.clone(),
            draining: tasks.closing.clone(),
            stopping: stopping.clone(),
        };
        Dispatcher::start(parts, waker, workers);
    }
    Ok(())
}

/// The pushes of the handlers. They call by the client of the webhooks.
pub(super) fn push(
    base: Base<'_>,
    writers: &Writers,
    webhooks: &Webhooks,
) -> Result<Push, Failure> {
    Ok(Push {
        work: writers.work.clone(),
        egress: webhooks.client.egress.clone(),
        seal: EndpointSeal::new(base.secret, base.random.clone()),
        keys: ServerKeys::new(base.secret)?,
        waker: push::Waker::default(),
    })
}

/// Starts the hints of pushes, and the pushes where this node delivers.
pub(super) fn start_push(base: Base<'_>, stores: &Stores, core: &Core, push: &Push) {
    let Base { config, tasks, .. } = base;
    let (db, slots) = (&stores.webhooks_db, &core.slots);
    let (workers, stopping) = (&tasks.workers, &tasks.stopping);
    let waker = &push.waker;
    waker.start(
        db.clone(),
        &core.networking.backplane,
        slots,
        workers,
        stopping,
    );
    if config.webhook_worker.0 {
        let parts = push::dispatcher::Parts {
            db: db.clone(),
            slots: slots.clone(),
            egress: push.egress.clone(),
            seal: push.seal.clone(),
            keys: push.keys.clone(),
            topics: Topics::new(base.secret),
            clock: base.clock.clone(),
            random: base.random.clone(),
            contact: config.public_url.clone(),
            max_calls: config.egress_in_flight.0 as usize,
            calls: tasks.turns.clone(),
            draining: tasks.closing.clone(),
        };
        push::dispatcher::Dispatcher::start(parts, waker.wake_due(), workers);
    }
}
