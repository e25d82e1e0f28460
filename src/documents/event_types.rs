//! The durable events with their recipients and the JSON schemas of their data.

use blindpipe_protocol::events::{Event, EventKind};
use serde_json::{Map, Value, json};

use super::schemas::Schemas;

/// The list of `GET /events/types`. Each schema stands alone: `$defs` has what it refers to.
pub fn document() -> Value {
    let mut schemas = Schemas::default();
    // The choices of the enum's schema stand in the order of its kinds.
    let choices = schemas.inline::<Event>()["oneOf"].clone();
    let components = schemas.into_components();
    let rows = EventKind::ALL.iter().enumerate().map(|(at, kind)| {
        let data = choices[at]["properties"]["data"].clone();
        json!({
            "event": kind.name(),
            "recipients": kind.recipients(),
            "schema": standalone(data, &components),
        })
    });
    json!({ "data": rows.collect::<Value>(), "next_cursor": null })
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
