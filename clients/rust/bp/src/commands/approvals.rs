//! `bp approvals`: what waits for the person, and the decisions.

use blindpipe_client::{Approval, Client, client::ApprovalRequest, protocol::ids::Principal};
use clap::{Args, Subcommand};
use serde_json::json;

use crate::{
    context::Context,
    failure::{Failure, Result},
    output::{Output, line, plain},
    prompt, questions,
    show::Names,
};

#[derive(Args)]
pub struct Approvals {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// List what waits; the default.
    Ls {
        /// What was decided, expired or withdrawn.
        #[arg(long)]
        closed: bool,
    },
    /// Show a question with its arguments.
    Show {
        /// The id of the approval.
        approval: String,
    },
    /// Say yes to a question without choices.
    Approve {
        /// The id of the approval.
        approval: String,
    },
    /// Answer with a choice, or in words where there are none.
    Answer {
        /// The id of the approval.
        approval: String,
        /// The choice, or the words.
        answer: String,
    },
    /// Say no.
    Deny {
        /// The id of the approval.
        approval: String,
    },
    /// Go through what waits, one by one, at the terminal.
    Decide,
}

pub async fn run(approvals: Approvals, at: &Context, output: &Output) -> Result<()> {
    let client = at.client_with_keys().await?;
    let command = approvals.command.unwrap_or(Command::Ls { closed: false });
    match command {
        Command::Ls { closed } => {
            for request in all(&client, !closed).await? {
                tell(&client, &request, output).await?;
            }
            Ok(())
        }
        Command::Show { approval } => tell(&client, &one(&client, &approval).await?, output).await,
        Command::Approve { approval } => {
            let request = one(&client, &approval).await?;
            decided(&decide(&request, &Verdict::Approve).await?, output)
        }
        Command::Deny { approval } => {
            let request = one(&client, &approval).await?;
            decided(&decide(&request, &Verdict::Deny).await?, output)
        }
        Command::Answer { approval, answer } => {
            let request = one(&client, &approval).await?;
            if is_approve(&request) {
                return Err(Failure::usage("this question is approved or denied"));
            }
            decided(
                &decide(&request, &verdict_of(&request, &answer)?).await?,
                output,
            )
        }
        Command::Decide => decide_all(&client, output).await,
    }
}

/// A person's decision.
enum Verdict {
    Approve,
    Choose(String),
    Say(String),
    Deny,
}

fn is_approve(request: &ApprovalRequest) -> bool {
    request.approval.kind == "approve"
}

async fn decide(request: &ApprovalRequest, verdict: &Verdict) -> Result<Approval> {
    if matches!(verdict, Verdict::Approve) && !is_approve(request) {
        return Err(
            Failure::usage("this question asks for an answer").remedy("`bp approvals answer`")
        );
    }
    Ok(match verdict {
        Verdict::Approve => request.approve().await?,
        Verdict::Choose(choice) => request.answer(choice).await?,
        Verdict::Say(words) => request.answer_in_words(words).await?,
        Verdict::Deny => request.deny(None).await?,
    })
}

fn decided(approval: &Approval, output: &Output) -> Result<()> {
    let state = serde_json::to_value(approval.state)?;
    let state = state.as_str().unwrap_or_default();
    output.item(approval, &format!("{}: {state}", approval.approval_id))
}

/// All approvals that are open, or all others.
async fn all(client: &Client, is_open: bool) -> Result<Vec<ApprovalRequest>> {
    let mut all = Vec::new();
    let mut cursor = None;
    loop {
        let (page, next) = client.approvals(is_open, cursor).await?;
        all.extend(page);
        cursor = next;
        if cursor.is_none() {
            return Ok(all);
        }
    }
}

async fn one(client: &Client, id: &str) -> Result<ApprovalRequest> {
    Ok(client.approval(questions::ticket(id)?).await?)
}

async fn tell(client: &Client, request: &ApprovalRequest, output: &Output) -> Result<()> {
    let approval = &request.approval;
    let id = approval.approval_id;
    let content = match &request.question {
        Ok(opened) => opened.content.clone(),
        Err(reason) => {
            let item = json!({ "approval": approval, "unreadable": reason.to_string() });
            let text = format!("{id}  a question that does not open ({reason})");
            return output.item(&item, &output.yellow(&text));
        }
    };
    let names = Names::of(&client.conversation(approval.conversation_id)).await?;
    let name = names.get(Principal::Agent(approval.agent_id));
    let mut shown = format!("{id}  {}: {}", output.bold(&name), plain(request.text()));
    for (name, value) in &request.arguments() {
        shown += &format!("\n  {} = {}", line(name), line(&value.to_string()));
    }
    for (at, choice) in request.choices().iter().enumerate() {
        shown += &format!("\n  {}. {}", at + 1, line(choice));
    }
    shown += &format!("\n  until {}", approval.expires_at);
    let item = json!({ "approval": approval, "question": content, "agent": name });
    output.item(&item, &shown)
}

/// The answer of a line to a question: a choice by its number or words, yes or no, or free words.
fn verdict_of(request: &ApprovalRequest, line: &str) -> Result<Verdict> {
    if is_approve(request) {
        return match line {
            "y" | "yes" => Ok(Verdict::Approve),
            "n" | "no" => Ok(Verdict::Deny),
            _ => Err(Failure::usage("yes or no")),
        };
    }
    let choices = request.choices();
    if choices.is_empty() {
        return Ok(Verdict::Say(line.to_owned()));
    }
    let by_words = choices.iter().find(|it| **it == line);
    let by_number = line
        .parse::<usize>()
        .ok()
        .and_then(|n| choices.get(n.checked_sub(1)?));
    let choice = by_words.or(by_number);
    let choice =
        choice.ok_or_else(|| Failure::usage(format!("{line:?} is none of the choices")))?;
    Ok(Verdict::Choose((*choice).to_owned()))
}

async fn decide_all(client: &Client, output: &Output) -> Result<()> {
    for request in all(client, true).await? {
        tell(client, &request, output).await?;
        if request.question.is_err() {
            continue;
        }
        let question = if is_approve(&request) {
            "yes, no, or nothing to leave it open"
        } else {
            "the answer, or nothing to leave it open"
        };
        let said = prompt::line(question)?;
        if !said.is_empty() {
            decided(
                &decide(&request, &verdict_of(&request, &said)?).await?,
                output,
            )?;
        }
    }
    Ok(())
}
