//! The end of bytes: unconfirmed uploads, ended relations, erased accounts and agents.

use std::time::Duration;

use serde_json::json;

use super::{Stage, StoreKind, bring, confirm, count, request};
use crate::support::{User, connect};

/// Alice, signed in again: an access token does not live for days.
async fn back(stage: &Stage) -> User {
    let device = Some(stage.alice.device_id.as_str());
    stage.alice.login(&stage.nodes[0], device).await
}

const DAY: Duration = Duration::from_secs(86_400);

async fn unconfirmed_bytes_go_after_a_day(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let kept = stage.file(b"kept").await;
    let copies = stage.stored().len();
    let upload = stage.request(4).await;
    bring(&stage.agent, &upload, b"left").await.expect(200);
    let pending = stage.request(4).await;
    assert_eq!(stage.stored().len(), copies + 1);
    stage.nodes[0].advance(DAY + Duration::from_secs(1)).await;
    stage.ask_for("expire_uploads").await;
    let expired = "select count(*) from upload where state = 'expired' and object_key is null";
    until_counted(&stage, expired, 2).await;
    stage.until_stored(1).await;
    for upload in [&upload, &pending] {
        confirm(&stage.agent, upload, b"left")
            .await
            .refused(404, "NOT_FOUND");
    }
    let path = format!("/objects/{}", kept["object_key"].as_str().expect("a key"));
    stage.agent.get(path).await.expect(200);
    // Their rows go a week later.
    stage.nodes[0].advance(7 * DAY).await;
    stage.ask_for("expire_uploads").await;
    until_counted(&stage, expired, 0).await;
}

on_stores!(unconfirmed_bytes_go_after_a_day: folder, bucket, direct);

