//! Consent: grants, tool calls, and the log of what agents read.

pub mod access_log;
mod approvals;
mod blind_pipe;
mod grants;
mod retention;
mod stops;
mod tool_calls;
mod transports;

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use crate::support::{Agent, Answer, TestNode, User, nodes_with, ulid};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "agent_grant_request=10000/s,agent_tier_1=10000/s,default_user=10000/s,group_agent_instance=10000/s,\
     agent_manifest_update=10000/s,agent_poll=10000/s,keys_lookup=10000/s,agent_conversations=10000/s,\
     user_message_send=10000/s,ws_connect=10000/min,auth_login_ip=10000/s",
);

/// Two nodes, and a user who talks with an agent of somebody else.
struct Stage {
    nodes: [TestNode; 2],
    alice: User,
    agent: Agent,
    conversation: String,
}

impl Stage {
    async fn new() -> Self {
        let nodes = nodes_with(&[RAISED_LIMITS]).await;
        let [alice, developer] = [nodes[0].user("alice").await, nodes[1].user("dev").await];
        let agent = nodes[1].agent(&developer, "helper").await;
        declare(
            &agent,
            &[
                ("notification:send", "low"),
                ("clipboard:read", "medium"),
                ("filesystem:read", "medium"),
                ("location:read", "high"),
            ],
        )
        .await;
        let conversation = alice.talk_to(&agent).await;
        Stage {
            nodes,
            alice,
            agent,
            conversation,
        }
    }

    /// The pending grant of a request for scopes.
    async fn ask(&self, scopes: &[&str]) -> Value {
        let body = json!({ "conversation_id": self.conversation, "scopes": scopes });
        ask(&self.agent, body).await.expect(201).data().clone()
    }

    /// A grant that the user has approved.
    async fn grant(&self, scopes: &[&str]) -> String {
        let grant = self.ask(scopes).await;
        let id = text(&grant, "grant_id");
        decide(&self.alice, &id, json!({ "decision": "approve" }))
            .await
            .expect(200);
        id
    }

    /// A call of a tool with a new id.
    async fn call(&self, scope: &str) -> Value {
        let body = self.request(scope);
        call(&self.agent, body).await.expect(201).data().clone()
    }

    /// The body of a call.
    fn request(&self, scope: &str) -> Value {
        json!({
            "request_id": ulid().to_string(), "conversation_id": self.conversation, "tool": "look", "scope": scope,
            "payload": { "arguments": { "n": 1 } },
        })
    }

    async fn advance(&self, seconds: u64) {
        let by = std::time::Duration::from_secs(seconds);
        self.nodes[0].advance(by).await;
    }
}

/// Makes these the scopes of an agent's manifest.
async fn declare(agent: &Agent, scopes: &[(&str, &str)]) {
    let scopes: Vec<Value> = scopes
        .iter()
        .map(|(scope, sensitivity)| json!({ "scope": scope, "sensitivity": sensitivity }))
        .collect();
    let manifest = json!({ "manifest": { "tools": [], "permission_scopes": scopes } });
    agent
        .patch(format!("/agents/{}", agent.id), manifest)
        .await
        .expect(200);
}

async fn ask(agent: &Agent, body: Value) -> Answer {
    let path = format!("/agents/{}/grants/request", agent.id);
    agent.post(path, body).await
}

async fn decide(user: &User, grant: &str, body: Value) -> Answer {
    user.post(format!("/grants/{grant}/decision"), body).await
}

async fn call(agent: &Agent, body: Value) -> Answer {
    let path = format!("/agents/{}/artifact-requests", agent.id);
    agent.post(path, body).await
}

async fn respond(user: &User, request_id: &str, body: Value) -> Answer {
    let path = format!("/artifact-requests/{request_id}/response");
    user.post(path, body).await
}

fn text(value: &Value, name: &str) -> String {
    value[name].as_str().expect(name).to_owned()
}

/// Puts an agent into a group of the user's; returns the group.
async fn group_with(owner: &User, members: &[&User], agent: &Agent) -> String {
    let group = owner.group_with(members).await;
    let place = json!({ "agent_id": agent.id, "visibility": "all" });
    owner
        .post(format!("/groups/{group}/agent-instances"), place)
        .await
        .expect(201);
    group
}

/// A user on `n` devices, in turn on both nodes.
async fn devices(stage: &Stage, n: usize) -> Vec<User> {
    let logins = (0..n).map(|n| {
        let name = format!("device-{n}");
        async move { stage.alice.login(&stage.nodes[n % 2], Some(&name)).await }
    });
    // A few at once: logins under way count as failures until they succeed.
    stream::iter(logins).buffered(3).collect().await
}
