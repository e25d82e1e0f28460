//! Contexts and the files that keep them, without any service.

use std::os::unix::fs::PermissionsExt;

use crate::support::{Home, run};

fn mode(path: &std::path::Path) -> u32 {
    let metadata = path.metadata().expect("a file");
    metadata.permissions().mode() & 0o777
}

#[test]
fn a_context_is_added_used_shown_and_forgotten() {
    let home = Home::new();
    for name in ["one", "two"] {
        let url = format!("https://{name}.example.com/");
        home.bp(&["context", "add", name, "--url", &url]).done();
    }
    assert_eq!(mode(&home.config()), 0o700);
    assert_eq!(mode(&home.config().join("config.json")), 0o600);
    let all = home.json(&["context", "ls"]).items();
    assert_eq!(all.len(), 2);
    assert_eq!(
        (&all[1]["name"], &all[1]["current"]),
        (&"two".into(), &true.into())
    );
    home.bp(&["context", "use", "one"]).done();
    let shown = home.json(&["context", "show"]).item();
    assert_eq!(shown["url"], "https://one.example.com");
    let mut other = home.command(&["--json", "context", "show"]);
    other.env("BP_CONTEXT", "two");
    assert_eq!(run(other, "").item()["name"], "two");
    home.bp(&["context", "rm", "one"]).done();
    home.json(&["context", "use", "one"]).refused(2);
    // None is the current one any more.
    home.json(&["whoami"]).refused(2);
}

#[test]
fn an_address_has_a_context_of_its_own() {
    let home = Home::new();
    home.bp(&["context", "add", "one", "--url", "https://one.example.com"])
        .done();
    let mut there = home.command(&["--json", "whoami"]);
    there.env("BP_URL", "https://two.example.com");
    run(there, "").refused(3);
    let names = home.json(&["context", "ls"]).items();
    let names: Vec<_> = names
        .iter()
        .map(|it| it["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(names, ["one", "two.example.com"]);
    // The current one stays.
    let shown = home.json(&["context", "show"]).item();
    assert_eq!(shown["url"], "https://one.example.com");
}

#[test]
fn what_does_not_fit_is_usage_and_nobody_logged_in_is_told_so() {
    let home = Home::new();
    assert_eq!(home.bp(&["no-such-command"]).code, 2);
    assert_eq!(home.bp(&["--help"]).code, 0);
    let error = home
        .json(&["context", "add", "../x", "--url", "https://a"])
        .refused(2);
    assert!(
        error["message"]
            .as_str()
            .expect("words")
            .contains("no name")
    );
    for url in ["chat.example.com", "ftp://chat.example.com", "https://"] {
        home.json(&["context", "add", "here", "--url", url])
            .refused(2);
    }
    let (url, missing) = ("https://127.0.0.1:1", home.path("missing.pem"));
    let add = ["context", "add", "here", "--url", url];
    let error = home
        .json(&[&add[..], &["--ca-file", &missing]].concat())
        .refused(2);
    let told = error["message"].as_str().expect("words");
    assert!(told.starts_with(&missing), "{told}");
    home.bp(&add).done();
    let error = home.json(&["whoami"]).refused(3);
    assert_eq!(error["remedy"], "`bp login` or `bp register`");
    // A file that somebody broke is named.
    let elsewhere = Home::new();
    std::fs::create_dir_all(elsewhere.config()).expect("a folder");
    std::fs::write(elsewhere.config().join("config.json"), "{").expect("written");
    let error = elsewhere.json(&["whoami"]).refused(1);
    assert!(error.to_string().contains("config.json"), "{error}");
    // In clear over a network nothing is sent.
    home.bp(&["context", "add", "clear", "--url", "http://example.com"])
        .done();
    let password = home.file("password", "secret");
    let login = ["login", "--email", "a@b.c", "--password-file", &password];
    home.json(&[&login[..], &["--turnstile-token-file", &password]].concat())
        .refused(2);
}

#[test]
fn a_service_that_is_away_is_unreachable() {
    let home = Home::new();
    home.bp(&["context", "add", "away", "--url", "https://127.0.0.1:1"])
        .done();
    let password = home.file("password", "secret");
    let login = ["login", "--email", "a@b.c", "--password-file", &password];
    home.json(&[&login[..], &["--turnstile-token-file", &password]].concat())
        .refused(5);
    let ran = home.json(&["doctor"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let tls = ran.stdout.lines().last().expect("a finding");
    assert!(
        tls.contains(r#""part":"tls","ok":false"#) && tls.contains("remedy"),
        "{tls}"
    );
}

#[test]
fn completions_and_man_pages_name_the_commands() {
    let home = Home::new();
    let script = home.bp(&["completions", "bash"]).done();
    assert!(script.contains("whoami") && script.contains("--turnstile-token-file"));
    let folder = home.path("man");
    home.bp(&["man", &folder]).done();
    let page = std::fs::read_to_string(format!("{folder}/bp-context-add.1")).expect("a page");
    assert!(page.contains("development cluster"));
}