async fn until_counted(stage: &Stage, sql: &str, n: i64) {
    for _ in 0..1_600 {
        if count(stage.database(), sql).await == n {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("{sql} is not {n}");
}

/// Files follow their messages: seven days after the relation, and not when it is renewed before.
async fn files_go_with_their_relation(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let first = stage.file(b"of before").await;
    let end = async || {
        let alice = back(&stage).await;
        let relations = alice.get("/relations").await.expect(200);
        let relation = relations.data()[0]["relation_id"]
            .as_str()
            .expect("an id")
            .to_owned();
        alice
            .delete(format!("/relations/{relation}"))
            .await
            .expect(200);
    };
    end().await;
    let path = format!("/objects/{}", first["object_key"].as_str().expect("a key"));
    stage.agent.get(&path).await.refused(404, "NOT_FOUND");
    back(&stage).await.get(&path).await.expect(200);
    stage.nodes[0].advance(6 * DAY).await;
    stage.ask_for("purge_relations").await;
    stage.until_stored(1).await;
    // Renewed in time: nothing goes.
    let alice = back(&stage).await;
    alice
        .post(
            "/conversations",
            json!({ "type": "agent", "agent_id": stage.agent.id }),
        )
        .await
        .expect(200);
    stage.nodes[0].advance(2 * DAY).await;
    stage.ask_for("purge_relations").await;
    stage.agent.get(&path).await.expect(200);
    let search = "/search?q=notes.txt";
    let found = back(&stage).await.get(search).await.expect(200);
    assert_eq!(found.body["data"][0]["title"], "notes.txt");

    end().await;
    stage.nodes[0]
        .advance(7 * DAY + Duration::from_secs(1))
        .await;
    stage.ask_for("purge_relations").await;
    stage.until_stored(0).await;
    let alice = back(&stage).await;
    alice.get(&path).await.refused(404, "NOT_FOUND");
    // Nothing remembers its name.
    let found = alice.get(search).await.expect(200);
    assert_eq!(found.body["data"], json!([]));
    let named = "select count(*) from upload where filename <> ''";
    assert_eq!(count(stage.database(), named).await, 0);
}

on_stores!(files_go_with_their_relation: folder, direct);

/// An erased account leaves neither uploads nor shares, and no file that only it could read.
async fn an_erased_account_leaves_no_bytes_of_its_own(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let [a, b] = &stage.nodes;
    let bob = a.user("bob").await;
    let group = stage.alice.group_with(&[&bob]).await;
    let theirs = request(&stage.alice, "/files", &group, 6).await;
    bring(&stage.alice, &theirs, b"shared").await.expect(200);
    let shared = confirm(&stage.alice, &theirs, b"shared").await.expect(200);
    stage.file(b"with the agent").await;
    let left = request(&stage.alice, "/files", &group, 4).await;
    bring(&stage.alice, &left, b"left").await.expect(200);
    let end = stage.after(3600);
    let body = json!({ "contact": true, "expires_at": end });
    let share = stage.alice.post("/shares", body).await.expect(201);
    // Past the node, each confirmed file has an original as well.
    let originals = if kind == StoreKind::Direct { 2 } else { 0 };
    assert_eq!(stage.stored().len(), 3 + originals);

    stage.alice.delete("/users/me").await.expect(200);
    if kind == StoreKind::Direct {
        // Their addresses have ended, and an hour has passed.
        stage.until_stored(1 + originals + 1).await;
        a.advance(Duration::from_secs(76 * 60)).await;
    }
    stage.until_stored(1).await;
    let bob = bob.refreshed().await;
    let path = format!(
        "/objects/{}",
        shared.data()["object_key"].as_str().expect("a key")
    );
    bob.on(b).get(path).await.expect(200);
    let share = share.data()["share_id"].as_str().expect("an id").to_owned();
    b.anon()
        .get(format!("/share/{share}"))
        .await
        .refused(404, "NOT_FOUND");
    assert_eq!(
        count(stage.database(), "select count(*) from share").await,
        0
    );
}

on_stores!(an_erased_account_leaves_no_bytes_of_its_own: folder, direct);

/// An erased agent's files stay readable for the user, as its messages do.
async fn an_erased_agent_s_files_stay_until_the_purge(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let file = stage.file(b"of the agent").await;
    let left = stage.request(4).await;
    bring(&stage.agent, &left, b"left").await.expect(200);
    stage
        .alice
        .delete(format!("/agents/{}", stage.agent.id))
        .await
        .expect(200);
    stage.until_stored(1).await;
    let path = format!("/objects/{}", file["object_key"].as_str().expect("a key"));
    stage.alice.get(&path).await.expect(200);
    stage.nodes[0]
        .advance(7 * DAY + Duration::from_secs(1))
        .await;
    stage.ask_for("purge_relations").await;
    stage.until_stored(0).await;
}

on_stores!(an_erased_agent_s_files_stay_until_the_purge: folder, bucket);

/// However many files a conversation has, no statement ends all of them once its last user has gone.
/// What a user is still a member of stays.
#[tokio::test(flavor = "multi_thread")]
async fn unread_files_end_in_pieces() {
    const FILES: i64 = 3000;
    let stage = Stage::new(StoreKind::Folder).await;
    let bob = stage.nodes[0].user("bob").await;
    let [alone, shared] = [
        bob.group_with(&[]).await,
        bob.group_with(&[&stage.alice]).await,
    ];
    let client = connect(stage.database()).await;
    let id = |text: &str| uuid::Uuid::from(text.parse::<ulid::Ulid>().expect("a ULID"));
    let (own, theirs, by) = (id(&alone), id(&shared), id(&bob.id));
    let sql = format!(
        "create temporary table made as
             select gen_random_uuid() as id, case when n > {FILES} then '{theirs}'::uuid else '{own}' end as place
             from generate_series(1, {FILES} + 7) n;
         insert into object (object_key, size, sha256) select id::text, 1, sha256('x') from made;
         insert into upload (upload_id, conversation_id, uploader_id, uploader_kind, credential_id, filename, content_type,
             size, url_expires_at, state, confirmed_at, object_key)
         select id, place, '{by}', 'user', '{by}', 'f', 'x', 1, app_now(), 'confirmed', app_now(), id::text from made;
         create function refuse() returns trigger language plpgsql as $$ begin
             if (select count(*) from touched) > 1000 then raise 'too many rows'; end if; return null; end $$;
         create trigger refuse after update on upload referencing new table as touched
             for each statement execute function refuse();
         create trigger refuse after update on object referencing new table as touched
             for each statement execute function refuse();"
    );
    client.batch_execute(&sql).await.expect("files");
    bob.delete("/users/me").await.expect(200);
    let kept = "select count(*) from upload where object_key is not null";
    until_counted(&stage, kept, 7).await;
    let kept = "select count(*) from object where delete_at is null";
    until_counted(&stage, kept, 7).await;
}

/// However much an erased account has left, no statement of the erasure touches all of it.
#[tokio::test(flavor = "multi_thread")]
async fn an_account_with_many_uploads_is_erased_in_pieces() {
    const UPLOADS: i64 = 3000;
    let stage = Stage::new(StoreKind::Folder).await;
    let bob = stage.nodes[0].user("bob").await;
    let client = connect(stage.database()).await;
    let id: uuid::Uuid = bob.id.parse::<ulid::Ulid>().expect("a ULID").into();
    let sql = format!(
        "insert into upload (upload_id, conversation_id, uploader_id, uploader_kind, credential_id, filename, content_type,
             size, url_expires_at)
         select gen_random_uuid(), conversation_id, '{id}', 'user', '{id}', 'f', 'x', 1, app_now()
         from generate_series(1, {UPLOADS}), (select conversation_id from conversation limit 1) c;
         insert into share (share_hash, owner_id, kind, expires_at)
         select decode(md5(n::text), 'hex'), '{id}', 'contact', app_now() + interval '1 day' from generate_series(1, {UPLOADS}) n;
         create function refuse() returns trigger language plpgsql as $$ begin
             if (select count(*) from touched) > 1000 then raise 'too many rows'; end if; return null; end $$;
         create trigger refuse after update on upload referencing new table as touched
             for each statement execute function refuse();
         create trigger refuse after delete on share referencing old table as touched
             for each statement execute function refuse();"
    );
    client.batch_execute(&sql).await.expect("uploads");
    bob.delete("/users/me").await.expect(200);
    let expired = "select count(*) from upload where state = 'expired'";
    until_counted(&stage, expired, UPLOADS).await;
    until_counted(&stage, "select count(*) from share", 0).await;
}
