//! Tool requests on a device: nothing runs that its table and its person do not allow.

use std::sync::Arc;

use blindpipe_client::{
    Agent, Client, Content, Error,
    agent::{AgentBuilder, ToolCall},
    client::{ClientEvent, Conversation, ToolRequest},
    e2ee::consent::{Decision, Sensitivity},
    protocol::{
        agents::Manifest,
        grants,
        groups::Visibility,
        ids::{AgentId, Principal},
    },
    testing::{PROTECTION_PASSWORD, TestAgent, TestUser},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    proxy::Proxy,
    support::{Running, Shared, Watch, cluster, running, watch},
};

pub const TOOL: &str = "send_email";
pub const SCOPE: &str = "notification:send";

pub async fn agent_of(cluster: &Shared, ada: &TestUser) -> TestAgent {
    let manifest: Manifest = serde_json::from_value(json!({
        "tools": [{ "name": TOOL, "scope": SCOPE }],
        "permission_scopes": [{ "scope": SCOPE, "sensitivity": "low" }],
    }))
    .expect("a manifest");
    let agent = cluster.agent("asking", &ada.client, Some(&manifest)).await;
    agent.expect("an agent")
}

pub fn send_email(text: &str) -> ToolCall {
    let mut arguments = Content::new();
    arguments.insert("text".to_owned(), text.into());
    ToolCall {
        tool: TOOL.to_owned(),
        scope: SCOPE.to_owned(),
        arguments,
        ..ToolCall::default()
    }
}

/// Asks for a tool with each message, and answers with what came of it.
pub fn asking(builder: AgentBuilder) -> AgentBuilder {
    builder.on_message(async |ctx| {
        let result = ctx.call(send_email(ctx.text())).await?;
        let reason = result.reason.unwrap_or_default();
        ctx.reply(format!("{:?} {reason}", result.status)).await
    })
}

/// The agent asks for its scope, and Ada approves.
pub async fn grant(ada: &TestUser, agent: &Agent, of: &Conversation) {
    let (scopes, who) = (vec![SCOPE.to_owned()], ada.client.user_id().ok());
    let grant = agent.request_grant(of.id(), who, scopes, None).await;
    let grant = grant.expect("asked");
    let decided = ada
        .client
        .decide_grant(grant.grant_id, grants::Decision::Approve);
    let decided = decided.await;
    decided.expect("approved");
}

pub async fn next_request(events: &mut Watch) -> Box<ToolRequest> {
    loop {
        if let ClientEvent::ToolRequest(request) = events.next().await {
            return request;
        }
    }
}

/// Whether nothing is left that Ada's device could withdraw.
fn is_gone(ada: &TestUser, agent_id: AgentId) -> bool {
    !ada.client.withdraw(agent_id, None).expect("stored")
}

async fn until_event(events: &mut Watch, name: &str) {
    loop {
        let event = events.next().await;
        if matches!(&event, ClientEvent::Event(it) if it.event == name) {
            return;
        }
    }
}

/// A person with the tool on her device, at node 0.
pub async fn person(cluster: &Shared, sensitivity: Sensitivity) -> TestUser {
    let builder = Client::builder(cluster.node(0).expect("a node"));
    let builder = builder.tool(TOOL, SCOPE, sensitivity);
    let person = cluster.user_with("ada", builder).await;
    person.expect("a person")
}

/// Ada, and the agent that asks her with each message; the server has her grant.
struct Asked {
    ada: TestUser,
    agent: Running,
    conversation: Conversation,
    events: Watch,
    /// The arguments with which the tool ran.
    runs: Arc<Mutex<Vec<(String, Value)>>>,
}

/// The runs of the tool on Ada's device are noted.
async fn asked(sensitivity: Sensitivity) -> Asked {
    let cluster = cluster().await;
    let runs = Arc::<Mutex<Vec<_>>>::default();
    let ran = runs.clone();
    let builder = Client::builder(cluster.node(0).expect("a node"));
    let builder = builder.tool_with(TOOL, SCOPE, sensitivity, move |tool, arguments| {
        ran.lock().push((tool, arguments["text"].clone()));
        async { Ok(Value::Null) }
    });
    let ada = cluster.user_with("ada", builder).await;
    let ada = ada.expect("a person");
    let made = agent_of(&cluster, &ada).await;
    let builder = cluster.builder(&made, 0).expect("a node");
    let agent = running(asking(builder)).await;
    let conversation = ada.client.open_agent(made.id).await.expect("opened");
    let events = watch(&ada).await;
    Asked {
        ada,
        agent,
        conversation,
        events,
        runs,
    }
}

