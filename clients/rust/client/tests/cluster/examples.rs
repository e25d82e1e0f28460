//! Each example, run as its own process.

use std::{
    io::Read,
    process::{Child, Command, Stdio},
    sync::Arc,
};

use blindpipe_client::{
    Client, Error, Result,
    agent::Agent,
    client::{ClientEvent, Conversation},
    e2ee::consent::Sensitivity,
    protocol::{agents::Manifest, grants::Decision},
    testing::{TestAgent, TestUser},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::support::{Shared, built, cluster, watch};

struct Example {
    cluster: Shared,
    child: Child,
    ada: TestUser,
    agent: TestAgent,
    conversation: Conversation,
}

#[expect(clippy::zombie_processes, reason = "`stop` waits for it")]
async fn start(name: &str) -> Result<Example> {
    let cluster = cluster().await;
    let builder = Client::builder(cluster.node(0)?);
    let builder = builder.tool("send_email", "notification:send", Sensitivity::High);
    let ada = cluster.user_with("ada", builder).await?;
    let manifest: Manifest = serde_json::from_value(json!({
        "tools": [{ "name": "send_email", "scope": "notification:send" }],
        "permission_scopes": [{ "scope": "notification:send", "sensitivity": "low" }],
    }))
    .expect("a manifest");
    let agent = cluster.agent(name, &ada.client, Some(&manifest)).await?;
    // Its key is there before Ada writes.
    cluster.builder(&agent, 1)?.build().check().await?;
    let program = built(&format!("examples/agent-{name}"));
    let child = Command::new(&program)
        .env("BLINDPIPE_URL", cluster.node(1)?.url())
        .env("BLINDPIPE_CA", cluster.ca_file()?)
        .env("BLINDPIPE_AGENT_ID", agent.id.to_string())
        .env("BLINDPIPE_TOKEN", &agent.token)
        .env("BLINDPIPE_KEY", &agent.key)
        .stderr(Stdio::piped())
        .spawn()
        .expect("`cargo build --workspace --examples` builds it");
    let conversation = ada.client.open_agent(agent.id).await?;
    Ok(Example {
        cluster,
        child,
        ada,
        agent,
        conversation,
    })
}

impl Example {
    /// SIGTERM ends an agent with 0.
    fn stop(&mut self) {
        let mut kill = Command::new("kill");
        kill.arg(self.child.id().to_string())
            .status()
            .expect("kill");
        assert!(self.child.wait().expect("its end").success());
        // It has no store, and no subscriber that would say so.
        let mut said = String::new();
        let mut errors = self.child.stderr.take().expect("piped");
        errors.read_to_string(&mut said).expect("read");
        assert!(said.contains("first contact with everybody"), "{said}");
    }

    fn agent(&self) -> Agent {
        self.cluster
            .builder(&self.agent, 1)
            .expect("a node")
            .build()
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[tokio::test]
async fn echo_repeats() -> Result<()> {
    let mut example = start("echo").await?;
    let mut events = watch(&example.ada).await;
    let answer = events.ask(&example.conversation, "Grüße").await;
    assert_eq!(answer, "You said: Grüße");
    example.stop();
    Ok(())
}

#[tokio::test]
async fn streaming_shows_its_answer_while_it_writes_it() -> Result<()> {
    let mut example = start("streaming").await?;
    let mut events = watch(&example.ada).await;
    // The first message finds the agent connected; what is written to an absent one is not shown.
    events.ask(&example.conversation, "first?").await;
    example.conversation.send("why?").await?;
    let (answer, before) = events.answer_after(example.conversation.id()).await;
    let text = "You asked: why? The answer is forty-two.";
    assert_eq!(answer.text(), text);
    let pieces: Vec<_> = before
        .iter()
        .filter_map(|event| match event {
            ClientEvent::Delta { append, .. } => Some(append.as_str()),
            _ => None,
        })
        .collect();
    assert!(
        pieces.len() >= 2 && text.starts_with(&pieces.concat()),
        "{pieces:?}"
    );
    example.stop();
    Ok(())
}

/// The agent asks for its scope, and the person approves.
async fn grant(example: &Example) -> Result<()> {
    let agent = example.agent();
    let scopes = vec!["notification:send".to_owned()];
    let grant = agent
        .request_grant(example.conversation.id(), None, scopes, None)
        .await?;
    example
        .ada
        .client
        .decide_grant(grant.grant_id, Decision::Approve)
        .await?;
    Ok(())
}

#[tokio::test]
async fn approval_asks_a_device_which_executes_once_and_signs() -> Result<()> {
    let mut example = start("approval").await?;
    grant(&example).await?;
    let mut events = watch(&example.ada).await;
    example.conversation.send("hello").await?;
    let mails = Arc::new(Mutex::new(Vec::<Value>::new()));
    let request = loop {
        if let ClientEvent::ToolRequest(request) = events.next().await {
            break request;
        }
    };
    assert_eq!(request.arguments()["to"], "team@example.com");
    assert_eq!(request.arguments()["text"], "hello");
    assert_eq!(request.prompt(), Some("Send this to the team?"));
    request.approve();
    for _ in 0..2 {
        let sent = mails.clone();
        let send = async move |_, mail: blindpipe_client::Content| {
            sent.lock().push(mail.into());
            Ok::<_, Error>(Value::Null)
        };
        request.execute_with(send).await?;
    }
    assert_eq!(events.answer(&example.conversation).await.text(), "Sent.");
    assert_eq!(mails.lock().len(), 1);
    example.stop();
    Ok(())
}

#[tokio::test]
async fn approval_is_told_of_a_denial_and_asks_a_question_whose_state_comes_back() -> Result<()> {
    let mut example = start("approval").await?;
    grant(&example).await?;
    let mut events = watch(&example.ada).await;
    example.conversation.send("hello").await?;
    let request = loop {
        if let ClientEvent::ToolRequest(request) = events.next().await {
            break request;
        }
    };
    request.deny("not_today").await?;
    let denied = events.answer(&example.conversation).await;
    assert_eq!(denied.text(), "Not sent: not_today.");
    example.conversation.send("deploy").await?;
    let question = events.answer(&example.conversation).await;
    let content = &question.opened.as_ref().expect("it opens").content;
    assert_eq!(content["text"], "Deploy 1.4.2?");
    example
        .conversation
        .answer(question.clone(), "Deploy")
        .await?;
    let deployed = events.answer(&example.conversation).await;
    assert_eq!(deployed.text(), "Deploying 1.4.2.");
    example.stop();
    Ok(())
}
