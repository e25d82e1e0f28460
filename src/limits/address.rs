//! The address of a client, as limits count it.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

use ipnet::Ipv6Net;

/// The length of the IPv6 prefix that counts as one client.
const CLIENT_PREFIX: u8 = 64;
/// The length of the IPv6 prefix that a provider gives to a site.
const SITE_PREFIX: u8 = 48;

/// The client's address. Limits count a whole /64 of IPv6 as a single client. Never logged.
#[derive(Clone, Copy)]
pub struct ClientIp(pub IpAddr);

impl fmt::Display for ClientIp {
    /// Writes the key that limits use.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(ip) => write!(to, "{ip}"),
            IpAddr::V6(ip) => {
                let prefix = u128::from(ip) >> 64 << 64;
                write!(to, "{}/{CLIENT_PREFIX}", Ipv6Addr::from(prefix))
            }
        }
    }
}

impl ClientIp {
    /// The address itself, for the human verification.
    pub fn ip(self) -> IpAddr {
        self.0
    }
}

/// The site of a client's key: the /48 of an IPv6 address.
pub(super) fn site(key: &str) -> Option<String> {
    let client: Ipv6Net = key.parse().ok()?;
    let site = Ipv6Net::new(client.network(), SITE_PREFIX).ok()?.trunc();
    (client.prefix_len() == CLIENT_PREFIX).then(|| site.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(ip: &str) -> String {
        ClientIp(ip.parse().expect("an address")).to_string()
    }

    #[test]
    fn a_slash_64_counts_as_one_client() {
        assert_eq!(key("2001:db8:1:2:3::1"), key("2001:db8:1:2:ffff::9"));
        assert_ne!(key("2001:db8:1:2::1"), key("2001:db8:1:3::1"));
    }

    #[test]
    fn a_slash_48_is_one_site() {
        let site = |ip: &str| site(&key(ip));
        assert_eq!(site("2001:db8:1:2::1").as_deref(), Some("2001:db8:1::/48"));
        assert_eq!(site("2001:db8:1:2::1"), site("2001:db8:1:ffff::9"));
        assert_ne!(site("2001:db8:1::1"), site("2001:db8:2::1"));
        assert_eq!(site("192.0.2.7"), None);
    }
}