impl Asked {
    async fn request(&mut self, text: &str) -> Box<ToolRequest> {
        self.conversation.send(text).await.expect("sent");
        next_request(&mut self.events).await
    }

    async fn answer(&mut self) -> String {
        let answer = self.events.answer(&self.conversation).await;
        answer.text().to_owned()
    }
}

#[tokio::test]
async fn a_request_that_nobody_approved_executes_nothing() {
    let mut asked = asked(Sensitivity::Low).await;
    // The server's grant, by this very device, lets nothing run.
    grant(&asked.ada, &asked.agent.agent, &asked.conversation).await;
    assert!(is_gone(&asked.ada, asked.agent.agent.id()));
    let request = asked.request("first").await;
    assert_eq!(request.decide(), Decision::Ask);
    let refused = request.execute().await;
    assert!(matches!(refused, Err(Error::NotApproved)), "{refused:?}");
    let run = async |_, _| -> Result<Value, Error> { panic!("it runs") };
    let refused = request.execute_with(run).await;
    assert!(matches!(refused, Err(Error::NotApproved)), "{refused:?}");

    // An approval is for this request, and for once.
    request.approve();
    request.execute().await.expect("executed");
    request.execute().await.expect("it began before");
    assert_eq!(asked.answer().await, "Executed ");
    let next = asked.request("second").await;
    assert_eq!(next.decide(), Decision::Ask);
    assert!(next.execute().await.is_err());
    assert_eq!(*asked.runs.lock(), [(TOOL.to_owned(), json!("first"))]);

    // Silence is an act of its own, and ends with a withdrawal.
    for days in [0, 31] {
        let refused = next.remember(days);
        assert!(matches!(refused, Err(Error::Usage(_))), "{days}");
    }
    next.remember(30).expect("stored");
    assert_eq!(next.decide(), Decision::Execute);
    next.execute().await.expect("executed");
    assert_eq!(asked.answer().await, "Executed ");
    let agent_id = asked.agent.agent.id();
    asked
        .ada
        .client
        .withdraw(agent_id, Some(SCOPE))
        .expect("stored");
    let last = asked.request("third").await;
    assert_eq!(last.decide(), Decision::Ask);
    last.deny("enough").await.expect("denied");
    assert_eq!(asked.answer().await, "Denied enough");
    assert_eq!(asked.runs.lock().len(), 2);
    asked.agent.stop().await;
}

#[tokio::test]
async fn a_high_tool_is_never_silent() {
    let mut asked = asked(Sensitivity::High).await;
    grant(&asked.ada, &asked.agent.agent, &asked.conversation).await;
    let request = asked.request("first").await;
    assert!(matches!(request.remember(1), Err(Error::Usage(_))));
    assert!(matches!(request.execute().await, Err(Error::NotApproved)));
    request.approve();
    request.execute().await.expect("executed");
    assert_eq!(asked.answer().await, "Executed ");
    asked.agent.stop().await;
}

#[tokio::test]
async fn a_tool_that_the_device_does_not_know_is_answered_at_once() {
    let cluster = cluster().await;
    let ada = cluster.user("ada").await.expect("a person");
    let made = agent_of(&cluster, &ada).await;
    let device_id = ada.client.device_id().expect("an id");
    let agent = cluster.builder(&made, 0).expect("a node").on_message(
        move |ctx: blindpipe_client::Context| {
            let mut call = send_email(ctx.text());
            call.device = (ctx.text() == "here").then(|| device_id.clone());
            async move {
                let result = ctx.call(call).await?;
                let reason = result.reason.unwrap_or_default();
                ctx.reply(format!("{:?} {reason}", result.status)).await
            }
        },
    );
    let agent = running(agent).await;
    let conversation = ada.client.open_agent(made.id).await.expect("opened");
    grant(&ada, &agent.agent, &conversation).await;
    let mut events = watch(&ada).await;
    // No other device can run it, so nobody needs to look at it.
    for text in ["anywhere", "here"] {
        conversation.send(text).await.expect("sent");
        let (answer, before) = events.answer_after(conversation.id()).await;
        assert_eq!(answer.text(), "Failed unknown_tool", "{text}");
        let is_request = |event: &ClientEvent| matches!(event, ClientEvent::ToolRequest(_));
        assert!(!before.iter().any(is_request), "{text}");
    }
    // Another device may know it, and is left to answer.
    phone_of(&cluster, &ada).await;
    conversation.send("anywhere").await.expect("sent");
    let request = next_request(&mut events).await;
    assert_eq!(request.decide(), Decision::Unable);
    request.approve();
    let run = async |_, _| -> Result<Value, Error> { panic!("it runs") };
    request.execute_with(run).await.expect("answered");
    let answer = events.answer(&conversation).await;
    assert_eq!(answer.text(), "Failed unknown_tool");
    agent.stop().await;
}

