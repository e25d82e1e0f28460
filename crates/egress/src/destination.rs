//! A URL that a user chose, parsed once and judged by its form.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use http::Uri;
use url::{Host, Url};

use super::{EgressError, address::AddressRules};

/// Longest accepted URL.
const MAX_URL_BYTES: usize = 2048;

/// Names that never lead to the public internet: special-use names and those of private networks.
const PRIVATE_NAMES: &[&str] = &[
    "localhost",
    "local",
    "localdomain",
    "internal",
    "intranet",
    "corp",
    "home",
    "lan",
    "private",
    "arpa",
    "onion",
    "invalid",
    "test",
    "example",
    "alt",
];

/// The forms of URLs that may be called.
#[derive(Clone, Debug, Default)]
pub struct UrlRules {
    /// Loopback, plain HTTP, single labels and every port are allowed, in the dev profile.
    pub dev: bool,
    /// The ports that may be called outside the dev profile.
    pub ports: Vec<u16>,
    /// The addresses of this service, which must not call itself.
    pub own: Vec<Url>,
    /// The addresses that may be called.
    pub addresses: AddressRules,
}

/// A parsed URL whose form is allowed. It prints as its origin, because path and query may be
/// secret.
#[derive(Clone)]
pub struct Destination {
    pub(super) https: bool,
    pub(super) host: Host<String>,
    pub(super) port: u16,
    /// Host and port for the `Host` header; the port only if it is not the scheme's.
    pub(super) authority: Arc<str>,
    /// Scheme, host and port: the key of pooled connections.
    pub(super) origin: Arc<str>,
    pub(super) path_and_query: Arc<str>,
}

impl fmt::Debug for Destination {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.origin)
    }
}

impl Destination {
    /// Parses `text` and judges its form. Names are not resolved.
    pub fn parse(text: &str, rules: &UrlRules) -> Result<Self, EgressError> {
        use EgressError::{ForbiddenAddress, InvalidUrl};
        if text.len() > MAX_URL_BYTES {
            return Err(InvalidUrl("is longer than 2048 bytes"));
        }
        // The parser forgives these silently, and other parsers read them differently.
        if text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '\\') {
            return Err(InvalidUrl("contains white space or a backslash"));
        }
        let url = Url::parse(text).map_err(|_| InvalidUrl("is not an absolute URL"))?;
        let https = match url.scheme() {
            "https" => true,
            "http" if rules.dev => false,
            _ => return Err(InvalidUrl("is not https")),
        };
        if !url.username().is_empty() || url.password().is_some() || authority(text).contains('@') {
            return Err(InvalidUrl("contains a user"));
        }
        if url.fragment().is_some() {
            return Err(InvalidUrl("contains a fragment"));
        }
        let host = url.host().ok_or(InvalidUrl("has no host"))?.to_owned();
        let port = url.port_or_known_default().unwrap_or_default();
        if port == 0 || !(rules.dev || rules.ports.contains(&port)) {
            return Err(InvalidUrl("has a port that is not allowed"));
        }
        if is_own(&host, port, rules) {
            return Err(ForbiddenAddress);
        }
        check_host(&host, text, rules)?;
        let authority = match url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_string(),
        };
        let query = url.query().map(|query| format!("?{query}"));
        let path_and_query = format!("{}{}", url.path(), query.unwrap_or_default());
        // The parser of requests is stricter than the parser of URLs.
        format!("https://{authority}{path_and_query}")
            .parse::<Uri>()
            .map_err(|_| InvalidUrl("contains characters that must be percent-encoded"))?;
        Ok(Destination {
            https,
            origin: format!("{}://{host}:{port}", url.scheme()).into(),
            host,
            port,
            authority: authority.into(),
            path_and_query: path_and_query.into(),
        })
    }

    /// The address if the host is one, else its name.
    pub(super) fn address_or_name(&self) -> Result<IpAddr, &str> {
        match &self.host {
            Host::Ipv4(ip) => Ok((*ip).into()),
            Host::Ipv6(ip) => Ok((*ip).into()),
            Host::Domain(name) => Err(name),
        }
    }
}

