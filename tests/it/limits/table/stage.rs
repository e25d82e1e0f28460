//! The stage of the table: a call for each row.

use super::*;

/// The players.
pub(super) struct Stage {
    pub(super) nodes: [TestNode; 2],
    pub(super) user: User,
    /// The user whose cookie is used again and again.
    pub(super) refresher: User,
    pub(super) agent: Agent,
    /// Agents of the second and the third tier.
    pub(super) busy: [Agent; 2],
    pub(super) conversation: String,
    /// With another user.
    pub(super) direct: String,
    /// Which `user` owns.
    pub(super) group: String,
    /// Somebody at one address.
    pub(super) stranger: Caller,
    pub(super) email: String,
    pub(super) calls: AtomicU32,
}

impl Stage {
    pub(super) async fn new() -> Self {
        let nodes = nodes().await;
        let user = nodes[0].user("alice").await;
        let agent = nodes[0].agent(&user, "helper").await;
        let conversation = user.talk_to(&agent).await;
        let refresher = nodes[0].user("refresher").await;
        let direct = user.direct_with(&refresher).await;
        let busy = [
            nodes[0].agent(&user, "second").await,
            nodes[0].agent(&user, "third").await,
        ];
        group_of(&nodes[0], &user, &busy[0], 11).await;
        group_of(&nodes[0], &user, &busy[1], 101).await;
        let group = user
            .post("/groups", json!({ "title": "crew", "member_ids": [] }))
            .await
            .expect(201);
        let group = group.data()["conversation_id"]
            .as_str()
            .expect("an id")
            .to_owned();
        let stranger = nodes[0].anon();
        let email = format!("{}@example.org", ulid().to_string().to_lowercase());
        let calls = AtomicU32::new(0);
        Stage {
            nodes,
            user,
            refresher,
            agent,
            busy,
            conversation,
            direct,
            group,
            stranger,
            email,
            calls,
        }
    }

    /// An access token does not live as long as some windows, and some calls want a fresh login.
    pub(super) async fn log_in(&mut self) {
        let (caller, email) = (self.nodes[0].anon(), self.user.email.clone());
        let body = json!({
            "email": email, "account_password": PASSWORD, "turnstile_token": "dev-pass", "device_id": self.user.device_id,
        });
        let answer = caller.post("/auth/login", body).await.expect(200);
        self.user = User::signed_in(caller, email, &answer);
    }

    /// Decisions that a node's own share has made, here and in the tests beside this one.
    pub(super) async fn fallbacks(&self) -> f64 {
        self.nodes[0].metric("limiter_fallback_total", &[]).await
    }

    /// The request of an upload.
    fn upload(&self) -> Value {
        json!({
            "filename": "x", "content_type": "text/plain", "size": 1, "conversation_id": self.conversation,
        })
    }

    /// A call that `limit` counts, at alternating nodes; none of those whose routes are to come.
    pub(super) async fn call(&self, limit: Limit) -> Option<Answer> {
        let n = self.calls.fetch_add(1, Ordering::Relaxed);
        let node = &self.nodes[n as usize % 2];
        if let Some(answer) = self.call_of_stranger(limit, n, node).await {
            return Some(answer);
        }
        if let Some(answer) = self.call_of_user(limit, n, node).await {
            return Some(answer);
        }
        self.call_of_agent(limit, n, node).await
    }

    /// A call without a credential that is valid.
    async fn call_of_stranger(&self, limit: Limit, n: u32, node: &TestNode) -> Option<Answer> {
        let stranger = self.stranger.on(node);
        let fresh = format!("{n}-{}", self.email);
        Some(match limit {
            Limit::RegisterIp => {
                stranger
                    .post(
                        "/auth/register",
                        User::registration(&fresh, "x", "00000000"),
                    )
                    .await
            }
            Limit::RegisterEmail => {
                let body = User::registration(&self.email, "x", "00000000");
                node.anon().post("/auth/register", body).await
            }
            Limit::SendCode => {
                node.anon()
                    .post("/auth/send-code", code_for(&self.email, "dev-pass"))
                    .await
            }
            Limit::Refresh => {
                let caller = self.refresher.on(node);
                let request = caller.request(reqwest::Method::POST, "/auth/refresh");
                caller.send(request.header("cookie", &caller.cookie)).await
            }
            Limit::LoginIp => {
                let body = json!({ "email": fresh, "account_password": "wrong wrong", "turnstile_token": "dev-pass" });
                stranger.post("/auth/login", body).await
            }
            Limit::PasskeyBegin => stranger.post("/auth/passkey/begin", json!({})).await,
            Limit::ShareOpen => stranger.get("/share/unknown").await,
            Limit::WsConnectIp => knock(&stranger).await,
            Limit::DefaultIp => stranger.post("/auth/logout", json!({})).await,
            Limit::HumanIp => {
                let body = json!({ "email": fresh, "account_password": "x", "turnstile_token": "dev-fail" });
                stranger.post("/auth/login", body).await
            }
            Limit::AgentTokenUnknown => {
                let token = forged("neverwas", n);
                stranger.with_token(&token).get("/limits").await
            }
            _ => return None,
        })
    }

