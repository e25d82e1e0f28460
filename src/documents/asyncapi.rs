//! AsyncAPI 3: `/ws`, its frames, events and close codes; and the calls of webhooks.

use blindpipe_protocol::{
    close::Close,
    events::EventKind,
    frames::{ClientFrame, ClientFrameKind, ServerFrame, ServerFrameKind},
    webhooks::{WebhookBatch, WebhookBatchReplies, WebhookCall, WebhookEventKind, WebhookReplies},
};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::schemas::Schemas;

const DESCRIPTION: &str = "The WebSocket of Blindpipe. Each frame is a text message that holds \
    a JSON object with a `type`. The first frame is `auth`, within 5 seconds. `ready` says where \
    reading starts, events follow, `caught_up` ends the replay. A client acks with the cursor of \
    the last event taken and resumes from it.";

const WEBHOOK_DESCRIPTION: &str = "The address of an agent's webhook. Each call is a signed POST of \
    a JSON object. It holds an event of the agent's inbox with `delivery_id`, `attempt` and \
    `agent_id`, or an event of `x-events`, which is in no inbox. An event whose body would exceed \
    1 MB has `data: {object_ref}` instead of its data.";

/// The whole AsyncAPI document.
pub fn document() -> Value {
    let mut schemas = Schemas::default();
    let mut messages = Map::new();
    let says = frames::<ClientFrame>(
        &mut schemas,
        ClientFrameKind::ALL.iter().map(|k| k.as_str()),
    );
    let hears = frames::<ServerFrame>(
        &mut schemas,
        ServerFrameKind::ALL.iter().map(|k| k.as_str()),
    );
    let from_client = add(&mut messages, "client", says);
    let from_server = add(&mut messages, "server", hears);
    let on_channel = references(&messages);
    let webhook_messages = webhook_messages(&mut schemas);
    let on_webhook = references(&webhook_messages);
    messages.extend(webhook_messages);
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "Blindpipe",
            "version": env!("CARGO_PKG_VERSION"),
            "description": DESCRIPTION,
            "license": { "name": "Apache-2.0" },
        },
        "channels": {
            "ws": {
                "address": "/ws",
                "messages": on_channel,
                "x-close-codes": close_codes(),
                "x-events": events(),
            },
            "webhook": {
                "address": null,
                "description": WEBHOOK_DESCRIPTION,
                "messages": on_webhook,
                "x-events": webhook_events(),
            },
        },
        "operations": {
            "clientFrames": operation("receive", "The frames of a client.", &from_client),
            "serverFrames": operation("send", "The frames of the server.", &from_server),
            "webhookCalls": webhook_calls(),
        },
        "components": { "messages": messages, "schemas": schemas.into_components() },
    })
}

/// The messages of a channel, as references to the components.
fn references(messages: &Map<String, Value>) -> Map<String, Value> {
    let reference = |name: &String| {
        let message = json!({ "$ref": format!("#/components/messages/{name}") });
        (name.clone(), message)
    };
    messages.keys().map(reference).collect()
}

/// The payload of each frame, by its `type`. The choices of the enum's schema stand in the order of
/// its kinds.
fn frames<T: ToSchema>(
    schemas: &mut Schemas,
    kinds: impl Iterator<Item = &'static str>,
) -> Vec<(&'static str, Value)> {
    let schema = schemas.inline::<T>();
    let choices = schema["oneOf"].as_array().cloned().unwrap_or_default();
    kinds.zip(choices).collect()
}

/// Adds the messages of a side and returns their names.
fn add(
    messages: &mut Map<String, Value>,
    side: &str,
    frames: Vec<(&'static str, Value)>,
) -> Vec<String> {
    let mut names = Vec::new();
    for (kind, payload) in frames {
        let name = format!("{side}.{kind}");
        let message = json!({
            "name": kind,
            "summary": payload["description"],
            "contentType": "application/json",
            "payload": payload,
        });
        messages.insert(name.clone(), message);
        names.push(name);
    }
    names
}

fn operation(action: &str, summary: &str, names: &[String]) -> Value {
    let messages: Vec<Value> = names
        .iter()
        .map(|name| json!({ "$ref": format!("#/channels/ws/messages/{name}") }))
        .collect();
    json!({
        "action": action,
        "summary": summary,
        "channel": { "$ref": "#/channels/ws" },
        "messages": messages,
    })
}

/// The calls that are no single events of an inbox, and the answers that mean more than a 2xx.
fn webhook_messages(schemas: &mut Schemas) -> Map<String, Value> {
    let message = |name: &str, summary: &str, payload: Value| {
        let message = json!({
            "name": name,
            "summary": summary,
            "contentType": "application/json",
            "payload": payload,
        });
        (format!("webhook.{name}"), message)
    };
    let call = schemas.reference::<WebhookCall>();
    let replies = schemas.reference::<WebhookReplies>();
    let batch = schemas.reference::<WebhookBatch>();
    let batch_replies = schemas.reference::<WebhookBatchReplies>();
    [
        message("call", "A call outside of the inbox.", call),
        message("replies", "A 2xx body that sends messages.", replies),
        message("batch", "Several events of the inbox.", batch),
        message(
            "batch_replies",
            "A 2xx body that names failed events and sends messages.",
            batch_replies,
        ),
    ]
    .into_iter()
    .collect()
}

fn webhook_calls() -> Value {
    let of = |name: &str| json!({ "$ref": format!("#/channels/webhook/messages/webhook.{name}") });
    json!({
        "action": "send",
        "summary": "The calls that the server makes to a webhook.",
        "channel": { "$ref": "#/channels/webhook" },
        "messages": [of("call"), of("batch")],
        "reply": { "messages": [of("replies"), of("batch_replies")] },
    })
}

fn webhook_events() -> Value {
    let rows = WebhookEventKind::ALL
        .iter()
        .map(|kind| json!({ "event": kind.name(), "recipients": kind.recipients() }));
    rows.collect()
}

fn close_codes() -> Value {
    let rows = Close::ALL.iter().map(|close| {
        json!({
            "code": close.code(),
            "reason": close.reason(),
            "reconnect": close.reconnect(),
        })
    });
    rows.collect()
}

fn events() -> Value {
    let rows = EventKind::ALL
        .iter()
        .map(|kind| json!({ "event": kind.name(), "recipients": kind.recipients() }));
    rows.collect()
}
