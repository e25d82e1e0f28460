//! The documents of the interface that a node serves.

use std::collections::BTreeSet;

use serde_json::json;

use crate::support::nodes;

#[tokio::test(flavor = "multi_thread")]
async fn a_node_serves_the_documents_of_its_interface() {
    let [a] = nodes().await;
    let openapi = a.anon().get("/openapi.json").await.expect(200);
    assert_eq!(openapi.body["openapi"], json!("3.1.0"));
    let routes = openapi.body["paths"].as_object().expect("paths");
    assert!(routes.contains_key("/events/types") && routes.contains_key("/auth/login"));

    let asyncapi = a.anon().get("/asyncapi.yaml").await.expect(200);
    assert_eq!(asyncapi.header("content-type"), Some("application/yaml"));

    let types = a.anon().get("/events/types").await.expect(200);
    let rows = types.body["data"].as_array().expect("a list");
    let names: BTreeSet<&str> = rows
        .iter()
        .filter_map(|row| row["event"].as_str())
        .collect();
    assert_eq!(names.len(), rows.len());
    for name in ["message.created", "webhook.verify", "webhook.test"] {
        assert!(names.contains(name), "{name}");
        let row = format!("event: \"{name}\"");
        assert!(blindpipe::documents::asyncapi().contains(&row), "{name}");
    }
    for row in rows {
        let schema = &row["schema"];
        let reference = schema["$ref"].as_str().expect("a reference");
        let name = reference.strip_prefix("#/$defs/").expect("a local one");
        assert!(schema["$defs"][name].is_object(), "{row}");
        assert!(!row.to_string().contains("#/components"), "{row}");
    }
}
