//! The one door for outgoing requests whose address a user chose, with the settings of a node.
//!
//! The crate `blindpipe-egress` has the rules and makes the calls; `bp` calls by it as well.

use std::time::{Duration, SystemTime};

use url::Url;

pub use blindpipe_egress::{
    AddressRules, Destination, Egress, EgressError, EgressSettings, MAX_REPLY_BYTES, Reply,
    Reserved, Surroundings, UrlRules,
};

use crate::{
    clock::Clock,
    config::{Config, Profile},
    metrics,
};

/// The settings of a node.
pub fn settings(config: &Config) -> EgressSettings {
    let dev = config.profile == Profile::Dev;
    EgressSettings {
        rules: UrlRules {
            dev,
            ports: config.egress_ports.0.clone(),
            own: Url::parse(&config.public_url).into_iter().collect(),
            addresses: AddressRules {
                allow_loopback: dev,
                denied: config.egress_denied.0.clone(),
            },
        },
        name_servers: config.egress_name_servers.0.clone(),
        max_in_flight: config.egress_in_flight.0 as usize,
        max_in_flight_per_origin: config.egress_in_flight_per_origin.0 as usize,
        timeout: config.egress_timeout.millis(),
        roots: None,
    }
}

/// The node's clock, and its metric of exchanges.
impl Surroundings for Clock {
    fn now(&self) -> SystemTime {
        Clock::now(self).into()
    }

    fn ended(&self, outcome: &'static str, span: Duration) {
        metrics::egress(outcome, span);
    }
}
