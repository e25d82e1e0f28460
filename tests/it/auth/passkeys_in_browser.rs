//! Passkeys in a real browser, on the page of a real dev cluster.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use blindpipe::dev::{browser::Browser, not_tried, services::send_signal};
use rcgen::{KeyPair, PublicKeyData};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::{DevTools, PASSWORD, find_code, nodes, nodes_with, services, ulid};

/// Longest the test waits for anything but the start of the cluster.
const TIMEOUT: Duration = Duration::from_secs(20);

/// `make run` in a folder of its own, without the played conversation.
struct Cluster {
    launcher: Child,
    folder: PathBuf,
    published: Value,
}

impl Cluster {
    async fn start(folder: &Path, packages: &Path) -> Self {
        fs::remove_dir_all(folder).ok();
        fs::create_dir_all(folder.parent().expect("a parent")).expect("a folder");
        let log = fs::File::create(folder.with_extension("log")).expect("a log");
        let launcher = Command::new(env!("CARGO_BIN_EXE_blindpipe"))
            .args(["dev", "--no-demo", "--dir"])
            .arg(folder)
            .arg("--packages")
            .arg(packages)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("a process");
        let mut cluster = Cluster {
            launcher,
            folder: folder.to_owned(),
            published: Value::Null,
        };
        // Two databases are being set up on what may be a busy machine.
        for _ in 0..1800 {
            if let Ok(text) = fs::read_to_string(folder.join("cluster.json")) {
                cluster.published = serde_json::from_str(&text).expect("JSON");
                return cluster;
            }
            if cluster.launcher.try_wait().expect("a child").is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!(
            "no cluster: {}",
            fs::read_to_string(folder.with_extension("log")).unwrap_or_default()
        );
    }

    fn base(&self, node: usize) -> &str {
        self.published["nodes"][node]["base_url"]
            .as_str()
            .expect("a URL")
    }

    /// The page on a node, at the name that passkeys belong to.
    fn page(&self, node: usize) -> String {
        format!(
            "{}/dev/passkeys",
            self.base(node).replace("127.0.0.1", "localhost")
        )
    }

    /// The hash of the nodes' public key, for a browser to trust.
    fn key_hash(&self) -> String {
        let pem = fs::read_to_string(self.folder.join("tls/key.pem")).expect("a key");
        let key = KeyPair::from_pem(&pem).expect("a key");
        BASE64.encode(Sha256::digest(key.subject_public_key_info()))
    }

    fn client(&self) -> reqwest::Client {
        let ca =
            fs::read(self.published["ca_file"].as_str().expect("a file")).expect("an authority");
        let ca = reqwest::Certificate::from_pem(&ca).expect("a certificate");
        reqwest::Client::builder()
            .no_proxy()
            .tls_certs_only([ca])
            .build()
            .expect("a client")
    }

    /// A user, registered through the API; the answer's data and the e-mail.
    async fn register(&self) -> (Value, String) {
        let client = self.client();
        let post = async |path: &str, body: Value| -> Value {
            let answer = client
                .post(format!("{}{path}", self.base(0)))
                .json(&body)
                .send()
                .await
                .expect("an answer");
            assert!(answer.status().is_success(), "{path}: {}", answer.status());
            answer.json::<Value>().await.expect("JSON")["data"].take()
        };
        let email = format!("u{}@example.org", ulid().to_string().to_lowercase());
        post(
            "/auth/send-code",
            json!({ "email": email, "scene": "register", "turnstile_token": "dev-pass" }),
        )
        .await;
        let mails = Path::new(self.published["mail_dir"].as_str().expect("a folder"));
        let code = loop {
            match find_code(mails, &email) {
                Some(code) => break code,
                None => tokio::time::sleep(Duration::from_millis(25)).await,
            }
        };
        let body = json!({
            "email": email, "code": code, "account_password": PASSWORD, "display_name": "Ada", "device_locale": "en",
            "turnstile_token": "dev-pass",
        });
        (post("/auth/register", body).await, email)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        send_signal(self.launcher.id(), "TERM");
        for _ in 0..400 {
            if self.launcher.try_wait().ok().flatten().is_some() {
                fs::remove_dir_all(&self.folder).ok();
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.launcher.kill().ok();
        self.launcher.wait().ok();
    }
}

/// Past the harness, which hides what a test that passes has to say.
fn shout(why: &str) {
    std::io::stderr().write_all(not_tried(why).as_bytes()).ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_browser_enrols_a_passkey_and_is_offered_it_on_another_node() {
    let services = tokio::task::spawn_blocking(services)
        .await
        .expect("no panic");
    let found = tokio::task::spawn_blocking(|| Browser::obtain(&services.place))
        .await
        .expect("no panic");
    let browser = match found {
        Ok(browser) => browser,
        Err(trouble) => return shout(&trouble.to_string()),
    };
    let folder = services.folder().to_owned();
    let cluster = Cluster::start(&folder.join("cluster"), &services.place.packages).await;
    let running = browser
        .start(&folder.join("browser"), &cluster.key_hash())
        .expect("a browser");
    let (user, email) = cluster.register().await;
    let user_id = user["user_id"].as_str().expect("an id");

    let mut page = DevTools::open(&running.devtools).await;
    page.call("WebAuthn.enable", json!({})).await;
    let options = json!({
        "protocol": "ctap2", "transport": "internal", "hasResidentKey": true, "hasUserVerification": true,
        "isUserVerified": true, "automaticPresenceSimulation": true,
    });
    let added = page
        .call(
            "WebAuthn.addVirtualAuthenticator",
            json!({ "options": options }),
        )
        .await;
    let authenticator = added["authenticatorId"].clone();
    let says = async |page: &mut DevTools, what: &str| {
        let started = tokio::time::Instant::now();
        loop {
            let said = page
                .evaluate("document.getElementById('status')?.textContent ?? ''")
                .await;
            let said = said.as_str().unwrap_or_default().to_owned();
            if said.starts_with(what) {
                return said;
            }
            assert!(
                started.elapsed() < TIMEOUT,
                "{what:?} is awaited, the page says {said:?}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };

    // With a password first, on node 1; then a passkey is made.
    page.go(&cluster.page(0)).await;
    says(&mut page, "ready").await;
    let fill = format!(
        "document.getElementById('email').value = {}; document.getElementById('password').value = {};
         document.querySelector('#login button').click()",
        json!(email),
        json!(PASSWORD)
    );
    page.evaluate(&fill).await;
    assert_eq!(
        says(&mut page, "signed in").await,
        format!("signed in with a password as {user_id}")
    );
    page.evaluate("document.getElementById('enrol').click()")
        .await;
    let enrolled = says(&mut page, "enrolled").await;
    let kept = page
        .call(
            "WebAuthn.getCredentials",
            json!({ "authenticatorId": authenticator }),
        )
        .await;
    let kept = kept["credentials"].as_array().expect("a list");
    assert_eq!(
        (
            kept.len(),
            &kept[0]["isResidentCredential"],
            &kept[0]["rpId"]
        ),
        (1, &json!(true), &json!("localhost"))
    );

    // Whoever comes back, here to node 2, is offered it and signed in without a word.
    page.go(&cluster.page(1)).await;
    assert_eq!(
        says(&mut page, "signed in").await,
        format!("signed in with a passkey as {user_id}")
    );

    // Not without showing a finger.
    let verified =
        |verified: bool| json!({ "authenticatorId": authenticator, "isUserVerified": verified });
    page.call("WebAuthn.setUserVerified", verified(false)).await;
    page.go(&cluster.page(0)).await;
    says(&mut page, "ready, and no passkey was used").await;
    page.call("WebAuthn.setUserVerified", verified(true)).await;

    // And not once it was removed.
    let passkey = enrolled.strip_prefix("enrolled ").expect("an id");
    let url = format!("{}/users/me/passkeys/{passkey}", cluster.base(1));
    let token = user["access_token"].as_str().expect("a token");
    let gone = cluster
        .client()
        .delete(url)
        .bearer_auth(token)
        .send()
        .await
        .expect("an answer");
    assert_eq!(gone.status(), 200);
    page.go(&cluster.page(0)).await;
    assert_eq!(says(&mut page, "failed").await, "failed: PASSKEY_INVALID");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_served_by_the_dev_profile_only() {
    let [dev] = nodes().await;
    let page = dev.anon().get("/dev/passkeys").await.expect(200);
    assert_eq!(
        page.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    let production = [
        ("PROFILE", "production"),
        ("MAIL_URL", "smtp://127.0.0.1:1"),
        ("TURNSTILE_SECRET", "x"),
    ];
    let [production] = nodes_with(&production).await;
    production
        .anon()
        .get("/dev/passkeys")
        .await
        .refused(404, "NOT_FOUND");
    production
        .anon()
        .get("/v1/dev/passkeys")
        .await
        .refused(404, "NOT_FOUND");
}
