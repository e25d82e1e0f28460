//! A certificate authority for this machine alone, and the certificate of the local nodes.
//!
//! The authority may sign for localhost alone (name constraints), and nothing keeps its private key
//! after the first signature. A browser can therefore trust `ca.pem` without risk.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use chrono::{DateTime, Datelike, TimeDelta, Utc};
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, PublicKeyData,
    SanType, date_time_ymd,
};
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    sign::CertifiedKey,
};
use sha2::{Digest, Sha256};

use crate::{
    error::{Context, Result},
    files::{make_folder, write_secret},
};

/// The longest validity that the strictest clients accept from a private authority.
const CERTIFICATE_VALIDITY: TimeDelta = TimeDelta::days(800);
/// Remaining validity at which a start replaces the certificate.
const RENEW_BEFORE: TimeDelta = TimeDelta::days(30);

/// The files, with absolute paths.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// The authority's certificate, which clients trust.
    pub ca: PathBuf,
    /// The nodes' certificate, for localhost, 127.0.0.1 and ::1.
    pub cert: PathBuf,
    /// The private key of the nodes' certificate.
    pub key: PathBuf,
}

impl Certificates {
    /// The certificates in `folder`, renewed if they are missing, broken or near their end.
    #[expect(
        clippy::disallowed_methods,
        reason = "the rule is for the server, whose tests move the clock"
    )]
    pub fn prepare(folder: &Path) -> Result<Self> {
        Self::prepare_at(folder, Utc::now())
    }

    fn prepare_at(folder: &Path, now: DateTime<Utc>) -> Result<Self> {
        make_folder(folder, 0o755)?;
        let files = Certificates {
            ca: folder.join("ca.pem"),
            cert: folder.join("cert.pem"),
            key: folder.join("key.pem"),
        };
        if !files.are_good_at(now) || !files.are_good_at(now + RENEW_BEFORE) {
            files.make(now)?;
        }
        Ok(files)
    }

    /// The SHA-256 of the nodes' public key in base64, for a browser that must trust it.
    pub fn public_key_hash(&self) -> Result<String> {
        let pem = fs::read_to_string(&self.key)
            .with_context(|| format!("read {}", self.key.display()))?;
        let key = KeyPair::from_pem(&pem).with_context(|| "read the nodes' key".into())?;
        Ok(BASE64.encode(Sha256::digest(key.subject_public_key_info())))
    }

    /// Whether a client that trusts the authority would accept the nodes at `time`.
    fn are_good_at(&self, time: DateTime<Utc>) -> bool {
        self.verify(time).is_some()
    }

    fn verify(&self, time: DateTime<Utc>) -> Option<()> {
        let provider = aws_lc_rs::default_provider();
        let cert = CertificateDer::from_pem_file(&self.cert).ok()?;
        let key = provider
            .key_provider
            .load_private_key(PrivateKeyDer::from_pem_file(&self.key).ok()?)
            .ok()?;
        CertifiedKey::new(vec![cert.clone()], key)
            .keys_match()
            .ok()?;
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(&self.ca).ok()?)
            .ok()?;
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider.into())
            .build()
            .ok()?;
        let time =
            UnixTime::since_unix_epoch(Duration::from_secs(time.timestamp().try_into().ok()?));
        ["localhost", "127.0.0.1", "::1"]
            .into_iter()
            .try_for_each(|name| {
                let name = ServerName::try_from(name).ok()?;
                verifier
                    .verify_server_cert(&cert, &[], &name, &[], time)
                    .ok()
                    .map(drop)
            })
    }

    fn make(&self, now: DateTime<Utc>) -> Result<()> {
        let made = issue(now).with_context(|| "make a certificate".into())?;
        // The key is written first. After an interruption the files do not match, and the next
        // start makes them again.
        write_secret(&self.key, &made.key)?;
        fs::write(&self.cert, made.cert)
            .with_context(|| format!("write {}", self.cert.display()))?;
        fs::write(&self.ca, made.ca).with_context(|| format!("write {}", self.ca.display()))
    }
}

