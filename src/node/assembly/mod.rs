//! The parts of a node, made and joined: every handle, and the tasks that run by themselves.

mod callers;
mod deliveries;
mod links;
mod upkeep;

use std::sync::{Arc, atomic::AtomicUsize};

use secrecy::ExposeSecret;
use tokio::sync::Notify;

use self::{callers::Credentials, deliveries::Deliveries, links::Links};
use super::{Failure, Stores, Tasks};
use crate::{
    app::{App, Handles},
    auth::{server_secret::ServerSecret, usage::TokenUse},
    clock::Clock,
    config::Config,
    db::Db,
    delivery::Seal,
    features::{
        accounts::Accounts,
        agents::{Agents, Quotas, ReachabilityTracker},
        health::NodeStatus,
        messages::MessageWriter,
        passkeys::Passkeys,
        streams::Streams,
        typing::Typing,
        webhooks::{SecretSeal, Waker, Webhooks},
    },
    gateway::Gateway,
    ids::NodeId,
    inbox::Inbox,
    limits::{
        Limits, buffers::ByteBudget, slots::Slots, table::Overrides,
        unauthenticated::UnauthenticatedConnections,
    },
    mail::Mailer,
    metrics,
    objects::{self, Backend, Objects},
    random::Random,
    schedule::Schedule,
    work::UnitOfWork,
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

/// Makes the node's parts and starts those that run by themselves.
#[expect(
    clippy::too_many_lines,
    reason = "a list of parts, in the order in which they need each other"
)]
pub(super) async fn assemble(
    config: &Config,
    clock: Clock,
    random: Random,
    id: NodeId,
    (stores, buffers): (Stores, ByteBudget),
    tasks: &Tasks,
) -> Result<App, Failure> {
    let Stores {
        db,
        send_db,
        quiet_db,
        jobs_db,
        token_db,
        webhooks_db,
        redis,
        subscriber,
    } = stores;
    let Tasks {
        stopping, workers, ..
    } = tasks;

    let inbox = Inbox::new(db.clone());
    let epoch = inbox
        .epoch()
        .await
        .map_err(|error| format!("cannot read the inbox's epoch: {error:?}"))?;
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
    let seal = Seal::new(id, &secret, epoch);
    let Links {
        hub,
        backplane,
        audience,
        streams,
        requests,
    } = links::link(base, seal, &db, &redis, subscriber);
    let slots = Slots::bounded(
        redis.clone(),
        clock.clone(),
        random.clone(),
        id,
        config.agent_connections.0 as usize,
    );
    slots.start(workers, stopping, hub.liveness());
    metrics::sockets_max(config.max_sockets.0 as usize);
    let acks = upkeep::start(&hub, &backplane, &quiet_db, tasks);
    let budgets = config.limits.parse::<Overrides>()?;
    let limits = Limits::start(
        redis.clone(),
        db.clone(),
        clock.clone(),
        budgets.clone(),
        config.limits_off.0,
        workers,
    );
    let used = TokenUse::start(quiet_db.clone(), workers, stopping);
    let Credentials {
        hasher,
        revoked,
        access_tokens,
        agent_tokens,
    } = callers::credentials(base, &token_db, redis, &limits, used)?;
    let work = UnitOfWork::new(db.clone(), random.clone(), backplane.clone());
    let reachability = ReachabilityTracker::start(work.over(quiet_db.clone()), workers, stopping);
    let shards = config.send_writers.0 as usize;
    let message_writer = MessageWriter::start(
        &send_db,
        &backplane,
        random.clone(),
        revoked,
        shards,
        workers,
    );
    let typing = Typing {
        clock: clock.clone(),
        audience: audience.clone(),
        backplane: backplane.clone(),
    };
    let streams = Streams::start(
        &clock, streams, audience, &backplane, requests, workers, stopping,
    );
    let gateway = Arc::new(Gateway {
        clock: clock.clone(),
        random: random.clone(),
        db: db.clone(),
        inbox: inbox.clone(),
        acks,
        reachability: reachability.clone(),
        hub: hub.clone(),
        message_writer: message_writer.clone(),
        work: work.clone(),
        typing: typing.clone(),
        streams,
        limits: limits.clone(),
        buffers: buffers.clone(),
        slots: slots.clone(),
        unauthenticated: UnauthenticatedConnections::default(),
        access_tokens: access_tokens.clone(),
        agent_tokens: agent_tokens.clone(),
        tasks: tasks.sockets.clone(),
        sockets: AtomicUsize::new(0),
        max_sockets: config.max_sockets.0 as usize,
    });
    let links = objects::Links::new(&secret, &config.public_url, clock.clone());
    let objects = Objects::new(Backend::open(config)?, db.clone(), random.clone(), links);
    let accounts = callers::accounts(base, &work, &access_tokens)?;
    let agents = Agents {
        work: work.clone(),
        clock: clock.clone(),
        hasher: hasher.clone(),
        slots: slots.clone(),
        reachability: reachability.clone(),
        quotas: Quotas {
            agents_per_user: config.agents_per_user.0,
        },
    };
    let webhooks = Webhooks {
        work: work.clone(),
        seal: SecretSeal::new(&secret, random.clone()),
        client: deliveries::client(base)?,
        waker: Waker::default(),
    };
    let delivery = Deliveries {
        objects: objects.clone(),
        db: webhooks_db,
        jobs: work.over(jobs_db.clone()),
        backplane: backplane.clone(),
        slots: slots.clone(),
        limits: limits.clone(),
        message_writer: message_writer.clone(),
    };
    deliveries::start(base, &webhooks, delivery).await?;
    let due = webhooks.waker.turn_due();
    start_jobs(config, budgets, &accounts, &objects, jobs_db, due, tasks)?;
    Ok(App::from(Handles {
        clock,
        random,
        db,
        work,
        ingress: callers::ingress(config),
        hasher,
        access_tokens,
        agent_tokens,
        limits,
        slots,
        hub,
        backplane,
        inbox,
        objects,
        reachability,
        message_writer,
        gateway,
        accounts,
        agents,
        typing,
        passkeys: Passkeys::new(config)?,
        webhooks,
        status: NodeStatus::new(metrics::install()),
    }))
}

fn start_jobs(
    config: &Config,
    budgets: Overrides,
    accounts: &Accounts,
    objects: &Objects,
    db: Db,
    wake_webhooks: Arc<Notify>,
    tasks: &Tasks,
) -> Result<(), Failure> {
    let mailer = Mailer::new(&config.mail_url, &config.mail_from)?;
    let schedule = Schedule {
        work: accounts.work.over(db),
        budgets,
        codes: accounts.codes.clone(),
        mailer,
        objects: objects.clone(),
        upkeep_speed: config.upkeep_speed.0,
        wake_webhooks,
    };
    schedule.start(&tasks.workers, &tasks.stopping);
    Ok(())
}
