//! The durable events, and those of webhooks alone, with their recipients and the JSON schemas of
//! their data.

use blindpipe_protocol::{
    events::{Event, EventKind},
    webhooks::{WebhookEvent, WebhookEventKind},
};
use serde_json::{Map, Value, json};

use super::schemas::Schemas;

/// The list of `GET /events/types`. Each schema stands alone: `$defs` has what it refers to.
pub fn document() -> Value {
    let mut schemas = Schemas::default();
    // The choices of an enum's schema stand in the order of its kinds.
    let events = data_of(&schemas.inline::<Event>());
    let calls = data_of(&schemas.inline::<WebhookEvent>());
    let components = schemas.into_components();
    let row = |name: &str, recipients: &str, data: Value| {
        json!({
            "event": name,
            "recipients": recipients,
            "schema": standalone(data, &components),
        })
    };
    let inbox = EventKind::ALL.iter().zip(events);
    let inbox = inbox.map(|(kind, data)| row(kind.name(), kind.recipients(), data));
    let outside = WebhookEventKind::ALL.iter().zip(calls);
    let outside = outside.map(|(kind, data)| row(kind.name(), kind.recipients(), data));
    json!({ "data": inbox.chain(outside).collect::<Value>(), "next_cursor": null })
}

/// The schemas of the data of an enum's choices.
fn data_of(schema: &Value) -> Vec<Value> {
    let choices = schema["oneOf"].as_array().into_iter().flatten();
    choices
        .map(|choice| choice["properties"]["data"].clone())
        .collect()
}

/// A schema together with all that it refers to.
fn standalone(mut schema: Value, components: &Map<String, Value>) -> Value {
    let mut definitions = Map::new();
    collect(&schema, components, &mut definitions);
    let mut definitions = Value::Object(definitions);
    point_to_definitions(&mut schema);
    point_to_definitions(&mut definitions);
    if let Some(object) = schema.as_object_mut() {
        object.insert(
            "$schema".into(),
            "https://json-schema.org/draft/2020-12/schema".into(),
        );
        object.insert("$defs".into(), definitions);
    }
    schema
}

const COMPONENTS: &str = "#/components/schemas/";

fn collect(schema: &Value, components: &Map<String, Value>, found: &mut Map<String, Value>) {
    match schema {
        Value::Object(object) => {
            let name = object
                .get("$ref")
                .and_then(Value::as_str)
                .and_then(|path| path.strip_prefix(COMPONENTS));
            if let Some((name, component)) = name.and_then(|name| components.get_key_value(name))
                && !found.contains_key(name)
            {
                found.insert(name.clone(), component.clone());
                collect(component, components, found);
            }
            object
                .values()
                .for_each(|value| collect(value, components, found));
        }
        Value::Array(items) => items
            .iter()
            .for_each(|item| collect(item, components, found)),
        _ => {}
    }
}

fn point_to_definitions(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            for (key, value) in object {
                match value
                    .as_str()
                    .and_then(|path| path.strip_prefix(COMPONENTS))
                {
                    Some(name) if key == "$ref" => *value = format!("#/$defs/{name}").into(),
                    _ => point_to_definitions(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(point_to_definitions),
        _ => {}
    }
}
