//! The tools, and what each of them does.

use std::time::Duration;

use blindpipe_client::{
    ApprovalState, Content,
    agent::{ApprovalDraft, ApprovalResult},
    protocol::ids::{ConversationId, MessageId},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    failure::{Exit, Failure, Result},
    questions::{self, Asker},
    show,
};

/// Hosts cut calls after a minute.
const MAX_WAIT_SECONDS: u64 = 45;
/// The permission prompt of a coding agent has no second call, so it waits as long as its host.
const PROMPT_WAIT: Duration = Duration::from_secs(3600);
const MAX_MESSAGES: usize = 50;

#[derive(Deserialize)]
struct AskHuman {
    question: String,
    #[serde(default)]
    choices: Vec<String>,
    schema: Option<Value>,
    wait_seconds: Option<u64>,
    key: Option<String>,
}

#[derive(Deserialize)]
struct RequestApproval {
    tool: String,
    #[serde(default)]
    arguments: Content,
    text: Option<String>,
    wait_seconds: Option<u64>,
    key: Option<String>,
}

#[derive(Deserialize)]
struct PermissionPrompt {
    tool_name: String,
    #[serde(default)]
    input: Content,
    tool_use_id: Option<String>,
}

#[derive(Deserialize)]
struct Check {
    ticket: String,
    wait_seconds: Option<u64>,
}

#[derive(Deserialize)]
struct Say {
    text: String,
    conversation: Option<ConversationId>,
}

#[derive(Deserialize)]
struct Read {
    conversation: Option<ConversationId>,
    limit: Option<usize>,
}

fn tool(name: &str, description: &str, properties: &Value, needed: &[&str]) -> Value {
    let schema = json!({ "type": "object", "properties": properties, "required": needed });
    json!({ "name": name, "description": description, "inputSchema": schema })
}

/// The tools, as hosts list them.
pub fn all() -> Vec<Value> {
    let text = json!({ "type": "string" });
    let wait = json!({ "type": "integer", "minimum": 0, "maximum": MAX_WAIT_SECONDS,
        "description": "Seconds to wait for the answer; 45 without it." });
    let key = json!({ "type": "string", "description": "A repeat with the same key is the same question." });
    vec![
        tool(
            "ask_human",
            "Ask the people of the conversation a question. Returns their answer, or a ticket for `check`.",
            &json!({
                "question": text,
                "choices": { "type": "array", "items": text, "description": "The answers to choose from." },
                "schema": { "type": "object", "description": "A JSON schema that tells people which JSON to answer." },
                "wait_seconds": wait,
                "key": key,
            }),
            &["question"],
        ),
        tool(
            "check",
            "Go on with a question by its ticket: its answer or receipt, or `pending`.",
            &json!({ "ticket": text, "wait_seconds": wait }),
            &["ticket"],
        ),
        tool(
            "request_approval",
            "Ask people to approve a call of a tool with exactly these arguments. Returns a receipt with their \
             signatures, or a ticket for `check`. Only `approved: true` permits the call.",
            &json!({
                "tool": text,
                "arguments": { "type": "object" },
                "text": { "type": "string", "description": "The question; one is made of the tool's name without it." },
                "wait_seconds": wait,
                "key": key,
            }),
            &["tool"],
        ),
        tool(
            "permission_prompt",
            "The permission prompt of a coding agent: allows or denies a call of a tool.",
            &json!({ "tool_name": text, "input": { "type": "object" }, "tool_use_id": text }),
            &["tool_name"],
        ),
        tool(
            "notify",
            "Tell the people of the conversation something. Nobody is asked.",
            &json!({ "text": text }),
            &["text"],
        ),
        tool(
            "send_message",
            "Send a message to a conversation of the agent.",
            &json!({ "text": text, "conversation": text }),
            &["text"],
        ),
        tool(
            "read_messages",
            "Read the last messages of a conversation, oldest first.",
            &json!({ "conversation": text, "limit": { "type": "integer", "minimum": 1, "maximum": MAX_MESSAGES } }),
            &[],
        ),
    ]
}

fn parsed<T: DeserializeOwned>(arguments: Value) -> Result<T> {
    serde_json::from_value(arguments)
        .map_err(|error| Failure::usage(format!("the arguments do not fit: {error}")))
}

pub async fn call(asker: &Asker, name: &str, arguments: Value) -> Result<Value> {
    match name {
        "ask_human" => ask_human(asker, parsed(arguments)?).await,
        "check" => check(asker, parsed(arguments)?).await,
        "request_approval" => request_approval(asker, parsed(arguments)?).await,
        "permission_prompt" => permission_prompt(asker, parsed(arguments)?).await,
        "notify" | "send_message" => say(asker, parsed(arguments)?).await,
        "read_messages" => read(asker, parsed(arguments)?).await,
        _ => Err(Failure::usage(format!("there is no tool {name:?}"))),
    }
}

