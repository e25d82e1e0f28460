//! The web app's files, as a node serves them.

use std::fs;

use crate::support::{nodes, nodes_with, services, ulid};

#[tokio::test(flavor = "multi_thread")]
async fn a_node_serves_the_folder_of_the_app_under_a_strict_policy() {
    let folder = services().folder().join(format!("app-{}", ulid()));
    fs::create_dir_all(folder.join("assets")).expect("a folder");
    fs::write(folder.join("index.html"), "<!doctype html>the page").expect("a file");
    fs::write(folder.join("assets/main-1a2b.js"), "run()").expect("a file");
    fs::write(folder.parent().expect("a parent").join("secret.txt"), "no").expect("a file");
    let [a] = nodes_with(&[("APP_DIR", &folder.display().to_string())]).await;

    let page = a.anon().get("/app").await.expect(200);
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(
        policy.contains("default-src 'none'") && policy.contains("trusted-types blindpipe-worker")
    );
    assert!(!policy.contains("unsafe-inline") && !policy.contains("'unsafe-eval'"));
    assert_eq!(page.header("cache-control"), Some("no-cache"));
    assert_eq!(page.header("service-worker-allowed"), Some("/app"));
    assert_eq!(
        page.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    let etag = page.header("etag").expect("an ETag").to_owned();
    let again = a.anon().request(reqwest::Method::GET, "/app");
    let again = a.anon().send(again.header("if-none-match", etag)).await;
    assert_eq!(again.status, 304);

    let script = a.anon().get("/app/assets/main-1a2b.js").await.expect(200);
    assert!(
        script
            .header("cache-control")
            .is_some_and(|all| all.ends_with("immutable"))
    );
    assert_eq!(script.header("content-type"), Some("text/javascript"));

    for name in [
        "other.html",
        "..%2fsecret.txt",
        "assets%2fmain-1a2b.js%00",
        "assets/..%2f..%2fsecret.txt",
    ] {
        a.anon()
            .get(format!("/app/{name}"))
            .await
            .refused(404, "NOT_FOUND");
    }
    fs::remove_dir_all(&folder).expect("removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_app_is_served_by_default() {
    let [a] = nodes().await;
    for path in ["/app", "/app/icon.svg", "/app/assets/main.js"] {
        a.anon().get(path).await.refused(404, "NOT_FOUND");
    }
}
