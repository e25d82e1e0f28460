//! A client of the public interface: REST calls, registration, sockets.

use std::{error::Error, fs, path::Path, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use reqwest::Method;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use ulid::Ulid;

use super::{STEP_TIMEOUT, mail::find_code, socket::Socket};
use crate::{
    error::{Context, DevError, Result},
    random,
};

/// Calls nodes as any client would.
pub struct DemoClient {
    http: reqwest::Client,
    tls: Arc<ClientConfig>,
}

impl DemoClient {
    /// A client that trusts the authority in `ca` alone.
    pub fn new(ca: &Path) -> Result<Self> {
        let pem = fs::read(ca).with_context(|| format!("read {}", ca.display()))?;
        let trusted = reqwest::Certificate::from_pem(&pem)
            .with_context(|| "read the authority's certificate".into())?;
        let http = reqwest::Client::builder()
            .tls_certs_only([trusted])
            .no_proxy()
            .timeout(STEP_TIMEOUT)
            .build();
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(&pem)
            .with_context(|| "read the authority's certificate".into())?;
        roots
            .add(root)
            .with_context(|| "trust the authority".into())?;
        Ok(DemoClient {
            http: http.with_context(|| "make an HTTP client".into())?,
            tls: ClientConfig::builder()
                .with_root_certificates(roots)
                .with_no_client_auth()
                .into(),
        })
    }

    /// Calls the interface and returns the answer's `data`.
    pub async fn call(
        &self,
        node: &str,
        method: Method,
        path: &str,
        token: Option<&str>,
        body: &Value,
    ) -> Result<Value> {
        let what = || format!("{method} {path}");
        let mut request = self
            .http
            .request(method.clone(), format!("{node}{path}"))
            .json(body);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let answer = request
            .send()
            .await
            .map_err(|error| causes(&error))
            .with_context(what)?;
        let status = answer.status();
        let body: Value = answer
            .json()
            .await
            .with_context(|| format!("read the answer of {}", what()))?;
        if !status.is_success() {
            let error = &body["error"];
            return Err(DevError::new(format!(
                "{} was answered {status}: {} ({})",
                what(),
                error["code"],
                error["message"]
            )));
        }
        Ok(body["data"].clone())
    }

    /// Registers a new user with the code from a mail and returns the access token.
    pub async fn register(&self, node: &str, mails: &Path) -> Result<String> {
        let email = format!("ada-{}@example.com", random::base62(10).to_lowercase());
        let body = json!({ "email": email, "scene": "register", "turnstile_token": "dev-pass" });
        self.call(node, Method::POST, "/auth/send-code", None, &body)
            .await?;
        let code = timeout(STEP_TIMEOUT, async {
            loop {
                if let Some(code) = find_code(mails, &email) {
                    return code;
                }
                sleep(Duration::from_millis(20)).await;
            }
        });
        let code = code.await.map_err(|_| {
            DevError::new(format!("no mail with a code came to {}", mails.display()))
        })?;
        let body = json!({
            "email": email,
            "code": code,
            "account_password": random::base62(20),
            "display_name": "Ada",
            "device_locale": "en",
            "turnstile_token": "dev-pass",
        });
        text(
            &self
                .call(node, Method::POST, "/auth/register", None, &body)
                .await?,
            "access_token",
        )
    }

    pub async fn connect(&self, node: &str, who: &'static str, auth: Value) -> Result<Socket> {
        let url = format!("{}/ws", node.replacen("https://", "wss://", 1));
        Socket::open(&url, self.tls.clone(), who, &auth).await
    }
}

/// A message with an id, so that a repeated send is delivered once.
pub fn message(payload: &Value) -> Value {
    json!({ "payload": payload, "client_message_id": message_id() })
}

/// Random bytes in place of real ciphertext.
pub fn ciphertext() -> Value {
    json!({ "type": "encrypted", "ciphertext": BASE64.encode(random::bytes::<48>()) })
}

fn message_id() -> String {
    Ulid::from_bytes(random::bytes()).to_string()
}

/// A required field of the answer.
pub fn text(data: &Value, field: &str) -> Result<String> {
    let value = data[field].as_str().map(str::to_owned);
    value.ok_or_else(|| DevError::new(format!("an answer has no field {field}: {data}")))
}

/// An error with all its causes. The HTTP client's own message names neither a refused connection
/// nor a bad certificate.
fn causes(error: &dyn Error) -> String {
    let behind = error.source().map(|cause| format!(": {}", causes(cause)));
    format!("{error}{}", behind.unwrap_or_default())
}
