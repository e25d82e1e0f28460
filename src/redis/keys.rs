//! THE KEYS: every Redis key and channel, without the prefix. Any of their contents may vanish at
//! any time.
//!
//! | key | type | life | owner |
//! |---|---|---|---|
//! | `win:{<key, or MAC of an address>}:<scope>:<route>` | moments (µs), eight bytes each | three windows | limits |
//! | `slots:{<principal>}` | hash of live connections | 3 min, asserted each minute | limits |
//! | `tok:<MAC of a token>` | proof that it is genuine | 10 min | auth |
//! | `late:<MAC of a refresh token>` | a refresh without an answer | 1 d | auth |
//! | `gone` | sorted set of tombstones, by time | 1 d | backplane |
//! | `nodes` | sorted set of live nodes, by last heartbeat | – | redis |
//! | `at:{<slot>}:<principal>` | sorted set of nodes that serve it, by the end of the lease | 3 min, asserted each minute | backplane |
//! | `st:{<agent>}` | hash: an agent's streams, within a byte budget | 12 min after the last sign | streams |
//! | `sn:<stream's name>` | sorted set: agents and conversations with a stream of this name | 12 min, asserted each minute | streams |
//! | `sc:<conversation>` | sorted set: agents and names of its streams | 12 min, asserted each minute | streams |
//! | `sd` | sorted set: streams, by the time at which one is looked at | 12 min, asserted each minute | streams |
//! | `n:<node>` | channel: everything for a node; sharded in a cluster | – | backplane |
//! | `all` | channel: control messages to every node | – | backplane |

use std::fmt::{Display, Write};

use crate::ids::{AgentId, ConversationId, NodeId, PrincipalId};

/// The log of a rule for a key, or for a key on a route. The hash tag is the key alone, so one
/// script can decide all rules of a principal in a cluster too. It comes first, because a route has
/// braces of its own.
pub fn window(scope: &str, route: &str, key: impl Display) -> String {
    let mut name = String::with_capacity(80);
    // Writing into memory cannot fail.
    write!(name, "win:{{{key}}}:{scope}:{route}").ok();
    name
}

/// The live connections of a principal.
pub fn slots(principal: PrincipalId) -> String {
    format!("slots:{{{}}}", principal.0.simple())
}

/// The proof of an agent token, by its MAC.
pub fn proof(mac: &[u8]) -> String {
    format!("tok:{}", base16ct::lower::encode_string(mac))
}

/// A refresh that got no answer, by its MAC.
pub fn unanswered_refresh(mac: &[u8]) -> String {
    format!("late:{}", base16ct::lower::encode_string(mac))
}

/// The tombstones of the last day.
pub fn tombstones() -> String {
    "gone".to_owned()
}

/// The sorted set of live nodes.
pub fn nodes() -> String {
    "nodes".to_owned()
}

/// Hash slots of the directory's entries. A call reads many entries, and a cluster of Redis spreads
/// the slots over its masters.
const DIRECTORY_SLOTS: u8 = 64;

/// The hash slot of a principal's entry.
pub fn directory_slot(principal: PrincipalId) -> u8 {
    principal.as_bytes()[14] % DIRECTORY_SLOTS
}

/// The nodes that serve a principal.
pub fn directory_entry(principal: PrincipalId) -> String {
    format!(
        "at:{{{:02x}}}:{}",
        directory_slot(principal),
        principal.0.simple()
    )
}

/// The streams of an agent.
pub fn streams(agent: AgentId) -> String {
    format!("st:{{{}}}", agent.0.simple())
}

/// The index of streams by name.
pub fn streams_by_name(name: &str) -> String {
    format!("sn:{name}")
}

/// The index of a conversation's streams.
pub fn streams_of_conversation(conversation: ConversationId) -> String {
    format!("sc:{}", conversation.0.simple())
}

/// The index of open streams by the time of their next look.
pub fn due_streams() -> String {
    "sd".to_owned()
}

/// The channel of a node.
pub fn node_channel(node: NodeId) -> String {
    format!("n:{node}")
}

/// The channel of control messages; every node listens to it.
pub fn control_channel() -> String {
    "all".to_owned()
}
