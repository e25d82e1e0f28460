//! An authenticator in software, with the page that calls it: discoverable keys of the kind ES256,
//! no attestation. It signs everything, including requests that a browser would refuse. Another
//! test uses a real browser.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use rcgen::{KeyPair, PublicKeyData, SigningKey};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::client::{Answer, Caller, User};

const PRESENT: u8 = 1;
const VERIFIED: u8 = 1 << 2;
const WITH_KEY: u8 = 1 << 6;

/// A passkey with a counter.
#[derive(Clone)]
struct Key {
    pair: Arc<KeyPair>,
    id: [u8; 16],
    user_handle: String,
    counter: u32,
}

/// An authenticator for one passkey, and the page that calls it. A clone is a copied key.
#[derive(Clone)]
pub struct Authenticator {
    key: Option<Key>,
    /// The origin of the page.
    origin: &'static str,
}

impl Default for Authenticator {
    fn default() -> Self {
        Authenticator {
            key: None,
            origin: "https://localhost",
        }
    }
}

impl Authenticator {
    /// The authenticator, called by another page.
    pub fn at(self, origin: &'static str) -> Self {
        Authenticator { origin, ..self }
    }

    /// The client data for the signature: challenge and origin.
    fn client_data(&self, kind: &str, options: &Value) -> Vec<u8> {
        let data = json!({ "type": kind, "challenge": options["challenge"], "origin": self.origin, "crossOrigin": false });
        data.to_string().into_bytes()
    }

    /// `navigator.credentials.create({publicKey})`, as JSON.
    pub fn create(&mut self, options: &Value) -> Value {
        let pair = Arc::new(KeyPair::generate().expect("a key"));
        let user_handle = options["user"]["id"].as_str().expect("a user").to_owned();
        let key = Key {
            pair,
            id: rand::random(),
            user_handle,
            counter: 0,
        };
        let verify = &options["authenticatorSelection"]["userVerification"];
        let mut data = authenticator_data(&options["rp"]["id"], verify, WITH_KEY, key.counter);
        data.extend([0; 16]);
        data.extend([0, 16]);
        data.extend(key.id);
        data.extend(cose(key.pair.der_bytes()));
        // {"fmt": "none", "attStmt": {}, "authData": bytes}
        let mut attestation = b"\xa3\x63fmt\x64none\x67attStmt\xa0\x68authData\x59".to_vec();
        attestation.extend(u16::try_from(data.len()).expect("short").to_be_bytes());
        attestation.extend(data);
        let response = json!({
            "clientDataJSON": BASE64.encode(self.client_data("webauthn.create", options)),
            "attestationObject": BASE64.encode(attestation),
            "transports": ["internal"],
        });
        let credential = credential(&key, response);
        self.key = Some(key);
        credential
    }

    /// `navigator.credentials.get({publicKey})`, as JSON.
    pub fn get(&mut self, options: &Value) -> Value {
        let client_data = self.client_data("webauthn.get", options);
        let key = self.key.as_mut().expect("an enrolled key");
        key.counter += 1;
        let data = authenticator_data(
            &options["rpId"],
            &options["userVerification"],
            0,
            key.counter,
        );
        let signed = [data.as_slice(), &Sha256::digest(&client_data)].concat();
        let response = json!({
            "clientDataJSON": BASE64.encode(client_data),
            "authenticatorData": BASE64.encode(data),
            "signature": BASE64.encode(key.pair.sign(&signed).expect("a signature")),
            "userHandle": key.user_handle,
        });
        credential(key, response)
    }

    /// Enrols a passkey of the user.
    pub async fn enrol(user: &User, name: &str) -> Self {
        let mut authenticator = Authenticator::default();
        let begun = user
            .post("/users/me/passkeys/begin", json!({}))
            .await
            .expect(200);
        let credential = authenticator.create(&begun.data()["public_key"]);
        let body = json!({ "challenge_id": begun.data()["challenge_id"], "credential": credential, "name": name });
        user.post("/users/me/passkeys/complete", body)
            .await
            .expect(201);
        authenticator
    }

    /// Requests a challenge, and builds the body that answers it.
    pub async fn answer(&mut self, caller: &Caller) -> Value {
        let begun = caller
            .post("/auth/passkey/begin", json!({}))
            .await
            .expect(200);
        let credential = self.get(&begun.data()["public_key"]);
        json!({ "challenge_id": begun.data()["challenge_id"], "credential": credential })
    }

    /// Signs in: both steps.
    pub async fn sign_in(&mut self, caller: &Caller) -> Answer {
        self.sign_in_on(caller, None).await
    }

    /// Signs in on a device of this name, or one without.
    pub async fn sign_in_on(&mut self, caller: &Caller, device: Option<&str>) -> Answer {
        let mut body = self.answer(caller).await;
        if let Some(device) = device {
            body["device_id"] = device.into();
        }
        caller.post("/auth/passkey/complete", body).await
    }
}

/// The authenticator data: relying party, flags about the user, and the counter.
fn authenticator_data(rp_id: &Value, verify: &Value, flags: u8, counter: u32) -> Vec<u8> {
    let verified = if verify == "discouraged" { 0 } else { VERIFIED };
    let mut data = Sha256::digest(rp_id.as_str().expect("a relying party")).to_vec();
    data.push(PRESENT | verified | flags);
    data.extend(counter.to_be_bytes());
    data
}

/// A point of P-256 (`04 x y`) as a COSE key: {1: 2, 3: -7, -1: 1, -2: x, -3: y}.
fn cose(point: &[u8]) -> Vec<u8> {
    let (x, y) = point[1..].split_at(32);
    [
        b"\xa5\x01\x02\x03\x26\x20\x01\x21\x58\x20",
        x,
        b"\x22\x58\x20",
        y,
    ]
    .concat()
}

fn credential(key: &Key, response: Value) -> Value {
    let id = BASE64.encode(key.id);
    json!({
        "id": id, "rawId": id, "type": "public-key", "response": response, "clientExtensionResults": {},
        "authenticatorAttachment": "platform",
    })
}
