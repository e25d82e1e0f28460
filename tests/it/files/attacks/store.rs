//! Attacks by somebody who can write to the store itself. Such a writer can destroy a file, and can
//! make the service show no other bytes in its place.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};

use crate::{
    files::{Stage, StoreKind, bring, confirm, fetch, noise},
    support::{Caller, ProcessNode},
};

/// The path of a file's bytes in the store.
fn place_of(stage: &Stage, file: &Value) -> PathBuf {
    let key = file["object_key"].as_str().expect("a key");
    let mut stored = stage.stored().into_iter();
    stored.find(|path| path.ends_with(key)).expect("its bytes")
}

fn object(file: &Value) -> String {
    format!("/objects/{}", file["object_key"].as_str().expect("a key"))
}

/// Downloads a file; the connection breaks before the end.
async fn must_break_off(caller: &Caller, file: &Value) {
    let call = caller.request(reqwest::Method::GET, object(file));
    // A small answer has no head either.
    if let Ok(answer) = call.send().await {
        assert!(answer.bytes().await.is_err(), "a whole answer");
    }
}

/// Other bytes of the same size: a download breaks off before its end.
async fn other_bytes_are_never_a_whole_answer(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let bytes = noise(300_000);
    let file = stage.file(&bytes).await;
    let place = place_of(&stage, &file);
    let mut other = bytes.clone();
    other[299_999] ^= 1;
    fs::write(&place, &other).expect("overwritten");
    // A process of its own, because tests share the counters of this one.
    let node = ProcessNode::start(&stage.nodes[0]).await;
    let alice = stage.alice.at(&node.base);
    must_break_off(&alice, &file).await;
    assert_eq!(node.metric("objects_damaged_total", "").await, 1.0);

    // Fewer and more bytes are refused at once, a part as well.
    for length in [299_999, 300_001, 0] {
        let mut other = bytes.clone();
        other.resize(length, 0);
        fs::write(&place, &other).expect("overwritten");
        for headers in [&[][..], &[("range", "bytes=299999-")]] {
            let (answer, _) = fetch(&alice, object(&file), headers).await;
            answer.refused(404, "NOT_FOUND");
        }
    }
    // The right bytes again, as from a backup.
    fs::write(&place, &bytes).expect("restored");
    assert!(fetch(&alice, object(&file), &[]).await.1 == bytes);
}

on_stores!(other_bytes_are_never_a_whole_answer: folder, bucket, direct);

/// Removed bytes are a 404 for members and for shares, and counted.
async fn removed_bytes_are_missed(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let file = stage.file(b"gone").await;
    let body = json!({ "file_id": file["file_id"], "expires_at": stage.after(60) });
    let share = stage.alice.post("/shares", body).await.expect(201);
    fs::remove_file(place_of(&stage, &file)).expect("removed");
    // A process of its own, because tests share the counters of this one.
    let node = ProcessNode::start(&stage.nodes[0]).await;
    let stranger = stage.nodes[0].anon().at(&node.base);
    let read = stage.alice.at(&node.base).get(object(&file)).await;
    read.refused(404, "NOT_FOUND");
    let path = format!(
        "/share/{}",
        share.data()["share_id"].as_str().expect("an id")
    );
    let card = stranger.get(path).await.expect(200);
    let url = crate::files::path_of(card.data()["url"].as_str().expect("a URL"));
    stranger.get(url).await.refused(404, "NOT_FOUND");
    assert_eq!(node.metric("objects_missing_total", "").await, 2.0);
}

on_stores!(removed_bytes_are_missed: folder, bucket, direct);

/// Bytes that change or go between the PUT and the confirmation are no file.
async fn bytes_that_change_before_the_confirmation_are_no_file(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    for change in ["removed", "cut", "replaced"] {
        let upload = stage.request(5).await;
        let known = stage.stored();
        bring(&stage.agent, &upload, b"right").await.expect(200);
        let mut stored = stage.stored().into_iter();
        let place = stored.find(|path| !known.contains(path)).expect("bytes");
        match change {
            "removed" => fs::remove_file(place).expect("removed"),
            "cut" => fs::write(place, b"righ").expect("overwritten"),
            _ => fs::write(place, b"wrong").expect("overwritten"),
        }
        let answer = confirm(&stage.agent, &upload, b"right").await;
        match (change, kind) {
            // The copy is hashed.
            ("replaced", StoreKind::Direct) => drop(answer.refused(409, "SHA256_MISMATCH")),
            // The node has hashed the bytes that came; a reader gets no others.
            ("replaced", _) => {
                let file = answer.expect(200).data().clone();
                must_break_off(&stage.alice, &file).await;
            }
            _ => drop(answer.refused(409, "UPLOAD_INCOMPLETE")),
        }
    }
}

on_stores!(bytes_that_change_before_the_confirmation_are_no_file: folder, bucket, direct);

/// An object that somebody else has put beside ours is nobody's file, and it stays.
async fn a_foreign_object_is_neither_read_nor_deleted(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let file = stage.file(b"ours").await;
    let place = place_of(&stage, &file);
    let key = "A".repeat(32);
    let folder = place.parent().and_then(|shard| shard.parent());
    let shard = folder.expect("a folder").join("aa");
    fs::create_dir_all(&shard).expect("a folder");
    let foreign = [shard.join(&key), shard.join("readme.txt")];
    for path in &foreign {
        fs::write(path, b"foreign").expect("written");
    }
    let path = format!("/objects/{key}");
    stage.alice.get(&path).await.refused(404, "NOT_FOUND");
    stage.agent.get(&path).await.refused(404, "NOT_FOUND");
    let left = stage.request(4).await;
    bring(&stage.agent, &left, b"left").await.expect(200);
    stage.nodes[0]
        .advance(std::time::Duration::from_secs(86_401))
        .await;
    stage.ask_for("expire_uploads").await;
    stage.until_stored(3).await;
    assert!(foreign.iter().all(|path| path.exists()));
}

on_stores!(a_foreign_object_is_neither_read_nor_deleted: folder, bucket);
