//! Shares: their cards, their counts and their ends.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use super::{Stage, StoreKind, fetch, hash, path_of};
use crate::support::{Answer, Caller, User};

async fn share(user: &User, mut body: Value) -> Answer {
    if body["expires_at"].is_null() {
        body["expires_at"] = json!(user.world.clock.now() + Duration::from_secs(3600));
    }
    user.post("/shares", body).await
}

/// The card of an agent or a contact, without the share's end.
async fn card_of(anyone: &Caller, share: &Answer) -> Value {
    let mut card = anyone.get(path(share)).await.expect(200).data().clone();
    let end = card.as_object_mut().expect("a card").remove("expires_at");
    assert!(end.is_some_and(|end| end.is_string()));
    card
}

fn path(share: &Answer) -> String {
    let url = share.data()["url"].as_str().expect("a URL");
    path_of(url).to_owned()
}

async fn a_share_shows_a_file_an_agent_or_a_contact(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let [_, b] = &stage.nodes;
    let file = stage.file(b"ciphertext").await;
    let made = share(&stage.alice, json!({ "file_id": file["file_id"] }))
        .await
        .expect(201);
    let id = made.data()["share_id"].as_str().expect("an id");
    assert_eq!(path(&made), format!("/share/{id}"));
    assert!(id.len() >= 22, "{id}");
    let anyone = b.anon();
    let opened = anyone.get(path(&made)).await.expect(200);
    for (name, value) in [
        ("cache-control", "no-store"),
        ("x-robots-tag", "noindex, nofollow"),
        ("referrer-policy", "no-referrer"),
    ] {
        assert_eq!(opened.header(name), Some(value));
    }
    let card = opened.data().clone();
    assert_eq!(
        (&card["kind"], &card["size"], &card["sha256"]),
        (&json!("file"), &json!(10), &json!(hash(b"ciphertext")))
    );
    assert_eq!(card["filename"], json!("notes.txt"));
    assert!(card["expires_at"].is_string(), "{card}");
    // The conversation is not public.
    let shown = opened.body.to_string();
    assert!(!shown.contains(&stage.conversation), "{shown}");
    let url = path_of(card["url"].as_str().expect("a URL")).to_owned();
    let (answer, read) = fetch(&anyone, &url, &[]).await;
    assert_eq!(
        (answer.status, read.as_slice()),
        (200, b"ciphertext".as_slice())
    );
    assert_eq!(answer.header("content-disposition"), Some("attachment"));

    let made = share(&stage.alice, json!({ "agent_id": stage.agent.id }))
        .await
        .expect(201);
    let card = card_of(&anyone, &made).await;
    let expected = json!({
        "kind": "agent", "agent_id": stage.agent.id, "display_name": "helper", "description": null,
    });
    assert_eq!(card, expected);
    let made = share(&stage.alice, json!({ "contact": true }))
        .await
        .expect(201);
    let card = card_of(&anyone, &made).await;
    let expected = json!({ "kind": "contact", "user_id": stage.alice.id, "display_name": "alice" });
    assert_eq!(card, expected);
}

on_stores!(a_share_shows_a_file_an_agent_or_a_contact: folder, direct);

/// Fifty clients at the last three openings: three get in.
#[tokio::test(flavor = "multi_thread")]
async fn a_share_opens_exactly_as_often_as_it_may() {
    let stage = Stage::new(StoreKind::Folder).await;
    let body = json!({ "contact": true, "max_access_count": 3 });
    let made = share(&stage.alice, body).await.expect(201);
    let path = path(&made);
    let opens = (0..50).map(|n| {
        let caller = stage.nodes[n % 2].anon();
        let path = path.clone();
        async move { caller.get(path).await }
    });
    let answers = join_all(opens).await;
    let opened = answers.iter().filter(|answer| answer.status == 200).count();
    assert_eq!(opened, 3);
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer.status, 200 | 404))
    );
}

