//! A node's life: connect, check the schema, spawn tasks, serve, drain.

mod assembly;
mod production;
mod settings;

use std::{net::SocketAddr, time::Duration};

use fred::clients::SubscriberClient;
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    app::App,
    auth::agent::MAX_CONCURRENT_LOOKUPS,
    clock::Clock,
    config::{Config, Switch},
    db::{Conn, Db, Plans, migrate},
    delivery::End,
    error::Error,
    http::{
        connections::Connections,
        listener::{self, ConnectionServer},
        proxy_protocol::ProxyProtocol,
    },
    ids::NodeId,
    limits::{buffers::ByteBudget, quotas::MB},
    random::Random,
    redis::Redis,
    routes,
};

pub use self::settings::read_settings;

/// Why a node did not start.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Sockets are closed in batches over this long, with hints to come back spread over as much.
const DRAIN_SPREAD: Duration = Duration::from_secs(5);
/// Connections of the admin listener. Probes and scrapers need few.
const MAX_ADMIN_CONNECTIONS: usize = 256;
/// Work that is under way when the listener closes may take this long.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

/// The part that a process plays.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Node,
    /// No public listener.
    Worker,
}

/// A node that serves.
pub struct Node {
    /// The public listener; a worker's is the admin listener.
    pub address: SocketAddr,
    /// The admin listener.
    pub admin_address: SocketAddr,
    app: App,
    id: NodeId,
    redis: Redis,
    drain_lag: Duration,
    tasks: Tasks,
}

/// The running parts of a node, and the handles that end them.
#[derive(Default)]
struct Tasks {
    /// Cancelled when a drain begins.
    draining: CancellationToken,
    /// Ends the public listener.
    closing: CancellationToken,
    /// Ends everything else.
    stopping: CancellationToken,
    connections: TaskTracker,
    sockets: TaskTracker,
    /// The turns of webhooks, with their calls under way.
    turns: TaskTracker,
    workers: TaskTracker,
}

/// The stores that a node works with, and the pub/sub side of Redis.
struct Stores {
    db: Db,
    /// For the send writers alone, so that slow reads cannot starve them.
    send_db: Db,
    /// For the sweep, the acks and the deadlines, so that a storm of requests cannot.
    background_db: Db,
    /// For the jobs, so that they keep neither waiting.
    jobs_db: Db,
    /// For look-ups of unknown agent tokens, so that a flood of them keeps nobody waiting.
    token_db: Db,
    /// For the turns of webhooks.
    webhooks_db: Db,
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
            // Each writer has one connection, and its contended sends have another.
            2 * config.send_writers.0 as usize,
            Plans::Pinned,
        )?;
        let background_db = pool(&format!("{name} background"), 3, Plans::Free)?;
        let jobs_db = pool(&format!("{name} jobs"), 3, Plans::Free)?;
        let token_db = pool(
            &format!("{name} tokens"),
            MAX_CONCURRENT_LOOKUPS,
            Plans::Free,
        )?;
        let webhooks_db = pool(
            &format!("{name} webhooks"),
            if config.webhook_worker.0 { 6 } else { 2 },
            Plans::PinnedDeferred,
        )?;
        check_postgres(&db, config).await?;
        let (redis, subscriber) = Redis::start(
            &config.redis_url,
            &config.redis_prefix,
            config.redis_timeout.millis(),
        )?;
        redis.ping().await;
        Ok(Stores {
            db,
            send_db,
            background_db,
            jobs_db,
            token_db,
            webhooks_db,
            redis,
            subscriber,
        })
    }
}

impl Node {
    /// Starts a node; returns when it serves.
    pub async fn start(config: Config, clock: Clock) -> Result<Self, Failure> {
        Box::pin(Self::start_as(Role::Node, config, clock)).await
    }

    /// Starts a node that delivers webhooks and does jobs, without a public listener.
    pub async fn start_worker(mut config: Config, clock: Clock) -> Result<Self, Failure> {
        config.webhook_worker = Switch(true);
        Box::pin(Self::start_as(Role::Worker, config, clock)).await
    }

