//! The page of a share, as a real browser shows it.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

use super::{Stage, StoreKind, bring, confirm, noise};
use crate::support::{DevTools, browser, services, spawn};

/// The key of a file, as a client puts it behind `#`.
const FRAGMENT_KEY: &str = "k-Zm9yLWV5ZXMtb25seQ";
/// Longest wait for a page or a download.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A relay in front of a node that keeps every byte of the browser. To the node it is a proxy that
/// speaks TLS.
struct Recorder {
    base: String,
    target: Arc<OnceLock<String>>,
    sent: Arc<Mutex<Vec<u8>>>,
}

impl Recorder {
    async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let recorder = Recorder {
            base: format!("http://{}", listener.local_addr().expect("an address")),
            target: Arc::default(),
            sent: Arc::default(),
        };
        let (target, sent) = (recorder.target.clone(), recorder.sent.clone());
        spawn(async move {
            while let Ok((browser, _)) = listener.accept().await {
                let node = target.get().expect("a node").trim_start_matches("http://");
                let node = TcpStream::connect(node).await.expect("the node");
                let (from, mut back) = browser.into_split();
                let mut from = BufReader::new(from);
                let (mut answers, mut to) = node.into_split();
                let sent = sent.clone();
                spawn(async move { tokio::io::copy(&mut answers, &mut back).await });
                spawn(async move {
                    let mut head = Vec::new();
                    // A browser sends heads alone here.
                    while let Ok(byte) = from.read_u8().await {
                        head.push(byte);
                        if !head.ends_with(b"\r\n\r\n") {
                            continue;
                        }
                        sent.lock().expect("no panic").extend_from_slice(&head);
                        head.truncate(head.len() - 2);
                        head.extend_from_slice(b"x-forwarded-proto: https\r\n\r\n");
                        if to.write_all(&head).await.is_err() {
                            return;
                        }
                        head.clear();
                    }
                });
            }
        });
        recorder
    }

    fn sent(&self) -> String {
        String::from_utf8_lossy(&self.sent.lock().expect("no panic")).into_owned()
    }
}

/// A page that counts what its policy refuses, and whose downloads go to `downloads`.
async fn watched_page(devtools: &str, downloads: &Path) -> DevTools {
    let mut page = DevTools::open(devtools).await;
    for domain in ["Network.enable", "Log.enable"] {
        page.call(domain, json!({})).await;
    }
    let watch = "window.refused = [];
        addEventListener('securitypolicyviolation', e => refused.push(e.effectiveDirective))";
    page.call(
        "Page.addScriptToEvaluateOnNewDocument",
        json!({ "source": watch }),
    )
    .await;
    let behaviour = json!({ "behavior": "allow", "downloadPath": downloads });
    page.call("Page.setDownloadBehavior", behaviour).await;
    page
}

/// Opens an address; returns the text that a person reads.
async fn read(page: &mut DevTools, url: &str) -> String {
    page.go(url).await;
    let is_loaded = "document.readyState === 'complete' && !!document.querySelector('main')";
    until(url, async || page.evaluate(is_loaded).await == json!(true)).await;
    let text = page.evaluate("document.body.innerText").await;
    text.as_str().expect("text").to_owned()
}

