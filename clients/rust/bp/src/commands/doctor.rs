//! `bp doctor`: what may be wrong between this machine and the service, and what to do.

use std::{env, process::ExitCode, time::Duration};

use blindpipe_client::{
    Client,
    client::ClientEvent,
    protocol::{agents::AgentView, webhooks::WebhookStatus},
};
use serde::Serialize;

use super::account::hex;
use crate::{
    context::Context,
    credentials,
    failure::{Exit, Failure, Result},
    output::{Output, plain},
};

const SOCKET_TIMEOUT: Duration = Duration::from_secs(15);
/// Signatures with times that differ more are refused.
const MAX_CLOCK_DIFFERENCE: i64 = 60;

/// A part that was looked at.
#[derive(Serialize)]
struct Finding {
    part: String,
    ok: bool,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

fn good(part: &str, found: impl Into<String>) -> Finding {
    Finding {
        part: part.to_owned(),
        ok: true,
        found: found.into(),
        remedy: None,
    }
}

fn bad(part: &str, found: impl Into<String>, remedy: &str) -> Finding {
    Finding {
        ok: false,
        remedy: Some(remedy.to_owned()),
        ..good(part, found)
    }
}

/// The findings of a run, told one by one.
struct Report<'a> {
    output: &'a Output,
    is_sound: bool,
}

impl Report<'_> {
    fn tell(&mut self, finding: &Finding) -> Result<()> {
        self.is_sound &= finding.ok;
        let mark = if finding.ok {
            self.output.green("ok   ")
        } else {
            self.output.red("FAULT")
        };
        let remedy = finding.remedy.as_ref();
        let remedy = remedy.map_or_else(String::new, |text| format!("\n      try: {text}"));
        let text = format!("{mark} {}: {}{remedy}", finding.part, plain(&finding.found));
        self.output.item(finding, &text)
    }
}

pub async fn run(at: &Context, output: &Output) -> Result<ExitCode> {
    let mut report = Report {
        output,
        is_sound: true,
    };
    report.tell(&proxy(at))?;
    if examine_server(at, &mut report).await? {
        match at.client().await {
            Ok(client) => examine_person(&client, at, &mut report).await?,
            Err(failure) => report.tell(&of_failure("session", &failure))?,
        }
    }
    Ok(if report.is_sound {
        ExitCode::SUCCESS
    } else {
        Exit::Failed.into()
    })
}

fn of_failure(part: &str, failure: &Failure) -> Finding {
    let remedy = failure.what_to_do().unwrap_or("the message of the fault");
    bad(part, failure.message(), remedy)
}

/// A proxy of the environment serves contexts with the system's authorities only.
fn proxy(at: &Context) -> Finding {
    let names = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
    let is_set = names
        .iter()
        .any(|name| env::var_os(name).is_some_and(|it| !it.is_empty()));
    match (is_set, at.settings.ca_file.is_some()) {
        (false, _) => good("proxy", "none"),
        (true, true) => good(
            "proxy",
            "set, and not used: the context has an authority of its own",
        ),
        (true, false) => good("proxy", "set: calls go through it, sockets do not"),
    }
}

/// Whether the service answers.
async fn examine_server(at: &Context, report: &mut Report<'_>) -> Result<bool> {
    let reached = match at.server()?.reach().await {
        Ok(reached) => reached,
        Err(error) => {
            let text = error.to_string();
            let remedy = if text.contains("certificate") {
                "--ca-file with the authority of the service, or its name in the address"
            } else {
                "the address of `bp context show`, the network, and whether the service runs"
            };
            report.tell(&bad("tls", text, remedy))?;
            return Ok(false);
        }
    };
    let ms = reached.took.as_millis();
    report.tell(&good(
        "tls",
        format!("{} answers in {ms} ms", at.settings.url),
    ))?;
    report.tell(&match reached.clock_ahead {
        None => bad(
            "clock",
            "the service did not tell its time",
            "the service's `Date` header",
        ),
        Some(apart) if apart.abs() > MAX_CLOCK_DIFFERENCE => bad(
            "clock",
            format!("this machine's clock is {apart} s ahead of the service's"),
            "set the clock: signatures with such a time are refused",
        ),
        Some(apart) => good("clock", format!("{apart} s apart")),
    })?;
    Ok(true)
}

async fn examine_person(client: &Client, at: &Context, report: &mut Report<'_>) -> Result<()> {
    let user_id = client.user_id()?;
    report.tell(&good("session", format!("user {user_id}")))?;
    report.tell(&socket(client).await)?;
    report.tell(&own_key(client).await)?;
    for agent in credentials::all(at)? {
        let part = format!("agent {}", agent.name);
        let checked = agent.builder(at)?.build().check().await;
        report.tell(&match checked {
            Ok(()) => good(&part, "its token and key fit"),
            Err(error) => of_failure(&part, &error.into()),
        })?;
        if let Some(finding) = webhook(client, &agent).await {
            report.tell(&finding)?;
        }
    }
    Ok(())
}

async fn socket(client: &Client) -> Finding {
    let remedy = "a proxy or firewall that lets WebSockets through to /ws";
    if !client.has_keys() {
        return bad("socket", "this device has no keys", "`bp keys restore`");
    }
    let caught_up = async {
        let mut events = client.events()?;
        while !matches!(events.next().await?, ClientEvent::CaughtUp) {}
        Ok::<_, blindpipe_client::Error>(())
    };
    match tokio::time::timeout(SOCKET_TIMEOUT, caught_up).await {
        Ok(Ok(())) => good("socket", "live"),
        Ok(Err(error)) => bad("socket", error.to_string(), remedy),
        Err(_) => bad("socket", "not live after 15 s", remedy),
    }
}

/// Whether the directory shows this device's key for this device.
async fn own_key(client: &Client) -> Finding {
    let Ok(own) = client.key_id() else {
        return bad("key", "this device has none", "`bp keys restore`");
    };
    let shown = async {
        let device = client.device_id()?;
        let shown = client.devices().shown_key(&device).await?;
        Ok::<_, blindpipe_client::Error>(shown)
    };
    match shown.await {
        Ok(Some(shown)) if shown == hex(own) => good("key", shown),
        Ok(Some(shown)) => bad(
            "key",
            format!(
                "the directory shows {shown}, and this device holds {}",
                hex(own)
            ),
            "`bp logout`, then `bp login`: nobody can write to this device's key",
        ),
        Ok(None) => bad("key", "the directory shows none", "`bp keys backup`"),
        Err(error) => of_failure("key", &error.into()),
    }
}

/// Whether the agent's receiver is reached, if it has one.
async fn webhook(client: &Client, agent: &credentials::Credentials) -> Option<Finding> {
    let part = format!("webhook {}", agent.name);
    match client.agent(agent.agent_id).await {
        Ok(AgentView::Full(_)) => {}
        _ => return None,
    }
    let webhook = client.webhooks(agent.agent_id).get().await.ok()?;
    let fault = webhook.last_error.as_deref().unwrap_or("no fault");
    Some(match webhook.status {
        WebhookStatus::Active if webhook.last_error.is_none() => good(&part, "active"),
        status => bad(
            &part,
            format!("{status}, {fault}"),
            "`bp webhook test AGENT` tells what the receiver answers, `bp webhook verify AGENT` asks again",
        ),
    })
}
