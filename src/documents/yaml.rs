//! A JSON value as YAML: block style, strings in JSON's quotes.

use std::fmt::Write;

use serde_json::Value;

/// The whole document as text.
pub fn write(value: &Value) -> String {
    let mut text = String::new();
    block(value, 0, &mut text);
    text
}

/// Writes a value on lines of its own.
fn block(value: &Value, depth: usize, to: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(entries) => {
            for (name, value) in entries {
                to.push_str(&indent);
                key(name, to);
                to.push(':');
                nested(value, depth + 1, to);
            }
        }
        Value::Array(items) => {
            for item in items {
                to.push_str(&indent);
                to.push('-');
                nested(item, depth + 1, to);
            }
        }
        scalar => writeln!(to, "{indent}{scalar}").unwrap_or_default(),
    }
}

/// Writes a value behind its key or dash.
fn nested(value: &Value, depth: usize, to: &mut String) {
    let is_empty = match value {
        Value::Object(entries) => entries.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => true,
    };
    if is_empty {
        writeln!(to, " {value}").unwrap_or_default();
    } else {
        to.push('\n');
        block(value, depth, to);
    }
}

fn key(name: &str, to: &mut String) {
    let is_plain = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
        && name.starts_with(|first: char| first.is_ascii_alphabetic());
    if is_plain {
        to.push_str(name);
    } else {
        to.push_str(&Value::from(name).to_string());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_is_written_in_blocks() {
        let value = json!({ "a": { "b": [1, "x: y"], "$ref": "#/c" }, "e": {}, "n": null });
        let text = "a:\n  \"$ref\": \"#/c\"\n  b:\n    - 1\n    - \"x: y\"\ne: {}\nn: null\n";
        assert_eq!(write(&value), text);
    }
}