async fn until(what: &str, mut is_done: impl AsyncFnMut() -> bool) {
    let began = tokio::time::Instant::now();
    while !is_done().await {
        assert!(began.elapsed() < TIMEOUT, "{what} is awaited");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn share(stage: &Stage, mut body: Value) -> String {
    body["expires_at"] = stage.after(3600);
    let answer = stage.alice.post("/shares", body).await.expect(201);
    answer.data()["url"].as_str().expect("a URL").to_owned()
}

/// A browser shows the card with its style and refuses everything else; the key stays with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_real_browser_shows_a_share_and_keeps_its_key() {
    let Some(browser) = browser().await else {
        return;
    };
    let recorder = Recorder::start().await;
    let stage = Stage::with(StoreKind::Folder, &[("PUBLIC_URL", &recorder.base)]).await;
    recorder
        .target
        .set(stage.nodes[1].base.clone())
        .expect("one");
    let folder = services().folder().join("share-page");
    let running = browser.start(&folder, "").expect("a browser");
    let downloads = folder.join("downloads");
    fs::create_dir_all(&downloads).expect("a folder");
    fs::set_permissions(&downloads, fs::Permissions::from_mode(0o777)).expect("a mode");
    let mut page = watched_page(&running.devtools, &downloads).await;

    let bytes = noise(3_000_000);
    let body = json!({
        "filename": "Plan <b>2030</b>.pdf", "content_type": "application/pdf",
        "size": bytes.len(), "conversation_id": stage.conversation,
    });
    let asked = stage
        .agent
        .post(stage.agent_files(), body)
        .await
        .expect(201);
    let mut upload = asked.data().clone();
    let url = upload["upload_url"].as_str().expect("a URL");
    upload["upload_url"] = json!(url.trim_start_matches(recorder.base.as_str()));
    bring(&stage.agent, &upload, &bytes).await.expect(200);
    let file = confirm(&stage.agent, &upload, &bytes).await.expect(200);
    let file_url = share(&stage, json!({ "file_id": file.data()["file_id"] })).await;
    let text = read(&mut page, &format!("{file_url}#{FRAGMENT_KEY}")).await;
    let end = stage.nodes[0].world.clock.now() + Duration::from_secs(3600);
    for part in [
        "Plan <b>2030</b>.pdf",
        "2.8 MB (3000000 bytes)",
        &format!("Open until\n{}", end.format("%-d %B %Y")),
        file.data()["sha256"].as_str().expect("a hash"),
        "Download the encrypted file",
    ] {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
    let hash = page.evaluate("location.hash").await;
    assert_eq!(hash, format!("#{FRAGMENT_KEY}"));
    let radius = "getComputedStyle(document.querySelector('main')).borderRadius";
    assert_eq!(page.evaluate(radius).await, "12px", "the style counts");
    assert_eq!(page.evaluate("refused").await, json!([]));

    // The download is the ciphertext, whole.
    page.evaluate("document.querySelector('a').click()").await;
    let is_there = |path: fs::DirEntry| fs::read(path.path()).is_ok_and(|read| read == bytes);
    until("a download", async || {
        let files = fs::read_dir(&downloads).into_iter().flatten().flatten();
        files.into_iter().any(is_there)
    })
    .await;

    // The other cards, and the page of what is not there.
    let agent_url = share(&stage, json!({ "agent_id": stage.agent.id })).await;
    let text = read(&mut page, &agent_url).await;
    assert!(text.starts_with("helper"), "{text}");
    assert!(text.contains(&stage.agent.id), "{text}");
    assert_eq!(page.evaluate("refused").await, json!([]));
    let contact_url = share(&stage, json!({ "contact": true })).await;
    let text = read(&mut page, &contact_url).await;
    assert!(text.starts_with("alice\n"), "{text}");
    assert_eq!(page.evaluate("refused").await, json!([]));
    let text = read(&mut page, &format!("{}/share/nothing", recorder.base)).await;
    assert!(text.starts_with("There is nothing here"), "{text}");

    // The policy acts: an image and a script of the page's own site are refused.
    let intrude = "for (const [kind, at] of [['img', '/version'], ['script', '/version']])
        document.body.append(Object.assign(document.createElement(kind), { src: at }))";
    page.evaluate(intrude).await;
    let refused = async || page.evaluate("refused.length").await == json!(2);
    until("two refusals", refused).await;
    page.evaluate("1").await;
    let refusals = page.reports.iter().filter(|report| {
        report["method"] == "Log.entryAdded"
            && report["params"]["entry"]["text"]
                .as_str()
                .is_some_and(|text| text.contains("Content Security Policy"))
    });
    assert_eq!(refusals.count(), 2, "{:?}", page.reports);

    // Neither the key nor the address of the page has left the browser.
    let sent = recorder.sent();
    assert!(sent.contains("GET /share/"), "{sent}");
    assert!(sent.contains("GET /objects/"), "{sent}");
    assert!(!sent.contains(FRAGMENT_KEY), "{sent}");
    assert!(!sent.to_lowercase().contains("\r\nreferer:"), "{sent}");
    assert!(!sent.contains("GET /version"), "{sent}");
}
