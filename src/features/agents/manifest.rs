//! An agent's manifest: its tools, and the permission scopes that it will ask for.

use std::collections::{BTreeMap, BTreeSet};

use blindpipe_protocol::agents::{ManifestWarning, Sensitivity};
use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};

use crate::{
    error::{Code, Error, Result},
    http::json,
    limits::quotas::{MANIFEST_WARNING_BYTES, MAX_MANIFEST_BYTES},
    metrics,
};

/// Scopes whose sensitivity may be raised, never lowered.
const PRESETS: &[(&str, Sensitivity)] = &[
    ("notification:send", Sensitivity::Low),
    ("filesystem:read", Sensitivity::Medium),
    ("clipboard:read", Sensitivity::Medium),
    ("location:read", Sensitivity::High),
];

/// A manifest that may be stored.
pub struct Manifest {
    /// The JSON as received.
    pub text: String,
    /// The declared scopes.
    pub scopes: BTreeMap<String, Sensitivity>,
    /// Hints for the author.
    pub warnings: Vec<ManifestWarning>,
}

/// A received manifest, and the version that it replaces.
pub struct Update {
    pub manifest: Manifest,
    pub if_version: Option<i32>,
}

#[derive(Deserialize)]
struct WrappedManifest<'a> {
    #[serde(borrow)]
    manifest: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct UpdateFields {
    if_version: Option<i32>,
}

impl Update {
    /// Reads `{manifest, if_version?}` or the bare document.
    pub fn from_body(bytes: &[u8]) -> Result<Self> {
        json::check(bytes)?;
        let text =
            std::str::from_utf8(bytes).map_err(|_| Error::field("", "json", "is not UTF-8"))?;
        match wrapped(text) {
            Some(inner) => {
                let UpdateFields { if_version } = json::parse(bytes)?;
                Ok(Update {
                    manifest: Manifest::read(inner, "manifest")?,
                    if_version,
                })
            }
            None => Ok(Update {
                manifest: Manifest::read(text.trim_ascii(), "")?,
                if_version: None,
            }),
        }
    }
}

/// The raw text under `manifest`, if the body is an object that has it.
pub fn wrapped(text: &str) -> Option<&str> {
    let object = text.trim_ascii_start().starts_with('{');
    let body = object
        .then(|| serde_json::from_str::<WrappedManifest<'_>>(text).ok())
        .flatten()?;
    body.manifest.map(RawValue::get)
}

impl Manifest {
    /// Checks a document that is valid JSON. `at` is its place in the body, for errors.
    pub fn read(text: &str, at: &str) -> Result<Self> {
        if text.len() > MAX_MANIFEST_BYTES {
            return Err(Code::ManifestTooLarge.into());
        }
        let fault = |_| Error::field(at, "json", "is no JSON");
        let Value::Object(document) = serde_json::from_str(text).map_err(fault)? else {
            return Err(Error::field(at, "type", "must be an object"));
        };
        let root = JsonNode {
            at: at.to_owned(),
            object: &document,
        };
        root.text("name", 1, 200, Need::Optional)?;
        root.text("description", 0, 4000, Need::Optional)?;
        let scopes = scopes(&root)?;
        let mut warnings = tools(&root, &scopes)?;
        if text.len() >= MANIFEST_WARNING_BYTES {
            metrics::manifest_large();
            tracing::warn!(
                operation = "agents.manifest",
                size_bytes = text.len(),
                remedy = "the answer warns its agent",
                "a manifest comes near its cap"
            );
            warnings.push(ManifestWarning {
                code: "large".to_owned(),
                path: at.to_owned(),
                message: "has 64 KB or more; 128 KB is the cap".to_owned(),
            });
        }
        Ok(Manifest {
            text: text.to_owned(),
            scopes,
            warnings,
        })
    }

    /// The size of the received text, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.text.len()
    }

    /// The scopes that were added, removed, or given another sensitivity since `earlier`.
    pub fn changed_scopes(&self, earlier: Option<&str>) -> Vec<String> {
        let earlier = earlier
            .and_then(|text| Manifest::scopes_of(text).ok())
            .unwrap_or_default();
        let names: BTreeSet<&String> = self.scopes.keys().chain(earlier.keys()).collect();
        let changed = names
            .into_iter()
            .filter(|name| self.scopes.get(*name) != earlier.get(*name));
        changed.cloned().collect()
    }

    /// The scopes of a stored manifest.
    pub fn scopes_of(text: &str) -> Result<BTreeMap<String, Sensitivity>> {
        scopes(&JsonNode::of_document(&document(text)?))
    }

    /// The tools of a stored manifest, each with the scope that its entry names.
    pub fn tools_of(text: &str) -> Result<BTreeMap<String, Option<String>>> {
        let document = document(text)?;
        let mut tools = BTreeMap::new();
        for (path, item) in JsonNode::of_document(&document).list("tools")? {
            let item = JsonNode::new(path, item)?;
            let name = item.text("name", 1, 200, Need::Required)?;
            let scope = item.text("scope", 1, 128, Need::Optional)?;
            tools.insert(
                name.unwrap_or_default().to_owned(),
                scope.map(str::to_owned),
            );
        }
        Ok(tools)
    }
}