    /// A call of the user.
    async fn call_of_user(&self, limit: Limit, n: u32, node: &TestNode) -> Option<Answer> {
        let (user, agent) = (self.user.on(node), &self.agent);
        let text = json!({ "payload": { "type": "text" } });
        Some(match limit {
            Limit::UserMessageSend => {
                user.post(
                    format!("/conversations/{}/messages", self.conversation),
                    text,
                )
                .await
            }
            Limit::UserFileUpload => user.post("/files", self.upload()).await,
            Limit::UserObjectGet => user.get(format!("/objects/{}", "0".repeat(32))).await,
            Limit::KeysLookup => user.get(format!("/keys/users/{}/devices", user.id)).await,
            Limit::KeysGroupRotate => stale_rotation(&user, &self.group).await,
            Limit::KeysRotationRequest => {
                user.post(
                    "/keys/rotation/request",
                    json!({ "conversation_id": self.direct }),
                )
                .await
            }
            Limit::KeysBackupRead => user.get("/keys/backup").await,
            Limit::AgentTokenRegenerate => {
                let path = format!("/agents/{}/token/regenerate", agent.id);
                user.post(path, json!({ "emergency": false })).await
            }
            Limit::AgentTokenRevoke => user.delete(format!("/agents/{}/token", ulid())).await,
            Limit::UserMessagesList => {
                user.get(format!("/conversations/{}/messages", self.conversation))
                    .await
            }
            Limit::UserSearch => user.get("/search?q=crew").await,
            Limit::ConversationOpen => {
                // A route each has a default budget of its own.
                let path = ["/groups", "/conversations"][n as usize / 2 % 2];
                let body = json!({ "type": "group", "member_ids": [] });
                user.post(path, body).await
            }
            Limit::UserConversationsList => user.get("/conversations").await,
            Limit::GroupMemberAdd => {
                let path = format!("/groups/{}/members", self.group);
                user.post(path, json!({ "user_ids": [self.refresher.id] }))
                    .await
            }
            Limit::GroupAgentInstance => {
                let path = format!("/groups/{}/agent-instances", self.group);
                user.post(path, json!({ "agent_id": agent.id, "visibility": "all" }))
                    .await
            }
            Limit::TurnStop => {
                let path = format!("/conversations/{}/stop", self.conversation);
                user.post(path, json!({})).await
            }
            Limit::PushRegister => {
                let path = format!("/users/me/devices/{}/push", user.device_id);
                user.put(path, json!({})).await
            }
            Limit::DefaultUser => user.get("/limits").await,
            _ => return None,
        })
    }

    /// A call of an agent.
    async fn call_of_agent(&self, limit: Limit, n: u32, node: &TestNode) -> Option<Answer> {
        let agent = self.agent.on(node);
        let text = json!({ "payload": { "type": "text" } });
        Some(match limit {
            Limit::AgentTyping => {
                let body = json!({ "conversation_id": self.conversation, "state": "started" });
                agent
                    .post(format!("/agents/{}/typing", agent.id), body)
                    .await
            }
            Limit::AgentMessageSend => agent.say(&self.conversation, "x").await,
            Limit::AgentConversationSend => {
                let path = format!(
                    "/agents/{}/conversations/{}/messages",
                    agent.id, self.conversation
                );
                agent.post(path, text).await
            }
            Limit::AgentFileUpload => {
                let path = format!("/agents/{}/files", agent.id);
                agent.post(path, self.upload()).await
            }
            Limit::AgentObjectGet => agent.get(format!("/objects/{}", "0".repeat(32))).await,
            Limit::AgentManifestUpdate => {
                let request =
                    agent.request(reqwest::Method::PATCH, format!("/agents/{}", agent.id));
                agent
                    .send(
                        request
                            .json(&json!({ "manifest": { "tools": [], "permission_scopes": [] } })),
                    )
                    .await
            }
            Limit::AgentConversations => {
                agent
                    .get(format!("/agents/{}/conversations", agent.id))
                    .await
            }
            Limit::AgentGrantRequest => {
                // Of no conversation, which is found out after the charge.
                let body =
                    json!({ "conversation_id": ulid().to_string(), "scopes": ["location:read"] });
                agent
                    .post(format!("/agents/{}/grants/request", agent.id), body)
                    .await
            }
            Limit::ApprovalRequest => {
                // Without a shape, which is found out after the charge.
                let path = format!(
                    "/agents/{}/conversations/{}/approvals",
                    agent.id, self.conversation
                );
                agent.post(path, text).await
            }
            Limit::AgentPoll => agent.poll("").await,
            Limit::WsConnect => frame(&agent).await,
            Limit::AgentTokenWrong => {
                agent
                    .with_token(&wrong_secret(&agent.token, n))
                    .get("/limits")
                    .await
            }
            Limit::AgentTier1 => agent.get("/limits").await,
            Limit::AgentTier2 => self.busy[0].on(node).get("/limits").await,
            Limit::AgentTier3 => self.busy[1].on(node).get("/limits").await,
            _ => return None,
        })
    }
}
