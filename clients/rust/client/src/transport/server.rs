//! A server: its address, and whom to trust for it.

use std::{net::IpAddr, sync::Arc, time::Duration};

use reqwest::Url;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use tokio_tungstenite::Connector;

use crate::{Error, Result};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// The address of a service.
#[derive(Clone)]
pub struct Server {
    url: String,
    /// A certificate authority in PEM, instead of the system's.
    authority: Option<Arc<[u8]>>,
    http_allowed: bool,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// `https://…`, verified by the system's authorities.
    pub fn new(url: impl Into<String>) -> Self {
        let url = url.into().trim_end_matches('/').to_owned();
        Self {
            url,
            authority: None,
            http_allowed: false,
        }
    }

    /// Takes `http://` to other machines than this one, where everybody on the way reads the
    /// tokens.
    #[must_use]
    pub const fn allow_http(mut self) -> Self {
        self.http_allowed = true;
        self
    }

    /// # Errors
    ///
    /// [`Error::Usage`] for an address that would send credentials in clear over a network.
    fn check(&self) -> Result<()> {
        let url = Url::parse(&self.url).map_err(|_| Error::Usage("the address is no URL"))?;
        let host = url.host_str().unwrap_or_default();
        let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
        let is_local = host == "localhost" || address.is_ok_and(|it| it.is_loopback());
        match url.scheme() {
            "https" => Ok(()),
            "http" if is_local || self.http_allowed => Ok(()),
            _ => Err(Error::Usage(
                "the address is not https:// (http:// goes to this machine, or after allow_http())",
            )),
        }
    }

    /// Verified by this authority alone, in PEM.
    #[must_use]
    pub fn with_authority(mut self, pem: impl Into<Arc<[u8]>>) -> Self {
        self.authority = Some(pem.into());
        self
    }

    /// Another address of the same service.
    #[must_use]
    pub fn at(&self, url: impl Into<String>) -> Self {
        let url = Self::new(url).url;
        Self {
            url,
            ..self.clone()
        }
    }

    /// The address.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn socket_url(&self) -> String {
        let rest = self.url.strip_prefix("http").unwrap_or(&self.url);
        format!("ws{rest}/ws")
    }

    /// A client of HTTP that trusts what the calls of this service trust, and follows no redirect.
    ///
    /// # Errors
    ///
    /// The address is not `https://`, or the authority is no certificate.
    pub fn http_client(&self) -> Result<reqwest::Client> {
        self.check()?;
        install_provider();
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none());
        if let Some(pem) = &self.authority {
            let authority = reqwest::Certificate::from_pem(pem);
            let authority = authority.map_err(|_| BAD_AUTHORITY)?;
            builder = builder.tls_certs_only([authority]).no_proxy();
        }
        builder.build().map_err(Error::other)
    }

    /// None: the library's own, with the system's authorities.
    pub(crate) fn connector(&self) -> Result<Option<Connector>> {
        self.check()?;
        install_provider();
        let Some(pem) = &self.authority else {
            return Ok(None);
        };
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(pem).map_err(|_| BAD_AUTHORITY)?;
        roots.add(root).map_err(|_| BAD_AUTHORITY)?;
        let config = ClientConfig::builder().with_root_certificates(roots);
        let config = Arc::new(config.with_no_client_auth());
        Ok(Some(Connector::Rustls(config)))
    }
}

const BAD_AUTHORITY: Error = Error::Usage("the authority is no certificate in PEM");

/// A program that has chosen another one keeps it.
fn install_provider() {
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .ok();
}

impl From<&str> for Server {
    fn from(url: &str) -> Self {
        Self::new(url)
    }
}

impl From<String> for Server {
    fn from(url: String) -> Self {
        Self::new(url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_crosses_a_network_only_encrypted() {
        for (url, is_fit) in [
            ("https://example.com", true),
            ("http://example.com", false),
            ("http://10.0.0.1:8080", false),
            ("http://localhost:1", true),
            ("http://127.0.0.1:1", true),
            ("http://[::1]:1", true),
            ("http://localhost.example.com", false),
            ("http://127.0.0.1@example.com", false),
            ("ftp://localhost", false),
            ("no address", false),
        ] {
            assert_eq!(Server::new(url).check().is_ok(), is_fit, "{url}");
            let refused = Server::new(url).http_client().is_err();
            assert_eq!(refused, !is_fit, "{url}");
        }
        let allowed = Server::new("http://example.com").allow_http();
        assert!(allowed.check().is_ok());
        assert!(allowed.at("http://example.org").connector().is_ok());
    }
}