/// Looks at the card cost nothing. Of fifty downloads on two nodes the last three get bytes.
async fn a_share_gives_its_file_exactly_as_often_as_it_may(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let file = stage.file(b"ciphertext").await;
    let body = json!({ "file_id": file["file_id"], "max_access_count": 4 });
    let made = share(&stage.alice, body).await.expect(201);
    let path = path(&made);
    let anyone = stage.nodes[0].anon();
    let html = [("accept", "text/html")];
    for _ in 0..5 {
        let card = anyone.request(Method::HEAD, &path);
        anyone.send(card).await.expect(200);
        anyone.get(&path).await.expect(200);
        assert_eq!(fetch(&anyone, &path, &html).await.0.status, 200);
    }
    let card = anyone.get(&path).await.expect(200);
    let url = path_of(card.data()["url"].as_str().expect("a URL")).to_owned();
    for _ in 0..5 {
        let head = anyone.request(Method::HEAD, &url);
        anyone.send(head).await.expect(200);
    }
    // A part is a download too; an unchanged copy is none.
    let (part, bytes) = fetch(&anyone, &url, &[("range", "bytes=1-2")]).await;
    assert_eq!((part.status, bytes.as_slice()), (206, b"ip".as_slice()));
    let etag = part.header("etag").expect("a tag").to_owned();
    let unchanged = fetch(&anyone, &url, &[("if-none-match", &etag)]).await;
    assert_eq!(unchanged.0.status, 304);
    let downloads = (0..50).map(|n| {
        let (caller, url) = (stage.nodes[n % 2].anon(), url.clone());
        async move { fetch(&caller, &url, &[]).await }
    });
    let answers = join_all(downloads).await;
    let whole = answers.iter().filter(|(_, bytes)| bytes == b"ciphertext");
    assert_eq!(whole.count(), 3);
    let others = answers.iter().filter(|(answer, _)| answer.status == 404);
    assert_eq!(others.count(), 47);
    // The card ends with the last download.
    anyone.get(&path).await.refused(404, "NOT_FOUND");
    let head = anyone.request(Method::HEAD, &url);
    assert_eq!(anyone.send(head).await.status, 404);
    // Members read on.
    let object = url.split('?').next().expect("a path");
    stage.alice.get(object).await.expect(200);
}

on_stores!(a_share_gives_its_file_exactly_as_often_as_it_may: folder, bucket);

/// A card is what is shared, so opening it counts, and `HEAD` does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_head_of_a_card_counts_nothing() {
    let stage = Stage::new(StoreKind::Folder).await;
    let body = json!({ "contact": true, "max_access_count": 1 });
    let made = share(&stage.alice, body).await.expect(201);
    let (anyone, path) = (stage.nodes[1].anon(), path(&made));
    for _ in 0..3 {
        let head = anyone.request(Method::HEAD, &path);
        anyone.send(head).await.expect(200);
    }
    anyone.get(&path).await.expect(200);
    anyone.get(&path).await.refused(404, "NOT_FOUND");
}

