//! The official client of MCP, killed in the middle of a question.

use std::process::Child;

use serde_json::{Value, json};

use crate::{
    mcp::{client_of, home, official_client, serve},
    support::{Home, has_approvals, root},
};

/// Waits for the only question that is open, and gives its ticket.
fn ticket(home: &Home, client: &mut Child) -> String {
    loop {
        if let Some(open) = home.json(&["approvals"]).items().pop() {
            let ticket = open["approval"]["approval_id"].as_str();
            return ticket.expect("an id").to_owned();
        }
        assert!(client.try_wait().expect("a process").is_none(), "it ended");
    }
}

fn kill(mut process: Child) {
    process.kill().expect("a process");
    process.wait().expect("its end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_was_killed_asks_the_same_question_and_is_answered() {
    let Some(python) = official_client() else {
        return;
    };
    let script = root().join("clients/rust/bp/tests/mcp_question.py");
    for is_http in [true, false] {
        let home = home().await;
        if !has_approvals(&home) {
            return;
        }
        let start = || {
            let served = is_http.then(|| serve(&home));
            let pipes = env!("CARGO_BIN_EXE_bp").to_owned();
            let at = served
                .as_ref()
                .map_or(pipes, |(_, port)| format!("http://127.0.0.1:{port}/mcp"));
            (client_of(&home, python, &script, &at), served)
        };
        let (mut client, served) = start();
        let asked = ticket(&home, &mut client);
        kill(client);
        if let Some((server, _)) = served {
            kill(server);
        }

        let (again, served) = start();
        home.json(&["approvals", "answer", &asked, "blue"]).item();
        let output = again.wait_with_output().expect("an end");
        let told = String::from_utf8_lossy(&output.stdout);
        let told: Value = serde_json::from_str(told.trim())
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        assert_eq!(told["status"], "answered");
        assert_eq!(told["answer"], "blue");
        assert_eq!(told["ticket"], json!(asked));
        let receipt = home.file("receipt.json", &told["receipt"].to_string());
        home.json(&["receipt", "verify", &receipt]).item();
        // People were asked once.
        assert!(home.json(&["approvals"]).items().is_empty());
        assert_eq!(home.json(&["approvals", "ls", "--closed"]).items().len(), 1);
        if let Some((server, _)) = served {
            kill(server);
        }
    }
}
