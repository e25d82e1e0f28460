//! An agent that says what it can do, asks for an approval, and stops when people want that.
//!
//! Needs `BLINDPIPE_URL`, `BLINDPIPE_AGENT_ID`, `BLINDPIPE_TOKEN` and `BLINDPIPE_KEY`.

use std::time::Duration;

use blindpipe_client::{
    Agent, ApprovalState, Content, Context, Error, Result, agent::ApprovalDraft,
    protocol::messages::Sent,
};
use serde_json::json;

async fn act(ctx: Context) -> Result<()> {
    if ctx.text() == "deploy" {
        let arguments = Content::from_iter([("version".into(), "1.4.2".into())]);
        let deploy = ApprovalDraft::new("deploy", arguments);
        ctx.approve(&deploy).await?; // the person may take days
        return Ok(());
    }
    tokio::select! {
        () = tokio::time::sleep(Duration::from_secs(3600)) => {}
        () = ctx.stopped().cancelled() => {} // a stop ends it
    }
    Ok(())
}

async fn decided(ctx: Context) -> Result<Sent> {
    let outcome = ctx.decision().map(|decision| decision.outcome);
    let words = match outcome {
        Some(ApprovalState::Approved) => "approved",
        _ => "not approved",
    };
    ctx.reply(format!("Deploy 1.4.2: {words}.")).await
}

#[tokio::main]
async fn main() -> Result<()> {
    let manifest = serde_json::from_value(json!({
        "tools": [{ "name": "deploy", "scope": "release:deploy" }],
        "permission_scopes": [{ "scope": "release:deploy", "sensitivity": "high" }],
    }));
    Agent::from_env()?
        .manifest(&manifest.map_err(Error::other)?)
        .on_message(act)
        .on_decision("deploy", decided)
        .on_stop(async |ctx| ctx.reply("I have stopped.").await)
        .run()
        .await
}
