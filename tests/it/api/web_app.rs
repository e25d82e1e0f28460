//! The web app's files, as a node serves them.

use std::{collections::HashSet, fs, io::Read};

use flate2::read::GzDecoder;
use reqwest::Method;

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
    let again = a.anon().request(Method::GET, "/app");
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
async fn a_file_is_compressed_for_clients_that_take_it() {
    let folder = app_folder("compressed", &["tiny.svg"]);
    let script = "let answer = 42;\n".repeat(1000);
    fs::write(format!("{folder}/widget.js"), &script).expect("a file");
    let [a] = nodes_with(&[("APP_DIR", &*folder)]).await;
    let get = async |file: &str, headers: &[(&str, &str)]| {
        let mut call = a.anon().request(Method::GET, format!("/app/{file}"));
        for (name, value) in headers {
            call = call.header(*name, *value);
        }
        call.send().await.expect("an answer")
    };
    let mut etags = HashSet::new();
    for (accepted, encoding) in [
        ("gzip, deflate, br", Some("gzip")),
        ("br;q=1.0, GZIP;q=0.5", Some("gzip")),
        ("br, gzip;q=0", None),
        ("identity", None),
    ] {
        let asked = ("accept-encoding", accepted);
        let answer = get("widget.js", &[asked]).await;
        let header = |name| {
            Some(
                answer
                    .headers()
                    .get(name)?
                    .to_str()
                    .expect("text")
                    .to_owned(),
            )
        };
        assert_eq!(header("content-encoding").as_deref(), encoding);
        assert_eq!(header("vary").as_deref(), Some("accept-encoding"));
        let etag = header("etag").expect("an ETag");
        let again = get("widget.js", &[asked, ("if-none-match", &etag)]).await;
        assert_eq!(again.status(), 304);
        etags.insert(etag);
        let bytes = answer.bytes().await.expect("a body");
        let mut text = String::new();
        if encoding.is_some() {
            assert!(bytes.len() < 200, "{} bytes", bytes.len());
            GzDecoder::new(&*bytes)
                .read_to_string(&mut text)
                .expect("gzip");
        } else {
            text = String::from_utf8(bytes.into()).expect("text");
        }
        assert_eq!(text, script);
    }
    // Each encoding has a tag of its own, and what would grow stays as it is.
    assert_eq!(etags.len(), 2);
    let tiny = get("tiny.svg", &[("accept-encoding", "gzip")]).await;
    assert!(tiny.headers().get("content-encoding").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_widget_is_framed_by_the_list_and_the_app_by_nobody() {
    let folder = app_folder("widget", &["widget.html", "widget.js"]);
    let app = ("APP_DIR", &*folder);
    let ancestors = |policy: &str| {
        let (_, after) = policy.split_once("frame-ancestors ").expect("ancestors");
        after.split(';').next().unwrap_or_default().to_owned()
    };
    let origins = "https://shop.example, https://www.example:8443";
    for (given, framed_by, readers) in [
        ("", "'none'", "same-origin"),
        (
            origins,
            "https://shop.example https://www.example:8443",
            "cross-origin",
        ),
    ] {
        let [a] = nodes_with(&[app, ("WIDGET_ORIGINS", given)]).await;
        for (path, expected, reader) in [
            ("/app", "'none'", "same-origin"),
            ("/app/widget.html", framed_by, "same-origin"),
            ("/app/widget.js", "'none'", readers),
        ] {
            let answer = a.anon().get(path).await.expect(200);
            let policy = answer.header("content-security-policy").expect("a policy");
            assert_eq!(ancestors(policy), expected, "{path}");
            assert!(policy.contains("require-trusted-types-for 'script'"));
            let reader_of = answer.header("cross-origin-resource-policy");
            assert_eq!(reader_of, Some(reader), "{path}");
        }
    }
    fs::remove_dir_all(&folder).expect("removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_human_check_has_an_origin_of_its_own() {
    let folder = app_folder("check", &["check.html", "check.js"]);
    let [a] = nodes_with(&[
        ("APP_DIR", &folder),
        ("CHECK_ORIGIN", "https://check.example"),
        ("WIDGET_ORIGINS", "https://shop.example"),
        ("ALLOWED_ORIGINS", "https://chat.example"),
        ("TURNSTILE_SITE_KEY", "0x4AAAAAAB"),
    ])
    .await;
    let get = async |host: &str, path: &str| {
        let request = a.anon().request(Method::GET, path);
        a.anon().send(request.header("host", host)).await
    };

    let page = get("check.example", "/app/check").await.expect(200);
    assert_eq!(
        page.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(policy.contains("frame-ancestors https://chat.example https://shop.example"));
    assert!(policy.contains("script-src 'self' https://challenges.cloudflare.com;"));
    let settings = get("Check.Example", "/app/check.json").await.expect(200);
    let settings = settings.body.clone();
    assert_eq!(settings["site_key"], "0x4AAAAAAB");
    assert_eq!(
        settings["app_origins"],
        serde_json::json!(["https://chat.example"])
    );
    get("check.example", "/app/check.js").await.expect(200);
    for path in ["/app", "/app/settings.json", "/app/index.html"] {
        get("check.example", path).await.refused(404, "NOT_FOUND");
    }

    for path in ["/app/check", "/app/check.json"] {
        get("chat.example", path).await.refused(404, "NOT_FOUND");
    }
    let page = get("chat.example", "/app").await.expect(200);
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(policy.contains("frame-src https://check.example;"));
    let inert = get("chat.example", "/app/check.js").await.expect(200);
    let policy = inert.header("content-security-policy").expect("a policy");
    assert!(!policy.contains("cloudflare"));
    let settings = get("chat.example", "/app/settings.json").await.expect(200);
    assert_eq!(settings.body["human_check"], "https://check.example");
    fs::remove_dir_all(&folder).expect("removed");
}

/// A folder with the page and these files beside it.
fn app_folder(name: &str, files: &[&str]) -> String {
    let folder = services().folder().join(format!("{name}-{}", ulid()));
    fs::create_dir_all(&folder).expect("a folder");
    for file in files.iter().chain(&["index.html"]) {
        fs::write(folder.join(file), "<!doctype html>").expect("a file");
    }
    folder.display().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_app_is_served_by_default() {
    let [a] = nodes().await;
    for path in ["/app", "/app/icon.svg", "/app/assets/main.js"] {
        a.anon().get(path).await.refused(404, "NOT_FOUND");
    }
}
