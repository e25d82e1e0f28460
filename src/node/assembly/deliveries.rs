//! The deliveries of webhooks.

use super::Base;
use crate::{
    db::Db,
    delivery::Backplane,
    egress::{Egress, EgressSettings},
    features::{
        messages::MessageWriter,
        webhooks::{
            self, WebhookClient, Webhooks,
            dispatcher::{Dispatcher, Parts, Settings},
            signature::{Brand, Signer},
        },
    },
    limits::{Limits, slots::Slots},
    node::Failure,
    objects::Objects,
    work::UnitOfWork,
};

/// The client that calls receivers.
pub(super) fn client(base: Base<'_>) -> Result<WebhookClient, Failure> {
    let Base {
        config,
        clock,
        random,
        tasks,
        ..
    } = base;
    let egress = Egress::new(EgressSettings::new(config), clock.clone());
    egress.start_upkeep(&tasks.workers, &tasks.stopping);
    Ok(WebhookClient {
        egress,
        signer: Signer::new(&config.webhook_brand.parse::<Brand>()?),
        clock: clock.clone(),
        random: random.clone(),
    })
}

/// The parts that deliveries need beside those of the handlers.
pub(super) struct Deliveries {
    pub(super) objects: Objects,
    pub(super) db: Db,
    pub(super) jobs: UnitOfWork,
    pub(super) backplane: Backplane,
    pub(super) slots: Slots,
    pub(super) limits: Limits,
    pub(super) message_writer: MessageWriter,
}

/// Starts the wake-ups, and the deliveries where this node makes them.
pub(super) async fn start(
    base: Base<'_>,
    webhooks: &Webhooks,
    deliveries: Deliveries,
) -> Result<(), Failure> {
    let Deliveries {
        objects,
        db,
        jobs,
        backplane,
        slots,
        limits,
        message_writer,
    } = deliveries;
    let Base { config, tasks, .. } = base;
    webhooks::rotate_log(jobs.db())
        .await
        .map_err(|error| format!("cannot make the partitions of the delivery log: {error:?}"))?;
    let (workers, stopping) = (&tasks.workers, &tasks.stopping);
    let delivers = config.webhook_worker.0;
    let waker = &webhooks.waker;
    waker.start(db.clone(), &backplane, &slots, delivers, workers, stopping);
    if delivers {
        let parts = Parts {
            settings: Settings::new(config),
            db,
            work: jobs,
            backplane,
            slots,
            client: webhooks.client.clone(),
            objects,
            seal: webhooks.seal.clone(),
            limits,
            message_writer,
            turns: tasks.turns.clone(),
            draining: tasks.closing.clone(),
            stopping: stopping.clone(),
        };
        Dispatcher::start(parts, waker, workers);
    }
    Ok(())
}
