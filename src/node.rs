//! A node's life: connect, check the schema, spawn tasks, serve, drain.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use fred::clients::SubscriberClient;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::{net::TcpListener, sync::mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    app::{App, Handles},
    auth::{
        agent::AgentTokens, jwt::AccessTokens, proofs::Proofs, refresh::RefreshTokens,
        revoked::RevokedCredentials, secret::Hasher, turnstile::Turnstile, usage::TokenUse,
    },
    clock::Clock,
    config::{Config, Faults},
    db::{Db, Plans, migrate},
    delivery::{
        Backplane, End, Hub,
        backplane::{PubSubWorker, RedisPubSub, tombstones::Tombstones},
        reconcile::{self, Reconciler},
    },
    error::Error,
    features::{
        accounts::{Accounts, Codes},
        agents::{Agents, Quotas, ReachabilityTracker},
        conversations::Audience,
        health::NodeStatus,
        messages::MessageWriter,
        passkeys::Passkeys,
        streams::{StreamControl, StreamPeer, StreamTable, Streams},
        typing::Typing,
    },
    gateway::Gateway,
    http::{client::IngressPolicy, listener},
    ids::NodeId,
    inbox::{Acks, Inbox},
    limits::{Limits, slots::Slots, table::Overrides, unauthenticated::UnauthenticatedConnections},
    mail::Mailer,
    metrics,
    random::Random,
    redis::Redis,
    routes,
    schedule::Schedule,
    work::UnitOfWork,
};

/// Reads the settings through `get`. The faults that other modules find are in the same list.
pub fn read_settings(get: impl Fn(&str) -> Option<String>) -> Result<Config, Faults> {
    Config::read_checked(get, &[("LIMIT_OVERRIDES", Overrides::check)])
}

/// The reason that a node did not start.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A drain closes sockets in batches over this time. The hints to reconnect spread over as long
/// again.
const DRAIN_SPREAD: Duration = Duration::from_secs(5);
/// Requests under way when the listener has closed may take this long.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

/// A running node.
pub struct Node {
    /// The public listener.
    pub address: SocketAddr,
    /// The admin listener.
    pub admin_address: SocketAddr,
    app: App,
    id: NodeId,
    redis: Redis,
    drain_lag: Duration,
    tasks: Tasks,
}

/// The node's tasks, and the tokens that end them.
#[derive(Default)]
struct Tasks {
    /// Ends the public listener.
    closing: CancellationToken,
    /// Ends everything else.
    stopping: CancellationToken,
    connections: TaskTracker,
    sockets: TaskTracker,
    workers: TaskTracker,
}

/// The stores that a node works with, and the pub/sub side of Redis.
struct Stores {
    db: Db,
    /// The pool of the writer shards, so that slow reads cannot starve them.
    send_db: Db,
    /// The pool of the sweep and the acks, so that a storm of requests cannot starve them.
    quiet_db: Db,
    /// The pool of the jobs, which keeps them apart from requests and sweeps.
    jobs_db: Db,
    redis: Redis,
    subscriber: SubscriberClient,
}

impl Stores {
    async fn open(config: &Config) -> Result<Self, Failure> {
        let name = format!("blindpipe {}", config.node_name);
        let wait = config.database_timeout.millis();
        let pool = |name: &str, size, plans| Db::new(&config.database_url, name, size, plans, wait);
        let db = pool(&name, config.database_pool.0 as usize, Plans::Free)?;
        let send_db = pool(
            &format!("{name} send"),
            config.send_lanes.0 as usize,
            Plans::Pinned,
        )?;
        let quiet_db = pool(&format!("{name} quiet"), 3, Plans::Free)?;
        let jobs_db = pool(&format!("{name} jobs"), 3, Plans::Free)?;
        check_postgres(&db, config.database_durable.0).await?;
        let (redis, subscriber) = Redis::start(
            &config.redis_url,
            &config.redis_prefix,
            config.redis_timeout.millis(),
        )?;
        redis.greet().await;
        Ok(Stores {
            db,
            send_db,
            quiet_db,
            jobs_db,
            redis,
            subscriber,
        })
    }
}

