//! A process that gets no core for a second, as a throttled pod does: it is stopped in the
//! transaction of each route, and the call succeeds all the same.
//!
//! The proxy before Postgres sees a transaction begin and stops the node's process then, so Postgres
//! waits for the next statement of an open transaction. A new route joins by itself.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use blindpipe::{
    limits::table::Limit,
    routes::{self, Access, Route},
};
use devcluster::services::send_signal;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{
    api::ownership::{self, Stage},
    support::{
        Answer, Caller, PASSWORD, ProcessNode, User, services, serving, spawn, through, ulid,
    },
};

const PAUSE: Duration = Duration::from_secs(1);
/// The life of the stage's access tokens, with a margin.
const TOKEN_LIFE: Duration = Duration::from_secs(200);

/// Fewest routes that are stopped in a transaction. The others begin none: a statement that stands
/// alone is never idle, and some refuse what the test presents before they begin.
const MIN_STOPPED_ROUTES: usize = 45;

/// Sends hold hot locks, so their transactions end after a quarter of a second.
const MAY_BE_REFUSED: [&str; 3] = [
    "POST /conversations/{conversation_id}/messages",
    "POST /agents/{agent_id}/messages",
    "POST /agents/{agent_id}/conversations/{conversation_id}/messages",
];

/// The routes that end what others need, in the order in which they are called at last.
const LAST: [&str; 10] = [
    "DELETE /objects/{object_key}",
    "DELETE /groups/{conversation_id}/agent-instances/{instance_id}",
    "DELETE /groups/{conversation_id}/members/{principal_id}",
    "DELETE /relations/{relation_id}",
    "POST /agents/{agent_id}/token/regenerate",
    "DELETE /agents/{agent_id}/token",
    "DELETE /agents/{agent_id}",
    "POST /auth/reset-password",
    "POST /auth/logout",
    "DELETE /users/me",
];

/// Stops a process when it begins a transaction.
#[derive(Clone, Default)]
struct Stopper {
    pid: Arc<AtomicU32>,
    is_armed: Arc<AtomicBool>,
    stops: Arc<AtomicUsize>,
}

impl Stopper {
    /// Starts a proxy before a port of this machine; returns its port.
    async fn before(&self, port: u16) -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let own = listener.local_addr().expect("an address").port();
        let stopper = self.clone();
        spawn(async move {
            loop {
                let (client, _) = listener.accept().await.expect("a client");
                let server = TcpStream::connect(("127.0.0.1", port)).await;
                let server = server.expect("Postgres");
                let stopper = stopper.clone();
                spawn(async move { stopper.carry(client, server).await });
            }
        });
        own
    }

    async fn carry(&self, client: TcpStream, server: TcpStream) {
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
        let (mut some, mut is_of_requests) = (vec![0; 64 * 1024], false);
        while let Ok(n @ 1..) = from_client.read(&mut some).await {
            is_of_requests |= is_of_requests_pool(&some[..n]);
            if to_server.write_all(&some[..n]).await.is_err() {
                return;
            }
            if is_of_requests && has(&some[..n], b"begin\0") {
                self.stop().await;
            }
        }
    }

    /// Stops the process for a second, if the stopper is armed.
    async fn stop(&self) {
        if !self.is_armed.load(Ordering::SeqCst) {
            return;
        }
        let pid = self.pid.load(Ordering::SeqCst);
        send_signal(pid, "STOP");
        // Real time: the clock of Postgres's time-out.
        tokio::time::sleep(PAUSE).await;
        self.stops.fetch_add(1, Ordering::SeqCst);
        send_signal(pid, "CONT");
    }

    /// Runs a call with the stopper armed; returns the number of stops as well.
    async fn during(&self, call: impl Future<Output = Answer>) -> (Answer, usize) {
        let before = self.stops.load(Ordering::SeqCst);
        self.is_armed.store(true, Ordering::SeqCst);
        let answer = call.await;
        self.is_armed.store(false, Ordering::SeqCst);
        (answer, self.stops.load(Ordering::SeqCst) - before)
    }
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Whether a connection that says this at its start serves requests, and not jobs or the sweep.
fn is_of_requests_pool(bytes: &[u8]) -> bool {
    has(bytes, b"application_name\0blindpipe test\0")
        || has(bytes, b"application_name\0blindpipe test send\0")
}

fn name_of(route: &Route) -> String {
    format!("{} {}", route.method, route.path)
}