struct Issued {
    ca: String,
    cert: String,
    key: String,
}

fn issue(now: DateTime<Utc>) -> Result<Issued, rcgen::Error> {
    // The certificate begins a day back, for clients whose clock is slow.
    let ((y1, m1, d1), (y2, m2, d2)) = (
        date(now - TimeDelta::days(1)),
        date(now + CERTIFICATE_VALIDITY),
    );
    let (from, to) = (date_time_ymd(y1, m1, d1), date_time_ymd(y2, m2, d2));
    let localhost = [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ];

    let mut ca = CertificateParams::default();
    (ca.not_before, ca.not_after) = (from, to);
    ca.distinguished_name
        .push(DnType::CommonName, "Blindpipe dev CA (this machine only)");
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let hosts = localhost.map(|ip| GeneralSubtree::IpAddress(single_address(ip)));
    let permitted_subtrees = [GeneralSubtree::DnsName("localhost".into())]
        .into_iter()
        .chain(hosts)
        .collect();
    ca.name_constraints = Some(NameConstraints {
        permitted_subtrees,
        excluded_subtrees: Vec::new(),
    });
    let ca_key = KeyPair::generate()?;
    let ca_pem = ca.self_signed(&ca_key)?.pem();

    let mut leaf = CertificateParams::new(vec!["localhost".to_owned()])?;
    (leaf.not_before, leaf.not_after) = (from, to);
    leaf.subject_alt_names
        .extend(localhost.map(SanType::IpAddress));
    leaf.distinguished_name
        .push(DnType::CommonName, "localhost");
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    leaf.use_authority_key_identifier_extension = true;
    let leaf_key = KeyPair::generate()?;
    let leaf_pem = leaf.signed_by(&leaf_key, &Issuer::new(ca, ca_key))?.pem();
    Ok(Issued {
        ca: ca_pem,
        cert: leaf_pem,
        key: leaf_key.serialize_pem(),
    })
}

fn single_address(ip: IpAddr) -> CidrSubnet {
    match ip {
        IpAddr::V4(ip) => CidrSubnet::V4(ip.octets(), [255; 4]),
        IpAddr::V6(ip) => CidrSubnet::V6(ip.octets(), [255; 16]),
    }
}

/// Year, month and day, as the certificate library wants them.
fn date(at: DateTime<Utc>) -> (i32, u8, u8) {
    let small = |number: u32| u8::try_from(number).unwrap_or(1);
    (at.year(), small(at.month()), small(at.day()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepare_on(folder: &Path, day: &str) -> (Certificates, String) {
        let now = format!("{day}T12:00:00Z").parse().unwrap();
        let files = Certificates::prepare_at(folder, now).unwrap();
        assert!(files.are_good_at(now) && files.are_good_at(now + RENEW_BEFORE));
        let cert = fs::read_to_string(&files.cert).unwrap();
        (files, cert)
    }

    #[test]
    fn a_certificate_is_kept_while_it_is_good_and_replaced_in_time() {
        let folder = std::env::temp_dir().join(format!("blindpipe-certs-{}", std::process::id()));
        let (files, first) = prepare_on(&folder, "2026-01-31");
        assert_eq!(prepare_on(&folder, "2027-01-31").1, first);
        let (_, second) = prepare_on(&folder, "2028-04-01");
        assert_ne!(second, first, "ten days before its end");
        let key = fs::read_to_string(&files.key).unwrap();
        fs::write(
            &files.key,
            issue("2028-04-01T00:00:00Z".parse().unwrap()).unwrap().key,
        )
        .unwrap();
        assert_ne!(
            prepare_on(&folder, "2028-04-02").1,
            second,
            "the key is another's"
        );
        assert_ne!(fs::read_to_string(&files.key).unwrap(), key);
        fs::remove_file(&files.ca).unwrap();
        prepare_on(&folder, "2028-04-03");
        fs::remove_dir_all(folder).unwrap();
    }
}
