//! The bytes of accounts, and the deletion of files.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{Stage, StoreKind, ask, bring, confirm, count, path_of, request};
use crate::support::{Caller, User, connect};

/// An account has room for a thousand bytes.
const SMALL: &[(&str, &str)] = &[("FILES_BYTES_PER_ACCOUNT", "1000")];

async fn storage(caller: &Caller) -> Value {
    caller.get("/limits").await.expect(200).body["storage"].clone()
}

async fn used(caller: &Caller) -> u64 {
    storage(caller).await["used_bytes"].as_u64().expect("bytes")
}

/// The sums are those of the uploads, whatever has happened.
async fn assert_exact(stage: &Stage) {
    let wrong = "select count(*) from (
        select coalesce(a.owner_user_id, u.uploader_id) as user_id, sum(u.size) as bytes
        from upload u left join agent a on a.agent_id = u.uploader_id
        where u.state in ('pending', 'uploaded') or (u.state = 'confirmed' and u.object_key is not null)
        group by 1) real full join account_storage s using (user_id)
        where coalesce(real.bytes, 0) <> coalesce(s.used_bytes, 0)";
    assert_eq!(count(stage.database(), wrong).await, 0);
}

/// A file of the user's; its path.
async fn file_of(user: &User, conversation: &str, bytes: &[u8]) -> String {
    let upload = request(user, "/files", conversation, bytes.len() as u64).await;
    bring(user, &upload, bytes).await.expect(200);
    let file = confirm(user, &upload, bytes).await.expect(200);
    format!(
        "/objects/{}",
        file.data()["object_key"].as_str().expect("a key")
    )
}

async fn an_account_stores_as_much_as_it_may(kind: StoreKind) {
    let stage = Stage::with(kind, SMALL).await;
    let [_, b] = &stage.nodes;
    let (alice, agent) = (&stage.alice, &stage.agent);
    let none = json!({ "limit_bytes": 1000, "used_bytes": 0 });
    assert_eq!(storage(alice).await, none);
    // The agent's bytes are its owner's, from the request on.
    let kept = stage.request(600).await;
    assert_eq!((used(alice).await, used(&agent.on(b)).await), (600, 600));
    let refused = ask(&alice.on(b), "/files", &stage.conversation, 401).await;
    let refused = refused.refused(403, "STORAGE_LIMIT_EXCEEDED");
    let params = &refused.body["error"]["params"];
    assert_eq!(
        (&params["limit_bytes"], &params["used_bytes"]),
        (&json!(1000), &json!(600))
    );
    let left = request(alice, "/files", &stage.conversation, 400).await;
    ask(agent, &stage.agent_files(), &stage.conversation, 1)
        .await
        .refused(403, "STORAGE_LIMIT_EXCEEDED");
    // Nobody else is concerned.
    let bob = b.user("bob").await;
    assert_eq!(storage(&bob).await, none);

    // Other bytes than announced are given back, and a file is not charged again.
    let bytes = vec![7; 600];
    bring(agent, &kept, &bytes).await.expect(200);
    confirm(agent, &kept, &bytes).await.expect(200);
    bring(alice, &left, vec![1; 400]).await.expect(200);
    assert_eq!(used(alice).await, 1000);
    confirm(alice, &left, b"others")
        .await
        .refused(409, "SHA256_MISMATCH");
    assert_eq!(used(alice).await, 600);
    assert_exact(&stage).await;
}

on_stores!(an_account_stores_as_much_as_it_may: folder, direct);

/// Fifty requests for the last three hundred bytes, on two nodes: three get them.
#[tokio::test(flavor = "multi_thread")]
async fn requests_at_once_do_not_exceed_the_quota() {
    let stage = Stage::with(StoreKind::Folder, SMALL).await;
    let [a, b] = &stage.nodes;
    request(&stage.alice, "/files", &stage.conversation, 700).await;
    let asks = (0..50).map(|n| {
        let caller = stage.alice.on([a, b][n % 2]);
        let conversation = &stage.conversation;
        async move { ask(&caller, "/files", conversation, 100).await }
    });
    let answers = join_all(asks).await;
    let taken = answers.iter().filter(|answer| answer.status == 201).count();
    assert_eq!(taken, 3);
    assert_eq!(used(&stage.alice).await, 1000);
    assert_exact(&stage).await;
}

