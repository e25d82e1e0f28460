//! The greeting at the terminal once the cluster is up.

use std::path::Path;

use super::{node::Node, setup::Setup};
use crate::{demo::PlayedDemo, terminal::say};

/// Prints all addresses and three commands to try. With `played`, one of them speaks as the agent
/// of the demo.
pub fn print(setup: &Setup, nodes: &[Node], played: Option<&PlayedDemo>) {
    let settings = &setup.settings;
    say("");
    for (n, node) in nodes.iter().enumerate() {
        let (name, url, admin, log) = (
            &node.name,
            node.origin(),
            node.admin_url(),
            short(&node.log),
        );
        let pid = setup.cluster_file.pid(n);
        say(format!(
            "{name}  {url}   probes, metrics {admin}   log {log}   process {pid}"
        ));
    }
    let Some(first) = nodes.first() else {
        return;
    };
    let url = first.origin();
    let curl = format!("curl --cacert {}", short(&settings.certificates.ca));
    let body = r#"{"email":"you@example.com","scene":"register","turnstile_token":"dev-pass"}"#;
    let mails = short(&settings.mails);
    say("\nTry:");
    say(format!("  {curl} {url}/health"));
    let json = "-H 'Content-Type: application/json'";
    say(format!(
        "  {curl} {json} -d '{body}' {url}/auth/send-code  # the code: {mails}"
    ));
    match played {
        Some(PlayedDemo {
            agent_id,
            agent_token,
            conversation_id,
        }) => {
            let bearer = format!("-H 'Authorization: Bearer {agent_token}'");
            let path = format!("agents/{agent_id}/conversations/{conversation_id}/messages");
            say(format!(
                "  {curl} {bearer} {url}/{path}  # what the pipe has of it"
            ));
        }
        None => say(format!("  {curl} {url}/version")),
    }
    say(format!(
        "\nPasskeys, in a browser: {} (its certificate is this machine's own)",
        setup.passkey_page_url(first)
    ));
    say("`kill -9` a node's process and watch it come back. Ctrl-C stops everything.");
}

/// `path` relative to the current folder, if it lies below that.
pub fn short(path: &Path) -> String {
    let here = std::env::current_dir()
        .and_then(|here| here.canonicalize())
        .unwrap_or_default();
    path.strip_prefix(here)
        .unwrap_or(path)
        .display()
        .to_string()
}