/// A link of a share lives for five minutes and no longer than the share.
#[tokio::test(flavor = "multi_thread")]
async fn all_that_is_not_there_is_one_404() {
    let stage = Stage::new(StoreKind::Folder).await;
    let [a, b] = &stage.nodes;
    let bob = a.user("bob").await;
    let group = stage.alice.group_with(&[&bob]).await;
    let upload = super::request(&bob, "/files", &group, 1).await;
    super::bring(&bob, &upload, b"x").await.expect(200);
    let file = super::confirm(&bob, &upload, b"x").await.expect(200);
    let file = json!({ "file_id": file.data()["file_id"] });
    let anyone = b.anon();
    let mut bodies = Vec::new();
    let mut gone = async |path: &str| {
        let answer = anyone.get(path).await.refused(404, "NOT_FOUND");
        assert_eq!(answer.header("x-robots-tag"), Some("noindex, nofollow"));
        bodies.push(answer.body);
    };
    gone("/share/x").await;

    // Deleted, with the address that came from it. Only its maker deletes it.
    let made = share(&bob, file.clone()).await.expect(201);
    let card = anyone.get(path(&made)).await.expect(200);
    let url = path_of(card.data()["url"].as_str().expect("a URL")).to_owned();
    let id = made.data()["share_id"].as_str().expect("an id").to_owned();
    stage
        .alice
        .delete(format!("/shares/{id}"))
        .await
        .refused(404, "NOT_FOUND");
    bob.on(b).delete(format!("/shares/{id}")).await.expect(200);
    gone(&path(&made)).await;
    anyone.get(&url).await.refused(404, "NOT_FOUND");

    // Expired, and an address that is older than five minutes.
    let soon = stage.after(600);
    let mut short = file.clone();
    short["expires_at"] = soon;
    let made = share(&bob, short).await.expect(201);
    let card = anyone.get(path(&made)).await.expect(200);
    let url = path_of(card.data()["url"].as_str().expect("a URL")).to_owned();
    anyone.get(&url).await.expect(200);
    a.advance(Duration::from_secs(301)).await;
    anyone.get(&url).await.refused(404, "NOT_FOUND");
    a.advance(Duration::from_secs(300)).await;
    gone(&path(&made)).await;

    // Its maker is no member any more.
    let bob = bob.refreshed().await;
    let mut longer = file;
    longer["expires_at"] = stage.after(3600);
    let made = share(&bob, longer).await.expect(201);
    anyone.get(path(&made)).await.expect(200);
    stage
        .alice
        .refreshed()
        .await
        .delete(format!("/groups/{group}/members/{}", bob.id))
        .await
        .expect(200);
    gone(&path(&made)).await;
    assert!(
        bodies.windows(2).all(|pair| pair[0] == pair[1]),
        "{bodies:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_is_of_what_its_maker_may_share() {
    let stage = Stage::new(StoreKind::Folder).await;
    let file = stage.file(b"x").await;
    let mallory = stage.nodes[1].user("mallory").await;
    share(&mallory, json!({ "file_id": file["file_id"] }))
        .await
        .refused(404, "NOT_FOUND");
    share(&mallory, json!({ "agent_id": stage.agent.id }))
        .await
        .refused(404, "AGENT_NOT_REGISTERED");
    mallory.talk_to(&stage.agent).await;
    share(&mallory, json!({ "agent_id": stage.agent.id }))
        .await
        .expect(201);
    let unconfirmed = stage.request(1).await;
    share(&stage.alice, json!({ "file_id": unconfirmed["upload_id"] }))
        .await
        .refused(404, "NOT_FOUND");
    let days = |n: u64| stage.after(n * 86_400);
    for body in [
        json!({}),
        json!({ "contact": false }),
        json!({ "contact": true, "agent_id": stage.agent.id }),
        json!({ "contact": true, "expires_at": days(32) }),
        json!({ "contact": true, "expires_at": "2020-01-01T00:00:00.000Z" }),
        json!({ "contact": true, "max_access_count": 0 }),
        json!({ "contact": true, "max_access_count": "1" }),
    ] {
        let answer = share(&stage.alice, body.clone()).await;
        assert_eq!(
            (answer.status, answer.code()),
            (400, "VALIDATION_ERROR"),
            "{body}"
        );
    }
}

/// The page is for people: it has no script, loads nothing, and shows a name as text.
#[tokio::test(flavor = "multi_thread")]
async fn a_browser_gets_a_page_without_anything_foreign() {
    let stage = Stage::new(StoreKind::Folder).await;
    let name = "<script>alert(1)</script>";
    let agent = stage.nodes[0].agent(&stage.alice, name).await;
    let made = share(&stage.alice, json!({ "agent_id": agent.id }))
        .await
        .expect(201);
    let anyone = stage.nodes[1].anon();
    let html = [("accept", "text/html,application/xhtml+xml,*/*;q=0.8")];
    let (answer, page) = fetch(&anyone, path(&made), &html).await;
    let page = String::from_utf8(page).expect("text");
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert!(page.contains("&lt;script&gt;alert(1)"), "{page}");
    assert!(
        !page.contains("<script") && !page.contains("http://"),
        "{page}"
    );
    let policy = answer.header("content-security-policy").expect("a policy");
    assert!(
        policy.starts_with("default-src 'none'; style-src 'sha256-"),
        "{policy}"
    );
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let (gone, page) = fetch(&anyone, "/share/x", &html).await;
    assert_eq!(gone.status, 404);
    assert!(String::from_utf8_lossy(&page).contains("There is nothing here"));
}
