//! A push service: an HTTP server that decrypts each push with the device's half of RFC 8291, and
//! verifies the server's proof.

use std::{sync::Arc, time::Duration};

use aws_lc_rs::{
    aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    agreement::{ECDH_P256, PrivateKey, UnparsedPublicKey, agree},
    hmac,
    signature::{self, ECDSA_P256_SHA256_FIXED},
};
use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::support::{User, spawn};

/// A push that the service got.
#[derive(Clone, Debug)]
pub struct Pushed {
    pub headers: HeaderMap,
    /// The decrypted content.
    pub content: Value,
    /// The bytes as they arrived.
    pub sealed: Vec<u8>,
}

impl Pushed {
    pub fn event(&self) -> &str {
        self.content["event"].as_str().unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).expect(name);
        value.to_str().expect("ASCII")
    }
}

struct Inner {
    origin: String,
    device: PrivateKey,
    auth: [u8; 16],
    pushes: Mutex<Vec<Pushed>>,
    /// The next answers: status and `Retry-After`. Afterwards 201.
    answers: Mutex<Vec<(u16, Option<u64>)>>,
}

/// A push service with one device; ends on drop.
pub struct PushService {
    pub endpoint: String,
    inner: Arc<Inner>,
    _server: AbortOnDropHandle<()>,
}

impl PushService {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let origin = format!("http://{}", listener.local_addr().expect("an address"));
        let inner = Arc::new(Inner {
            origin: origin.clone(),
            device: PrivateKey::generate(&ECDH_P256).expect("a key"),
            auth: rand::random(),
            pushes: Mutex::default(),
            answers: Mutex::default(),
        });
        let router = Router::new().fallback(hear).with_state(inner.clone());
        let server = spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        PushService {
            endpoint: format!("{origin}/send/a-secret-address"),
            inner,
            _server: AbortOnDropHandle::new(server),
        }
    }

    /// The body of a subscription.
    pub fn subscription(&self) -> Value {
        let key = self.inner.device.compute_public_key().expect("a point");
        json!({
            "kind": "webpush", "endpoint": self.endpoint, "p256dh": BASE64.encode(key),
            "auth": BASE64.encode(self.inner.auth),
        })
    }

    /// Subscribes the user's device; returns what the server says.
    pub async fn subscribe(&self, user: &User) -> Value {
        let put = user.put(path(&user.device_id), self.subscription()).await;
        put.expect(200).data().clone()
    }

    /// Answers the next pushes so.
    pub fn answer(&self, answers: &[(u16, Option<u64>)]) {
        *self.inner.answers.lock() = answers.to_vec();
    }

    pub fn pushes(&self) -> Vec<Pushed> {
        self.inner.pushes.lock().clone()
    }

    /// Waits for `n` pushes in all, and asserts that there are no more.
    pub async fn receives(&self, n: usize) -> Vec<Pushed> {
        for _ in 0..1_200 {
            let pushes = self.pushes();
            assert!(pushes.len() <= n, "{n} pushes expected: {pushes:#?}");
            if pushes.len() == n {
                return pushes;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("{n} pushes expected: {:#?}", self.pushes());
    }

    /// The names of the events so far.
    pub fn events(&self) -> Vec<String> {
        let pushes = self.pushes();
        pushes.iter().map(|push| push.event().to_owned()).collect()
    }
}

/// The route of a device's subscription.
pub fn path(device: &str) -> String {
    format!("/users/me/devices/{device}/push")
}

async fn hear(State(inner): State<Arc<Inner>>, headers: HeaderMap, body: Bytes) -> Response {
    let text = |name: &str| headers[name].to_str().expect("ASCII").to_owned();
    verify(&text("authorization"), &inner.origin);
    assert_eq!(text("content-encoding"), "aes128gcm");
    let content = decrypt(&inner, &body);
    inner.pushes.lock().push(Pushed {
        headers,
        content: serde_json::from_slice(&content).expect("JSON"),
        sealed: body.to_vec(),
    });
    let mut answers = inner.answers.lock();
    let (status, retry_after) = if answers.is_empty() {
        (201, None)
    } else {
        answers.remove(0)
    };
    let status = StatusCode::from_u16(status).expect("a status");
    match retry_after {
        Some(seconds) => (status, [("retry-after", seconds.to_string())]).into_response(),
        None => status.into_response(),
    }
}

/// Verifies the header of RFC 8292.
fn verify(header: &str, origin: &str) {
    let rest = header.strip_prefix("vapid t=").expect("a proof");
    let (token, key) = rest.split_once(", k=").expect("a key");
    let (signed, proof) = token.rsplit_once('.').expect("a token");
    let bytes = |text: &str| BASE64.decode(text).expect("base64url");
    signature::UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, bytes(key))
        .verify(signed.as_bytes(), &bytes(proof))
        .expect("the server's signature");
    let (head, claims) = signed.split_once('.').expect("two parts");
    let json = |text: &str| serde_json::from_slice::<Value>(&bytes(text)).expect("JSON");
    assert_eq!(json(head), json!({ "typ": "JWT", "alg": "ES256" }));
    let claims = json(claims);
    assert_eq!(claims["aud"], origin);
    assert_eq!(claims["sub"], "https://localhost");
    assert!(claims["exp"].is_i64(), "{claims}");
}

/// HKDF with SHA-256 for at most 32 bytes, as RFC 5869 spells it.
fn hkdf(salt: &[u8], secret: &[u8], info: &[u8], length: usize) -> Vec<u8> {
    let mac = |key: &[u8], data: &[u8]| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, key);
        hmac::sign(&key, data).as_ref().to_vec()
    };
    let extracted = mac(salt, secret);
    mac(&extracted, &[info, &[1]].concat())[..length].to_vec()
}

/// Decrypts a push as RFC 8291 and RFC 8188 say, independently of the server.
fn decrypt(inner: &Inner, body: &[u8]) -> Vec<u8> {
    let (salt, rest) = body.split_at(16);
    let (record, rest) = rest.split_at(4);
    assert_eq!(record, 4096_u32.to_be_bytes());
    let (key, sealed) = rest[1..].split_at(usize::from(rest[0]));
    let own = inner.device.compute_public_key().expect("a point");
    let peer = UnparsedPublicKey::new(&ECDH_P256, key);
    let shared = agree(&inner.device, peer, (), |secret| Ok(secret.to_vec()));
    let info = [b"WebPush: info\0", own.as_ref(), key].concat();
    let secret = hkdf(&inner.auth, &shared.expect("agreed"), &info, 32);
    let key = hkdf(salt, &secret, b"Content-Encoding: aes128gcm\0", 16);
    let nonce = hkdf(salt, &secret, b"Content-Encoding: nonce\0", 12);
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).expect("a key"));
    let nonce = Nonce::try_assume_unique_for_key(&nonce).expect("12 bytes");
    let mut text = sealed.to_vec();
    let text = key.open_in_place(nonce, Aad::empty(), &mut text);
    let text = text.expect("sealed for this device");
    let end = text.iter().rposition(|byte| *byte != 0).expect("content");
    assert_eq!(text[end], 2, "the last record");
    text[..end].to_vec()
}