/// A stored manifest.
fn document(text: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(text).map_err(|error| Error::internal(Code::InternalError, error))
}

fn scopes(root: &JsonNode<'_>) -> Result<BTreeMap<String, Sensitivity>> {
    let mut declared = BTreeMap::new();
    for (path, item) in root.list("permission_scopes")? {
        let item = JsonNode::new(path, item)?;
        let scope = item
            .text("scope", 1, 128, Need::Required)?
            .unwrap_or_default();
        let sensitivity: Sensitivity = item
            .text("sensitivity", 1, 16, Need::Required)?
            .unwrap_or_default()
            .parse()
            .map_err(|_| item.fault("sensitivity", "value", "must be low, medium or high"))?;
        item.text("reason", 0, 1000, Need::Optional)?;
        let preset = PRESETS
            .iter()
            .find(|(name, _)| *name == scope)
            .map(|(_, preset)| *preset);
        if preset.is_some_and(|preset| sensitivity < preset) {
            return Err(item.fault(
                "sensitivity",
                "preset",
                "is below what is preset for this scope",
            ));
        }
        if declared.insert(scope.to_owned(), sensitivity).is_some() {
            return Err(item.fault("scope", "duplicate", "is declared twice"));
        }
    }
    Ok(declared)
}

fn tools(
    root: &JsonNode<'_>,
    scopes: &BTreeMap<String, Sensitivity>,
) -> Result<Vec<ManifestWarning>> {
    let mut warnings = Vec::new();
    let mut names = BTreeSet::new();
    for (path, item) in root.list("tools")? {
        let item = JsonNode::new(path, item)?;
        let name = item
            .text("name", 1, 200, Need::Required)?
            .unwrap_or_default();
        if !names.insert(name) {
            return Err(item.fault("name", "duplicate", "two tools have this name"));
        }
        item.text("description", 0, MAX_MANIFEST_BYTES, Need::Optional)?;
        if item
            .object
            .get("input_schema")
            .is_some_and(|schema| !schema.is_object())
        {
            return Err(item.fault("input_schema", "type", "must be an object"));
        }
        let scope = item.text("scope", 1, 128, Need::Optional)?;
        if scope.is_some_and(|scope| !scopes.contains_key(scope)) {
            warnings.push(ManifestWarning {
                code: "scope_not_declared".to_owned(),
                path: item.path("scope"),
                message:
                    "is not among the permission_scopes, so no call of this tool can be granted"
                        .to_owned(),
            });
        }
    }
    Ok(warnings)
}

/// An object and its place in the body.
struct JsonNode<'a> {
    at: String,
    object: &'a Map<String, Value>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Required,
    Optional,
}

impl<'a> JsonNode<'a> {
    const fn of_document(object: &'a Map<String, Value>) -> Self {
        let at = String::new();
        JsonNode { at, object }
    }

    fn new(at: String, value: &'a Value) -> Result<Self> {
        match value.as_object() {
            Some(object) => Ok(JsonNode { at, object }),
            None => Err(Error::field(at, "type", "must be an object")),
        }
    }

