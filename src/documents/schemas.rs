//! The schemas that a document refers to.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use utoipa::{
    ToSchema,
    openapi::{RefOr, schema::Schema},
};

/// The schemas referred to so far, by name.
#[derive(Default)]
pub struct Schemas(BTreeMap<String, Value>);

/// A type in a table: a function that registers the type and returns a reference to it.
pub type SchemaOf = fn(&mut Schemas) -> Value;

/// The reference to `T`.
pub fn of<T: ToSchema>(schemas: &mut Schemas) -> Value {
    schemas.reference::<T>()
}

/// The schema of `{"data": T}`.
pub fn data<T: ToSchema>(schemas: &mut Schemas) -> Value {
    let data = schemas.reference::<T>();
    json!({ "type": "object", "required": ["data"], "properties": { "data": data } })
}

/// The schema of `{"data": [T], "next_cursor": ...}`.
pub fn list<T: ToSchema>(schemas: &mut Schemas) -> Value {
    let item = schemas.reference::<T>();
    json!({
        "type": "object",
        "required": ["data", "next_cursor"],
        "properties": {
            "data": { "type": "array", "items": item },
            "next_cursor": {
                "type": ["string", "null"],
                "description": "Where the next page starts; null at the end.",
            },
        },
    })
}

/// The schema of a text that is no JSON: its media type is the content type of the answer.
macro_rules! text {
    ($($name:ident = $media_type:literal;)+) => {$(
        #[doc = concat!("A text of the type `", $media_type, "`.")]
        #[expect(
            clippy::extra_unused_type_parameters,
            reason = "a row of the operations names a type"
        )]
        pub fn $name<T>(_: &mut Schemas) -> Value {
            json!({ "type": "string", "contentMediaType": $media_type })
        }
    )+};
}

text! {
    yaml = "application/yaml";
    html = "text/html";
    script = "text/javascript";
    style = "text/css";
}

/// The schema of the bytes of a file.
#[expect(
    clippy::extra_unused_type_parameters,
    reason = "a row of the operations names a type"
)]
pub fn bytes<T>(_: &mut Schemas) -> Value {
    json!({ "type": "string", "format": "binary" })
}

/// An answer without a body.
#[expect(
    clippy::extra_unused_type_parameters,
    reason = "a row of the operations names a type"
)]
pub fn nothing<T>(_: &mut Schemas) -> Value {
    Value::Null
}

impl Schemas {
    /// Registers `T` among the components and returns a reference to it.
    pub fn reference<T: ToSchema>(&mut self) -> Value {
        let name = T::name().into_owned();
        if !self.0.contains_key(&name) {
            let mut found: Vec<(String, RefOr<Schema>)> = Vec::new();
            T::schemas(&mut found);
            self.0.insert(name.clone(), plain(&T::schema()));
            for (name, schema) in found {
                self.0.entry(name).or_insert_with(|| plain(&schema));
            }
        }
        json!({ "$ref": format!("#/components/schemas/{name}") })
    }

    /// The schema of `T` itself.
    pub fn inline<T: ToSchema>(&mut self) -> Value {
        self.reference::<T>();
        self.0[&*T::name()].clone()
    }

    /// A registered schema, by its reference.
    pub fn resolve(&self, reference: &Value) -> &Value {
        let name = reference["$ref"]
            .as_str()
            .and_then(|path| path.rsplit('/').next());
        name.and_then(|name| self.0.get(name))
            .unwrap_or(&Value::Null)
    }

    /// The `components.schemas` of a document.
    pub fn into_components(self) -> Map<String, Value> {
        self.0.into_iter().collect()
    }

    /// Likewise, without a combination of schemas: generators of clients leave those out.
    pub fn into_merged_components(self) -> Map<String, Value> {
        let merged = self
            .0
            .iter()
            .map(|(name, schema)| (name.clone(), self.merged(name, schema)));
        merged.collect()
    }

    /// A schema whose `allOf` is written out as one object, or as a choice of objects with a title each.
    fn merged(&self, name: &str, schema: &Value) -> Value {
        let mut choices = Vec::new();
        for choice in schema["oneOf"].as_array().unwrap_or(&vec![schema.clone()]) {
            choices.extend(self.alternatives(choice));
        }
        let is_combined = |choice: &Value| choice["allOf"].is_array();
        let has_combined = schema["oneOf"]
            .as_array()
            .map(|all| all.iter().any(is_combined));
        if !has_combined.unwrap_or_else(|| is_combined(schema)) {
            return schema.clone();
        }
        if let [object] = choices.as_slice() {
            return object.clone();
        }
        for choice in &mut choices {
            choice["title"] = title(choice, name).into();
        }
        json!({ "description": schema["description"], "oneOf": choices })
    }

    /// The objects of which a value of this schema is one.
    fn alternatives(&self, schema: &Value) -> Vec<Value> {
        let schema = if schema["$ref"].is_string() {
            self.resolve(schema)
        } else {
            schema
        };
        if let Some(choices) = schema["oneOf"].as_array() {
            return choices
                .iter()
                .flat_map(|choice| self.alternatives(choice))
                .collect();
        }
        let Some(parts) = schema["allOf"].as_array() else {
            return vec![schema.clone()];
        };
        let mut objects = vec![json!({ "type": "object", "description": schema["description"] })];
        for part in parts {
            let alternatives = self.alternatives(part);
            objects = objects
                .iter()
                .flat_map(|object| alternatives.iter().map(|part| joined(object.clone(), part)))
                .collect();
        }
        objects
    }
}

/// The properties of two objects in one.
fn joined(mut object: Value, part: &Value) -> Value {
    for (name, property) in part["properties"].as_object().into_iter().flatten() {
        object["properties"][name] = property.clone();
    }
    let required = part["required"].as_array().into_iter().flatten().cloned();
    let all = object["required"].as_array().into_iter().flatten().cloned();
    object["required"] = all.chain(required).collect();
    object
}

/// The title of a choice: its name of a single value, as in `MessageCreatedEventObject`, and the name of the union.
fn title(choice: &Value, union: &str) -> String {
    let properties = choice["properties"].as_object().into_iter().flatten();
    let only_word = |property: &Value| match property["enum"].as_array()?.as_slice() {
        [tag] => tag.as_str().map(str::to_owned),
        _ => None,
    };
    let tag = properties
        .map(|(_, property)| property)
        .find_map(only_word)
        .unwrap_or_default();
    let words = tag.split(|letter: char| !letter.is_ascii_alphanumeric());
    let pascal = words.map(|word| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_ascii_uppercase() + rest
    });
    pascal.collect::<String>() + union
}

fn plain(schema: &RefOr<Schema>) -> Value {
    let mut schema = serde_json::to_value(schema).unwrap_or_default();
    // The choices of an untagged enum are references. A value may fit several of them.
    let choices = schema["oneOf"].as_array();
    if choices.is_some_and(|choices| choices.iter().all(|choice| choice["$ref"].is_string())) {
        schema["anyOf"] = schema["oneOf"].take();
        schema.as_object_mut().map(|object| object.remove("oneOf"));
    }
    schema
}
