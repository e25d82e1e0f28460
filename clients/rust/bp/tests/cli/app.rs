//! `bp app verify`, against services that give out an app over HTTP.

use std::{fs, path::Path};

use axum::{
    Router,
    http::{StatusCode, Uri, header::CONTENT_SECURITY_POLICY, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::{net::TcpListener, task::JoinSet};

use crate::support::Home;

const FILES: [(&str, &str); 3] = [
    ("assets/main-1a2b.js", "run()"),
    ("index.html", "<!doctype html>the page"),
    ("sw.js", "addEventListener('fetch', () => {})"),
];
const POLICY: &str = "default-src 'none'; script-src 'self'; require-trusted-types-for 'script'";

/// The trick of a service that gives out another file than the release's.
#[derive(Clone, Copy)]
pub enum Trick {
    None,
    Replaces(&'static str),
    Hides(&'static str),
    Redirects(&'static str),
    Refreshes(&'static str),
    Loosens,
}

fn answer(uri: &Uri, trick: Trick) -> Response {
    let name = match uri.path() {
        "/app" => "index.html",
        path => path.strip_prefix("/app/").unwrap_or_default(),
    };
    let Some((_, content)) = FILES.iter().find(|(file, _)| *file == name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let policy = match trick {
        Trick::Loosens => "default-src *",
        _ => POLICY,
    };
    let headers = [
        (CONTENT_SECURITY_POLICY, policy),
        (CONTENT_TYPE, "text/html; charset=utf-8"),
    ];
    match trick {
        Trick::Replaces(file) if file == name => (headers, "other()").into_response(),
        Trick::Hides(file) if file == name => StatusCode::NOT_FOUND.into_response(),
        Trick::Redirects(file) if file == name => {
            (StatusCode::FOUND, [("location", "/app")]).into_response()
        }
        Trick::Refreshes(file) if file == name => {
            ([("refresh", "0;url=/other")], headers, *content).into_response()
        }
        _ => (headers, *content).into_response(),
    }
}

pub async fn serve(trick: Trick) -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let router = Router::new().fallback(move |uri: Uri| async move { answer(&uri, trick) });
    let mut serving = JoinSet::new();
    serving.spawn(async move { axum::serve(listener, router).await.expect("served") });
    (url, serving)
}

/// The list of a release, as its build writes it.
pub fn sums() -> String {
    let line = |(name, content): &(&str, &str)| {
        let sum = Sha256::digest(content.as_bytes());
        let digits: String = sum.iter().map(|it| format!("{it:02x}")).collect();
        format!("{digits}  {name}\n")
    };
    FILES.iter().map(line).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_app_of_a_release_is_recognised() {
    let home = Home::new();
    let list = home.file("SHA256SUMS", &sums());
    let (url, _serving) = serve(Trick::None).await;
    for address in [
        url.clone(),
        format!("{url}/app"),
        format!("{url}/app/#/c/1"),
    ] {
        let items = home
            .json(&["app", "verify", &address, "--sums", &list])
            .items();
        assert_eq!(items.len(), FILES.len());
        assert!(items.iter().all(|it| it["ok"] == true), "{items:?}");
    }
    let told = home.bp(&["app", "verify", &url, "--sums", &list]).done();
    assert!(told.contains("index.html: as in the release"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_way_to_give_out_another_app_is_found() {
    let home = Home::new();
    let list = home.file("SHA256SUMS", &sums());
    let tricks = [
        (Trick::Replaces("index.html"), "index.html", "another file"),
        (
            Trick::Replaces("assets/main-1a2b.js"),
            "assets/main-1a2b.js",
            "another file",
        ),
        (Trick::Replaces("sw.js"), "sw.js", "another file"),
        (Trick::Hides("sw.js"), "sw.js", "404"),
        (Trick::Redirects("index.html"), "index.html", "302"),
        (Trick::Refreshes("index.html"), "index.html", "another page"),
        (Trick::Loosens, "index.html", "without the policy"),
    ];
    for (trick, file, found) in tricks {
        let (url, _serving) = serve(trick).await;
        let ran = home.json(&["app", "verify", &url, "--sums", &list]);
        assert_eq!(ran.code, 1, "{}", ran.stderr);
        let items = ran.stdout.lines().map(serde_json::from_str::<Value>);
        let items: Vec<_> = items.map(|it| it.expect("JSON")).collect();
        let faults: Vec<_> = items.iter().filter(|it| it["ok"] == false).collect();
        let [fault] = faults[..] else {
            panic!("{items:?}")
        };
        assert_eq!(fault["file"], file);
        let told = fault["found"].as_str().expect("words");
        assert!(told.contains(found), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_compared_is_told_apart() {
    let home = Home::new();
    let list = home.file("SHA256SUMS", &sums());
    let verify = |address: &str, list: &str, code| {
        home.json(&["app", "verify", address, "--sums", list])
            .refused(code)
    };
    verify("https://127.0.0.1:1", &list, 5);
    verify("http://example.com", &list, 2);
    verify("https://127.0.0.1:1", &home.path("missing"), 2);
    let lists = [
        "no list".to_owned(),
        String::new(),
        sums().replace("index", "../index"),
    ];
    for text in lists {
        verify("https://127.0.0.1:1", &home.file("bad", &text), 2);
    }
    let beside = Path::new(env!("CARGO_BIN_EXE_bp")).with_file_name("app");
    assert!(!fs::exists(beside).expect("a folder"));
    home.json(&["app", "verify", "https://127.0.0.1:1"])
        .refused(2);
}
