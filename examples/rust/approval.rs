//! An agent that asks before it acts: with a deadline by a tool call, or with time by a question.
//!
//! Needs `BLINDPIPE_URL`, `BLINDPIPE_AGENT_ID`, `BLINDPIPE_TOKEN` and `BLINDPIPE_KEY`. The person
//! grants `notification:send`, which the agent's manifest declares.

use blindpipe_client::{
    Agent, Content, Context, Result,
    agent::{CallStatus, Question, ToolCall},
};

async fn act(ctx: Context) -> Result<()> {
    if ctx.text() == "deploy" {
        // May wait for days: no process waits, and the state travels with the question.
        let question = Question {
            tag: "deploy".into(),
            text: "Deploy 1.4.2?".into(),
            choices: vec!["Deploy".into(), "Not now".into()],
            state: Content::from_iter([("version".into(), "1.4.2".into())]),
            ..Question::default()
        };
        ctx.ask(question).await?;
        return Ok(());
    }
    // The person's device executes and signs, or nobody does.
    let arguments = [("to", "team@example.com"), ("text", ctx.text())];
    let call = ToolCall {
        tool: "send_email".into(),
        scope: "notification:send".into(),
        arguments: arguments
            .map(|(name, value)| (name.into(), value.into()))
            .into_iter()
            .collect(),
        prompt: Some("Send this to the team?".into()),
        ..ToolCall::default()
    };
    let sent = ctx.call(call).await?;
    let words = match sent.status {
        CallStatus::Executed => "Sent.".to_owned(),
        _ => format!("Not sent: {}.", sent.reason.unwrap_or_default()),
    };
    ctx.reply(words).await?;
    Ok(())
}

async fn decided(ctx: Context) -> Result<()> {
    let Some(answer) = ctx.answer() else {
        return Ok(());
    };
    let version = answer
        .state
        .get("version")
        .and_then(|version| version.as_str());
    let words = match answer.choice.as_deref() {
        Some("Deploy") => format!("Deploying {}.", version.unwrap_or_default()),
        _ => "Another time.".to_owned(),
    };
    ctx.reply(words).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let agent = Agent::from_env()?.on_message(act);
    agent.on_answer("deploy", decided).run().await
}
