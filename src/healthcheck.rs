//! `blindpipe healthcheck` asks a running node whether it is ready. It serves images that have no
//! shell and no `curl`.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

const TIMEOUT: Duration = Duration::from_secs(4);

/// Asks `/health/ready` of the admin listener at `admin`. An error means not ready.
pub async fn run(admin: SocketAddr) -> Result<(), reqwest::Error> {
    ask(&format!("http://{}/health/ready", reachable(admin))).await
}

/// Asks `url`. An error means that the answer was no success.
pub async fn ask(url: &str) -> Result<(), reqwest::Error> {
    let http = reqwest::Client::builder()
        .no_proxy()
        .tls_certs_only([])
        .timeout(TIMEOUT)
        .build()?;
    http.get(url).send().await?.error_for_status().map(drop)
}

/// The address to connect to. A listener on all addresses is on loopback too.
fn reachable(listener: SocketAddr) -> SocketAddr {
    let ip = match listener.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listener.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_all_addresses_is_asked_on_loopback() {
        for (listener, asked) in [
            ("0.0.0.0:9090", "127.0.0.1:9090"),
            ("[::]:9090", "[::1]:9090"),
            ("10.1.2.3:9090", "10.1.2.3:9090"),
        ] {
            let listener = listener.parse().expect("an address");
            assert_eq!(reachable(listener).to_string(), asked);
        }
    }
}