    async fn start_as(role: Role, config: Config, clock: Clock) -> Result<Self, Failure> {
        let tls = match (&config.tls_cert, &config.tls_key) {
            (Some(cert), Some(key)) => Some(listener::tls_from(cert, key)?),
            _ => None,
        };
        let random = Random::new(clock.clone());
        let id = NodeId::generate(&random);
        let stores = Stores::open(&config).await?;
        let (redis, tasks) = (stores.redis.clone(), Tasks::default());
        let buffers = ByteBudget::new(config.max_buffer.0 as usize * MB);
        let parts = (stores, buffers.clone());
        let assembled = assembly::assemble(&config, clock, random, id, parts, &tasks);
        let app = Box::pin(assembled).await?;

        let admin = TcpListener::bind(config.admin).await?;
        let admin_address = admin.local_addr()?;
        let Tasks {
            draining,
            closing,
            stopping,
            connections,
            workers,
            ..
        } = &tasks;
        let admin_server = ConnectionServer {
            tls: None,
            router: routes::admin(app.clone()),
            connections: Connections::up_to(MAX_ADMIN_CONNECTIONS),
            proxy_protocol: ProxyProtocol::default(),
            buffers,
            idle_timeout: Duration::from_secs(config.connection_idle.0.into()),
            tasks: workers.clone(),
            draining: CancellationToken::new(),
            stop: stopping.clone(),
        };
        let address = match role {
            Role::Worker => admin_address,
            Role::Node => {
                let server = ConnectionServer {
                    tls,
                    router: routes::public(app.clone()),
                    connections: Connections::of(&config),
                    proxy_protocol: ProxyProtocol::from(&config.proxy_protocol.0),
                    tasks: connections.clone(),
                    draining: draining.clone(),
                    stop: closing.clone(),
                    ..admin_server.clone()
                };
                serve_public(&config, server).await?
            }
        };
        // Probes and metrics are answered until the very end.
        listener::serve(admin, admin_server, workers);
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

    /// Stops without breaking a promise: not ready, then no new connections, then sockets sent
    /// elsewhere, then what is under way, then the end.
    pub async fn drain(self) {
        tracing::info!("draining");
        self.app.status.drain();
        self.tasks.draining.cancel();
        tokio::time::sleep(self.drain_lag).await;
        self.tasks.closing.cancel();
        self.send_sockets_away().await;
        self.tasks.connections.close();
        self.tasks.sockets.close();
        self.tasks.turns.close();
        let finished = async {
            self.tasks.turns.wait().await;
            self.tasks.sockets.wait().await;
            self.tasks.connections.wait().await;
        };
        if tokio::time::timeout(FINISH_TIMEOUT, finished)
            .await
            .is_err()
        {
            tracing::warn!(
                operation = "node.drain",
                remedy = "the connections are cut",
                "some connections or calls did not finish in time"
            );
        }
        self.app.slots.flush().await;
        self.redis.leave(self.id).await;
        self.tasks.stopping.cancel();
        // The send writers end when the last handle to them goes.
        drop(self.app);
        self.tasks.workers.close();
        if tokio::time::timeout(Duration::from_secs(5), self.tasks.workers.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                operation = "node.drain",
                remedy = "the jobs run again after their leases",
                "some workers did not finish in time"
            );
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

    /// Stops at once, keeping no promise: what a crash does, for tests.
    pub fn crash(self) {
        self.tasks.closing.cancel();
        self.tasks.stopping.cancel();
    }
}

/// Starts the public listener; returns its address.
async fn serve_public(config: &Config, server: ConnectionServer) -> Result<SocketAddr, Failure> {
    let public = TcpListener::bind(config.listen).await?;
    let address = public.local_addr()?;
    // The acceptor counts as a connection: a drain must not count them before the last has been
    // let in.
    let connections = server.tasks.clone();
    listener::serve(public, server, &connections);
    Ok(address)
}

/// Refuses a Postgres that is too old, has an older schema than ours, may lose what it has
/// acknowledged, or would let this role change what is append-only.
pub(crate) async fn check_postgres(db: &Db, config: &Config) -> Result<(), Failure> {
    let said = |error: Error| format!("Postgres: {error:?}");
    let client = db.read().await.map_err(said)?;
    let setting = async |name: &str| -> Result<String, Failure> {
        let stmt = client
            .prepare_cached(
                "-- node.setting
            select current_setting($1) as value",
            )
            .await
            .map_err(said)?;
        Ok(client
            .query_one(&stmt, &[&name])
            .await
            .map_err(said)?
            .get("value"))
    };
    let version: i32 = setting("server_version_num").await?.parse()?;
    if version < 150_000 {
        return Err("Postgres 15 or newer is needed".into());
    }
    if config.database_durable.0
        && (setting("fsync").await? == "off" || setting("synchronous_commit").await? == "off")
    {
        return Err(
            "fsync or synchronous_commit is off: Postgres may lose acknowledged messages".into(),
        );
    }
    check_schema(&client).await?;
    let owns = "-- node.owns
            select pg_has_role(relowner, 'usage') as owns from pg_class where oid = 'message'::regclass";
    let owns: bool = client.query_one(owns, &[]).await.map_err(said)?.get("owns");
    if config.database_separate.0 && owns {
        return Err(
            "the role of DATABASE_URL owns the tables: give nodes a role of their own and \
             `blindpipe migrate` the owner's MIGRATE_DATABASE_URL, or set \
             DATABASE_REQUIRE_SEPARATE_ROLE=false"
                .into(),
        );
    }
    Ok(())
}

/// Refuses a schema that is older than this build.
async fn check_schema(client: &Conn) -> Result<(), Failure> {
    let history = "-- node.schema
            select coalesce(max(version), 0)::bigint as version from refinery_schema_history";
    let applied: i64 = match client.prepare_cached(history).await {
        Ok(stmt) => client
            .query_one(&stmt, &[])
            .await
            .map_err(|error| {
                format!("the role may not read the schema (run `blindpipe migrate`): {error:?}")
            })?
            .get("version"),
        // No history: nothing was ever applied.
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
