//! `bp ask`: a question to people whose answer a pipeline waits for.

use std::{collections::HashSet, fs, path::PathBuf, process::ExitCode, time::Duration};

use blindpipe_client::{
    ApprovalState, Content,
    agent::{ApprovalDraft, ApprovalResult},
    protocol::ids::UserId,
};
use clap::Args;
use serde_json::json;

use crate::{
    context::Context,
    failure::{Failure, Result},
    output::Output,
    questions,
};

/// The exit code of the first choice.
const FIRST_CHOICE: u8 = 10;
const MAX_CHOICES: usize = 100;
/// The service takes nothing shorter.
const MIN_TIMEOUT: Duration = Duration::from_secs(60);
/// For as long a service may be away after the question's end, which it tells once it is back.
const GRACE: Duration = Duration::from_secs(60);
const LONG_WAIT: Duration = Duration::from_secs(86_400);

#[derive(Args)]
pub struct Ask {
    /// The question. Without --choices, people approve (exit 0) or deny (exit 1).
    #[arg(required_unless_present = "resume")]
    text: Option<String>,
    /// The answers to choose from: exit 10 for the first one, 11 for the second, and so on.
    #[arg(long, value_delimiter = ',')]
    choices: Vec<String>,
    /// The time that people have, such as 90s, 10m, 8h, 3d; 60 seconds or more.
    #[arg(long, default_value = "10m", value_parser = duration)]
    timeout: Duration,
    /// Wait for an earlier question, by its ticket.
    #[arg(long, value_name = "TICKET", conflicts_with_all = ["text", "choices", "key"])]
    resume: Option<String>,
    /// A repeat with the same key is the same question: the name of a pipeline's run.
    #[arg(long)]
    key: Option<String>,
    /// What it is about, such as the name of a tool.
    #[arg(long, default_value = "question")]
    name: String,
    /// A file with a JSON object that people see with the question.
    #[arg(long, value_name = "FILE")]
    arguments: Option<PathBuf>,
    /// Only these users are asked.
    #[arg(long, value_name = "USER", value_delimiter = ',')]
    of: Vec<UserId>,
    /// The number of people who must say yes.
    #[arg(long)]
    quorum: Option<u32>,
    /// The agent that asks, by name or id, if there are several.
    #[arg(long, env = "BP_AGENT")]
    agent: Option<String>,
    /// The conversation, if the agent has several.
    #[arg(long, value_name = "ID", env = "BP_CONVERSATION")]
    conversation: Option<String>,
}

/// `90s`, `10m`, `8h`, `3d`.
pub fn duration(text: &str) -> std::result::Result<Duration, String> {
    let fault = || format!("{text:?} is no time such as 90s, 10m, 8h, 3d");
    let unit = text.chars().last().ok_or_else(fault)?;
    let factor = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(fault()),
    };
    let number = &text[..text.len() - 1];
    let number: u64 = number.parse().map_err(|_| fault())?;
    Ok(Duration::from_secs(number.saturating_mul(factor)))
}

impl Ask {
    fn draft(&self) -> Result<ApprovalDraft> {
        if self.timeout < MIN_TIMEOUT {
            return Err(Failure::usage("--timeout is 60s or more"));
        }
        if self.choices.len() > MAX_CHOICES {
            return Err(Failure::usage("there are too many choices"));
        }
        let different: HashSet<_> = self.choices.iter().collect();
        if different.len() < self.choices.len() || self.choices.iter().any(String::is_empty) {
            return Err(Failure::usage("a choice is empty, or is there twice"));
        }
        let arguments = match &self.arguments {
            Some(file) => {
                let fault = |text: String| Failure::usage(format!("{}: {text}", file.display()));
                let text = fs::read(file).map_err(|error| fault(error.to_string()))?;
                serde_json::from_slice::<Content>(&text)
                    .map_err(|error| fault(error.to_string()))?
            }
            None => Content::new(),
        };
        Ok(ApprovalDraft {
            text: self.text.clone(),
            choices: self.choices.clone(),
            of: self.of.clone(),
            quorum: self.quorum.unwrap_or(1),
            expires_in: self.timeout,
            key: self.key.clone(),
            ..ApprovalDraft::new(self.name.as_str(), arguments)
        })
    }
}

pub async fn run(ask: Ask, at: Option<&Context>, output: &Output) -> Result<ExitCode> {
    let asker = questions::asker(at, ask.agent.as_deref(), ask.conversation.as_deref())?;
    let ticket = match &ask.resume {
        Some(ticket) => questions::ticket(ticket)?,
        None => asker.ask(&ask.draft()?).await?.approval_id,
    };
    // Standard output is the receipt's.
    let text = format!("waiting; after a stop: bp ask --resume {ticket}");
    output.beside(&json!({ "ticket": ticket }), &text)?;
    // Somebody else may know when an earlier question began.
    let all = ask.resume.is_none().then_some(ask.timeout);
    let outage = ask.timeout + GRACE;
    let decided = async {
        loop {
            let was_there = ask.resume.is_none();
            let result = asker.wait(ticket, LONG_WAIT, outage, was_there).await?;
            if let Some(result) = result {
                return Ok::<_, Failure>(result);
            }
        }
    };
    let result = output
        .waiting("no decision yet", all, Box::pin(decided))
        .await?;
    output.raw(&serde_json::to_string(&result.receipt)?)?;
    exit_of(&result)
}

/// The exit code that a decided question leads to.
fn exit_of(result: &ApprovalResult) -> Result<ExitCode> {
    match result.outcome {
        ApprovalState::Approved => Ok(ExitCode::SUCCESS),
        ApprovalState::Answered => {
            let question: Content = serde_json::from_str(&result.receipt.question)?;
            let choices = crate::show::choices(&question);
            let index = choices
                .iter()
                .position(|it| Some(it) == result.choice.as_ref());
            let index = index.and_then(|index| u8::try_from(index).ok());
            let unknown = || Failure::failed("the answer is none of the choices");
            Ok((FIRST_CHOICE + index.ok_or_else(unknown)?).into())
        }
        ApprovalState::Denied => Err(Failure::failed("denied")),
        _ => {
            let reason = result.approval.reason.as_deref().unwrap_or("withdrawn");
            Err(Failure::failed(format!("nobody has decided: {reason}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        for (text, seconds) in [("90s", 90), ("10m", 600), ("8h", 28_800), ("3d", 259_200)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)));
        }
        for text in ["", "10", "m", "-1s", "1.5h", "ü"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
