//! The agent: it acts on certain words, and tells all that it hears.

use blindpipe_client::{
    Agent, Context, Error, Result,
    agent::{ApprovalDraft, CallStatus, Question, ToolCall},
    e2ee::to_base64,
};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{LOOK_INTERVAL, SCOPE, new_file, object, print, variable};

/// More than an envelope holds.
const LARGE_TEXT_REPEATS: usize = 125_000;

fn tell(ctx: &Context, name: &str, what: &Value) -> Result<()> {
    print(&json!({"conversation": ctx.conversation_id()?, name: what}))
}

async fn hear(ctx: Context) -> Result<()> {
    let mut content = ctx.content().clone();
    if content.get("type").is_some_and(|kind| kind == "file") {
        let data = to_base64(&ctx.file().await?);
        content.insert("data".to_owned(), data.into());
    }
    tell(&ctx, "heard", &content.into())
}

async fn hear_and_act(ctx: Context) -> Result<()> {
    hear(ctx.clone()).await?;
    if Box::pin(act(&ctx)).await? && !ctx.stopped().is_cancelled() {
        tell(&ctx, "done", &ctx.text().into())?;
    }
    Ok(())
}

/// Acts, if a person has said one of these words.
async fn act(ctx: &Context) -> Result<bool> {
    match ctx.text() {
        "changes" => {
            ctx.react("👀", false).await?;
            ctx.react("🎉", false).await?;
            ctx.react("🎉", true).await?;
            let draft = ctx.reply("a draft").await?;
            ctx.edit(&draft, "done").await?;
            let mistake = ctx.reply("a mistake").await?;
            ctx.delete(&mistake).await?;
        }
        "file" => {
            let given = serde_json::from_str(&variable("FILE")?).map_err(Error::other)?;
            let (file, details) = new_file(&given)?;
            ctx.send_file_with(file, details).await?;
        }
        "large" => {
            ctx.reply("large ".repeat(LARGE_TEXT_REPEATS)).await?;
        }
        "question" | "ask" | "approve" => ask(ctx).await?,
        "tool" => call(ctx).await?,
        "stream" => stream(ctx).await?,
        "status" => {
            ctx.status("searching")?;
            ctx.stopped().cancelled().await;
            tell(ctx, "stopped", &true.into())?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

async fn ask(ctx: &Context) -> Result<()> {
    let words = |words: [&str; 2]| words.map(str::to_owned).to_vec();
    match ctx.text() {
        "question" => {
            let asked = ctx.sender().map(|sender| sender.principal.to_string());
            let question = json!({
                "type": "question",
                "text": "Which shade?",
                "tag": "shade",
                "choices": ["Dark", "Light"],
                "state": {"n": 1},
                "for": [asked],
            });
            ctx.reply(object(question)).await?;
        }
        "ask" => {
            let question = Question {
                tag: "colour".to_owned(),
                text: "Which colour?".to_owned(),
                choices: words(["Red", "Blue"]),
                state: object(json!({"n": 2})),
                ..Question::default()
            };
            ctx.ask(question).await?;
        }
        _ => {
            let draft = ApprovalDraft {
                text: Some("Deploy?".to_owned()),
                state: object(json!({"n": 3})),
                ..ApprovalDraft::new("deploy", object(json!({"version": "1.4.2"})))
            };
            ctx.approve(&draft).await?;
        }
    }
    Ok(())
}

async fn call(ctx: &Context) -> Result<()> {
    let call = ToolCall {
        tool: "send_email".to_owned(),
        scope: SCOPE.to_owned(),
        arguments: object(json!({"to": "bob"})),
        prompt: Some("Write to Bob?".to_owned()),
        ..ToolCall::default()
    };
    let got = ctx.call(call).await?;
    let status = match got.status {
        CallStatus::Executed => "executed",
        CallStatus::Denied => "denied",
        CallStatus::Failed => "failed",
    };
    tell(
        ctx,
        "call",
        &json!({"status": status, "result": got.result}),
    )
}

async fn stream(ctx: &Context) -> Result<()> {
    let mut stream = ctx.stream()?;
    stream.write("One, ").await;
    stream.write("two").await;
    let mut steered = Vec::new();
    while steered.is_empty() {
        sleep(LOOK_INTERVAL).await;
        let arrived = ctx.steer().await?;
        steered.extend(arrived.iter().map(|message| message.text().to_owned()));
    }
    tell(ctx, "steered", &json!(steered))?;
    stream.write(", three.").await;
    stream.end().await.map(drop)
}

async fn decided(ctx: Context) -> Result<()> {
    let result = ctx.decision().ok_or(Error::Usage("this is no decision"))?;
    let decision = json!({
        "outcome": result.outcome,
        "name": result.name,
        "arguments": result.arguments,
        "state": result.state,
        "choice": result.choice,
        "text": result.text,
    });
    let id = ctx.conversation_id()?;
    print(&json!({"conversation": id, "decision": decision, "receipt": result.receipt}))
}

async fn answered(ctx: Context) -> Result<()> {
    let answer = ctx.answer().ok_or(Error::Usage("this is no answer"))?;
    let told = json!({
        "choice": answer.choice,
        "text": answer.text,
        "state": answer.state,
        "question": answer.question,
    });
    tell(&ctx, "answer", &told)
}

pub fn agent() -> Result<Agent> {
    let builder = Agent::from_env()?.on_message(hear_and_act);
    let builder = ["edit", "delete", "reaction"]
        .into_iter()
        .fold(builder, |builder, change| builder.on(change, hear));
    let builder = builder
        .on_decision("deploy", decided)
        .on_decision("colour", decided);
    let builder = builder.on_answer("shade", answered);
    Ok(builder.on_answer("colour", answered).build())
}
