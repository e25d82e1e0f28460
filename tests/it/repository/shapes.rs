//! Wire shapes are types of `crates/protocol`.

use super::sources::{root, sources};

/// Files of features and of the gateway that read JSON into types of their own, with the reason.
const OWN_SHAPES: [(&str, &str); 12] = [
    (
        "src/features/agents/manifest.rs",
        "a manifest comes bare or wrapped",
    ),
    (
        "src/features/messages/body.rs",
        "a payload comes bare or wrapped, and keeps its bytes",
    ),
    (
        "src/features/messages/history.rs",
        "a query joined with the page of its list",
    ),
    (
        "src/features/search/http.rs",
        "a query joined with the page of its list",
    ),
    ("src/features/streams/position.rs", "messages between nodes"),
    ("src/features/streams/state/mod.rs", "what Redis keeps"),
    (
        "src/features/tool_calls/rules.rs",
        "the `type` of a payload",
    ),
    (
        "src/features/webhooks/dispatcher/replies.rs",
        "each message of an answer is read by itself",
    ),
    (
        "src/features/webhooks/signature.rs",
        "the vectors of a test",
    ),
    (
        "src/gateway/frames.rs",
        "a broken frame is answered with its `ref`",
    ),
    (
        "src/gateway/long_poll.rs",
        "numbers out of range are named in the answer",
    ),
    (
        "src/gateway/session/shared.rs",
        "the conversation of any ephemeral frame",
    ),
];

#[test]
fn features_and_the_gateway_have_no_wire_shapes_of_their_own() {
    let mut with_shapes = Vec::new();
    for folder in ["src/features", "src/gateway"] {
        for (file, text) in sources(&root().join(folder)) {
            let derives = |line: &&str| {
                line.trim_start().starts_with("#[derive(")
                    && (line.contains("Serialize") || line.contains("Deserialize"))
            };
            if text.lines().any(|line| derives(&line)) {
                with_shapes.push(file);
            }
        }
    }
    with_shapes.sort();
    assert_eq!(with_shapes, OWN_SHAPES.map(|(file, _)| file));
}
