//! Files, objects and shares. Stories that concern the bytes run on a local folder and on an S3
//! server, and some with addresses that the server itself signs.

/// Runs a story on stores, each as a test of its own: `story::folder`, `story::bucket` (S3),
/// `story::direct` (S3, to which clients write). Reads of the last two take the same path.
macro_rules! on_stores {
    ($story:ident: $($store:ident),+) => {
        mod $story {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $store() {
                    let kind = crate::files::StoreKind::named(stringify!($store));
                    Box::pin(super::$story(kind)).await;
                }
            )+
        }
    };
}

mod attacks;
mod crashes;
mod elsewhere;
mod endings;
pub mod faults;
mod objects;
mod parts;
mod places;
mod races;
mod share_page;
mod shares;
mod sizes;
mod storage;
mod uploads;

use std::{path::PathBuf, time::Duration};

use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::{
    Agent, Answer, Caller, S3Server, TestNode, User, nodes_with, request_upkeep, services, ulid,
};

const LIMITS: &str = "agent_file_upload=10000/s,user_file_upload=10000/s,agent_object_get=10000/s,\
                      user_object_get=10000/s,default_user=10000/s,agent_tier_1=10000/s,default_ip=10000/s,share_open=10000/s";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    Folder,
    Bucket,
    /// A bucket that clients write to themselves.
    Direct,
}

impl StoreKind {
    fn named(name: &str) -> Self {
        match name {
            "folder" => StoreKind::Folder,
            "bucket" => StoreKind::Bucket,
            "direct" => StoreKind::Direct,
            _ => panic!("no such store: {name}"),
        }
    }
}

/// A user and her agent, two nodes, and a conversation.
pub struct Stage {
    pub nodes: [TestNode; 2],
    pub alice: User,
    pub agent: Agent,
    pub conversation: String,
    pub s3: Option<S3Server>,
}

impl Stage {
    pub async fn new(kind: StoreKind) -> Self {
        Self::with(kind, &[]).await
    }

    pub async fn with(kind: StoreKind, more: &[(&str, &str)]) -> Self {
        Self::behind(kind, more, async |s3| s3.address).await
    }

    /// A stage whose nodes reach the bucket at the address that `before` returns.
    pub async fn behind(
        kind: StoreKind,
        more: &[(&str, &str)],
        before: impl AsyncFnOnce(&S3Server) -> std::net::SocketAddr,
    ) -> Self {
        // The template of databases starts the services, and with them the provider of TLS.
        tokio::task::spawn_blocking(services)
            .await
            .expect("no panic");
        let s3 = match kind {
            StoreKind::Folder => None,
            StoreKind::Bucket | StoreKind::Direct => Some(S3Server::start().await),
        };
        let bucket = match &s3 {
            Some(s3) => S3Server::settings(before(s3).await),
            None => Vec::new(),
        };
        let mut settings = vec![("LIMIT_OVERRIDES", LIMITS)];
        settings.extend(bucket.iter().map(|(name, value)| (*name, value.as_str())));
        if kind == StoreKind::Direct {
            settings.push(("OBJECT_STORE_DIRECT", "true"));
        }
        settings.extend(more);
        let nodes = nodes_with(&settings).await;
        let alice = nodes[0].user("alice").await;
        let agent = nodes[0].agent(&alice, "helper").await;
        let conversation = alice.talk_to(&agent).await;
        Stage {
            nodes,
            alice,
            agent,
            conversation,
            s3,
        }
    }

    pub fn database(&self) -> &str {
        &self.nodes[0].world.database
    }

    /// Requests an upload as the agent.
    pub async fn request(&self, size: u64) -> Value {
        request(&self.agent, &self.agent_files(), &self.conversation, size).await
    }

    /// The time so many seconds from now.
    pub fn after(&self, seconds: u64) -> Value {
        json!(self.nodes[0].world.clock.now() + Duration::from_secs(seconds))
    }

    pub fn agent_files(&self) -> String {
        format!("/agents/{}/files", self.agent.id)
    }

    /// A file of the agent: the answer to its confirmation.
    pub async fn file(&self, bytes: &[u8]) -> Value {
        let upload = self.request(bytes.len() as u64).await;
        bring(&self.agent, &upload, bytes).await.expect(200);
        let answer = confirm(&self.agent, &upload, bytes).await.expect(200);
        answer.data().clone()
    }

    /// The files of the store, whole or not.
    pub fn stored(&self) -> Vec<PathBuf> {
        let folder = match &self.s3 {
            Some(s3) => s3.bucket(),
            None => self.nodes[0].world.objects_dir.clone(),
        };
        let mut files = Vec::new();
        let mut folders = vec![folder];
        while let Some(folder) = folders.pop() {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            for path in entries.map(|entry| entry.path()) {
                match path.is_dir() {
                    true => folders.push(path),
                    false => files.push(path),
                }
            }
        }
        files
    }

