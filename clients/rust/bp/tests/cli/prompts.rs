//! Commands that ask at a terminal, beside those whose stories are elsewhere.

use std::fs;

use crate::support::{Home, cluster};

const PROTECTION: &str = "nine small boats at noon";

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_undone_is_asked_for() {
    let home = Home::with_person().await;
    home.bp(&["agent", "new", "helper"]).done();
    let mut terminal = home.terminal(&["agent", "delete", "helper"]);
    terminal
        .exp_string("for good? [y/N]: ")
        .expect("a question");
    terminal.send_line("").expect("a terminal");
    terminal.exp_string("nothing was deleted").expect("words");
    terminal.exp_eof().expect("an end");

    let mut terminal = home.terminal(&["keys", "verify", "helper"]);
    terminal
        .exp_string("Are they the same?")
        .expect("a question");
    terminal.send_line("n").expect("a terminal");
    terminal
        .exp_string("the keys were not verified")
        .expect("words");
    terminal.exp_eof().expect("an end");
    let mut terminal = home.terminal(&["keys", "verify", "helper"]);
    terminal
        .exp_string("Are they the same?")
        .expect("a question");
    terminal.send_line("y").expect("a terminal");
    terminal.exp_string("verified").expect("words");
    terminal.exp_eof().expect("an end");

    let mut terminal = home.terminal(&["agent", "delete", "helper"]);
    terminal
        .exp_string("for good? [y/N]: ")
        .expect("a question");
    terminal.send_line("y").expect("a terminal");
    terminal.exp_string("is deleted").expect("words");
    terminal.exp_eof().expect("an end");
    home.json(&["agent", "show", "helper"]).refused(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mailed_code_and_a_protection_password_lead_to_the_same_keys() {
    let home = Home::with_person().await;
    let me = home.json(&["whoami"]).item();
    let email = me["email"].as_str().expect("an address").to_owned();
    let mut terminal = home.terminal(&["keys", "backup"]);
    terminal
        .exp_string("Protection password: ")
        .expect("a question");
    terminal.send_line(PROTECTION).expect("a terminal");
    terminal.exp_string("Once more: ").expect("a question");
    terminal.send_line(PROTECTION).expect("a terminal");
    let shown = terminal.exp_eof().expect("an end");
    assert!(shown.contains("is backed up"), "{shown}");
    assert!(!shown.contains(PROTECTION), "{shown}");

    home.bp(&["logout"]).done();
    let cluster = cluster().await;
    let used = cluster.code(&email).await.expect("the registration's mail");
    let mut terminal = home.terminal(&["login", "--code", "--email", &email]);
    terminal.exp_string("Code: ").expect("a question");
    let mut code = used.clone();
    while code == used {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        code = cluster.code(&email).await.expect("a mail");
    }
    terminal.send_line(&code).expect("a terminal");
    terminal
        .exp_string("Protection password: ")
        .expect("a question");
    terminal.send_line("not the one").expect("a terminal");
    terminal
        .exp_string("the protection password is wrong")
        .expect("words");
    terminal.exp_eof().expect("an end");
    // The session is there; the keys are still to come.
    let now = home.json(&["whoami"]).item();
    assert_eq!(now["user_id"], me["user_id"]);
    assert!(now["key_id"].is_null(), "{now}");
    home.json(&["send", "user:01ARZ3NDEKTSV4RRFFQ69G5FAV", "hi"])
        .refused(1);
    let mut terminal = home.terminal(&["keys", "restore"]);
    terminal
        .exp_string("Protection password: ")
        .expect("a question");
    terminal.send_line(PROTECTION).expect("a terminal");
    let shown = terminal.exp_eof().expect("an end");
    assert!(shown.contains("key "), "{shown}");
    let now = home.json(&["whoami"]).item();
    assert!(now["key_id"].is_string(), "{now}");
    let kept = fs::read_to_string(home.config().join("config.json")).expect("a file");
    assert!(!kept.contains(PROTECTION));
}
