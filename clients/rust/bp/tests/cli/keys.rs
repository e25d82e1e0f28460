//! This device's keys, those of others, files and searches.

use std::fs;

use crate::support::{Home, cluster};

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_shown_compared_backed_up_and_restored() {
    let home = Home::with_person().await;
    home.bp(&["agent", "new", "keeper"]).done();
    let own = home.json(&["keys", "show"]).item();
    assert_eq!(own["here"], true);
    let of_agent = home.json(&["keys", "show", "keeper"]).item();
    let verified = home.json(&["keys", "verify", "keeper", "--yes"]).item();
    assert_eq!(of_agent["here"], false);
    let digits = verified["number"].as_str().expect("digits");
    assert_eq!(digits.chars().filter(char::is_ascii_digit).count(), 60);
    home.json(&["keys", "verify", "keeper"]).refused(2);

    // Another protection password. The service keeps earlier backups, which open with their own.
    let (old, new) = (
        home.file("old", "correct horse battery staple"),
        home.file("new", "seven green umbrellas"),
    );
    let short = home.file("short", "short");
    home.json(&["keys", "backup", "--protection-password-file", &short])
        .refused(2);
    let backed_up = home
        .json(&["keys", "backup", "--protection-password-file", &new])
        .item();
    assert_eq!(backed_up["key_id"], own["key_id"]);
    let restore = |file: &str| home.json(&["keys", "restore", "--protection-password-file", file]);
    let wrong = home.file("wrong", "no such password at all");
    restore(&wrong).refused(1);
    assert_eq!(restore(&old).item()["key_id"], own["key_id"]);
    assert_eq!(restore(&new).item()["key_id"], own["key_id"]);
    let epoch = home.json(&["keys", "rotate", "keeper"]).item();
    assert!(epoch["epoch"].as_i64() > Some(0), "{epoch}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_goes_out_sealed_and_comes_back() {
    cluster().await;
    let home = Home::with_person().await;
    home.bp(&["agent", "new", "shelf"]).done();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    fs::write(home.path("report.bin"), &bytes).expect("written");
    let mut terminal = home.terminal(&["file", "put", "shelf", &home.path("report.bin")]);
    // Progress is for terminals.
    let shown = terminal.exp_eof().expect("an end");
    assert!(shown.contains("100 % of 3"), "{shown}");
    let history = home.json(&["api", "GET", "/conversations"]).item();
    let id = history["data"][0]["conversation_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let messages = home
        .json(&["api", "GET", &format!("/conversations/{id}/messages")])
        .item();
    let message = messages["data"][0]["message_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    fs::remove_file(home.path("report.bin")).expect("removed");
    let got = home.json(&["file", "get", "shelf", &message]).item();
    assert_eq!(got["file"], "report.bin");
    assert_eq!(fs::read(home.path("report.bin")).expect("a file"), bytes);
    // Existing keys stay.
    home.json(&["file", "get", &id, &message]).refused(1);
    let other = home.path("other.bin");
    home.json(&["file", "get", &id, &message, "-o", &other])
        .item();
    assert_eq!(fs::read(other).expect("a file"), bytes);
    home.json(&["file", "put", "shelf", "no-such-file"])
        .refused(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_found() {
    let home = Home::with_person().await;
    home.bp(&["agent", "new", "lighthouse"]).done();
    let hits = home.json(&["search", "lighth", "--kind", "agent"]).items();
    assert!(
        hits.iter().any(|it| it["title"] == "lighthouse"),
        "{hits:?}"
    );
    home.json(&["search", "x", "--kind", "planet"]).refused(2);
}
