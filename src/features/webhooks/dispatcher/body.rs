//! The body of a call: an event object and the fields of its delivery. A body above 1 MB carries a
//! reference to the event's data, which are an object with a signed address.

use blindpipe_protocol::webhooks::ReferencedData;
use bytes::Bytes;

use super::super::client::json;
use crate::{
    error::{Code, Error, Result},
    events::{self, EncodedEvent},
    ids::{AgentId, DeliveryId},
    limits::quotas::MB,
    objects::{EventData, Objects},
};

/// Largest body.
const MAX_BODY_BYTES: usize = MB;

/// The body of an attempt. `object` is the event object.
pub fn of(delivery: DeliveryId, attempt: i32, agent: AgentId, object: &str) -> String {
    let event = &object[1..];
    format!(r#"{{"delivery_id":"{delivery}","attempt":{attempt},"agent_id":"{agent}",{event}"#)
}

/// Whether a body with this event object is above 1 MB. The number of an attempt has a digit.
pub fn is_too_large(object: &str) -> bool {
    let around = of(DeliveryId::NIL, 1, AgentId::NIL, "{").len();
    around + object.len() - 1 > MAX_BODY_BYTES
}

/// The event with a reference in place of its data; none if its message has been deleted. Stores the
/// data first, once for all attempts. The address in it is new. Errors: 503 if the store is away.
pub async fn referenced(
    objects: &Objects,
    agent: AgentId,
    encoded: &EncodedEvent,
) -> Result<Option<EncodedEvent>> {
    let broken = || Error::internal(Code::InternalError, "an event of another form");
    let (head, data) = events::split_data(encoded).ok_or_else(broken)?;
    let data = EventData {
        agent,
        event: events::id_of(encoded).ok_or_else(broken)?,
        conversation: events::conversation_of(encoded),
        bytes: Bytes::copy_from_slice(data.as_bytes()),
    };
    let object_ref = objects.store_event(data).await?;
    let referenced = |object_ref| format!("{head}{}", json(&ReferencedData { object_ref })).into();
    Ok(object_ref.map(referenced))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_measured_as_it_is_sent() {
        for (bytes, too_large) in [(MB, false), (MB + 1, true)] {
            let mut object = String::from(r#"{"data":"#);
            let body = |object: &str| of(DeliveryId::NIL, 8, AgentId::NIL, object);
            let rest = bytes - body(&object).len();
            object.push_str(&"1".repeat(rest - 1));
            object.push('}');
            assert_eq!(body(&object).len(), bytes);
            assert_eq!(is_too_large(&object), too_large, "{bytes}");
        }
    }
}