/// The text between the scheme and the path.
fn authority(text: &str) -> &str {
    let rest = text.split_once(':').map_or("", |(_, rest)| rest);
    let rest = rest.trim_start_matches('/');
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

/// Whether the host is the service itself. In the dev profile the service and its receivers share a
/// host, so the port decides.
fn is_own(host: &Host<String>, port: u16, rules: &UrlRules) -> bool {
    let name = |host: &Host<String>| host.to_string().trim_end_matches('.').to_owned();
    rules.own.iter().any(|own| {
        let same_host = own
            .host()
            .is_some_and(|own| name(&own.to_owned()) == name(host));
        same_host && (!rules.dev || own.port_or_known_default() == Some(port))
    })
}

fn check_host(host: &Host<String>, text: &str, rules: &UrlRules) -> Result<(), EgressError> {
    let (ip, unusual): (IpAddr, bool) = match host {
        Host::Domain(name) => return check_name(name, rules),
        Host::Ipv4(ip) => ((*ip).into(), !is_dotted(*ip, text)),
        Host::Ipv6(ip) => ((*ip).into(), false),
    };
    if !rules.addresses.allow(ip) {
        Err(EgressError::ForbiddenAddress)
    } else if unusual {
        Err(EgressError::InvalidUrl(
            "contains an address in an unusual form",
        ))
    } else {
        Ok(())
    }
}

/// Whether the URL has the address in its usual form. Other parsers read decimal, octal,
/// hexadecimal and short forms differently.
fn is_dotted(ip: Ipv4Addr, text: &str) -> bool {
    let host = text.split_once("://").map_or("", |(_, rest)| rest);
    host.strip_prefix(&ip.to_string())
        .is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/', '?']))
}

fn check_name(name: &str, rules: &UrlRules) -> Result<(), EgressError> {
    if rules.dev && name == "localhost" {
        return Ok(());
    }
    if name.ends_with('.') || name.split('.').any(str::is_empty) {
        return Err(EgressError::InvalidUrl("has a host with an empty label"));
    }
    match name.rsplit_once('.') {
        Some((_, last)) if !PRIVATE_NAMES.contains(&last) => Ok(()),
        _ => Err(EgressError::ForbiddenAddress),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn production() -> UrlRules {
        UrlRules {
            ports: vec![443, 8443],
            own: vec![Url::parse("https://api.blindpipe.org").expect("a URL")],
            ..UrlRules::default()
        }
    }

    fn error(text: &str, rules: &UrlRules) -> Option<&'static str> {
        Destination::parse(text, rules).err().map(EgressError::word)
    }

    #[test]
    fn public_https_urls_pass() {
        for (text, origin, authority, path) in [
            (
                "https://hooks.acme.com",
                "https://hooks.acme.com:443",
                "hooks.acme.com",
                "/",
            ),
            (
                "https://ACME.com:443/a?b=c",
                "https://acme.com:443",
                "acme.com",
                "/a?b=c",
            ),
            (
                "https://acme.com:8443/%7Ex",
                "https://acme.com:8443",
                "acme.com:8443",
                "/%7Ex",
            ),
            (
                "https://bücher.de/",
                "https://xn--bcher-kva.de:443",
                "xn--bcher-kva.de",
                "/",
            ),
            ("https://1.1.1.1/x", "https://1.1.1.1:443", "1.1.1.1", "/x"),
            (
                "https://[2606:4700::1111]/",
                "https://[2606:4700::1111]:443",
                "[2606:4700::1111]",
                "/",
            ),
        ] {
            let parsed = Destination::parse(text, &production()).expect(text);
            assert_eq!(&*parsed.origin, origin);
            assert_eq!(&*parsed.authority, authority);
            assert_eq!(&*parsed.path_and_query, path);
        }
    }

    #[test]
    fn a_destination_prints_neither_path_nor_query() {
        let parsed = Destination::parse("https://acme.com/hooks/s3cret?key=s3cret", &production());
        assert_eq!(
            format!("{:?}", parsed.expect("allowed")),
            "https://acme.com:443"
        );
    }

    #[test]
    fn other_forms_are_refused() {
        let long = format!("https://acme.com/{}", "x".repeat(MAX_URL_BYTES));
        for text in [
            "",
            "acme.com",
            "http://acme.com",
            "ftp://acme.com",
            "file:///etc/passwd",
            "https://",
            "https://user@acme.com",
            "https://:secret@acme.com",
            "https://@acme.com",
            "https://acme.com:22",
            "https://acme.com:0",
            "https://acme.com:80",
            "https://acme.com/#x",
            "https://acme.com./",
            "https://a..com/",
            "https://acme.com\\@evil.com/",
            "https://acme.com/a b",
            "https:\t//acme.com/",
            "https://134744072/",
            "https://0x8080808/",
            "https://010.8.8.8/",
            "https://8.8.2056/",
            "https://８.８.８.８/",
            &long,
        ] {
            assert_eq!(error(text, &production()), Some("invalid_url"), "{text}");
        }
        for text in [
            "https://localhost/",
            "https://printer/",
            "https://metadata.google.internal/",
            "https://2130706433/",
            "https://api.blindpipe.org/hooks",
            "https://API.blindpipe.org.:8443/",
        ] {
            assert_eq!(
                error(text, &production()),
                Some("forbidden_address"),
                "{text}"
            );
        }
    }

    #[test]
    fn the_dev_profile_calls_loopback_but_not_itself() {
        let rules = UrlRules {
            dev: true,
            own: vec![Url::parse("https://localhost:8443").expect("a URL")],
            addresses: AddressRules {
                allow_loopback: true,
                ..AddressRules::default()
            },
            ..UrlRules::default()
        };
        for text in [
            "http://localhost:3000/x",
            "https://localhost:9443",
            "http://127.0.0.1:1",
            "http://[::1]:1",
        ] {
            assert_eq!(error(text, &rules), None, "{text}");
        }
        for text in [
            "https://localhost:8443/x",
            "http://10.0.0.1/",
            "http://[::]:80/",
        ] {
            assert_eq!(error(text, &rules), Some("forbidden_address"), "{text}");
        }
    }
}
