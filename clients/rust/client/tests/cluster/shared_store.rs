//! Processes of one device, with one store: a small document, and a log of what they learn.

use std::{
    fs,
    io::Write,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use blindpipe_client::{
    Client, Entries, FileStore, Part, Result, Store,
    client::ClientEvent,
    e2ee::consent::{Decision, Sensitivity},
    protocol::ids::{ConversationId, Principal},
    testing::TestUser,
};
use serde_json::{Value, json};

use crate::{
    approvals::{SCOPE, TOOL, agent_of, asking, grant, next_request},
    support::{Shared, cluster, direct, folder, history, running, watch},
};

/// The files of a device, which go with the test.
struct Device {
    path: PathBuf,
    cluster: Shared,
    /// How often its tool has run.
    runs: Arc<AtomicU32>,
}

impl Device {
    async fn new(name: &str) -> Self {
        let device = Self {
            cluster: cluster().await,
            path: folder().join(name),
            runs: Arc::default(),
        };
        device.remove();
        device
    }

    /// A process of this device.
    fn builder(&self) -> blindpipe_client::client::ClientBuilder {
        let runs = self.runs.clone();
        let run = move |_, _| {
            runs.fetch_add(1, Ordering::Relaxed);
            async { Ok(Value::Null) }
        };
        Client::builder(self.cluster.node(0).expect("a node"))
            .device_id("shared")
            .tool_with(TOOL, SCOPE, Sensitivity::Low, run)
            .store(FileStore::new(&self.path))
    }

    async fn resumed(&self) -> Client {
        let resumed = self.builder().resume().await;
        resumed.expect("a document").expect("a session")
    }

    fn document(&self) -> Value {
        let text = fs::read(&self.path).expect("a document");
        serde_json::from_slice(&text).expect("JSON")
    }

    fn learned_path(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".learned");
        name.into()
    }

    /// The log as a process of its own has it.
    fn learned(&self, of: &Client) -> Arc<dyn Store> {
        let owner = format!("{}/shared", of.user_id().expect("an id"));
        let learned = FileStore::new(&self.path).learned(&owner);
        learned.expect("a log")
    }

    fn entries(&self, of: &Client) -> Entries {
        let mut all = Entries::default();
        let mut take = |part: Entries| {
            all.pins.extend(part.pins);
            all.marks.extend(part.marks);
            all.begun.extend(part.begun);
        };
        self.learned(of).load_entries(&mut take).expect("a log");
        all
    }

    fn remove(&self) {
        FileStore::new(&self.path).remove().expect("removed");
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        FileStore::new(&self.path).remove().ok();
    }
}

fn is_verified(received: &blindpipe_client::client::Received) -> bool {
    received.opened.as_ref().expect("it opens").sender.verified
}

async fn compare(of: &Client, with: &TestUser) {
    let bob = Principal::User(with.client.user_id().expect("an id"));
    let number = of.safety_number(bob).await.expect("digits");
    assert!(of.verify(bob, &number).expect("stored"));
}

