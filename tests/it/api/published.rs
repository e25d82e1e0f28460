//! The documents of the interface that a node serves.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::{DevTools, browser, nodes, nodes_with, services};

/// Longest wait for the page.
const TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn a_node_serves_the_documents_of_its_interface() {
    let [a] = nodes().await;
    let openapi = a.anon().get("/openapi.json").await.expect(200);
    assert_eq!(openapi.body["openapi"], json!("3.1.0"));
    let routes = openapi.body["paths"].as_object().expect("paths");
    assert!(routes.contains_key("/events/types") && routes.contains_key("/auth/login"));
    // A client without a session may log out.
    assert_eq!(
        routes["/auth/logout"]["post"]["security"],
        json!([{ "refresh": [] }, {}])
    );

    let asyncapi = a.anon().get("/asyncapi.yaml").await.expect(200);
    assert_eq!(asyncapi.header("content-type"), Some("application/yaml"));

    let types = a.anon().get("/events/types").await.expect(200);
    let rows = types.body["data"].as_array().expect("a list");
    let names: BTreeSet<&str> = rows
        .iter()
        .filter_map(|row| row["event"].as_str())
        .collect();
    assert_eq!(names.len(), rows.len());
    for name in ["message.created", "webhook.verify", "webhook.test"] {
        assert!(names.contains(name), "{name}");
        let row = format!("event: \"{name}\"");
        assert!(blindpipe::documents::asyncapi().contains(&row), "{name}");
    }
    for row in rows {
        let schema = &row["schema"];
        let reference = schema["$ref"].as_str().expect("a reference");
        let name = reference.strip_prefix("#/$defs/").expect("a local one");
        assert!(schema["$defs"][name].is_object(), "{row}");
        assert!(!row.to_string().contains("#/components"), "{row}");
    }
}

/// A real browser draws every operation. The policy of the page lets it do nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_browser_draws_the_documentation_within_a_strict_policy() {
    let [a] = nodes().await;
    let policy = a.anon().get("/docs").await.expect(200);
    let policy = policy.header("content-security-policy").expect("a policy");
    assert!(!policy.contains("unsafe") && policy.contains("default-src 'none'"));
    a.anon().get("/docs/swagger-ui.css").await.expect(200);
    a.anon()
        .get("/docs/other.js")
        .await
        .refused(404, "NOT_FOUND");

    let Some(browser) = browser().await else {
        return;
    };
    let folder = services().folder().join("documentation");
    let running = browser.start(&folder, "").expect("a browser");
    let mut page = DevTools::open(&running.devtools).await;
    page.call("Network.enable", json!({})).await;
    // The node takes the browser for a proxy that speaks TLS.
    let headers = json!({ "headers": { "x-forwarded-proto": "https" } });
    page.call("Network.setExtraHTTPHeaders", headers).await;
    let watch = "window.refused = [];
        addEventListener('securitypolicyviolation', e => refused.push(e.effectiveDirective))";
    let watch = json!({ "source": watch });
    page.call("Page.addScriptToEvaluateOnNewDocument", watch)
        .await;
    page.go(&format!("{}/docs", a.base)).await;

    let openapi = a.anon().get("/openapi.json").await.expect(200);
    let paths = openapi.body["paths"].as_object().expect("paths").values();
    let operations: usize = paths
        .map(|path| path.as_object().map_or(0, |all| all.len()))
        .sum();
    let drawn = "document.querySelectorAll('.opblock').length";
    let began = tokio::time::Instant::now();
    while page.evaluate(drawn).await != json!(operations) {
        assert!(began.elapsed() < TIMEOUT, "{operations} operations");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let style = "getComputedStyle(document.querySelector('.opblock')).borderRadius";
    assert_eq!(page.evaluate(style).await, "4px", "the style counts");
    assert_eq!(page.evaluate("refused").await, json!([]));

    // Its scripts reach neither the cookie of this address nor the service.
    let reach = "(async () => {
        const cookie = (() => { try { return document.cookie } catch { return 'kept away' } })()
        const answer = await fetch('/version').then(() => 'answered', () => 'kept away')
        return [cookie, answer, origin]
    })()";
    let expected: Value = json!(["kept away", "kept away", "null"]);
    assert_eq!(page.evaluate(reach).await, expected);
    assert_eq!(page.evaluate("refused").await, json!(["connect-src"]));
}

/// The vendored files are those whose sums were noted when they were fetched.
#[test]
fn the_vendored_page_is_the_published_one() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("vendor/swagger-ui");
    let sums = fs::read_to_string(folder.join("SHA256SUMS")).expect("the sums");
    for line in sums.lines() {
        let (sum, name) = line.split_once("  ").expect("a sum and a name");
        let bytes = fs::read(folder.join(name)).expect(name);
        let found = base16ct::lower::encode_string(&Sha256::digest(&bytes));
        assert_eq!(found, sum, "{name}");
    }
    assert_eq!(sums.lines().count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_served_document_names_its_own_server() {
    let url = "https://chat.example.org/";
    let [a] = nodes_with(&[("PUBLIC_URL", url)]).await;
    let served = a.anon().get("/openapi.json").await.expect(200);
    assert_eq!(
        served.body["servers"],
        json!([{ "url": "https://chat.example.org" }])
    );
    // All else is the committed document.
    let mut committed: Value =
        serde_json::from_str(&blindpipe::documents::openapi()).expect("JSON");
    committed["servers"] = served.body["servers"].clone();
    assert_eq!(served.body, committed);
    let drawn = a.anon().request(reqwest::Method::GET, "/docs/openapi.js");
    let drawn = drawn.send().await.expect("an answer").text().await;
    assert!(drawn.expect("text").contains("https://chat.example.org"));
}
