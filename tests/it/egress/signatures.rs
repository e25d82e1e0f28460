//! Attack 42: receivers can tell genuine deliveries from forged and repeated ones, with the code of
//! the documentation and with the stock libraries.

use std::{
    collections::{BTreeMap, HashMap},
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use axum::http::HeaderMap;
use blindpipe::{
    clock::Clock,
    features::webhooks::signature::{Signer, WebhookSecret},
    ids::DeliveryId,
    random::Random,
};
use serde::Serialize;
use uuid::Uuid;

use super::{stock_verifies, verify};

/// A request as a receiver sees it.
#[derive(Clone, Serialize)]
pub(super) struct Delivery {
    secret: String,
    headers: BTreeMap<String, String>,
    body: String,
    now: i64,
    #[serde(skip)]
    genuine: bool,
    #[serde(skip)]
    what: String,
}

impl Delivery {
    /// A delivery as it arrived, which must be genuine.
    pub(super) fn genuine(
        secret: &str,
        headers: &HashMap<String, String>,
        body: &[u8],
        now: i64,
    ) -> Self {
        let pairs = headers.iter();
        Delivery {
            secret: secret.to_owned(),
            headers: pairs
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
            body: String::from_utf8(body.to_vec()).expect("text"),
            now,
            genuine: true,
            what: format!("{headers:?}"),
        }
    }

    fn forged(&self, what: &str, change: impl FnOnce(&mut Delivery)) -> Delivery {
        let mut forged = self.clone();
        forged.genuine = false;
        forged.what = what.to_owned();
        change(&mut forged);
        forged
    }

    fn header(&mut self, name: &str) -> &mut String {
        self.headers.get_mut(name).expect("a header")
    }
}

/// Genuine deliveries with all kinds of secrets and bodies.
fn genuine(count: usize) -> Vec<Delivery> {
    let clock = Clock::default();
    let random = Random::new(clock.clone());
    let signer = Signer::new(&"Service".parse().expect("a brand"));
    let secrets: Vec<WebhookSecret> = (0..7).map(|_| WebhookSecret::generate(&random)).collect();
    let delivery = |n: usize| {
        let (current, other) = (&secrets[n % 7], &secrets[(n + 1) % 7]);
        // In every third, the receiver still has the secret before the rotation.
        let late = n % 3 == 2;
        let (body, id) = (body(n, &random), DeliveryId::generate(&random));
        let headers = signer.headers(
            if late { other } else { current },
            (!n.is_multiple_of(3)).then_some(if late { current } else { other }),
            id,
            clock.now(),
            body.as_bytes(),
        );
        Delivery {
            secret: current.expose().to_owned(),
            headers: as_map(&headers),
            body,
            now: clock.now().timestamp(),
            genuine: true,
            what: format!("genuine {n}"),
        }
    };
    (0..count).map(delivery).collect()
}

fn body(n: usize, random: &Random) -> String {
    match n % 4 {
        0 => String::new(),
        1 => format!("{{\"n\": {n}, \"text\": \"{}\"}}", random.base62(n % 300)),
        2 => "grüße 🦄 \u{0} \\u0000 \r\n".repeat(n % 20),
        _ => format!("{}.{}.{{}}", n, random.uuid_v7()),
    }
}

fn as_map(headers: &HeaderMap) -> BTreeMap<String, String> {
    let pairs = headers.iter();
    pairs
        .map(|(name, value)| (name.to_string(), value.to_str().expect("ASCII").to_owned()))
        .collect()
}

/// The forgeries that an attacker would make of a genuine delivery with a body.
fn forgeries(of: &Delivery) -> Vec<Delivery> {
    let other = WebhookSecret::generate(&Random::new(Clock::default()));
    let flip = |text: &mut String| {
        let last = text.pop().expect("a character");
        text.push(if last == 'a' { 'b' } else { 'a' });
    };
    // The last character of padded base64 is padding.
    let flip_first = |text: &mut String| {
        let at = text.find(',').expect("a version") + 1;
        let new = if text[at..].starts_with('A') {
            "B"
        } else {
            "A"
        };
        text.replace_range(at..=at, new);
    };
    vec![
        of.forged("another body", |forged| forged.body.push(' ')),
        of.forged("no body", |forged| forged.body.clear()),
        of.forged("another secret", |forged| {
            other.expose().clone_into(&mut forged.secret);
        }),
        of.forged("another signature", |forged| {
            flip(forged.header("x-service-signature"));
            flip_first(forged.header("webhook-signature"));
        }),
        of.forged("a cut signature", |forged| {
            forged.header("x-service-signature").pop();
            forged.header("webhook-signature").truncate(20);
        }),
        of.forged("no signature", |forged| {
            forged.headers.remove("x-service-signature");
            forged.headers.remove("webhook-signature");
        }),
        of.forged("empty signatures", |forged| {
            forged.header("x-service-signature").clear();
            forged.header("webhook-signature").clear();
        }),
        of.forged("another time", |forged| {
            for name in ["x-service-timestamp", "webhook-timestamp"] {
                *forged.header(name) = (forged.now - 1).to_string();
            }
        }),
        of.forged("another id", |forged| {
            let id = Uuid::nil().to_string();
            for name in ["x-service-delivery-id", "webhook-id"] {
                forged.header(name).clone_from(&id);
            }
        }),
        of.forged("no time", |forged| {
            forged.headers.remove("x-service-timestamp");
            forged.headers.remove("webhook-timestamp");
        }),
        of.forged("a time of words", |forged| {
            for name in ["x-service-timestamp", "webhook-timestamp"] {
                forged.header(name).push('x');
            }
        }),
    ]
}

/// A genuine delivery that is repeated outside the tolerance, and those just inside it.
fn repeated(of: &Delivery) -> Vec<Delivery> {
    let at = |seconds: i64, genuine| {
        let mut delivery = of.clone();
        delivery.now += seconds;
        delivery.genuine = genuine;
        delivery.what = format!("{seconds} s later");
        delivery
    };
    vec![
        at(-301, false),
        at(-299, true),
        at(299, true),
        at(301, false),
    ]
}

fn cases(count: usize) -> Vec<Delivery> {
    let mut cases = genuine(count);
    let forged = forgeries(&cases[1]);
    cases.extend(forged);
    cases
}

fn assert_verdicts(cases: &[Delivery], verdicts: &[bool], by: &str) {
    assert_eq!(cases.len(), verdicts.len(), "{by}");
    for (case, verdict) in cases.iter().zip(verdicts) {
        assert_eq!(*verdict, case.genuine, "{by}: {}", case.what);
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a program with the cases on its standard input, a line of JSON each. It answers 1 or 0 per
/// case. None if the program is not there.
fn ask(program: &str, arguments: &[&str], cases: &[Delivery]) -> Option<Vec<bool>> {
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut stdin = child.stdin.take().expect("a pipe");
    let lines: Vec<String> = cases
        .iter()
        .map(|case| serde_json::to_string(case).expect("JSON"))
        .collect();
    let writer = std::thread::spawn(move || stdin.write_all(lines.join("\n").as_bytes()));
    let output = child.wait_with_output().expect("an end");
    writer.join().expect("no panic").ok();
    assert!(output.status.success(), "{program} failed");
    let text = String::from_utf8(output.stdout).expect("text");
    Some(text.trim().chars().map(|verdict| verdict == '1').collect())
}

#[expect(clippy::print_stderr, reason = "a test that did not run must be seen")]
fn say_not_run(what: &str) {
    let stars = "*".repeat(78);
    eprintln!("\n{stars}\n* NOT RUN: {what}\n{stars}\n");
}

/// Runs an installer once; later calls find what it installed.
fn installed(folder: &str, program: &str, arguments: &[&str]) -> bool {
    let target = root().join(".dev").join(folder);
    let done = target.join(".done");
    if done.exists() {
        return true;
    }
    std::fs::create_dir_all(&target).expect("a folder");
    let status = Command::new(program)
        .args(arguments)
        .current_dir(&target)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let good = status.is_ok_and(|status| status.success());
    good && std::fs::write(done, "").is_ok()
}

const PYTHON: &str = r#"
import json, sys
sys.path.insert(0, "docs/api/webhooks")
from verify import verify
for line in sys.stdin:
    case = json.loads(line)
    found = verify(case["secret"], case["headers"], case["body"].encode(), case["now"])
    print(int(found is not None), end="")
"#;

const PYTHON_STOCK: &str = r#"
import json, sys
sys.path.insert(0, ".dev/pip")
from standardwebhooks import Webhook
for line in sys.stdin:
    case = json.loads(line)
    try:
        # The bodies of the cases are not all JSON, which the library would parse after its verdict.
        Webhook(case["secret"]).verify(case["body"], case["headers"])
        print(1, end="")
    except json.JSONDecodeError:
        print(1, end="")
    except Exception:
        print(0, end="")
"#;

const NODE: &str = r#"
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
const amaro = createRequire(process.cwd() + "/.dev/npm/x.js")("amaro");
const source = readFileSync("docs/api/webhooks/verify.ts", "utf8");
const { code } = amaro.transformSync(source, { mode: "strip-only" });
const { verify } = await import("data:text/javascript," + encodeURIComponent(code));
for (const line of readFileSync(0, "utf8").split("\n")) {
  const { secret, headers, body, now } = JSON.parse(line);
  process.stdout.write(verify(secret, headers, Buffer.from(body), now) === null ? "0" : "1");
}
"#;

const NODE_STOCK: &str = r#"
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
const { Webhook, WebhookVerificationError } =
  createRequire(process.cwd() + "/.dev/npm/x.js")("standardwebhooks");
for (const line of readFileSync(0, "utf8").split("\n")) {
  const { secret, headers, body } = JSON.parse(line);
  try {
    new Webhook(secret).verify(body, headers);
    process.stdout.write("1");
  } catch (error) {
    // The bodies of the cases are not all JSON, which the library would parse after its verdict.
    process.stdout.write(error instanceof SyntaxError ? "1" : "0");
  }
}
"#;

#[test]
fn attack_42_the_documented_rust_tells_genuine_from_forged() {
    let mut cases = cases(2_000);
    cases.extend(repeated(&cases[1]));
    let verdicts: Vec<bool> = cases
        .iter()
        .map(|case| {
            let header = |name: &str| case.headers.get(name).map(String::as_str);
            let id = verify::verify(&case.secret, header, case.body.as_bytes(), case.now);
            assert!(id.is_none_or(|id| id == case.headers["x-service-delivery-id"]));
            id.is_some()
        })
        .collect();
    assert_verdicts(&cases, &verdicts, "verify.rs");
}

#[test]
fn attack_42_the_documented_python_tells_10_000_genuine_from_forged() {
    let mut cases = cases(10_000);
    cases.extend(repeated(&cases[1]));
    verified_by_python(&cases);
}

/// Lets the documented Python judge deliveries.
pub(super) fn verified_by_python(cases: &[Delivery]) {
    match ask("python3", &["-c", PYTHON], cases) {
        Some(verdicts) => assert_verdicts(cases, &verdicts, "verify.py"),
        None => say_not_run("verify.py, because there is no python3"),
    }
}

#[test]
fn attack_42_the_documented_typescript_tells_genuine_from_forged() {
    let mut cases = cases(2_000);
    cases.extend(repeated(&cases[1]));
    if !with_npm() {
        return say_not_run("verify.ts, because npm cannot fetch amaro, which removes its types");
    }
    let arguments = ["--input-type=module", "--eval", NODE];
    match ask("node", &arguments, &cases) {
        Some(verdicts) => assert_verdicts(&cases, &verdicts, "verify.ts"),
        None => say_not_run("verify.ts, because there is no node"),
    }
}

fn with_npm() -> bool {
    static ONCE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    let packages = [
        "install",
        "--no-save",
        "standardwebhooks@1.1.1",
        "amaro@0.1.9",
    ];
    *ONCE.get_or_init(|| installed("npm", "npm", &packages))
}

#[test]
fn attack_42_the_stock_rust_library_tells_genuine_from_forged() {
    let cases = cases(2_000);
    let verdicts: Vec<bool> = cases
        .iter()
        .map(|case| stock_verifies(&case.secret, &case.headers, case.body.as_bytes()))
        .collect();
    assert_verdicts(&cases, &verdicts, "standardwebhooks for Rust");
}

#[test]
fn attack_42_the_stock_python_library_tells_genuine_from_forged() {
    let cases = cases(2_000);
    let arguments = [
        "-m",
        "pip",
        "install",
        "--target",
        ".",
        "standardwebhooks==1.1.0",
    ];
    if !installed("pip", "python3", &arguments) {
        return say_not_run("standardwebhooks for Python, because pip cannot fetch it");
    }
    match ask("python3", &["-c", PYTHON_STOCK], &cases) {
        Some(verdicts) => assert_verdicts(&cases, &verdicts, "standardwebhooks for Python"),
        None => say_not_run("standardwebhooks for Python, because there is no python3"),
    }
}

#[test]
fn attack_42_the_stock_node_library_tells_genuine_from_forged() {
    let mut cases = cases(2_000);
    // This library reads the number at the start of the time and ignores the rest.
    cases.retain(|case| case.what != "a time of words");
    if !with_npm() {
        return say_not_run("standardwebhooks for Node.js, because npm cannot fetch it");
    }
    let arguments = ["--input-type=module", "--eval", NODE_STOCK];
    match ask("node", &arguments, &cases) {
        Some(verdicts) => assert_verdicts(&cases, &verdicts, "standardwebhooks for Node.js"),
        None => say_not_run("standardwebhooks for Node.js, because there is no node"),
    }
}

#[test]
fn the_documents_that_tests_run_are_where_the_text_says() {
    let text = std::fs::read_to_string(root().join("docs/api/webhooks/verification.md"));
    let text = text.expect("the document");
    for file in ["verify.py", "verify.ts", "verify.rs", "vectors.json"] {
        assert!(text.contains(&format!("]({file})")), "{file}");
        assert!(
            Path::new(&root())
                .join("docs/api/webhooks")
                .join(file)
                .exists()
        );
    }
}
