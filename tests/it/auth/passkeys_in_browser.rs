//! Passkeys in a real browser, on the page of a real dev cluster.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use devcluster::cluster::{Cluster, Options, Shutdown};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{
    DevTools, FULL_HASHES, PASSWORD, browser, find_code, nodes, nodes_with, services, spawn, ulid,
};

/// Longest the test waits for anything but the start of the cluster.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The cluster of `make run` in a folder of its own, without the played conversation.
struct TestCluster {
    folder: PathBuf,
    published: Value,
    /// The page of each node, at the name that passkeys belong to.
    pages: [String; 2],
    /// The hash of the nodes' public key, for a browser to trust.
    key_hash: String,
    shutdown: Arc<Shutdown>,
    supervision: JoinHandle<()>,
}

impl TestCluster {
    async fn start(folder: &Path, packages: &Path) -> Self {
        fs::remove_dir_all(folder).ok();
        let options = Options {
            root: folder.to_owned(),
            packages: Some(packages.to_owned()),
            server: env!("CARGO_BIN_EXE_blindpipe").into(),
        };
        let shutdown = Arc::new(Shutdown::default());
        let cluster = Box::pin(Cluster::start(&options, &shutdown))
            .await
            .expect("a cluster");
        let text = fs::read_to_string(folder.join("cluster.json")).expect("its file");
        TestCluster {
            folder: folder.to_owned(),
            published: serde_json::from_str(&text).expect("JSON"),
            pages: [0, 1].map(|n| cluster.passkey_page_url(n)),
            key_hash: cluster.certificates().public_key_hash().expect("a key"),
            shutdown: shutdown.clone(),
            supervision: spawn(async move { cluster.supervise(&shutdown).await }),
        }
    }

    async fn stop(self) {
        self.shutdown.request();
        self.supervision.await.expect("no panic");
        assert!(!self.folder.join("cluster.json").exists());
        fs::remove_dir_all(&self.folder).ok();
    }

    fn base(&self, node: usize) -> &str {
        self.published["nodes"][node]["base_url"]
            .as_str()
            .expect("a URL")
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

#[tokio::test(flavor = "multi_thread")]
async fn a_real_browser_enrols_a_passkey_and_is_offered_it_on_another_node() {
    let services = tokio::task::spawn_blocking(services)
        .await
        .expect("no panic");
    let Some(browser) = browser().await else {
        return;
    };
    let folder = services.folder().to_owned();
    let cluster = TestCluster::start(&folder.join("cluster"), &services.directories.packages).await;
    let running = browser
        .start(&folder.join("browser"), &cluster.key_hash)
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
    page.go(&cluster.pages[0]).await;
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

    // A user who comes back, here to node 2, is offered it and signed in without a word.
    page.go(&cluster.pages[1]).await;
    assert_eq!(
        says(&mut page, "signed in").await,
        format!("signed in with a passkey as {user_id}")
    );

    // Not without showing a finger.
    let verified =
        |verified: bool| json!({ "authenticatorId": authenticator, "isUserVerified": verified });
    page.call("WebAuthn.setUserVerified", verified(false)).await;
    page.go(&cluster.pages[0]).await;
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
    page.go(&cluster.pages[0]).await;
    assert_eq!(says(&mut page, "failed").await, "failed: PASSKEY_INVALID");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_node_serves_a_page() {
    let production = [
        ("PROFILE", "production"),
        FULL_HASHES,
        ("MAIL_URL", "smtp://127.0.0.1:1"),
        ("TURNSTILE_SECRET", "x"),
        ("PUBLIC_URL", "https://chat.example.org"),
        ("RP_ID", "chat.example.org"),
        ("RP_ORIGIN", "https://chat.example.org"),
        ("MAIL_FROM", "no-reply@example.org"),
    ];
    let [dev] = nodes().await;
    let [production] = nodes_with(&production).await;
    for node in [dev, production] {
        for path in ["/dev/passkeys", "/v1/dev/passkeys", "/node-1"] {
            node.anon().get(path).await.refused(404, "NOT_FOUND");
        }
    }
}