    fn path(&self, name: &str) -> String {
        if self.at.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.at)
        }
    }

    fn fault(&self, name: &str, rule: &str, message: &str) -> Error {
        Error::field(self.path(name), rule, message)
    }

    fn text(
        &self,
        name: &str,
        min_bytes: usize,
        max_bytes: usize,
        need: Need,
    ) -> Result<Option<&'a str>> {
        match self.object.get(name) {
            None if need == Need::Required => Err(self.fault(name, "required", "is missing")),
            None => Ok(None),
            Some(Value::String(text)) if (min_bytes..=max_bytes).contains(&text.len()) => {
                Ok(Some(text))
            }
            Some(Value::String(_)) => Err(self.fault(
                name,
                "length",
                &format!("must have {min_bytes} to {max_bytes} bytes"),
            )),
            Some(_) => Err(self.fault(name, "type", "must be a string")),
        }
    }

    fn list(&self, name: &str) -> Result<impl Iterator<Item = (String, &'a Value)>> {
        let path = self.path(name);
        match self.object.get(name) {
            None => Err(self.fault(name, "required", "is missing")),
            Some(Value::Array(items)) => Ok(items
                .iter()
                .enumerate()
                .map(move |(n, item)| (format!("{path}[{n}]"), item))),
            Some(_) => Err(self.fault(name, "type", "must be an array")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Update> {
        Update::from_body(text.as_bytes())
    }

    fn rule(text: &str) -> (String, String) {
        let body = read(text).map(|_| ()).expect_err(text).body();
        let field = &body.params.extra["fields"][0];
        let text = |name: &str| field[name].as_str().expect("a string").to_owned();
        (text("path"), text("rule"))
    }

    #[test]
    fn a_manifest_comes_wrapped_or_bare_and_keeps_its_bytes() {
        let bare = r#"{ "tools":[], "permission_scopes":[],  "x-later": 1.00 }"#;
        assert_eq!(read(bare).expect("valid").manifest.text, bare);
        assert_eq!(
            read(&format!("\n {bare} ")).expect("valid").manifest.text,
            bare
        );
        let update = read(&format!(r#"{{"if_version": 3, "manifest": {bare} }}"#)).expect("valid");
        assert_eq!(
            (update.manifest.text.as_str(), update.if_version),
            (bare, Some(3))
        );
    }

    #[test]
    fn what_is_no_manifest_is_refused_with_its_place() {
        let scopes = |scope: &str| format!(r#"{{"tools":[],"permission_scopes":[{scope}]}}"#);
        let tools = |tools: &str| format!(r#"{{"permission_scopes":[],"tools":[{tools}]}}"#);
        for (text, path, internal) in [
            ("[]".to_owned(), "", "type"),
            ("{}".to_owned(), "permission_scopes", "required"),
            (r#"{"manifest":[]}"#.to_owned(), "manifest", "type"),
            (
                r#"{"manifest":{"tools":{},"permission_scopes":[]}}"#.to_owned(),
                "manifest.tools",
                "type",
            ),
            (scopes("7"), "permission_scopes[0]", "type"),
            (
                scopes(r#"{"scope":"a:b"}"#),
                "permission_scopes[0].sensitivity",
                "required",
            ),
            (
                scopes(r#"{"scope":"a:b","sensitivity":"tiny"}"#),
                "permission_scopes[0].sensitivity",
                "value",
            ),
            (
                scopes(r#"{"scope":"","sensitivity":"low"}"#),
                "permission_scopes[0].scope",
                "length",
            ),
            (
                scopes(r#"{"scope":"a","sensitivity":"low"},{"scope":"a","sensitivity":"high"}"#),
                "permission_scopes[1].scope",
                "duplicate",
            ),
            (
                scopes(r#"{"scope":"location:read","sensitivity":"medium"}"#),
                "permission_scopes[0].sensitivity",
                "preset",
            ),
            (tools(r#"["a"]"#), "tools[0]", "type"),
            (
                tools(r#"{"name":"a"},{"name":"a"}"#),
                "tools[1].name",
                "duplicate",
            ),
            (
                tools(r#"{"name":"a","input_schema":true}"#),
                "tools[0].input_schema",
                "type",
            ),
        ] {
            assert_eq!(
                rule(&text),
                (path.to_owned(), internal.to_owned()),
                "{text}"
            );
        }
    }

    #[test]
    fn presets_may_be_raised_and_never_lowered() {
        let all = [Sensitivity::Low, Sensitivity::Medium, Sensitivity::High];
        for (scope, preset) in PRESETS {
            for (level, name) in all.iter().zip(["low", "medium", "high"]) {
                let scope = format!(r#"{{"scope":"{scope}","sensitivity":"{name}"}}"#);
                let text = format!(r#"{{"tools":[],"permission_scopes":[{scope}]}}"#);
                assert_eq!(read(&text).is_ok(), level >= preset, "{text}");
            }
        }
    }

    #[test]
    fn a_change_of_scopes_is_seen() {
        let with = |scopes: &str| format!(r#"{{"tools":[],"permission_scopes":[{scopes}]}}"#);
        let before = with(
            r#"{"scope":"a","sensitivity":"low"},{"scope":"b","sensitivity":"low"},{"scope":"c","sensitivity":"low"}"#,
        );
        let after = with(
            r#"{"scope":"d","sensitivity":"low"},{"scope":"b","sensitivity":"high"},{"scope":"c","sensitivity":"low"}"#,
        );
        let after = read(&after).expect("valid").manifest;
        assert_eq!(after.changed_scopes(Some(&before)), ["a", "b", "d"]);
        assert_eq!(after.changed_scopes(None), ["b", "c", "d"]);
    }

    #[test]
    fn a_tool_whose_scope_nobody_declared_is_warned_of() {
        let text = r#"{"tools":[{"name":"a","scope":"x:y"}],"permission_scopes":[]}"#;
        let warnings = read(text).expect("valid").manifest.warnings;
        assert_eq!(
            (warnings[0].code.as_str(), warnings[0].path.as_str()),
            ("scope_not_declared", "tools[0].scope")
        );
    }
}
