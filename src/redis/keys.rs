//! THE KEYS: every Redis key and channel, without the prefix. What they hold may vanish at any time.
//!
//! | key | type | life | owner |
//! |---|---|---|---|
//! | `win:{<key>}:<scope>:<route>` | moments (µs), eight bytes each | three windows | limits |
//! | `slots:{<principal>}` | hash of live connections | 3 min, asserted each minute | limits |
//! | `tok:<MAC of a token>` | proof that it is genuine | 10 min | auth |
//! | `gone` | sorted set of what was revoked, by time | 1 d | backplane |
//! | `nodes` | sorted set of live nodes by last beat | – | redis |
//! | `p:<principal>` | channel: hints of one inbox | – | backplane |
//! | `n:<node>` | channel: a node's own probe | – | backplane |
//! | `all` | channel: orders to every node | – | backplane |
//! | `many` | channel: what concerns many principals at once, for every node | – | backplane |

use std::fmt::{Display, Write};

use uuid::Uuid;

use crate::ids::NodeId;

/// The log of one rule for one key, or for one key on one route. The hash tag is the key alone, first because a route has
/// braces of its own: all rules of one principal can be decided by one script, in a cluster too.
pub fn window(scope: &str, route: &str, key: impl Display) -> String {
    let mut name = String::with_capacity(80);
    // Nothing fails to be written into memory.
    write!(name, "win:{{{key}}}:{scope}:{route}").ok();
    name
}

/// The live connections of one principal.
pub fn slots(principal: Uuid) -> String {
    format!("slots:{{{}}}", principal.simple())
}

/// The proof of one agent token, by its MAC.
pub fn proof(mac: &[u8]) -> String {
    format!("tok:{}", hex(mac))
}

/// Bytes as text.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What was revoked in the last day.
pub fn tombstones() -> String {
    "gone".to_owned()
}

/// The live nodes.
pub fn nodes() -> String {
    "nodes".to_owned()
}

/// The channel of one inbox.
pub fn inbox_channel(principal: Uuid) -> String {
    format!("p:{}", principal.simple())
}

/// The channel of one node.
pub fn node_channel(node: NodeId) -> String {
    format!("n:{node}")
}

/// The channel of what concerns many principals at once; every node listens to it.
pub fn many_channel() -> String {
    "many".to_owned()
}

/// The channel every node listens to.
pub fn control_channel() -> String {
    "all".to_owned()
}