impl Node {
    /// Starts a node; returns when it serves.
    pub async fn start(config: Config, clock: Clock) -> Result<Self, Failure> {
        let tls = match (&config.tls_cert, &config.tls_key) {
            (Some(cert), Some(key)) => Some(listener::tls_from(cert, key)?),
            _ => None,
        };
        let random = Random::new(clock.clone());
        let id = NodeId::generate(&random);
        let stores = Stores::open(&config).await?;
        let (redis, tasks) = (stores.redis.clone(), Tasks::default());
        let app = assemble(&config, clock, random, id, stores, &tasks).await?;

        let public = TcpListener::bind(config.listen).await?;
        let admin = TcpListener::bind(config.admin).await?;
        let (address, admin_address) = (public.local_addr()?, admin.local_addr()?);
        let Tasks {
            closing,
            stopping,
            connections,
            workers,
            ..
        } = &tasks;
        let router = routes::public(app.clone());
        // The listener counts as a connection: a drain waits until it has admitted its last client.
        connections.spawn(listener::serve(
            public,
            tls,
            router,
            connections.clone(),
            closing.clone(),
        ));
        // The admin listener answers probes and metrics until the very end.
        let router = routes::admin(app.clone());
        workers.spawn(listener::serve(
            admin,
            None,
            router,
            workers.clone(),
            stopping.clone(),
        ));
        tracing::info!(%address, %admin_address, "serving");
        let drain_lag = Duration::from_secs(config.drain_lag_seconds.0.into());
        Ok(Node {
            address,
            admin_address,
            app,
            id,
            redis,
            drain_lag,
            tasks,
        })
    }

    /// Stops in order and breaks no promise. The node reports not ready, closes its listener, sends
    /// its sockets to other nodes, and finishes the work under way.
    pub async fn drain(self) {
        tracing::info!("draining");
        self.app.status.drain();
        tokio::time::sleep(self.drain_lag).await;
        self.tasks.closing.cancel();
        self.send_sockets_away().await;
        self.tasks.connections.close();
        self.tasks.sockets.close();
        let finished = async {
            self.tasks.sockets.wait().await;
            self.tasks.connections.wait().await;
        };
        if tokio::time::timeout(FINISH_TIMEOUT, finished)
            .await
            .is_err()
        {
            tracing::warn!("some connections did not finish in time");
        }
        self.app.slots.flush().await;
        self.redis.leave(self.id).await;
        self.tasks.stopping.cancel();
        // The writer shards end when the last handle to them is dropped.
        drop(self.app);
        self.tasks.workers.close();
        if tokio::time::timeout(Duration::from_secs(5), self.tasks.workers.wait())
            .await
            .is_err()
        {
            tracing::warn!("some workers did not finish in time");
        }
        self.redis.quit().await;
        tracing::info!("drained");
    }

    async fn send_sockets_away(&self) {
        let subscriptions = self.app.hub.close();
        let batch = subscriptions.len().div_ceil(50).max(20);
        for some in subscriptions.chunks(batch) {
            for subscription in some {
                let after = DRAIN_SPREAD.mul_f64(self.app.random.fraction());
                subscription.end(End::Drain(after));
            }
            if subscriptions.len() > batch {
                tokio::time::sleep(DRAIN_SPREAD / 50).await;
            }
        }
    }

    /// Stops at once and keeps no promise, as a crash does, for tests.
    pub fn crash(self) {
        self.tasks.closing.cancel();
        self.tasks.stopping.cancel();
    }
}

/// Makes the node's parts and starts their tasks.
async fn assemble(
    config: &Config,
    clock: Clock,
    random: Random,
    id: NodeId,
    stores: Stores,
    tasks: &Tasks,
) -> Result<App, Failure> {
    let Stores {
        db,
        send_db,
        quiet_db,
        jobs_db,
        redis,
        subscriber,
    } = stores;
    let Tasks {
        stopping, workers, ..
    } = tasks;

    let Links {
        hub,
        backplane,
        audience,
        streams,
        requests,
    } = link(id, config, &clock, &db, &redis, subscriber, tasks);
    let slots = Slots::new(redis.clone(), clock.clone(), random.clone(), id);
    slots.spawn(workers, stopping, hub.liveness());
    workers.spawn(tidy_metrics(metrics::install(), stopping.clone()));

    let inbox = Inbox::open(db.clone())
        .await
        .map_err(|error| format!("cannot read the inbox's epoch: {error:?}"))?;
    let acks = Acks::default();
    workers.spawn(acks.clone().run(quiet_db.clone(), stopping.clone()));
    let reconciler = Reconciler::new(&quiet_db, &inbox, &backplane);
    workers.spawn(reconcile::run(
        reconciler,
        backplane.state(),
        stopping.clone(),
    ));

    let (hasher, dead) = (Hasher::new(), RevokedCredentials::default());
    let (wake, issuer) = (&config.access_token_keys, &config.public_url);
    let access_tokens =
        AccessTokens::new(wake, issuer, clock.clone(), random.clone(), dead.clone())?;
    let (budgets, off) = (config.limits.parse::<Overrides>()?, config.limits_off.0);
    let limits = Limits::start(
        redis.clone(),
        db.clone(),
        clock.clone(),
        budgets.clone(),
        off,
        workers,
    );
    let proofs = Proofs::new(redis, &config.server_secret);
    let used = TokenUse::start(quiet_db.clone(), workers, stopping);
    let (shared, pool) = (limits.clone(), hasher.clone());
    let agent_tokens = AgentTokens::new(
        db.clone(),
        pool,
        shared,
        proofs,
        &random,
        dead.clone(),
        used,
    );
    let work = UnitOfWork::new(db.clone(), random.clone(), backplane.clone());
    let reachability = ReachabilityTracker::start(work.over(quiet_db.clone()), workers, stopping);
    let lanes = config.send_lanes.0 as usize;
    let message_writer =
        MessageWriter::start(&send_db, &backplane, random.clone(), dead, lanes, workers);
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
        typing: typing.clone(),
        streams,
        limits: limits.clone(),
        slots: slots.clone(),
        unauthenticated: UnauthenticatedConnections::default(),
        access_tokens: access_tokens.clone(),
        agent_tokens: agent_tokens.clone(),
        tasks: tasks.sockets.clone(),
        sockets: AtomicUsize::new(0),
        max_sockets: config.max_sockets.0 as usize,
    });
    let accounts = Accounts {
        work: work.clone(),
        codes: Codes::new(&config.server_secret),
        passwords: Hasher::new(),
        turnstile: Turnstile::new(config, random.clone())?,
        access_tokens: access_tokens.clone(),
        refresh_tokens: RefreshTokens::new(&config.server_secret),
    };
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
    start_jobs(config, budgets, &accounts, jobs_db, workers, stopping)?;
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
        reachability,
        message_writer,
        gateway,
        accounts,
        agents,
        typing,
        passkeys: Passkeys::new(config)?,
        status: NodeStatus::new(metrics::install()),
    }))
}

