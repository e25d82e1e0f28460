//! The greeting at the terminal once the cluster is up.

use std::path::Path;

use super::{node::Node, setup::Setup};
use crate::terminal::say;

/// Prints all addresses and commands to try.
pub fn print(setup: &Setup, nodes: &[Node]) {
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
    let dir = short(&settings.root);
    say("\nTry, in another terminal:");
    say(format!(r#"  export PATH="{}:$PATH""#, own_folder()));
    say(format!("  bp register --dev {dir}            # a person"));
    say("  bp init python echo && ./echo/run  # an agent");
    say("  bp chat echo                       # in a third terminal: a conversation with it");
    say("  bp tail echo -n 20                 # what was said, opened with the person's keys");
    say(
        "  bp api GET /conversations          # what the pipe has of it: any route, in the person's name",
    );
    if settings.app.is_some() {
        say(format!("\nThe web app, in a browser: {url}/app"));
    }
    say(format!(
        "\nPasskeys, in a browser: {} (its certificate is this machine's own)",
        setup.passkey_page_url(first)
    ));
    say("`kill -9` a node's process and watch it come back. Ctrl-C stops everything.");
}

/// The folder of this program, where `bp` is too.
fn own_folder() -> String {
    let own = std::env::current_exe().unwrap_or_default();
    own.parent().unwrap_or(&own).display().to_string()
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
