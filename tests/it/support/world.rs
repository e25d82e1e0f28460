//! Nodes of one cluster in this process.

use std::{collections::HashMap, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use blindpipe::{
    clock::Clock,
    node::{self, Node},
    telemetry,
};
use chrono::{DateTime, Utc};

use super::{
    client::{Agent, Caller, User, ulid},
    secrets, services,
};

/// The state that the nodes of one test share.
pub struct World {
    pub clock: Clock,
    /// The URL of the database as its owner. Nodes serve as another role.
    pub database: String,
    pub mail_dir: std::path::PathBuf,
    /// The folder of the object store, unless a test has another store.
    pub objects_dir: std::path::PathBuf,
    settings: HashMap<String, String>,
    /// The number of lines that the nodes of this process had logged before.
    first_line: usize,
}

impl Drop for World {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let leak = secrets::find(&secrets::lines_since(self.first_line));
            assert_eq!(leak, None, "a node has logged a secret");
            services::drop_database(&self.database);
        }
        std::fs::remove_dir_all(&self.mail_dir).ok();
        std::fs::remove_dir_all(&self.objects_dir).ok();
    }
}

impl World {
    /// Creates a world with a database and a prefix of its own. `settings` extend the default ones,
    /// whose `LIMIT_OVERRIDES` are generous enough for a test's set-up. `TEST_POOLER` and
    /// `TEST_REDIS` put other servers into all worlds whose settings name none.
    pub async fn new(settings: &[(&str, &str)]) -> Arc<World> {
        Self::behind(services::chosen_pooler().await, settings).await
    }

