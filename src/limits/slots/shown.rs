//! The list of live connections, for the routes that show it.

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::{ConnectionKind, Hold, Slots};
use crate::{
    ids::{ConnectionId, Principal},
    redis::{Away, LiveNodes, keys},
};

/// A live connection, in the form that its owner sees.
#[derive(Clone, Debug, Serialize)]
pub struct Connection {
    pub connection_id: ConnectionId,
    /// The kind of connection: socket or webhook call.
    pub kind: ConnectionKind,
    /// The time at which the connection was admitted.
    #[serde(serialize_with = "crate::clock::as_iso")]
    pub connected_at: DateTime<Utc>,
    /// A user's device; empty for agents.
    #[serde(skip)]
    pub device_id: String,
}

impl Slots {
    /// The live connections of each of `principals`, oldest first. While Redis is away, only those
    /// of this node.
    pub async fn connections(&self, principals: &[Principal]) -> Vec<Vec<Connection>> {
        let reads = principals
            .iter()
            .map(|principal| self.connections_of(*principal));
        futures_util::future::join_all(reads).await
    }

    async fn connections_of(&self, principal: Principal) -> Vec<Connection> {
        use fred::interfaces::HashesInterface;
        let key = self.0.redis.key(keys::slots(principal.id()));
        let stored = self
            .0
            .redis
            .run(async |client| client.hgetall::<Vec<(String, String)>, _>(key).await);
        let live_nodes = self.live_nodes().map(|(live_nodes, _)| live_nodes);
        let mut all: Vec<(i64, Connection)> = match stored.await {
            Ok(stored) => stored
                .iter()
                .filter_map(|(id, record)| self.read(id, record, live_nodes.as_ref()))
                .collect(),
            Err(Away) => {
                let held = self.held();
                let holds = held.rows.get(&principal).map_or(&[][..], |row| &row.holds);
                holds
                    .iter()
                    .map(|hold| (hold.granted, self.shown(hold)))
                    .collect()
            }
        };
        all.sort_by_key(|(granted, connection)| (*granted, connection.connection_id));
        all.into_iter().map(|(_, connection)| connection).collect()
    }

    /// Reads a record of the script; none if its node is not live.
    fn read(
        &self,
        id: &str,
        record: &str,
        live_nodes: Option<&LiveNodes>,
    ) -> Option<(i64, Connection)> {
        let mut parts = record.splitn(5, ' ');
        let asserted: i64 = parts.next()?.parse().ok()?;
        let granted: i64 = parts.next()?.parse().ok()?;
        let node = parts.next()?;
        let kind = if parts.next()? == ConnectionKind::Webhook.as_str() {
            ConnectionKind::Webhook
        } else {
            ConnectionKind::Websocket
        };
        let device_id = parts.next().unwrap_or_default().to_owned();
        let lives = live_nodes.is_none_or(|live_nodes| {
            asserted > live_nodes.at - 2000 || live_nodes.nodes.split(',').any(|one| one == node)
        });
        let connected_at = DateTime::from_timestamp_millis(granted)? + self.0.clock.ahead();
        lives.then_some((
            granted,
            Connection {
                connection_id: id.parse().ok()?,
                kind,
                connected_at,
                device_id,
            },
        ))
    }

    fn shown(&self, hold: &Hold) -> Connection {
        let at = DateTime::from_timestamp_millis(hold.granted).unwrap_or_default();
        Connection {
            connection_id: hold.id,
            kind: hold.kind,
            connected_at: at + self.0.clock.ahead(),
            device_id: hold.device.to_string(),
        }
    }
}
