//! A bare loop of POSTs with the client that delivers webhooks: no inbox, no signature, no log.

use axum::http::HeaderMap;
use blindpipe::{
    clock::Clock,
    egress::{AddressRules, Egress, EgressSettings, UrlRules},
};
use bytes::Bytes;

use crate::Result;

/// The size of a delivery with a payload of 1 KiB.
const BODY_BYTES: usize = 1600;

/// The client, as a node of the dev profile has it.
pub fn client() -> Egress {
    let settings = EgressSettings {
        rules: UrlRules {
            dev: true,
            addresses: AddressRules {
                allow_loopback: true,
                ..AddressRules::default()
            },
            ..UrlRules::default()
        },
        name_servers: Vec::new(),
        max_in_flight: 256,
        max_in_flight_per_origin: 256,
        timeout: std::time::Duration::from_secs(10),
        roots: None,
    };
    Egress::new(settings, Clock::default())
}

/// The body of a bare POST.
pub fn body() -> Bytes {
    Bytes::from(vec![b'x'; BODY_BYTES])
}

/// Posts to `port` in `lanes` loops, until it is killed.
pub async fn post(port: u16, lanes: usize) -> Result<()> {
    let egress = client();
    let lanes: Vec<_> = (0..lanes)
        .map(|_| tokio::spawn(lane(egress.clone(), port)))
        .collect();
    for lane in lanes {
        lane.await??;
    }
    Ok(())
}

async fn lane(egress: Egress, port: u16) -> Result<()> {
    let url = format!("http://127.0.0.1:{port}/bare");
    loop {
        egress.post(&url, HeaderMap::new(), body()).await?;
    }
}
