//! A server: its address, and whom to trust for it.

use std::{sync::Arc, time::Duration};

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
        let authority = self.authority.clone();
        Self {
            authority,
            ..Self::new(url)
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

    pub(crate) fn http_client(&self) -> Result<reqwest::Client> {
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
