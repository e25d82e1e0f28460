//! The addresses that a user may make the server call: global unicast, and nothing else.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// IPv4 networks that are not the public internet, from IANA's special-purpose registry. The last
/// line is Azure's metadata service, which has an address of the public range.
const SPECIAL_IPV4: &[(Ipv4Addr, u8)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8),        // this network
    (Ipv4Addr::new(10, 0, 0, 0), 8),       // private
    (Ipv4Addr::new(100, 64, 0, 0), 10),    // carrier-grade NAT
    (Ipv4Addr::new(127, 0, 0, 0), 8),      // loopback
    (Ipv4Addr::new(169, 254, 0, 0), 16),   // link-local, metadata services
    (Ipv4Addr::new(172, 16, 0, 0), 12),    // private
    (Ipv4Addr::new(192, 0, 0, 0), 24),     // protocol assignments
    (Ipv4Addr::new(192, 0, 2, 0), 24),     // documentation
    (Ipv4Addr::new(192, 31, 196, 0), 24),  // AS112
    (Ipv4Addr::new(192, 52, 193, 0), 24),  // multicast tunnels
    (Ipv4Addr::new(192, 88, 99, 0), 24),   // 6to4 relays
    (Ipv4Addr::new(192, 168, 0, 0), 16),   // private
    (Ipv4Addr::new(192, 175, 48, 0), 24),  // AS112
    (Ipv4Addr::new(198, 18, 0, 0), 15),    // benchmarks
    (Ipv4Addr::new(198, 51, 100, 0), 24),  // documentation
    (Ipv4Addr::new(203, 0, 113, 0), 24),   // documentation
    (Ipv4Addr::new(224, 0, 0, 0), 3),      // multicast, reserved, broadcast
    (Ipv4Addr::new(168, 63, 129, 16), 32), // a metadata service
];

/// The range of global unicast addresses. Loopback, mapped, NAT64, unique local, link-local,
/// site-local and multicast addresses are outside it.
const GLOBAL_IPV6: (Ipv6Addr, u8) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// Networks within [`GLOBAL_IPV6`] that are not the public internet.
const SPECIAL_IPV6: &[(Ipv6Addr, u8)] = &[
    // Protocol assignments: Teredo, benchmarks, ORCHID and others.
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0x0db8, 0, 0, 0, 0, 0, 0), 32), // documentation
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),      // 6to4
    (Ipv6Addr::new(0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0), 48), // AS112
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),      // documentation
];

/// The addresses that may be called.
#[derive(Clone, Debug, Default)]
pub struct AddressRules {
    /// Loopback may be called, in the dev profile.
    pub allow_loopback: bool,
    /// Further networks that must not be called, such as the operator's own.
    pub denied: Vec<IpNet>,
}

impl AddressRules {
    /// Whether `ip` may be called.
    pub fn allow(&self, ip: IpAddr) -> bool {
        if self.denied.iter().any(|network| network.contains(&ip)) {
            return false;
        }
        (self.allow_loopback && ip.is_loopback()) || is_public(ip)
    }
}

fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !SPECIAL_IPV4.iter().any(|net| ipv4(net).contains(&ip)),
        IpAddr::V6(ip) => {
            ipv6(&GLOBAL_IPV6).contains(&ip)
                && !SPECIAL_IPV6.iter().any(|net| ipv6(net).contains(&ip))
                && !is_isatap(ip)
        }
    }
}

fn ipv4(&(address, prefix): &(Ipv4Addr, u8)) -> Ipv4Net {
    Ipv4Net::new_assert(address, prefix)
}

fn ipv6(&(address, prefix): &(Ipv6Addr, u8)) -> Ipv6Net {
    Ipv6Net::new_assert(address, prefix)
}

/// Whether the address leads through an ISATAP tunnel to the IPv4 address in its last four bytes.
fn is_isatap(ip: Ipv6Addr) -> bool {
    let [.., high, low, _, _] = ip.segments();
    high & !0x0200 == 0 && low == 0x5efe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_public_internet_may_be_called() {
        let rules = AddressRules::default();
        for public in [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.255.255",
            "100.128.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:200::1",
            "2a00:1450:4001:800::200e",
        ] {
            assert!(rules.allow(public.parse().expect("an address")), "{public}");
        }
        for special in [
            "0.1.2.3",
            "10.255.255.255",
            "127.0.0.1",
            "169.254.169.254",
            "168.63.129.16",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:8.8.8.8",
            "::8.8.8.8",
            "64:ff9b::808:808",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:1ff::1",
            "2002:808:808::1",
            "2a00:1450::5efe:a00:1",
            "2a00:1450::200:5efe:a00:1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(
                !rules.allow(special.parse().expect("an address")),
                "{special}"
            );
        }
    }

    #[test]
    fn the_dev_profile_adds_loopback_and_the_operator_takes_away() {
        let rules = AddressRules {
            allow_loopback: true,
            denied: vec!["1.0.0.0/8".parse().expect("a network")],
        };
        let allow = |ip: &str| rules.allow(ip.parse().expect("an address"));
        assert!(allow("127.9.9.9") && allow("::1") && allow("8.8.8.8"));
        assert!(!allow("1.1.1.1") && !allow("10.0.0.1") && !allow("::ffff:127.0.0.1"));
    }
}
