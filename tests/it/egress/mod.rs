//! Calls to addresses that users chose: what must not be called, what receivers do, and what
//! receivers can verify.

mod ssrf;

use std::time::Duration;

use axum::http::HeaderMap;
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