#[tokio::test]
async fn a_request_for_another_device_runs_on_none_else() {
    let cluster = cluster().await;
    let ada = person(&cluster, Sensitivity::Low).await;
    let made = agent_of(&cluster, &ada).await;
    let agent = cluster.builder(&made, 0).expect("a node");
    let phone = cluster.device(&ada, 1, "phone").await.expect("signed in");
    let restored = phone.devices().restore(PROTECTION_PASSWORD).await;
    restored.expect("restored");
    let agent = running(agent.on_message(async |ctx| {
        let mut call = send_email(ctx.text());
        call.device = Some("phone".to_owned());
        ctx.call(call).await.map(drop)
    }))
    .await;
    let conversation = ada.client.open_agent(made.id).await.expect("opened");
    grant(&ada, &agent.agent, &conversation).await;
    let mut events = watch(&ada).await;
    conversation.send("on the phone").await.expect("sent");
    let request = next_request(&mut events).await;
    assert_eq!(request.decide(), Decision::Unable);
    request.approve();
    assert!(matches!(request.execute().await, Err(Error::NotApproved)));
    assert!(matches!(request.remember(30), Err(Error::Usage(_))));
    agent.agent.stop();
}

/// Ada on a second device, with a tool of the same name.
async fn phone_of(cluster: &Shared, ada: &TestUser) -> TestUser {
    let builder = Client::builder(cluster.node(1).expect("a node")).device_id("phone");
    let builder = builder.tool(TOOL, SCOPE, Sensitivity::Low);
    let phone = builder.login(&ada.email, &ada.password, "dev-pass").await;
    let phone = phone.expect("signed in");
    let restored = phone.devices().restore(PROTECTION_PASSWORD).await;
    restored.expect("restored");
    TestUser {
        client: phone,
        email: ada.email.clone(),
        password: ada.password.clone(),
    }
}

#[tokio::test]
async fn of_two_devices_one_runs_a_request_that_names_none() {
    let cluster = cluster().await;
    let ada = person(&cluster, Sensitivity::Low).await;
    let phone = phone_of(&cluster, &ada).await;
    let made = agent_of(&cluster, &ada).await;
    let builder = cluster.builder(&made, 0).expect("a node");
    let agent = running(asking(builder)).await;
    let conversation = ada.client.open_agent(made.id).await.expect("opened");
    grant(&ada, &agent.agent, &conversation).await;
    let (mut laptop_events, mut phone_events) = (watch(&ada).await, watch(&phone).await);
    let runs = Arc::<Mutex<Vec<&str>>>::default();
    for _ in 0..3 {
        conversation.send("anywhere").await.expect("sent");
        let on_laptop = next_request(&mut laptop_events).await;
        let on_phone = next_request(&mut phone_events).await;
        let both = [("laptop", on_laptop), ("phone", on_phone)].map(|(device, request)| {
            let runs = runs.clone();
            async move {
                request.approve();
                let run = async |_, _| {
                    runs.lock().push(device);
                    Ok(Value::Null)
                };
                request.execute_with(run).await
            }
        });
        let [first, second] = both;
        let (first, second) = tokio::join!(first, second);
        first
            .and(second)
            .expect("one executed, and one did nothing");
        assert_eq!(
            laptop_events.answer(&conversation).await.text(),
            "Executed "
        );
    }
    assert_eq!(runs.lock().len(), 3, "{:?}", runs.lock());
    agent.stop().await;
}