/// Whatever ends an upload gives its bytes back, once, also in the middle of a batch of others.
#[tokio::test(flavor = "multi_thread")]
async fn ended_uploads_give_their_bytes_back() {
    let stage = Stage::new(StoreKind::Folder).await;
    let bob = stage.nodes[1].user("bob").await;
    let group = stage.alice.group_with(&[&bob]).await;
    for n in 1..=3 {
        request(&bob, "/files", &group, n).await;
        stage.request(10 * n).await;
    }
    let path = file_of(&bob, &group, b"four").await;
    assert_eq!((used(&bob).await, used(&stage.alice).await), (10, 60));
    let day = std::time::Duration::from_secs(86_401);
    stage.nodes[0].advance(day).await;
    stage.ask_for("expire_uploads").await;
    let open = "select count(*) from upload where state = 'pending'";
    for _ in 0..400 {
        if count(stage.database(), open).await == 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
    let bob = bob.login(&stage.nodes[0], Some(&bob.device_id)).await;
    assert_eq!(used(&bob).await, 4);
    assert_exact(&stage).await;
    // The store's row goes without the upload being asked, as when nobody reads it any more.
    let client = connect(stage.database()).await;
    let sql = "delete from object where object_key is not null";
    client.batch_execute(sql).await.expect("gone");
    assert_eq!(used(&bob).await, 0);
    bob.get(path).await.refused(404, "NOT_FOUND");
    assert_exact(&stage).await;
}

/// A file goes for its uploader, and for who manages the group. Its shares go with it.
async fn a_file_is_deleted_by_those_who_may(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let [a, b] = &stage.nodes;
    let (bob, carol, mallory) = (
        a.user("bob").await,
        a.user("carol").await,
        b.user("mallory").await,
    );
    let group = stage.alice.group_with(&[&bob, &carol]).await;
    let own = file_of(&bob, &group, b"one").await;
    let managed = file_of(&bob, &group, b"two").await;
    let upload = request(&bob, "/files", &group, 5).await;
    bring(&bob, &upload, b"three").await.expect(200);
    let file = confirm(&bob, &upload, b"three").await.expect(200);
    let kept = format!(
        "/objects/{}",
        file.data()["object_key"].as_str().expect("a key")
    );
    let body = json!({ "file_id": file.data()["file_id"], "expires_at": stage.after(3600) });
    let share = bob.post("/shares", body).await.expect(201);
    let share = path_of(share.data()["url"].as_str().expect("a URL")).to_owned();
    bob.say(&group, "see the file").await.expect(201);

    for path in [&own, &managed, &kept] {
        mallory.delete(path).await.refused(404, "NOT_FOUND");
        b.anon().delete(path).await.refused(401, "UNAUTHORIZED");
        carol.delete(path).await.refused(403, "FORBIDDEN");
    }
    bob.on(b).delete(&own).await.expect(200);
    bob.delete(&own).await.refused(404, "NOT_FOUND");
    carol.get(&own).await.refused(404, "NOT_FOUND");
    stage.alice.delete(&managed).await.expect(200);
    assert_eq!(used(&bob).await, 5);
    a.anon().get(&share).await.expect(200);
    // Who has left a group may still take back what is charged.
    let leave = format!("/groups/{group}/members/{}", bob.id);
    bob.delete(leave).await.expect(200);
    bob.delete(&kept).await.expect(200);
    a.anon().get(&share).await.refused(404, "NOT_FOUND");
    assert_eq!(used(&bob).await, 0);
    let history = format!("/conversations/{group}/messages");
    let history = carol.get(history).await.expect(200);
    assert!(history.body.to_string().contains("see the file"));
    if kind == StoreKind::Folder {
        stage.until_stored(0).await;
    }
    assert_exact(&stage).await;

    // The members of a pair are equal: the uploader alone deletes.
    let of_agent = stage.file(b"of the agent").await;
    let path = format!(
        "/objects/{}",
        of_agent["object_key"].as_str().expect("a key")
    );
    stage.alice.delete(&path).await.refused(403, "FORBIDDEN");
    stage.agent.on(b).delete(&path).await.expect(200);
    stage.alice.get(&path).await.refused(404, "NOT_FOUND");
}

on_stores!(a_file_is_deleted_by_those_who_may: folder, bucket);
