//! Checks of the process itself: open files, secrets, the certificate.

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use rustix::process::{Resource, getrlimit};
use rustls::{ClientConfig, pki_types::ServerName};
use rustls_platform_verifier::ConfigVerifierExt;
use secrecy::ExposeSecret;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::Report;
use crate::{
    config::Config,
    http::{connections::files_for, listener},
};

/// Fewer different bytes than this in a secret of 32 were not drawn at random. Random ones have 30.
const MIN_DIFFERENT_BYTES: usize = 16;
/// Longest wait for a handshake within the process.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether the process may open a file for each connection.
pub(super) fn check_files(config: &Config, report: &mut Report) {
    let wanted = files_for(config);
    let allowed = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    report.require(
        "machine.files",
        allowed >= wanted,
        format!("{allowed} open files are allowed, {wanted} are enough"),
        format!("{allowed} open files are allowed, and {wanted} are needed for all connections"),
        "raise the hard limit (`ulimit -Hn`, LimitNOFILE, or the container runtime's), or lower \
         MAX_SOCKETS and MAX_CONNECTIONS",
    );
}

/// Whether the secrets are long, random and different. Their forms were read with the settings.
pub(super) fn check_secrets(config: &Config, report: &mut Report) {
    let remedy = "make each with `openssl rand -base64 32`; operations.md says how to change them";
    let rings = [
        (
            "SERVER_SECRET",
            secrets(config.server_secret.expose_secret()),
        ),
        (
            "ACCESS_TOKEN_KEYS",
            secrets(config.access_token_keys.expose_secret()),
        ),
    ];
    let mut seen: Vec<Vec<u8>> = Vec::new();
    for (name, secrets) in rings {
        let count = secrets.len();
        let shortest = secrets.iter().map(Vec::len).min().unwrap_or_default();
        let is_drawn = secrets.iter().all(|secret| {
            let mut bytes = secret.clone();
            bytes.sort_unstable();
            bytes.dedup();
            bytes.len() >= MIN_DIFFERENT_BYTES
        });
        let is_known = secrets.iter().any(|secret| seen.contains(secret));
        if !is_drawn {
            report.fault(
                name,
                "a secret repeats a few bytes: it is no random one",
                remedy,
            );
        } else if is_known {
            report.fault(name, "a secret has another purpose already", remedy);
        } else {
            let said = format!("{count} in use, {shortest} bytes or longer");
            report.good(name, said);
        }
        seen.extend(secrets);
    }
}

/// The bytes of each secret of a list, without its name.
fn secrets(list: &str) -> Vec<Vec<u8>> {
    let last = |entry: &str| entry.rsplit(':').next().unwrap_or_default().to_owned();
    let decode = |entry: &str| BASE64.decode(last(entry.trim())).ok();
    list.split(',').filter_map(decode).collect()
}

/// Whether clients can verify the certificate, if this node terminates TLS.
pub(super) async fn check_certificate(config: &Config, report: &mut Report) {
    let (Some(cert), Some(key)) = (&config.tls_cert, &config.tls_key) else {
        report.good("tls", "a trusted proxy terminates TLS");
        return;
    };
    let remedy = "give TLS_CERT_FILE the whole chain of a certificate for the host of PUBLIC_URL, \
                  and TLS_KEY_FILE its key";
    let server = match listener::tls_from(cert, key) {
        Ok(server) => server,
        Err(error) => {
            report.fault(
                "tls",
                format!("the certificate cannot be used: {error}"),
                remedy,
            );
            return;
        }
    };
    let host = reqwest::Url::parse(&config.public_url).ok();
    let host = host.and_then(|url| url.host_str().map(str::to_owned));
    let host = host.unwrap_or_default();
    match verify(server, &host).await {
        Ok(()) => report.good(
            "tls",
            format!("clients of {host} can verify the certificate"),
        ),
        Err(error) => {
            let said = format!("clients of {host} would refuse the certificate: {error}");
            report.warning("tls", said, remedy);
        }
    }
}

/// Shakes hands within this process, as a client of `host` with the roots of this machine would.
async fn verify(server: Arc<rustls::ServerConfig>, host: &str) -> Result<(), String> {
    let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
    let client = ClientConfig::with_platform_verifier().map_err(|error| error.to_string())?;
    let (near, far) = tokio::io::duplex(64 * 1024);
    let accepting = TlsAcceptor::from(server).accept(far);
    let connecting = TlsConnector::from(Arc::new(client)).connect(name, near);
    let both = async { tokio::join!(connecting, accepting).0 };
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, both).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the handshake hangs".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_of_a_list_is_its_last_part() {
        let bytes = BASE64.encode([7; 32]);
        let list = format!("k1:{bytes}, k2:ed25519:{bytes},{bytes}");
        assert_eq!(secrets(&list), vec![vec![7; 32]; 3]);
    }
}
