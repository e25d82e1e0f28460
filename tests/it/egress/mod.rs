//! Calls to addresses that users chose: what must not be called, what receivers do, and what
//! receivers can verify.

mod fairness;
mod receivers;
mod signatures;
mod ssrf;
mod torture;

#[path = "../../../docs/api/webhooks/verify.rs"]
mod verify;

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use blindpipe::{
    clock::Clock,
    egress::{AddressRules, Egress, EgressError, EgressSettings, Reply, UrlRules},
};
use bytes::Bytes;

use crate::support::{NameServer, services};

/// Settings that call loopback, except 127.0.0.2, and no public address.
fn loopback(names: Option<&NameServer>) -> EgressSettings {
    // The process needs its crypto library.
    services();
    EgressSettings {
        rules: UrlRules {
            dev: true,
            addresses: AddressRules {
                allow_loopback: true,
                denied: vec!["127.0.0.2/32".parse().expect("a network")],
            },
            ..UrlRules::default()
        },
        name_servers: names.iter().map(|names| names.address).collect(),
        max_in_flight: 256,
        max_in_flight_per_origin: 64,
        timeout: Duration::from_secs(10),
        roots: None,
    }
}

fn egress(settings: EgressSettings) -> Egress {
    Egress::new(settings, Clock::default())
}

/// Posts a small body.
async fn post(egress: &Egress, url: &str) -> Result<Reply, EgressError> {
    let body = Bytes::from_static(b"{\"attempt\":1}");
    egress.post(url, HeaderMap::new(), body).await
}

/// The status, or the word for the failure.
fn word(outcome: &Result<Reply, EgressError>) -> String {
    match outcome {
        Ok(reply) => reply.status.as_u16().to_string(),
        Err(error) => error.word().to_owned(),
    }
}

/// Whether the stock library of Standard Webhooks takes the delivery as genuine.
pub fn stock_verifies<'h>(
    secret: &str,
    headers: impl IntoIterator<Item = (&'h String, &'h String)>,
    body: &[u8],
) -> bool {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let name: HeaderName = name.parse().expect("a name");
        map.insert(name, HeaderValue::from_str(value).expect("a value"));
    }
    let webhook = standardwebhooks::Webhook::new(secret).expect("a secret");
    webhook.verify(body, &map).is_ok()
}
