//! `bp file`.

use std::{
    fs,
    io::{Write, stdout},
    path::PathBuf,
};

use blindpipe_client::{
    Client, Content, Hook, NewFile,
    client::{Conversation, Received},
    protocol::ids::MessageId,
};
use clap::{Args, Subcommand};
use serde_json::json;

use crate::{
    context::Context,
    failure::{Failure, Result},
    files::create_private,
    output::{Output, line},
    to,
};

/// Pages of the history in which a file's message is looked for.
const MAX_PAGES: usize = 20;

#[derive(Subcommand)]
pub enum File {
    /// Seal a file here and send it.
    Put(Put),
    /// Fetch a file and open it here.
    Get(Get),
}

#[derive(Args)]
pub struct Put {
    /// An agent by name or id, `user:ID`, or a conversation's id.
    to: String,
    /// The file.
    file: PathBuf,
    /// Its MIME type, for the readers.
    #[arg(long, default_value = "application/octet-stream")]
    content_type: String,
}

#[derive(Args)]
pub struct Get {
    /// An agent by name or id, `user:ID`, or a conversation's id.
    to: String,
    /// The message that names the file.
    message: String,
    /// Where to write it; the file's own name without it, `-` for standard output.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub async fn run(command: File, at: &Context, output: &Output) -> Result<()> {
    match command {
        File::Put(put) => send(put, at, output).await,
        File::Get(get) => fetch(get, at, output).await,
    }
}

/// The person's client, which shows how far a transfer is.
async fn client(at: &Context, output: Output) -> Result<Client> {
    let builder = at.builder()?.on_hook(move |hook| {
        if let Hook::Transferred { bytes, of } = hook {
            output.progress("transferred", *bytes, *of);
        }
    });
    let client = Box::pin(builder.resume()).await?;
    client.ok_or_else(Failure::not_logged_in)
}

async fn send(put: Put, at: &Context, output: &Output) -> Result<()> {
    let unread = |error| Failure::usage(format!("{}: {error}", put.file.display()));
    let bytes = fs::read(&put.file).map_err(unread)?;
    let name = put.file.file_name().unwrap_or_default();
    let file = NewFile {
        name: name.to_string_lossy().into_owned(),
        content_type: put.content_type,
        bytes,
    };
    let client = client(at, *output).await?;
    let conversation = to::conversation(&client, at, &put.to).await?;
    let sent = conversation.send_file(file).await?;
    output.item(&sent, &output.dim(&format!("sent {}", sent.message_id)))
}

async fn fetch(get: Get, at: &Context, output: &Output) -> Result<()> {
    let id: MessageId = get
        .message
        .parse()
        .map_err(|_| Failure::usage(format!("{:?} is no message's id", get.message)))?;
    let client = client(at, *output).await?;
    let conversation = to::conversation(&client, at, &get.to).await?;
    let received = message(&conversation, id).await?;
    let opened = received.opened.map_err(blindpipe_client::Error::from)?;
    let bytes = conversation.download(&opened.content).await?;
    let path = match get.output {
        Some(path) if path.as_os_str() == "-" => return Ok(stdout().lock().write_all(&bytes)?),
        Some(path) => path,
        None => PathBuf::from(file_name(named(&opened.content))),
    };
    create_private(&path, &bytes).map_err(|error| {
        let fault = Failure::failed(format!("{}: {error}", path.display()));
        fault.remedy("another file, with --output")
    })?;
    let item = json!({ "file": path, "bytes": bytes.len() });
    output.item(&item, &format!("{}: {} bytes", path.display(), bytes.len()))
}

fn named(content: &Content) -> &str {
    content
        .get("name")
        .and_then(|it| it.as_str())
        .unwrap_or_default()
}

async fn message(of: &Conversation, id: MessageId) -> Result<Received> {
    let mut before = None;
    for _ in 0..MAX_PAGES {
        let page = of.history(before).await?;
        before = page.last().map(|it| it.message.message_id);
        let found = page.into_iter().find(|it| it.message.message_id == id);
        if let Some(found) = found {
            return Ok(found);
        }
        if before.is_none() {
            break;
        }
    }
    Err(Failure::failed("the history does not have this message"))
}

/// Another member wrote the name: only its last part counts, and no name that hides.
fn file_name(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let name = line(last);
    let name = name.trim_start_matches('.').trim();
    if name.is_empty() {
        "file".to_owned()
    } else {
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::file_name;

    #[test]
    fn the_name_of_a_file_leads_nowhere() {
        for (given, taken) in [
            ("report.pdf", "report.pdf"),
            ("../../.bashrc", "bashrc"),
            ("a\\b\\c.txt", "c.txt"),
            ("..", "file"),
            ("x\x1b[2J", "x[2J"),
        ] {
            assert_eq!(file_name(given), taken);
        }
    }
}