    /// The sizes of the files that a store is still receiving, besides those that it has.
    pub fn receiving(&self) -> Vec<u64> {
        let mut files = self.stored();
        // The S3 server has them beside its buckets.
        if let Some(s3) = &self.s3 {
            let buckets = s3.bucket();
            let beside = std::fs::read_dir(buckets.parent().expect("a folder"));
            let beside = beside
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path());
            files.extend(beside.filter(|path| path.extension().is_some_and(|end| end == "part")));
        }
        let sizes = files.into_iter().filter_map(|file| file.metadata().ok());
        sizes
            .filter(|file| file.is_file())
            .map(|file| file.len())
            .collect()
    }

    /// The files of the bucket's multipart uploads: their parts, their attributes and their ids.
    pub fn parts(&self) -> Vec<PathBuf> {
        let s3 = self.s3.as_ref().expect("a bucket");
        let buckets = s3.bucket();
        let beside = std::fs::read_dir(buckets.parent().expect("a folder")).expect("a folder");
        let beside = beside.flatten().map(|entry| entry.path());
        beside
            .filter(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                name.contains("upload")
            })
            .collect()
    }

    /// Waits until no multipart upload is open. The nodes' own jobs bring that about.
    pub async fn until_no_parts(&self) {
        for turn in 0..1_600 {
            if turn % 20 == 0 {
                self.ask_for("sweep_objects").await;
            }
            if self.parts().is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("{:?}", self.parts());
    }

    /// Waits until the store has so many files. The nodes' own jobs bring that about.
    pub async fn until_stored(&self, n: usize) {
        for turn in 0..1_600 {
            if turn % 20 == 0 {
                self.ask_for("sweep_objects").await;
            }
            if self.stored().len() == n {
                return;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("{:?}", self.stored());
    }

    /// Asks the nodes for a kind of upkeep, which they otherwise do at intervals of real time.
    pub async fn ask_for(&self, upkeep: &str) {
        request_upkeep(self.database(), upkeep).await;
    }
}

/// Requests an upload; the answer's data.
pub async fn request(caller: &Caller, files: &str, conversation: &str, size: u64) -> Value {
    let answer = ask(caller, files, conversation, size).await.expect(201);
    answer.data().clone()
}

pub async fn ask(caller: &Caller, files: &str, conversation: &str, size: u64) -> Answer {
    let body = json!({
        "filename": "notes.txt", "content_type": "text/plain", "size": size, "conversation_id": conversation,
    });
    caller.post(files, body).await
}

/// The path of an address, for a node of a test to serve.
pub fn path_of(url: &str) -> &str {
    url.strip_prefix("https://localhost").unwrap_or(url)
}

/// Brings the bytes by the signed address alone.
pub async fn bring(caller: &Caller, upload: &Value, bytes: impl AsRef<[u8]>) -> Answer {
    let bytes = bytes.as_ref().to_vec();
    let url = upload["upload_url"].as_str().expect("a URL");
    match url.starts_with("http://") {
        // The address of the store itself.
        true => {
            let answer = reqwest::Client::new().put(url).body(bytes).send().await;
            let answer = answer.expect("an answer");
            Answer {
                status: answer.status().as_u16(),
                headers: answer.headers().clone(),
                body: Value::Null,
            }
        }
        false => {
            let stranger = caller.stranger();
            let request = stranger.request(Method::PUT, path_of(url));
            stranger.send(request.body(bytes)).await
        }
    }
}

/// Brings the bytes by token alone.
pub async fn bring_by_token(
    caller: &Caller,
    files: &str,
    upload: &Value,
    body: impl Into<reqwest::Body>,
) -> Answer {
    let id = upload["upload_id"].as_str().expect("an id");
    let request = caller.request(Method::PUT, format!("{files}/{id}/upload"));
    caller.send(request.body(body)).await
}

pub async fn confirm(caller: &Caller, upload: &Value, bytes: &[u8]) -> Answer {
    let body = json!({ "upload_id": upload["upload_id"], "sha256": hash(bytes) });
    caller.post("/files/confirm", body).await
}

pub fn hash(bytes: &[u8]) -> String {
    base16ct::lower::encode_string(&Sha256::digest(bytes))
}

/// Bytes that compress badly and repeat nowhere.
pub fn noise(n: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(n + 8);
    while bytes.len() < n {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(n);
    bytes
}

/// Status, headers and bytes of a download.
pub async fn fetch(
    caller: &Caller,
    path: impl AsRef<str>,
    headers: &[(&str, &str)],
) -> (Answer, Vec<u8>) {
    let mut request = caller.request(Method::GET, path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await.expect("an answer");
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let bytes = response.bytes().await.expect("a whole body").to_vec();
    let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    let answer = Answer {
        status,
        headers,
        body,
    };
    (answer, bytes)
}

/// The number of rows that a query counts.
pub async fn count(url: &str, sql: &str) -> i64 {
    let client = crate::support::connect(url).await;
    client.query_one(sql, &[]).await.expect(sql).get(0)
}

/// An id that nobody has.
pub fn unknown() -> String {
    ulid().to_string()
}
