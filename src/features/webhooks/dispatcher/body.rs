//! The body of a call: an event object and the fields of its delivery. A body above 1 MB carries a
//! reference to the event's data, which are an object with a signed address.

use blindpipe_protocol::webhooks::ReferencedData;
use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::super::client::json;
use crate::{
    error::{Code, Error, Result},
    events::{self, EncodedEvent},
    ids::{AgentId, DeliveryId},
    limits::quotas::MB,
    objects::{EventData, Objects},
};

/// Largest body.
pub const MAX_BODY_BYTES: usize = MB;

/// The body of an attempt. `object` is the event object.
pub fn of(delivery: DeliveryId, attempt: i32, agent: AgentId, object: &str) -> String {
    let event = &object[1..];
    format!(r#"{{"delivery_id":"{delivery}","attempt":{attempt},"agent_id":"{agent}",{event}"#)
}

/// The body of a call with several events. Each has the body of an attempt.
pub fn of_batch(agent: AgentId, attempts: &[String]) -> String {
    format!(
        r#"{{"agent_id":"{agent}","events":[{}]}}"#,
        attempts.join(",")
    )
}

/// The number of event objects that fit into a body, but at least one.
pub fn fitting(objects: &[String]) -> usize {
    let around = of(DeliveryId::NIL, 1, AgentId::NIL, "{").len();
    let mut bytes = of_batch(AgentId::NIL, &[]).len();
    let fits = |object: &&String| {
        bytes += around + object.len() + 1;
        bytes <= MAX_BODY_BYTES
    };
    objects.iter().take_while(fits).count().max(1)
}

/// The id of a call with several events. It is that of a delivery which is alone, and another one
/// for each choice of deliveries, so that a receiver may take the same id for a repetition.
pub fn batch_id(deliveries: &[DeliveryId]) -> DeliveryId {
    let [first, _, ..] = deliveries else {
        return deliveries.first().copied().unwrap_or(DeliveryId::NIL);
    };
    let mut hash = Sha256::new();
    for delivery in deliveries {
        hash.update(delivery.0.as_bytes());
    }
    let mut bytes = *first.0.as_bytes();
    bytes[9..].copy_from_slice(&hash.finalize()[..7]);
    DeliveryId::from_bytes(bytes)
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
    fn a_batch_is_measured_as_it_is_sent() {
        let rest = "1".repeat(MB / 4);
        let objects = [(); 5].map(|()| format!(r#"{{"data":{rest}}}"#));
        let len = |n: usize| {
            let body = |object: &String| of(DeliveryId::NIL, 8, AgentId::NIL, object);
            let bodies: Vec<String> = objects[..n].iter().map(body).collect();
            of_batch(AgentId::NIL, &bodies).len()
        };
        let fits = fitting(&objects);
        assert_eq!(fits, 3);
        assert!(len(fits) <= MAX_BODY_BYTES && len(fits + 1) > MAX_BODY_BYTES);
        let large = ["1".repeat(2 * MB)];
        assert_eq!(fitting(&large), 1);
    }

    #[test]
    fn a_batch_has_the_id_of_its_deliveries() {
        let [a, b, c] = [1, 2, 3].map(|n: u128| DeliveryId::from_bytes(n.to_be_bytes()));
        assert_eq!(batch_id(&[a]), a);
        assert_eq!(batch_id(&[a, b]), batch_id(&[a, b]));
        let ids = [
            batch_id(&[a, b]),
            batch_id(&[a, c]),
            batch_id(&[a, b, c]),
            a,
            b,
        ];
        for (n, id) in ids.iter().enumerate() {
            assert!(!ids[n + 1..].contains(id), "{n}");
        }
    }

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
