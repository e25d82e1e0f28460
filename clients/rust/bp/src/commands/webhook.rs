//! `bp webhook`.

use std::path::PathBuf;

use blindpipe_client::{
    client::Webhooks,
    protocol::webhooks::{DeliveryStatus, Webhook as Info, WebhookDelivery, WebhookStatus},
};
use clap::{Args, Subcommand};

use crate::{
    context::Context,
    failure::{Failure, Result},
    forward,
    output::{Output, line},
    to,
};

#[derive(Subcommand)]
pub enum Webhook {
    /// Hand an agent's events on to a receiver of this machine, signed as a webhook's; no tunnel.
    Listen(Listen),
    /// Have the service deliver an agent's events to an address; the secret is printed once.
    Set {
        /// The agent, by name or id.
        agent: String,
        /// The address: https, and public.
        address: String,
    },
    /// Show an agent's webhook.
    Show {
        /// The agent, by name or id.
        agent: String,
    },
    /// Have the service ask the receiver again whether it is the agent's.
    Verify {
        /// The agent, by name or id.
        agent: String,
    },
    /// Send the receiver a test.
    Test {
        /// The agent, by name or id.
        agent: String,
    },
    /// List deliveries, newest first.
    Ls {
        /// The agent, by name or id.
        agent: String,
        /// Only those of this status: pending, success, failed, exhausted.
        #[arg(long)]
        status: Option<String>,
    },
    /// Deliver an event once more.
    Replay {
        /// The agent, by name or id.
        agent: String,
        /// The delivery.
        delivery: String,
    },
    /// End an agent's webhook.
    Rm {
        /// The agent, by name or id.
        agent: String,
    },
}

#[derive(Args)]
pub struct Listen {
    /// The address of the receiver, such as `http://localhost:3000/hook`.
    #[arg(long, value_name = "URL")]
    pub forward_to: String,
    /// The agent by name or id, if there are several.
    #[arg(long, env = "BP_AGENT")]
    pub agent: Option<String>,
    /// A file with the secret to sign with; a new secret is made and printed without it.
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
}

pub async fn run(command: Webhook, at: &Context, output: &Output) -> Result<()> {
    let agent = match &command {
        Webhook::Listen(listen) => return forward::listen(listen, at, output).await,
        Webhook::Set { agent, .. }
        | Webhook::Show { agent }
        | Webhook::Verify { agent }
        | Webhook::Test { agent }
        | Webhook::Ls { agent, .. }
        | Webhook::Replay { agent, .. }
        | Webhook::Rm { agent } => agent,
    };
    let client = at.client().await?;
    let id = to::agent(&client, at, agent).await?;
    run_for(&client.webhooks(id), &command, output).await
}

async fn run_for(webhooks: &Webhooks<'_>, command: &Webhook, output: &Output) -> Result<()> {
    match command {
        Webhook::Set { address, .. } => tell(&webhooks.set(address).await?, output),
        Webhook::Verify { .. } => tell(&webhooks.verify().await?, output),
        Webhook::Test { .. } => test(webhooks, output).await,
        Webhook::Ls { status, .. } => list(webhooks, status.as_deref(), output).await,
        Webhook::Replay { delivery, .. } => {
            let id = delivery.parse();
            let id = id.map_err(|_| Failure::usage(format!("{delivery:?} is no delivery's id")))?;
            let delivery = webhooks.redeliver(id).await?;
            output.item(&delivery, &row(&delivery))
        }
        Webhook::Rm { .. } => {
            let deleted = webhooks.delete().await?;
            output.item(&deleted, "the webhook has ended")
        }
        Webhook::Show { .. } | Webhook::Listen(_) => tell(&webhooks.get().await?, output),
    }
}

fn tell(webhook: &Info, output: &Output) -> Result<()> {
    let mut text = format!("{}  {}", webhook.status, line(&webhook.url));
    if let Some(error) = &webhook.last_error {
        text += &format!("\n  last error: {}", line(error));
    }
    if let Some(secret) = &webhook.secret {
        output.note("Its secret, which is not printed again:");
        text += &format!("\n{}", secret.expose());
    }
    output.item(webhook, &text)?;
    if webhook.status == WebhookStatus::PendingVerification {
        output.note(
            "Nothing is delivered before the receiver answers its challenge: `bp webhook verify AGENT`.",
        );
    }
    Ok(())
}

async fn test(webhooks: &Webhooks<'_>, output: &Output) -> Result<()> {
    let test = webhooks.test().await?;
    let status = test
        .response_status
        .map_or("none".to_owned(), |it| it.to_string());
    let text = format!("answered with {status} in {} ms", test.duration_ms);
    output.item(&test, &text)?;
    if test.status == DeliveryStatus::Success {
        return Ok(());
    }
    let why = test.error.unwrap_or_default();
    Err(Failure::failed(format!(
        "the receiver did not take it: {}",
        line(&why)
    )))
}

async fn list(webhooks: &Webhooks<'_>, status: Option<&str>, output: &Output) -> Result<()> {
    let status = status.map(str::parse).transpose();
    let status = status.map_err(|_| Failure::usage("there is no such status"))?;
    let mut cursor = None;
    loop {
        let (page, next) = webhooks.deliveries(status, cursor).await?;
        for delivery in &page {
            output.item(delivery, &row(delivery))?;
        }
        cursor = next;
        if cursor.is_none() {
            return Ok(());
        }
    }
}

fn row(delivery: &WebhookDelivery) -> String {
    let last = delivery.attempts.last();
    let answer = last.and_then(|it| it.response_status).map_or_else(
        || last.and_then(|it| it.error.clone()).unwrap_or_default(),
        |status| status.to_string(),
    );
    let status = delivery.status.to_string();
    format!(
        "{}  {status:<10} {} attempts  {}  {}",
        delivery.delivery_id,
        delivery.attempts.len(),
        delivery.event,
        line(&answer)
    )
}
