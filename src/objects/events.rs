//! Data of events that is too large for a webhook: stored once, with a new address at every
//! attempt.

use std::time::Duration;

use blindpipe_protocol::files::{ObjectRef, Sha256Hash};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use tokio_postgres::Row;

use super::{Content, ObjectKey, Objects, registry};
use crate::{
    db::Conn,
    error::{Error, Result},
    ids::{AgentId, ConversationId, EventId},
};

/// Life of the data: that of the event in an inbox.
const EVENT_DATA_TTL: Duration = Duration::from_secs(30 * 86_400);
/// Life of an address.
const EVENT_URL_TTL: Duration = Duration::from_secs(86_400);

/// An event's data for an agent.
pub struct EventData {
    /// The agent that gets it. Its budget pays for reads.
    pub agent: AgentId,
    /// The event.
    pub event: EventId,
    /// The event's conversation. The data goes when that is purged.
    pub conversation: Option<ConversationId>,
    /// The bytes.
    pub bytes: Bytes,
}

impl Objects {
    /// A time right after an event's address with this end was signed. Addresses end on whole
    /// seconds.
    pub fn event_signed_before(end: DateTime<Utc>) -> DateTime<Utc> {
        end - EVENT_URL_TTL + Duration::from_secs(1)
    }

    /// A reference to an event's data, with an address that is valid for 24 hours from now; none if
    /// the data was not stored.
    pub async fn event_ref(&self, agent: AgentId, event: EventId) -> Result<Option<ObjectRef>> {
        let row = self
            .db
            .read()
            .await?
            .query_opt(
                "-- objects.find_event
                select object_key, o.size, o.sha256 from event_object join live_object o using (object_key)
                where agent_id = $1 and event_id = $2 and o.sha256 is not null",
                &[&agent, &event],
            )
            .await?;
        row.map(|row| self.reference(&row)).transpose()
    }

    /// Stores an event's data, once however often it is called, and returns a reference to it; none
    /// if the event's message has been deleted. Errors: 503 if the store is away.
    pub async fn store_event(&self, data: EventData) -> Result<Option<ObjectRef>> {
        if let Some(known) = self.event_ref(data.agent, data.event).await? {
            return Ok(Some(known));
        }
        let key = self.new_key();
        let lease = registry::WRITE_LEASE;
        registry::begin(&self.db.write().await?, &key, None, lease).await?;
        let mut writer = self.write(&key, data.bytes.len() as u64).await?;
        writer.write(data.bytes.clone()).await?;
        let content = writer.finish().await?;
        if !self.record_event(&key, content, &data).await? {
            return Ok(None);
        }
        let stored = self.event_ref(data.agent, data.event).await?;
        let stored = stored.ok_or_else(|| Error::unavailable("the event's data has just ended"));
        stored.map(Some)
    }

    /// Another worker may have stored the same data meanwhile. Its row stays, and these bytes go.
    /// False if the event's message was deleted meanwhile; then they go too.
    async fn record_event(
        &self,
        key: &ObjectKey,
        content: Content,
        data: &EventData,
    ) -> Result<bool> {
        let recording = self.db.run("objects.record_event", async |tx| {
            let is_deleted = is_deleted(tx, data).await?;
            let life = Some(EVENT_DATA_TTL);
            if !registry::complete(tx, key, content, life).await? {
                return Err(Error::unavailable("the write took too long"));
            }
            if is_deleted {
                registry::end(tx, key).await?;
                return Ok(false);
            }
            let recorded = tx
                .execute(
                    "-- objects.record_event
                    insert into event_object (agent_id, event_id, conversation_id, object_key) values ($1, $2, $3, $4)
                    on conflict (agent_id, event_id) do nothing",
                    &[&data.agent, &data.event, &data.conversation, &key.as_str()],
                )
                .await?;
            if recorded == 0 {
                registry::end(tx, key).await?;
            }
            Ok(true)
        });
        recording.await
    }

    fn reference(&self, row: &Row) -> Result<ObjectRef> {
        let key = ObjectKey::from_stored(row.get("object_key"));
        let (url, _) = self.signed_urls.object(&key, None, EVENT_URL_TTL);
        Ok(ObjectRef {
            object_key: key.as_str().to_owned(),
            url,
            size: u64::try_from(row.get::<_, i64>("size")).unwrap_or_default(),
            sha256: hash_of(row.get("sha256"))?,
        })
    }
}

/// Whether the message of an event is deleted. If not, its deletion waits for the transaction, and
/// ends what this one stores.
async fn is_deleted(tx: &Conn, data: &EventData) -> Result<bool> {
    let row = tx
        .query_opt(
            "-- objects.hold_message
            select deleted_at is not null as is_deleted from message
            where conversation_id = $1 and message_id = $2 for share",
            &[&data.conversation, &data.event],
        )
        .await?;
    Ok(row.is_some_and(|row| row.get("is_deleted")))
}

/// The hash of a row.
pub fn hash_of(bytes: &[u8]) -> Result<Sha256Hash> {
    let bytes = bytes.try_into().map(Sha256Hash);
    bytes.map_err(|error| Error::internal(crate::error::Code::InternalError, error))
}