#[tokio::test]
async fn processes_of_a_device_learn_from_each_other() -> Result<()> {
    let device = Device::new("learns").await;
    let ada: TestUser = device.cluster.user_with("ada", device.builder()).await?;
    let bob = device.cluster.user("bob").await?;
    let bobs = direct(&bob, &ada).await;
    bobs.send("hello").await?;
    let other = device.resumed().await;
    let conversation = ada.client.conversation(bobs.id());
    assert!(!is_verified(&history(&conversation).await[0]));
    compare(&other, &bob).await;
    assert!(is_verified(&history(&conversation).await[0]));
    // Of choices, both are kept.
    other.conversation(bobs.id()).choose_clear()?;
    let made = agent_of(&device.cluster, &ada).await;
    let agent = running(asking(device.cluster.builder(&made, 0)?)).await;
    let talk = ada.client.open_agent(made.id).await?;
    grant(&ada, &agent.agent, &talk).await;
    // A request reaches both, and runs once.
    let mut events = watch(&ada).await;
    let mut others = other.events()?;
    talk.send("mail").await?;
    let request = next_request(&mut events).await;
    let again = loop {
        if let ClientEvent::ToolRequest(request) = others.next().await? {
            break request;
        }
    };
    request.remember(30)?;
    let document = device.document();
    assert_eq!(document["clear_chosen"], json!([bobs.id()]));
    let remembered = document["consents"]["remembered"].as_array();
    assert_eq!(remembered.map(Vec::len), Some(1));
    for each in [&request, &again] {
        assert_eq!(each.decide(), Decision::Execute);
    }
    request.execute().await?;
    assert_eq!(again.decide(), Decision::Repeated);
    again.execute().await?;
    assert_eq!(device.runs.load(Ordering::Relaxed), 1);
    assert_eq!(device.entries(&other).begun.len(), 1);
    // A choice that one process takes back is not brought back by the other.
    assert!(other.withdraw(made.id, None)?);
    ada.client.conversation(talk.id()).choose_clear()?;
    let document = device.document();
    assert_eq!(document["consents"]["remembered"], json!([]));
    assert_eq!(document["clear_chosen"].as_array().map(Vec::len), Some(2));
    agent.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_change_is_small_beside_much_that_a_device_knows() -> Result<()> {
    const KNOWN: u128 = 5_000;
    const CHANGES: u64 = 10;
    let device = Device::new("knows").await;
    let ada: TestUser = device.cluster.user_with("ada", device.builder()).await?;
    let bob = device.cluster.user("bob").await?;
    // As another process would have learned it.
    let mut known = Entries::default();
    for number in 0..KNOWN {
        let id = blindpipe_client::e2ee::Principal::User(number.to_be_bytes());
        let pins = json!({ "speaks": true, "linked": null, "keys": [] });
        known.pins.insert(id.to_hex(), pins);
        let id = ConversationId(uuid::Uuid::from_u128(number));
        known.marks.insert(id, json!({ "epoch": 1, "time": 1 }));
    }
    let lock = FileStore::new(&device.path)
        .lock(Part::Document)
        .expect("a lock");
    let learned = device.learned(&ada.client);
    learned.save_entries(&known).expect("kept");
    drop(lock);
    let found = |path: &Path| fs::metadata(path).expect("a file");
    let log = device.learned_path();
    let mut sizes = Vec::new();
    direct(&ada, &bob).await.send("before").await?;
    let document = found(&device.path);
    assert!(document.len() < 4_096, "{} bytes", document.len());
    for number in 0..CHANGES {
        let before = found(&log).len();
        let title = format!("group {number}");
        let group = ada.client.open_group(&title, vec![bob.client.user_id()?]);
        group.await?.send("hello").await?;
        sizes.push(found(&log).len() - before);
    }
    assert!(sizes.iter().all(|it| (1..4_096).contains(it)), "{sizes:?}");
    let after = found(&device.path);
    assert_eq!(
        (after.ino(), after.mtime()),
        (document.ino(), document.mtime())
    );
    assert_eq!(found(&log).mode() & 0o777, 0o600);
    let all = device.entries(&device.resumed().await);
    assert!(all.marks.len() as u64 > KNOWN as u64 + CHANGES);
    assert!(known.pins.keys().all(|name| all.pins.contains_key(name)));
    Ok(())
}

#[tokio::test]
async fn the_document_of_an_earlier_version_is_moved() -> Result<()> {
    let device = Device::new("moved").await;
    let ada: TestUser = device.cluster.user_with("ada", device.builder()).await?;
    let bob = device.cluster.user("bob").await?;
    let bobs = direct(&bob, &ada).await;
    bobs.send("hello").await?;
    compare(&ada.client, &bob).await;
    history(&ada.client.conversation(bobs.id())).await;
    // All in the document, as it was.
    let known = device.entries(&ada.client);
    let mut document = device.document();
    document["pins"] = json!({ "principals": known.pins });
    let marks = known
        .marks
        .iter()
        .map(|(id, it)| (id.to_string(), it.clone()));
    document["marks"] = Value::Object(marks.collect());
    let agent = blindpipe_client::e2ee::Principal::Agent([2; 16]).to_hex();
    document["consents"]["begun"] = json!([[agent, "one"]]);
    drop(ada);
    device.remove();
    let mut options = fs::OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(&device.path).expect("a file");
    write!(file, "{document}").expect("written");
    for _ in 0..2 {
        let again = device.resumed().await;
        let messages = history(&again.conversation(bobs.id())).await;
        assert!(is_verified(&messages[0]));
        let moved = device.document();
        let fields = moved.as_object().expect("an object");
        let wanted = ["clear_chosen", "consents", "keys", "session"];
        assert!(fields.keys().eq(wanted), "{:?}", fields.keys());
        assert_eq!(moved["consents"]["begun"], Value::Null);
        let mut entries = device.entries(&again);
        assert_eq!(std::mem::take(&mut entries.begun).len(), 1);
        assert_eq!(entries.pins, known.pins);
        assert!(known.marks.keys().all(|id| entries.marks.contains_key(id)));
        for path in [&device.path, &device.learned_path()] {
            let mode = fs::metadata(path).expect("a file").mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }
    Ok(())
}

#[tokio::test]
async fn what_a_process_stores_leaves_the_session_that_another_has_renewed() -> Result<()> {
    let cluster = cluster().await;
    let path = folder().join("shared-store");
    fs::remove_file(&path).ok();
    let node = cluster.node(0)?;
    let builder = || {
        let store = FileStore::new(&path);
        Client::builder(node.clone())
            .device_id("shared")
            .store(store)
    };
    let cookie = || -> Value {
        let text = fs::read(&path).expect("a document");
        let document: Value = serde_json::from_slice(&text).expect("JSON");
        document["session"]["cookie"].clone()
    };
    let ada: TestUser = cluster.user_with("ada", builder()).await?;
    let first = cookie();
    let other = builder().resume().await?.expect("a session");
    let renewed = cookie();
    assert_ne!(renewed, first);
    let bob = cluster.user("bob").await?;
    direct(&ada, &bob).await.choose_clear()?;
    assert_eq!(cookie(), renewed);
    // Of many at once, none looks like a thief.
    for _ in 0..4 {
        let resumed = tokio::join!(builder().resume(), builder().resume(), builder().resume());
        assert!(resumed.0?.is_some() && resumed.1?.is_some() && resumed.2?.is_some());
    }
    other.profile().await?;
    ada.client.profile().await?;
    fs::remove_file(&path).ok();
    Ok(())
}