/// The body of a call that its route accepts, as far as the stage has what it needs.
async fn body(name: &str, stage: &Stage, caller: &Caller) -> Value {
    let (owner, real) = (&stage.owner, &stage.real);
    let key = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
    let fresh = format!("{}@example.org", ulid()).to_lowercase();
    match name {
        "POST /auth/send-code" => {
            json!({ "email": fresh, "scene": "login", "turnstile_token": "dev-pass" })
        }
        "POST /auth/register" => {
            let code = caller.code(&fresh, "register").await;
            User::registration(&fresh, "new", &code)
        }
        "POST /auth/login" => json!({ "email": owner.email, "account_password": PASSWORD,
            "turnstile_token": "dev-pass" }),
        "POST /auth/login-code" => {
            let code = caller.code(&owner.email, "login").await;
            json!({ "email": owner.email, "code": code })
        }
        "POST /auth/reset-password" => {
            let email = &stage.other_user.email;
            let code = caller.code(email, "reset").await;
            json!({ "email": email, "code": code, "new_account_password": PASSWORD })
        }
        "POST /users/me/password" => {
            json!({ "current_password": PASSWORD, "new_account_password": PASSWORD })
        }
        "PATCH /users/me" => json!({ "display_name": "owner" }),
        "POST /users/me/email" => json!({ "email": fresh }),
        "POST /users/me/email/confirm" => json!({ "email": fresh, "code": "00000000" }),
        "POST /keys/backup" => json!({
            "device_id": owner.device_id, "public_key": key, "signing_public_key": key, "backup_a": "AQ==",
            "backup_b": "AQ==", "argon2_salt": key, "argon2_params": { "m": 19456, "t": 2, "p": 1 } }),
        "POST /keys/rotation/request" => json!({ "conversation_id": real["conversation_id"] }),
        "POST /agents" => json!({ "display_name": "another" }),
        "POST /conversations" => json!({ "type": "direct", "user_id": real["principal_id"] }),
        "POST /groups" => json!({ "title": "another", "member_ids": [] }),
        "POST /files" | "POST /agents/{agent_id}/files" => json!({ "filename": "x", "size": 5,
            "content_type": "text/plain", "conversation_id": real["conversation_id"] }),
        "POST /files/confirm" => {
            json!({ "upload_id": real["upload_id"], "sha256": "0".repeat(64) })
        }
        "POST /shares" => {
            let end = stage.node.world.clock.now() + chrono::TimeDelta::hours(1);
            let end = end.to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
            json!({ "contact": true, "expires_at": end })
        }
        "PATCH /agents/{agent_id}" => json!({ "display_name": "helper" }),
        "POST /agents/{agent_id}/messages" => json!({ "conversation_id": real["conversation_id"],
            "payload": { "type": "text", "text": "x" } }),
        "PUT /agents/{agent_id}/webhook" => json!({ "url": "http://127.0.0.1:1/" }),
        "POST /agents/{agent_id}/grants/request" => {
            json!({ "conversation_id": real["conversation_id"], "scopes": ["notes.read"] })
        }
        "POST /agents/{agent_id}/artifact-requests" => json!({ "request_id": ulid().to_string(),
            "conversation_id": real["conversation_id"], "user_id": owner.id, "tool": "read",
            "scope": "notes.read", "payload": { "type": "encrypted" } }),
        _ => ownership::body(name),
    }
}

/// Calls a route as the stage's owner or agent.
async fn call(route: &Route, stage: &Stage, base: &str, body: &Value) -> Answer {
    let name = name_of(route);
    let (owner, other) = (stage.owner.at(base), stage.other_user.at(base));
    match name.as_str() {
        "POST /auth/refresh" | "POST /auth/logout" => return other.with_cookie(route.path).await,
        _ => {}
    }
    let agent = stage.agent.at(base);
    let caller = match route.caller {
        Access::Agent => &agent.caller,
        Access::Public | Access::User | Access::Either => &owner.caller,
    };
    let path = stage.path(route, true, None);
    let request = caller.request(route.method.clone(), path);
    caller.send(request.json(body)).await
}

/// The routes that change something; what ends the rest comes last.
fn changing() -> Vec<Route> {
    let table = routes::table().into_iter();
    let mut routes: Vec<Route> = table.filter(|route| route.method != Method::GET).collect();
    routes.sort_by_key(|route| {
        LAST.iter()
            .position(|last| *last == name_of(route))
            .map_or(0, |n| n + 1)
    });
    routes
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "one of the longest; `make test-full` runs it"]
async fn every_route_survives_a_pause_of_a_second_in_its_transaction() {
    let mut stage = Box::pin(Stage::new()).await;
    let phone = stage.owner.login(&stage.node, Some("phone")).await;
    stage.real.insert("device_id", phone.device_id.clone());
    stage.real.insert("share_id", "none".to_owned());
    let stopper = Stopper::default();
    let port = stopper.before(services().postgres.port()).await;
    let url = through(Some(port), &serving(&stage.node.world.database));
    let limits = Limit::ALL
        .iter()
        .map(|limit| format!("{}=100000/s", limit.scope()));
    let limits = limits.collect::<Vec<_>>().join(",");
    // The wait of production: an idle transaction lives for two seconds.
    let settings = [
        ("DATABASE_URL", url.as_str()),
        ("DATABASE_TIMEOUT_MS", "1000"),
        ("LIMIT_OVERRIDES", limits.as_str()),
    ];
    let node = ProcessNode::start_with(&stage.node, &settings).await;
    stopper.pid.store(node.pid(), Ordering::SeqCst);
    let mut signed_in = Instant::now();
    let mut stopped = 0;
    for route in changing() {
        if signed_in.elapsed() > TOKEN_LIFE {
            let device = stage.owner.device_id.clone();
            stage.owner = stage.owner.login(&stage.node, Some(&device)).await;
            signed_in = Instant::now();
        }
        let name = name_of(&route);
        let body = body(&name, &stage, &stage.node.anon().at(&node.base)).await;
        let (answer, stops) = stopper
            .during(call(&route, &stage, &node.base, &body))
            .await;
        stopped += usize::from(stops > 0);
        match answer.status {
            503 if MAY_BE_REFUSED.contains(&name.as_str()) => {
                assert_eq!(answer.header("retry-after"), Some("1"), "{name}");
            }
            // Routes that V1 does not have.
            501 => {}
            status => assert!(status < 500, "{name}: {answer:?}"),
        }
    }
    assert!(stopped >= MIN_STOPPED_ROUTES, "{stopped}");
}