fn wait_of(seconds: Option<u64>) -> Duration {
    Duration::from_secs(seconds.unwrap_or(MAX_WAIT_SECONDS).min(MAX_WAIT_SECONDS))
}

async fn ask_human(asker: &Asker, ask: AskHuman) -> Result<Value> {
    let mut arguments = Content::new();
    if let Some(schema) = ask.schema {
        arguments.insert("schema".to_owned(), schema);
    }
    let draft = ApprovalDraft {
        text: Some(ask.question),
        in_words: true,
        choices: ask.choices,
        key: ask.key,
        ..ApprovalDraft::new("ask_human", arguments)
    };
    let ticket = asker.ask(&draft).await?.approval_id;
    answer_to(asker, ticket, ask.wait_seconds).await
}

async fn request_approval(asker: &Asker, call: RequestApproval) -> Result<Value> {
    let text = call.text.unwrap_or_else(|| format!("Run {}?", call.tool));
    let draft = ApprovalDraft {
        text: Some(text),
        key: call.key,
        ..ApprovalDraft::new(call.tool, call.arguments)
    };
    let ticket = asker.ask(&draft).await?.approval_id;
    answer_to(asker, ticket, call.wait_seconds).await
}

async fn check(asker: &Asker, check: Check) -> Result<Value> {
    let ticket = questions::ticket(&check.ticket)?;
    let wait = wait_of(check.wait_seconds);
    told(ticket, asker.wait(ticket, wait, wait, false).await?)
}

/// The answer to a question that was just asked. It waits on at a service that has gone away.
async fn answer_to(asker: &Asker, ticket: MessageId, seconds: Option<u64>) -> Result<Value> {
    let wait = wait_of(seconds);
    match asker.wait(ticket, wait, wait, true).await {
        Err(failure) if failure.exit() == Exit::Unreachable => told(ticket, None),
        result => told(ticket, result?),
    }
}

/// The decision of people: the answer in short, and the receipt that proves it.
fn told(ticket: MessageId, result: Option<ApprovalResult>) -> Result<Value> {
    let Some(result) = result else {
        return Ok(json!({ "status": "pending", "ticket": ticket }));
    };
    let mut told = json!({
        "status": result.outcome,
        "ticket": result.approval.approval_id,
        "approved": result.outcome == ApprovalState::Approved,
        "receipt": serde_json::to_value(&result.receipt)?,
    });
    if result.outcome == ApprovalState::Answered {
        let words = result.choice.as_ref().or(result.text.as_ref());
        // An answer to a schema is JSON.
        let is_json = result.arguments.contains_key("schema");
        let parsed = words.filter(|_| is_json);
        let parsed = parsed.and_then(|words| serde_json::from_str::<Value>(words).ok());
        told["answer"] = parsed.unwrap_or_else(|| words.cloned().into());
    }
    Ok(told)
}

/// The form of the answer is the hosts': `behavior` with the input as it was, or a message.
async fn permission_prompt(asker: &Asker, prompt: PermissionPrompt) -> Result<Value> {
    let draft = ApprovalDraft {
        text: Some(format!("May the coding agent run {}?", prompt.tool_name)),
        key: prompt.tool_use_id,
        ..ApprovalDraft::new(prompt.tool_name, prompt.input.clone())
    };
    let ticket = asker.ask(&draft).await?.approval_id;
    let result = asker.wait(ticket, PROMPT_WAIT, PROMPT_WAIT, true).await?;
    let outcome = result.map(|result| result.outcome);
    Ok(match outcome {
        Some(ApprovalState::Approved) => {
            json!({ "behavior": "allow", "updatedInput": prompt.input })
        }
        Some(outcome) => {
            json!({ "behavior": "deny", "message": "not approved", "outcome": outcome })
        }
        None => json!({ "behavior": "deny", "message": "nobody has answered yet" }),
    })
}

async fn say(asker: &Asker, say: Say) -> Result<Value> {
    let conversation = match say.conversation {
        Some(id) => id,
        None => asker.conversation().await?,
    };
    let sent = asker.agent.send(conversation, say.text, None).await?;
    Ok(json!({ "message_id": sent.message_id, "conversation_id": conversation }))
}

async fn read(asker: &Asker, read: Read) -> Result<Value> {
    let conversation = match read.conversation {
        Some(id) => id,
        None => asker.conversation().await?,
    };
    let mut page = asker.agent.history(conversation, None).await?;
    page.truncate(read.limit.unwrap_or(20).min(MAX_MESSAGES));
    let messages: Vec<_> = page.iter().rev().map(show::json).collect();
    Ok(json!({ "conversation_id": conversation, "messages": messages }))
}
