//! A person and an agent on the development cluster, for a first try.
//!
//! `new` registers both and prints the settings as lines for a shell. `ask TEXT` is that person: it
//! says something to the agent and prints the answer. `BLINDPIPE_DEV` names the folder of the
//! cluster; without it that is `.dev`.

use std::{
    env,
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use blindpipe_client::{
    Client, Error, Result,
    client::{ClientEvent, Received},
    protocol::ids::AgentId,
    testing::{DevCluster, PROTECTION_PASSWORD},
};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const NO_CLUSTER: Error = Error::Usage("no cluster runs: `make run ARGS=--no-demo` starts it");
const USAGE: Error = Error::Usage("dev new | dev ask TEXT");

#[tokio::main]
async fn main() -> Result<()> {
    let dir = env::var_os("BLINDPIPE_DEV").map_or_else(|| PathBuf::from(".dev"), PathBuf::from);
    if !dir.join("cluster.json").exists() {
        return Err(NO_CLUSTER);
    }
    let cluster = DevCluster::start(&dir, Path::new("devcluster"), None, &[]).await?;
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["new"] => new(&cluster).await,
        ["ask", text] => {
            let asked = tokio::time::timeout(ANSWER_TIMEOUT, ask(&cluster, text)).await;
            asked.map_err(|_| Error::Usage("no answer came; does the agent run?"))?
        }
        _ => Err(USAGE),
    }
}

async fn new(cluster: &DevCluster) -> Result<()> {
    let person = cluster.user("person").await?;
    let agent = cluster.agent("agent", &person.client, None).await?;
    // A person encrypts for an agent whose key is there.
    cluster.builder(&agent, 0)?.build().check().await?;
    let authority = cluster.ca_file()?.display().to_string();
    let (node, agent_id) = (cluster.node(0)?, agent.id.to_string());
    let settings = [
        ("BLINDPIPE_URL", node.url()),
        ("BLINDPIPE_AGENT_ID", &agent_id),
        ("BLINDPIPE_TOKEN", &agent.token),
        ("BLINDPIPE_KEY", &agent.key),
        ("BLINDPIPE_CA", &authority),
        ("SSL_CERT_FILE", &authority),
        ("NODE_EXTRA_CA_CERTS", &authority),
        ("PERSON_EMAIL", &person.email),
        ("PERSON_PASSWORD", &person.password),
        ("PERSON_PROTECTION_PASSWORD", PROTECTION_PASSWORD),
    ];
    for (name, value) in settings {
        print(&format!("{name}='{value}'"))?;
    }
    Ok(())
}

fn setting(name: &str) -> Result<String> {
    let missing = "the settings of `new` are missing: set -a; . ./agent.env; set +a";
    env::var(name).map_err(|_| Error::Usage(missing))
}

/// Signs in as the person of `new`, on another device, and asks the agent.
async fn ask(cluster: &DevCluster, text: &str) -> Result<()> {
    let builder = Client::builder(cluster.node(1)?).device_id("first-try");
    let (email, password) = (setting("PERSON_EMAIL")?, setting("PERSON_PASSWORD")?);
    let client = builder.login(&email, &password, "dev-pass").await?;
    let protection = setting("PERSON_PROTECTION_PASSWORD")?;
    client.devices().restore(&protection).await?;
    let agent: AgentId = setting("BLINDPIPE_AGENT_ID")?.parse().map_err(|_| USAGE)?;
    let answer = answer(&client, agent, text).await?;
    let opened = answer
        .opened
        .as_ref()
        .map_err(|reason| Error::Decrypt(*reason))?;
    if !(opened.encrypted && opened.sender.authentic) {
        return Err(Error::Usage("nothing proves who wrote the answer"));
    }
    print(&format!(
        "{}\n(encrypted, and signed by the agent's key)",
        opened.text()
    ))
}

async fn answer(client: &Client, agent: AgentId, text: &str) -> Result<Received> {
    let conversation = client.open_agent(agent).await?;
    let mut events = client.events()?;
    let mut sent = None;
    loop {
        match events.next().await? {
            ClientEvent::CaughtUp if sent.is_none() => {
                sent = Some(conversation.send(text).await?.message_id);
            }
            ClientEvent::Message { received, .. }
                if sent.is_some() && received.message.in_reply_to == sent =>
            {
                return Ok(*received);
            }
            _ => {}
        }
    }
}

fn print(line: &str) -> Result<()> {
    writeln!(io::stdout(), "{line}").map_err(Error::other)
}