/// The subscriptions of this node, its backplane, and the features' handlers that the backplane
/// calls.
struct Links {
    hub: Hub,
    backplane: Backplane,
    audience: Audience,
    streams: StreamTable,
    requests: mpsc::Receiver<StreamControl>,
}

fn link(
    id: NodeId,
    config: &Config,
    clock: &Clock,
    db: &Db,
    redis: &Redis,
    subscriber: SubscriberClient,
    tasks: &Tasks,
) -> Links {
    let (hub, changes) = Hub::new();
    let streams = StreamTable::new(clock.clone());
    let (peer, requests) = StreamPeer::new(id, streams.clone());
    let audience = Audience::new(db.clone());
    let (secret, workers) = (&config.server_secret, &tasks.workers);
    let tombstones = Tombstones::start(redis.clone(), secret, workers, &tasks.stopping);
    let noted = audience.clone();
    let (backplane, outgoing) = Backplane::new(
        id,
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
    IngressPolicy {
        tls: config.tls_cert.is_some(),
        proxies: config.trusted_proxies.0.clone().into(),
        origins: config.allowed_origins.0.clone().into(),
    }
}

fn start_jobs(
    config: &Config,
    budgets: Overrides,
    accounts: &Accounts,
    db: Db,
    workers: &TaskTracker,
    stopping: &CancellationToken,
) -> Result<(), Failure> {
    let mailer = Mailer::new(&config.mail_url, &config.mail_from)?;
    let schedule = Schedule {
        work: accounts.work.over(db),
        budgets,
        codes: accounts.codes.clone(),
        mailer,
    };
    schedule.spawn(workers, stopping);
    Ok(())
}

/// Folds the samples of histograms into their buckets. Otherwise only a scrape would do that, and
/// the samples would pile up.
async fn tidy_metrics(metrics: PrometheusHandle, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(5)) => metrics.run_upkeep(),
            () = stop.cancelled() => return,
        }
    }
}

/// Refuses a Postgres that is too old, has an older schema than this build, or may lose
/// acknowledged commits.
async fn check_postgres(db: &Db, durable: bool) -> Result<(), Failure> {
    let said = |error: Error| format!("Postgres: {error:?}");
    let client = db.read().await.map_err(said)?;
    let setting = async |name: &str| -> Result<String, Failure> {
        let stmt = client
            .prepare_cached(
                "-- node.setting
            select current_setting($1)",
            )
            .await
            .map_err(said)?;
        Ok(client
            .query_one(&stmt, &[&name])
            .await
            .map_err(said)?
            .get(0))
    };
    let version: i32 = setting("server_version_num").await?.parse()?;
    if version < 150_000 {
        return Err("Postgres 15 or newer is needed".into());
    }
    if durable
        && (setting("fsync").await? == "off" || setting("synchronous_commit").await? == "off")
    {
        return Err(
            "fsync or synchronous_commit is off: Postgres may lose acknowledged messages".into(),
        );
    }
    let history = "-- node.schema
            select coalesce(max(version), 0)::bigint from refinery_schema_history";
    let applied: i64 = match client.prepare_cached(history).await {
        Ok(stmt) => client.query_one(&stmt, &[]).await.map_err(said)?.get(0),
        // No migration history: nothing was ever applied.
        Err(_) => 0,
    };
    if applied < migrate::newest() {
        return Err(format!(
            "the schema is at {applied}, this build needs {}: run `blindpipe migrate`",
            migrate::newest()
        )
        .into());
    }
    Ok(())
}