#[tokio::test]
async fn nothing_runs_for_an_agent_that_has_left() {
    let cluster = cluster().await;
    let ada = person(&cluster, Sensitivity::Low).await;
    let made = agent_of(&cluster, &ada).await;
    let builder = cluster.builder(&made, 0).expect("a node");
    let agent = running(asking(builder)).await;
    ada.client.open_agent(made.id).await.expect("opened");
    let group = ada.client.open_group("few", Vec::new()).await;
    let group = group.expect("a group");
    let added = group.add_agent(made.id, Visibility::All).await;
    added.expect("added");
    grant(&ada, &agent.agent, &group).await;
    let mut events = watch(&ada).await;
    group.send("hello").await.expect("sent");
    let request = next_request(&mut events).await;
    request.approve();
    let removed = group.remove(Principal::Agent(made.id)).await;
    removed.expect("removed");
    let run = async |_, _| -> Result<Value, Error> { panic!("it runs") };
    let refused = request.execute_with(run).await;
    assert!(matches!(refused, Err(Error::NotApproved)), "{refused:?}");
    agent.agent.stop();
}

#[tokio::test]
async fn what_is_remembered_ends_with_its_grant() {
    let cluster = cluster().await;
    let ada = person(&cluster, Sensitivity::Low).await;
    let made = agent_of(&cluster, &ada).await;
    let builder = cluster.builder(&made, 0).expect("a node");
    let agent = running(asking(builder)).await;
    let conversation = ada.client.open_agent(made.id).await.expect("opened");
    let mut events = watch(&ada).await;
    let run = async |_, _| Ok(Value::Null);
    for way in ["here", "elsewhere"] {
        grant(&ada, &agent.agent, &conversation).await;
        conversation.send(way).await.expect("sent");
        let request = next_request(&mut events).await;
        assert_eq!(request.decide(), Decision::Ask, "{way}");
        request.remember(30).expect("stored");
        request.execute_with(run).await.expect("executed");
        events.answer(&conversation).await;
        let (grants, _) = ada.client.grants(None).await.expect("grants");
        let id = grants.first().expect("a grant").grant_id;
        if way == "here" {
            ada.client.revoke_grant(id).await.expect("revoked");
            assert!(is_gone(&ada, made.id));
        } else {
            let other = cluster.device(&ada, 1, "phone").await.expect("signed in");
            other.revoke_grant(id).await.expect("revoked");
        }
        until_event(&mut events, "grant.revoked").await;
        assert!(is_gone(&ada, made.id), "{way}");
    }
    agent.stop().await;
}

#[tokio::test]
async fn what_is_remembered_ends_with_a_membership_and_a_relation() {
    let cluster = cluster().await;
    let proxy = Proxy::before(&cluster, 1).await;
    let device = Client::builder(proxy.server()).tool(TOOL, SCOPE, Sensitivity::Low);
    let ada = cluster.user_with("ada", device).await.expect("a person");
    let made = agent_of(&cluster, &ada).await;
    let builder = cluster.builder(&made, 0).expect("a node");
    let agent = running(asking(builder)).await;
    let direct = ada.client.open_agent(made.id).await.expect("opened");
    let mut events = watch(&ada).await;
    let elsewhere = "01BX5ZZKBKACTAV9WEVGEMMVRZ";
    let change = json!({
        "conversation_id": elsewhere,
        "member": {
            "principal_type": "agent",
            "principal_id": made.id,
            "display_name": "asking",
            "role": "member",
            "visibility": "all",
            "joined_at": "2026-01-01T00:00:00.000Z",
        },
        "by": ada.client.user_id().expect("an id"),
    });
    grant(&ada, &agent.agent, &direct).await;
    direct.send("first").await.expect("sent");
    let first = next_request(&mut events).await;
    first.remember(30).expect("stored");
    first.deny("no").await.expect("denied");
    proxy.inject_event("member.removed", elsewhere, &change);
    until_event(&mut events, "member.removed").await;
    direct.send("still").await.expect("sent");
    let request = next_request(&mut events).await;
    assert_eq!(request.decide(), Decision::Execute, "left another one");
    request.deny("no").await.expect("denied");
    let here =
        json!({ "conversation_id": direct.id(), "member": change["member"], "by": change["by"] });
    proxy.inject_event("member.removed", &direct.id().to_string(), &here);
    until_event(&mut events, "member.removed").await;
    assert!(is_gone(&ada, made.id));

    request.remember(30).expect("stored");
    let relation = json!({
        "relation_id": elsewhere,
        "user_id": ada.client.user_id().expect("an id"),
        "agent_id": made.id,
        "state": "revoked",
        "created_at": "2026-01-01T00:00:00.000Z",
        "revoked_at": "2026-01-01T00:00:00.000Z",
        "purge_at": null,
    });
    proxy.inject_event("relation.revoked", &direct.id().to_string(), &relation);
    until_event(&mut events, "relation.revoked").await;
    assert!(is_gone(&ada, made.id));
    agent.stop().await;
}
