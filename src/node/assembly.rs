//! The parts of a node, made and joined: every handle, and the tasks that run by themselves.

use std::{
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use fred::clients::SubscriberClient;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::{Failure, Stores, Tasks};
use crate::{
    app::{App, Handles},
    auth::{
        agent::AgentTokens, jwt::AccessTokens, proofs::Proofs, refresh::RefreshTokens,
        revoked::RevokedCredentials, secret::Hasher, turnstile::Turnstile, usage::TokenUse,
    },
    clock::Clock,
    config::{Config, Profile},
    db::Db,
    delivery::{
        Backplane, Hub, Seal,
        backplane::{PubSubWorker, RedisPubSub, tombstones::Tombstones},
        invalidation,
        reconcile::{self, Reconciler},
    },
    egress::{Egress, EgressSettings},
    features::{
        accounts::{Accounts, Codes},
        agents::{Agents, Quotas, ReachabilityTracker},
        conversations::Audience,
        health::NodeStatus,
        messages::MessageWriter,
        passkeys::Passkeys,
        streams::{StreamControl, StreamPeer, StreamTable, Streams},
        typing::Typing,
        webhooks::{
            self, Caller, SecretSeal, Waker, Webhooks,
            dispatcher::{Dispatcher, Parts, Settings},
            signature::Signer,
        },
    },
    gateway::Gateway,
    http::client::IngressPolicy,
    ids::NodeId,
    inbox::{Acks, Inbox},
    limits::{
        Limits, buffers::ByteBudget, slots::Slots, table::Overrides,
        unauthenticated::UnauthenticatedConnections,
    },
    mail::Mailer,
    metrics,
    objects::{self, Backend, Objects},
    random::Random,
    redis::Redis,
    schedule::Schedule,
    supervisor::supervise,
    work::UnitOfWork,
};

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
    let seal = Seal::new(id, &config.server_secret, epoch);
    let Links {
        hub,
        backplane,
        audience,
        streams,
        requests,
    } = link(seal, config, &clock, &db, &redis, subscriber, tasks);
    let slots = Slots::bounded(
        redis.clone(),
        clock.clone(),
        random.clone(),
        id,
        config.agent_connections.0 as usize,
    );
    slots.spawn(workers, stopping, hub.liveness());
    workers.spawn(tidy_metrics(metrics::install(), stopping.clone()));
    metrics::sockets_max(config.max_sockets.0 as usize);

    let acks = Acks::default();
    let (written, own_db, stop) = (acks.clone(), quiet_db.clone(), stopping.clone());
    workers.spawn(supervise("acks", move || {
        let (acks, db, stop) = (written.clone(), own_db.clone(), stop.clone());
        async move { acks.run(&db, &stop).await }
    }));
    workers.spawn(invalidation::run(
        quiet_db.clone(),
        hub.clone(),
        backplane.state(),
        stopping.clone(),
    ));
    let reconciler = Arc::new(Reconciler::new(&quiet_db, &backplane));
    let (state, stop) = (backplane.state(), stopping.clone());
    workers.spawn(supervise("reconciler", move || {
        let (reconciler, state, stop) = (reconciler.clone(), state.clone(), stop.clone());
        async move { reconcile::run(&reconciler, &state, &stop).await }
    }));

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
    } = credentials(config, &clock, &random, &token_db, redis, &limits, used)?;
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
    let links = objects::Links::new(&config.server_secret, &config.public_url, clock.clone());
    let objects = Objects::new(Backend::open(config)?, db.clone(), random.clone(), links);
    let accounts = accounts(config, &work, &access_tokens)?;
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
        seal: SecretSeal::new(&config.server_secret, random.clone()),
        caller: webhook_caller(config, &clock, &random, tasks),
        waker: Waker::default(),
    };
    let delivery = WebhookDelivery {
        objects: objects.clone(),
        db: webhooks_db,
        jobs: work.over(jobs_db.clone()),
        backplane: backplane.clone(),
        slots: slots.clone(),
        limits: limits.clone(),
        message_writer: message_writer.clone(),
    };
    start_webhooks(config, &webhooks, delivery, tasks).await?;
    let due = webhooks.waker.turn_due();
    start_jobs(config, budgets, &accounts, &objects, jobs_db, due, tasks)?;
    Ok(App::from(Handles {
        clock,
        random,
        db,
        work,
        ingress: ingress(config),
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

/// The parts that recognise callers.
struct Credentials {
    hasher: Hasher,
    revoked: RevokedCredentials,
    access_tokens: AccessTokens,
    agent_tokens: AgentTokens,
}

fn credentials(
    config: &Config,
    clock: &Clock,
    random: &Random,
    lookup_db: &Db,
    redis: Redis,
    limits: &Limits,
    used: TokenUse,
) -> Result<Credentials, Failure> {
    let (hasher, revoked) = (Hasher::new(), RevokedCredentials::default());
    let access_tokens = AccessTokens::new(
        &config.access_token_keys,
        &config.public_url,
        clock.clone(),
        random.clone(),
        revoked.clone(),
    )?;
    let agent_tokens = AgentTokens::new(
        lookup_db.clone(),
        hasher.clone(),
        limits.clone(),
        Proofs::new(redis, &config.server_secret),
        random,
        revoked.clone(),
        used,
    );
    Ok(Credentials {
        hasher,
        revoked,
        access_tokens,
        agent_tokens,
    })
}

fn accounts(
    config: &Config,
    work: &UnitOfWork,
    access_tokens: &AccessTokens,
) -> Result<Accounts, Failure> {
    Ok(Accounts {
        work: work.clone(),
        codes: Codes::new(&config.server_secret),
        passwords: Hasher::new(),
        turnstile: Turnstile::new(config, work.random().clone())?,
        access_tokens: access_tokens.clone(),
        refresh_tokens: RefreshTokens::new(&config.server_secret),
    })
}

/// The listeners of this node, its links to the others, and what the links need of features.
struct Links {
    hub: Hub,
    backplane: Backplane,
    audience: Audience,
    streams: StreamTable,
    requests: mpsc::Receiver<StreamControl>,
}

fn link(
    seal: Seal,
    config: &Config,
    clock: &Clock,
    db: &Db,
    redis: &Redis,
    subscriber: SubscriberClient,
    tasks: &Tasks,
) -> Links {
    let (hub, changes) = Hub::new();
    let streams = StreamTable::new(clock.clone());
    let (peer, requests) = StreamPeer::new(seal.node(), streams.clone());
    let audience = Audience::new(db.clone());
    let (secret, workers) = (&config.server_secret, &tasks.workers);
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
    PubSubWorker::spawn(
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

fn ingress(config: &Config) -> IngressPolicy {
    if config
        .trusted_proxies
        .0
        .iter()
        .any(|network| network.prefix_len() == 0)
    {
        tracing::warn!(
            "TRUSTED_PROXIES contains every address: any client may choose its own address, \
             and limits per address mean nothing"
        );
    }
    IngressPolicy {
        tls: config.tls_cert.is_some(),
        local_only: config.profile == Profile::Dev,
        proxies: config.trusted_proxies.0.clone().into(),
        origins: config.allowed_origins.0.clone().into(),
    }
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
        wake_webhooks,
    };
    schedule.spawn(&tasks.workers, &tasks.stopping);
    Ok(())
}

fn webhook_caller(config: &Config, clock: &Clock, random: &Random, tasks: &Tasks) -> Caller {
    let egress = Egress::new(EgressSettings::new(config), clock.clone());
    egress.spawn_upkeep(&tasks.workers, &tasks.stopping);
    Caller {
        egress,
        signer: Signer::new(&config.webhook_brand),
        clock: clock.clone(),
        random: random.clone(),
    }
}

/// The parts that deliveries need beside those of the handlers.
struct WebhookDelivery {
    objects: Objects,
    db: Db,
    jobs: UnitOfWork,
    backplane: Backplane,
    slots: Slots,
    limits: Limits,
    message_writer: MessageWriter,
}

/// Starts the wake-ups, and the deliveries where this node makes them.
async fn start_webhooks(
    config: &Config,
    webhooks: &Webhooks,
    delivery: WebhookDelivery,
    tasks: &Tasks,
) -> Result<(), Failure> {
    let WebhookDelivery {
        objects,
        db,
        jobs,
        backplane,
        slots,
        limits,
        message_writer,
    } = delivery;
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
            caller: webhooks.caller.clone(),
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

/// Histograms keep every sample until they are folded into their buckets, which only a scrape would do otherwise.
async fn tidy_metrics(metrics: PrometheusHandle, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(5)) => {
                metrics.run_upkeep();
                metrics::end_old_measurements();
            }
            () = stop.cancelled() => return,
        }
    }
}
