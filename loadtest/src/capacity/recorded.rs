//! The capacity model says what the recorded load tests have measured.

use std::{fs, path::Path};

use serde_json::Value;

use super::{
    Cores, Load, cores,
    costs::{self, Cost},
};

/// The model and a measurement may differ by this factor.
const MAX_FACTOR: f64 = 2.0;

/// Sends on one node and two, of `loadtest/README.md` ("Before and after the rebuilt module tree"):
/// nodes, messages per second, and µs per message of all nodes and of Postgres. The last is a lone
/// send, which is its own batch.
const SENDS: [(f64, f64, f64, f64); 3] = [
    (1.0, 9_264.0, 55.0, 56.0),
    (2.0, 9_799.0, 66.0, 75.0),
    (1.0, 1.0, 222.0, 429.0),
];

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// A figure of the last recorded run of a scenario.
fn recorded(scenario: &str, what: &str) -> f64 {
    let file = repository().join(format!("loadtest/results/{scenario}.json"));
    let run = fs::read_to_string(file).expect(scenario);
    let run: Value = serde_json::from_str(&run).expect("JSON");
    let ratios = run["ratios"].as_array().expect("figures");
    let figure = ratios.iter().find(|ratio| ratio["what"] == what);
    figure.expect(what)["value"].as_f64().expect("a number")
}

fn assert_near(what: &str, modelled: f64, measured: f64) {
    let factor = modelled.max(measured) / modelled.min(measured);
    assert!(
        factor <= MAX_FACTOR,
        "{what}: {modelled} in the model, {measured} measured"
    );
}

/// A load of messages alone.
fn messages(per_second: f64) -> Load {
    Load {
        users: 0,
        messages_per_second: Some(per_second),
        online: 0.0,
        recipients: 2.0,
        payload_bytes: 1024.0,
        webhooks_per_second: 0.0,
        node_cores: 4.0,
    }
}

#[test]
fn messages_cost_what_sends_have_used() {
    for (nodes, rate, of_nodes, of_postgres) in SENDS {
        // Nobody listened while the sends were measured.
        let load = Load {
            recipients: 0.0,
            ..messages(rate)
        };
        let modelled = cores(&load, nodes);
        let per_message = |cores: f64| cores / rate * 1e6;
        let name = format!("{rate} messages/s on {nodes}");
        assert_near(&name, per_message(modelled.nodes), of_nodes);
        assert_near(&name, per_message(modelled.postgres), of_postgres);
    }
}

#[test]
fn messages_cost_what_one_node_to_four_have_used() {
    for (n, name) in ["1 node", "2 nodes", "3 nodes", "4 nodes"]
        .into_iter()
        .enumerate()
    {
        let rate = recorded("scaleout", &format!("{name}, msg/s"));
        let load = Load {
            recipients: 0.0,
            ..messages(rate)
        };
        let modelled = cores(&load, (n + 1) as f64);
        let the_nodes = if n == 0 { "the node" } else { "the nodes" };
        let measured = |part: &str| {
            let figure = format!("{name}, µs of {part} per message");
            recorded("scaleout", &figure) * rate / 1e6
        };
        assert_near(name, modelled.nodes, measured(the_nodes));
        assert_near(name, modelled.postgres, measured("Postgres"));
        assert_near(name, modelled.redis, measured("Redis"));
    }
}

#[test]
fn silent_sockets_cost_what_was_measured() {
    let figure = |what: &str| recorded("sweep", what);
    let (sockets, nodes) = (figure("sockets"), figure("live nodes"));
    let load = Load {
        users: 10_000,
        online: sockets / 10_000.0,
        ..messages(0.0)
    };
    let modelled = cores(&load, nodes);
    // The model adds the connects of sockets that live an hour.
    let measured = |part: &str| {
        let idle = figure(&format!("µs of {part} per idle socket and second"));
        let connect = figure(&format!("µs of {part} per connect"));
        (idle + connect / 3600.0) * sockets / 1e6
    };
    assert_near("nodes", modelled.nodes, measured("the nodes"));
    assert_near("Postgres", modelled.postgres, measured("Postgres"));
    assert_near("Redis", modelled.redis, measured("Redis"));
    let transactions =
        sockets * Cost::SocketTransactions.row().1 + nodes * Cost::NodeTransactions.row().1;
    let idle = figure("transactions of Postgres per second, idle");
    assert_near("transactions", transactions, idle);
}

#[test]
fn webhooks_and_disk_cost_what_was_measured() {
    let load = Load {
        webhooks_per_second: 1000.0,
        ..messages(0.0)
    };
    let Cores {
        nodes,
        postgres,
        redis,
    } = cores(&load, 2.0);
    let measured = recorded("webhooks", "CPU per delivery in µs");
    assert_near("webhooks", nodes + postgres + redis, measured / 1000.0);
    let disk = [
        (Cost::MessageDisk, "bytes of a message without its payload"),
        (Cost::EntryDisk, "bytes of an entry"),
    ];
    for (cost, what) in disk {
        assert_near(what, cost.bytes(), recorded("size", what));
    }
}

#[test]
fn the_document_lists_the_costs() {
    let document = fs::read_to_string(repository().join("docs/scaling.md")).expect("a document");
    let table = costs::as_markdown();
    assert!(
        document.contains(&table),
        "docs/scaling.md needs this:\n{table}"
    );
}
