//! Messages as people and programs read them.

use std::collections::HashMap;

use blindpipe_client::{
    Content, Result,
    client::{Conversation, Received},
    protocol::ids::Principal,
};
use serde_json::{Value, json};

use crate::output::{Output, line, plain};

/// A message for programs.
pub fn json(received: &Received) -> Value {
    let message = &received.message;
    let mut item = json!({
        "message_id": message.message_id,
        "conversation_id": message.conversation_id,
        "seq": message.seq,
        "sender": message.sender.id,
        "sender_type": message.sender.r#type,
        "created_at": message.created_at,
        "in_reply_to": message.in_reply_to,
    });
    match &received.opened {
        Ok(opened) => {
            item["encrypted"] = opened.encrypted.into();
            item["authentic"] = opened.sender.authentic.into();
            item["content"] = opened.content.clone().into();
            let notices = opened.notices.iter().map(|notice| notice.kind.name());
            item["notices"] = notices.collect();
        }
        Err(reason) => item["undecryptable"] = reason.reason().into(),
    }
    item
}

/// The words of a content.
pub fn words(content: &Content, of: &Received) -> String {
    let text = |name: &str| content.get(name).and_then(Value::as_str).map(plain);
    let kind = text("type").unwrap_or_default();
    match kind.as_str() {
        "text" => text("text").unwrap_or_default(),
        "question" | "approval" => question(content, text("text").unwrap_or_default()),
        "answer" => text("choice").or_else(|| text("text")).unwrap_or_default(),
        "file" => format!(
            "[file {}, {} bytes: `bp file get {} {}`]",
            line(&text("name").unwrap_or_default()),
            content
                .get("size")
                .and_then(Value::as_u64)
                .unwrap_or_default(),
            of.message.conversation_id,
            of.message.message_id,
        ),
        _ => text("fallback").unwrap_or_else(|| format!("[{}]", line(&kind))),
    }
}

/// The choices of a question.
pub fn choices(content: &Content) -> Vec<String> {
    let choices = content.get("choices").and_then(Value::as_array);
    let choices = choices.into_iter().flatten().filter_map(Value::as_str);
    choices.map(str::to_owned).collect()
}

/// Whether a content is a question whose decision is signed.
pub fn is_approval(content: &Content) -> bool {
    content.get("type").and_then(Value::as_str) == Some("approval")
}

/// A question with what it is about: nobody says yes to what they do not see.
fn question(content: &Content, text: String) -> String {
    let arguments = content.get("arguments").and_then(Value::as_object);
    let arguments = arguments.into_iter().flatten();
    let arguments =
        arguments.map(|(name, value)| format!("\n  {}: {}", line(name), line(&value.to_string())));
    let text = text + &arguments.collect::<String>();
    let choices = choices(content);
    let lines = choices.iter().enumerate();
    let lines = lines.map(|(at, choice)| format!("\n  {}. {}", at + 1, line(choice)));
    text + &lines.collect::<String>()
}

/// The names of a conversation's members.
#[derive(Default)]
pub struct Names(HashMap<Principal, String>);

impl Names {
    pub async fn of(conversation: &Conversation) -> Result<Self> {
        let members = conversation.info().await?.members.unwrap_or_default();
        let named = |it: blindpipe_client::protocol::conversations::Member| {
            (it.principal_id, line(&it.display_name))
        };
        Ok(Self(members.into_iter().map(named).collect()))
    }

    pub fn get(&self, of: Principal) -> String {
        self.0.get(&of).cloned().unwrap_or_else(|| of.to_string())
    }
}

/// A message as a line for people, with what is to be known about it.
pub fn text(received: &Received, names: &Names, output: &Output) -> String {
    let name = output.bold(&names.get(received.message.sender.id));
    match &received.opened {
        Ok(opened) => {
            let words = words(&opened.content, received);
            let remarks = remarks(received, output);
            format!("{name}: {words}{remarks}")
        }
        Err(reason) => output.yellow(&format!("{name}: a message that does not open ({reason})")),
    }
}

/// Notices about a message that opened.
pub fn remarks(received: &Received, output: &Output) -> String {
    let Ok(opened) = &received.opened else {
        return String::new();
    };
    let mut remarks: Vec<_> = opened.notices.iter().map(|it| it.kind.name()).collect();
    if opened.encrypted && !opened.sender.authentic {
        remarks.push("nothing proves who wrote it");
    }
    if remarks.is_empty() {
        return String::new();
    }
    format!("  {}", output.yellow(&format!("({})", remarks.join(", "))))
}
