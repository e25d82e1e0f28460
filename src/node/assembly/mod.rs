//! The parts of a node, made and joined: every handle, and the tasks that run by themselves.

mod callers;
mod core;
mod deliveries;
mod networking;
mod upkeep;

use std::sync::{Arc, atomic::AtomicUsize};

use secrecy::ExposeSecret;

use self::core::{Core, Writers};
use super::{Failure, Stores, Tasks};
use crate::{
    app::{App, Handles},
    auth::server_secret::ServerSecret,
    clock::Clock,
    config::Config,
    db::Db,
    features::{
        accounts::Accounts,
        agents::{Agents, Quotas},
        files::{CountDownloads, StorageQuota},
        health::NodeStatus,
        passkeys::Passkeys,
        published::ServedOpenApi,
        push::Push,
        shares,
        stops::Stops,
        web_app::WebApp,
        webhooks::Webhooks,
    },
    gateway::Gateway,
    ids::NodeId,
    limits::{buffers::ByteBudget, table::Overrides, unauthenticated::UnauthenticatedConnections},
    mail::Mailer,
    metrics,
    objects::{self, Backend, Objects},
    random::Random,
    schedule::Schedule,
};

/// The base that all parts stand on.
#[derive(Clone, Copy)]
struct Base<'a> {
    config: &'a Config,
    secret: &'a ServerSecret,
    clock: &'a Clock,
    random: &'a Random,
    tasks: &'a Tasks,
}

/// Makes the node's parts, in the order in which they need each other, and starts those that run by
/// themselves.
pub(super) async fn assemble(
    config: &Config,
    clock: Clock,
    random: Random,
    id: NodeId,
    (stores, buffers): (Stores, ByteBudget),
    tasks: &Tasks,
) -> Result<App, Failure> {
    let secret = config
        .server_secret
        .expose_secret()
        .parse::<ServerSecret>()?;
    let base = Base {
        config,
        secret: &secret,
        clock: &clock,
        random: &random,
        tasks,
    };
    let overrides = config.limits.parse::<Overrides>()?;
    let pools = [
        ("main", &stores.db),
        ("send", &stores.send_db),
        ("background", &stores.background_db),
        ("jobs", &stores.jobs_db),
        ("tokens", &stores.token_db),
        ("webhooks", &stores.webhooks_db),
    ]
    .map(|(name, pool)| (name, pool.clone()));
    let core = Core::start(base, id, &stores, overrides.clone()).await?;
    let writers = Writers::start(base, &stores, &core);
    let webhooks = deliveries::webhooks(base, &writers)?;
    let push = deliveries::push(base, &writers, &webhooks)?;
    let stops = Stops {
        work: writers.work.clone(),
        streams: core.networking.streams.clone(),
        waker: webhooks.waker.clone(),
    };
    let gateway = gateway(base, &stores, &core, &writers, &stops, buffers.clone());
    let objects = objects(base, &stores.db)?;
    let tokens = &core.credentials.access_tokens;
    let accounts = callers::accounts(base, &writers.work, tokens, &stores.redis)?;
    let agents = agents(base, &core, &writers);
    deliveries::start(base, &stores, &core, &writers, &webhooks, &objects, buffers).await?;
    deliveries::start_push(base, &stores, &core, &push);
    start_jobs(
        base,
        &stores,
        overrides,
        &accounts,
        &objects,
        (&webhooks, &push),
    )?;
    Ok(App::from(Handles {
        clock,
        random,
        db: stores.db,
        work: writers.work,
        ingress: callers::ingress(config),
        hasher: core.credentials.hasher,
        access_tokens: core.credentials.access_tokens,
        agent_tokens: core.credentials.agent_tokens,
        limits: core.limits,
        slots: core.slots,
        hub: core.networking.hub,
        backplane: core.networking.backplane,
        inbox: core.inbox,
        objects,
        storage_quota: StorageQuota(config.files_bytes_per_account.0),
        count_downloads: CountDownloads(shares::count_downloads),
        reachability: writers.reachability,
        message_writer: writers.message_writer,
        read_marks: writers.read_marks,
        gateway,
        accounts,
        agents,
        typing: core.networking.typing,
        passkeys: Passkeys::new(config)?,
        served_openapi: ServedOpenApi::new(&config.public_url)?,
        web_app: WebApp::read(config)?,
        webhooks,
        push,
        stops,
        streams: core.networking.streams,
        status: NodeStatus::new(metrics::install(), &pools),
    }))
}

/// The sockets and polls of the node.
fn gateway(
    base: Base<'_>,
    stores: &Stores,
    core: &Core,
    writers: &Writers,
    stops: &Stops,
    buffers: ByteBudget,
) -> Arc<Gateway> {
    let max_sockets = base.config.max_sockets.0 as usize;
    metrics::sockets_max(max_sockets);
    Arc::new(Gateway {
        clock: base.clock.clone(),
        random: base.random.clone(),
        db: stores.db.clone(),
        inbox: core.inbox.clone(),
        acks: core.acks.clone(),
        reachability: writers.reachability.clone(),
        hub: core.networking.hub.clone(),
        message_writer: writers.message_writer.clone(),
        work: writers.work.clone(),
        typing: core.networking.typing.clone(),
        streams: core.networking.streams.clone(),
        stops: stops.clone(),
        limits: core.limits.clone(),
        buffers,
        slots: core.slots.clone(),
        unauthenticated: UnauthenticatedConnections::default(),
        access_tokens: core.credentials.access_tokens.clone(),
        agent_tokens: core.credentials.agent_tokens.clone(),
        tasks: base.tasks.sockets.clone(),
        sockets: AtomicUsize::new(0),
        max_sockets,
    })
}

fn objects(base: Base<'_>, db: &Db) -> Result<Objects, Failure> {
    let Base { config, random, .. } = base;
    let signed_urls = objects::SignedUrls::new(base.secret, &config.public_url, base.clock.clone());
    let backend = Backend::open(config)?;
    Ok(Objects::new(
        backend,
        db.clone(),
        random.clone(),
        signed_urls,
    ))
}

fn agents(base: Base<'_>, core: &Core, writers: &Writers) -> Agents {
    Agents {
        work: writers.work.clone(),
        clock: base.clock.clone(),
        hasher: core.credentials.hasher.clone(),
        slots: core.slots.clone(),
        reachability: writers.reachability.clone(),
        quotas: Quotas {
            agents_per_user: base.config.agents_per_user.0,
        },
    }
}

/// Starts the job queue and the upkeep.
fn start_jobs(
    base: Base<'_>,
    stores: &Stores,
    overrides: Overrides,
    accounts: &Accounts,
    objects: &Objects,
    (webhooks, push): (&Webhooks, &Push),
) -> Result<(), Failure> {
    let Base { config, tasks, .. } = base;
    let schedule = Schedule {
        work: accounts.work.over(stores.jobs_db.clone()),
        deadlines: accounts.work.over(stores.background_db.clone()),
        budgets: overrides,
        codes: accounts.codes.clone(),
        mailer: Mailer::new(config)?,
        objects: objects.clone(),
        files_bytes_alert: config.files_bytes_alert.0,
        publishes_digests: config.access_log_objects.0,
        upkeep_speed: config.upkeep_speed.0,
        webhook_seal: webhooks.seal.clone(),
        wake_webhooks: webhooks.waker.turn_due(),
        push_seal: push.seal.clone(),
        wake_pushes: push.waker.wake_due(),
    };
    schedule.start(&tasks.workers, &tasks.stopping);
    Ok(())
}