    /// Like [`new`](Self::new), with nodes that reach Postgres through the pooler on this port.
    pub async fn behind(pooler: Option<u16>, settings: &[(&str, &str)]) -> Arc<World> {
        if let Ok(filter) = std::env::var("LOG") {
            telemetry::start(&filter, None);
        }
        let database = services::database().await;
        let name = ulid().to_string();
        let mail_dir = std::env::temp_dir().join(format!("blindpipe-mail-{name}"));
        let objects_dir = std::env::temp_dir().join(format!("blindpipe-objects-{name}"));
        let key = |n: u8| BASE64.encode([n; 32]);
        let mut all: HashMap<String, String> = [
            ("PROFILE", "dev".to_owned()),
            ("NODE_NAME", "test".to_owned()),
            ("LISTEN_ADDR", "127.0.0.1:0".to_owned()),
            ("ADMIN_ADDR", "127.0.0.1:0".to_owned()),
            ("TRUSTED_PROXIES", "127.0.0.1/32".to_owned()),
            ("PUBLIC_URL", "https://localhost".to_owned()),
            ("ALLOWED_ORIGINS", "https://localhost".to_owned()),
            ("RP_ORIGIN", "https://localhost".to_owned()),
            (
                "DATABASE_URL",
                services::through(pooler, &services::serving(&database)),
            ),
            ("DATABASE_REQUIRE_DURABLE", "false".to_owned()),
            ("REDIS_URL", services::chosen_redis().await),
            ("REDIS_PREFIX", name),
            ("ACCESS_TOKEN_KEYS", format!("k1:{}", key(1))),
            ("SERVER_SECRET", key(2)),
            ("MAIL_URL", format!("file://{}", mail_dir.display())),
            (
                "OBJECT_STORE_URL",
                format!("file://{}", objects_dir.display()),
            ),
            ("DRAIN_LAG_SECONDS", "0".to_owned()),
            ("QUICK_HASHES", "true".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        // A busy machine is slow. Only a test with its own Postgres or Redis wants to see a node's
        // timeouts.
        for (server, patience, ms) in [
            ("DATABASE_URL", "DATABASE_TIMEOUT_MS", "10000"),
            ("REDIS_URL", "REDIS_TIMEOUT_MS", "2000"),
        ] {
            if !settings.iter().any(|(name, _)| *name == server) {
                all.insert(patience.to_owned(), ms.to_owned());
            }
        }
        all.extend(
            settings
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        if pooler.is_some() {
            let wait = all
                .get("DATABASE_TIMEOUT_MS")
                .map_or("1000", String::as_str);
            let wait = wait.parse().expect("milliseconds");
            services::give_role_timeouts(&database, Duration::from_millis(wait)).await;
        }
        Arc::new(World {
            clock: Clock::default(),
            database,
            mail_dir,
            objects_dir,
            settings: all,
            first_line: secrets::record(),
        })
    }

    /// The environment of a node that runs as a process of its own.
    pub fn environment(&self) -> impl Iterator<Item = (&str, &str)> {
        self.settings
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// A setting by its name.
    pub fn setting(&self, name: &str) -> &str {
        &self.settings[name]
    }

    /// Starts one more node.
    pub async fn node(self: &Arc<Self>) -> TestNode {
        self.node_with(&[]).await
    }

    /// Starts one more node with additional settings.
    pub async fn node_with(self: &Arc<Self>, own: &[(&str, &str)]) -> TestNode {
        let given = |name: &str| {
            own.iter()
                .find(|(own, _)| *own == name)
                .map(|(_, value)| (*value).to_owned())
        };
        let setting = |name: &str| given(name).or_else(|| self.settings.get(name).cloned());
        let config = node::read_settings(setting).expect("settings");
        let node = Node::start(config, self.clock.clone())
            .await
            .expect("a node");
        TestNode {
            base: format!("http://{}", node.address),
            admin: format!("http://{}", node.admin_address),
            world: self.clone(),
            node: Some(node),
        }
    }

    /// Moves the clock of nodes and database.
    pub async fn advance(&self, by: Duration) {
        self.clock.advance(by);
        let sql = format!(
            "update test_clock set ahead = ahead + interval '{} ms'",
            by.as_millis()
        );
        services::psql(&self.database, &sql).await;
    }

    /// The newest code mailed to `email`.
    pub async fn mailed_code(&self, email: &str) -> String {
        for _ in 0..200 {
            if let Some(code) = find_code(&self.mail_dir, email) {
                secrets::remember(&code);
                return code;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("no mail for {email}");
    }
}

/// The code in a mail to `email` in a folder. Mails have random names; reading one removes it, so
/// the next is newer.
pub fn find_code(mails: &std::path::Path, email: &str) -> Option<String> {
    for file in std::fs::read_dir(mails).ok()?.flatten() {
        let text = std::fs::read_to_string(file.path()).ok()?;
        if text.contains(&format!("To: {email}")) {
            let mut lines = text.lines().map(str::trim);
            let code = lines
                .find(|line| line.len() == 8 && line.bytes().all(|byte| byte.is_ascii_digit()));
            // Other mails have no code.
            let Some(code) = code.map(str::to_owned) else {
                continue;
            };
            std::fs::remove_file(file.path()).ok();
            return Some(code);
        }
    }
    None
}

/// A node and its world.
pub struct TestNode {
    pub base: String,
    pub admin: String,
    pub world: Arc<World>,
    node: Option<Node>,
}

impl TestNode {
    /// An unauthenticated caller.
    pub fn anon(&self) -> Caller {
        Caller::new(self)
    }

    /// A user, registered through the API on this node.
    pub async fn user(&self, name: &str) -> User {
        User::register(self, name).await
    }

    /// An agent of `owner`, created through the API on this node.
    pub async fn agent(&self, owner: &User, name: &str) -> Agent {
        Agent::create(self, owner, name).await
    }

    /// Moves the clock of all nodes of this world.
    pub async fn advance(&self, by: Duration) {
        self.world.advance(by).await;
    }

    /// Moves the clock until it shows `moment`, however long the test has taken so far.
    pub async fn advance_to(&self, moment: DateTime<Utc>) {
        let left = moment - self.world.clock.now();
        self.advance(left.to_std().expect("a moment that is still to come"))
            .await;
    }

    /// Drains the node.
    pub async fn drain(mut self) {
        self.node.take().expect("it runs").drain().await;
    }

    /// The sum of a metric of this process over lines that contain all of `having`.
    pub async fn metric(&self, name: &str, having: &[&str]) -> f64 {
        let text = reqwest::get(format!("{}/metrics", self.admin))
            .await
            .expect("metrics")
            .text()
            .await
            .expect("text");
        let lines = text
            .lines()
            .filter(|line| line.starts_with(name) && having.iter().all(|part| line.contains(part)));
        lines
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            node.crash();
        }
    }
}

/// `N` nodes of a world of their own, with limits that are generous enough for a test's set-up.
pub async fn nodes<const N: usize>() -> [TestNode; N] {
    nodes_with(&[]).await
}

/// `N` nodes of a world of their own with additional settings.
pub async fn nodes_with<const N: usize>(settings: &[(&str, &str)]) -> [TestNode; N] {
    let world = World::new(settings).await;
    let mut nodes = Vec::with_capacity(N);
    for _ in 0..N {
        nodes.push(world.node().await);
    }
    nodes
        .try_into()
        .unwrap_or_else(|_| unreachable!("as many as were pushed"))
}

/// Hashes as costly as in production, for a test of what they cost.
pub const FULL_HASHES: (&str, &str) = ("QUICK_HASHES", "false");

/// A `SERVER_SECRET` of secrets with these names.
pub fn server_secrets(names: &[u8]) -> String {
    let texts = names.iter().map(|n| BASE64.encode([*n; 32]));
    texts.collect::<Vec<_>>().join(",")
}
