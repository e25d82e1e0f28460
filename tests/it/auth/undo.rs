//! What a session has added: the user sees it, and undoes it.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::support::{
    Agent, Answer, Authenticator, PASSWORD, Receiver, TestNode, User, nodes_with, ulid,
};

pub const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "auth_send_code=1000/s,auth_send_code_day=1000/s,default_user=1000/s,group_agent_instance=1000/s,\
     conversation_open=1000/s,auth_login_ip=1000/s,user_message_send=1000/s",
);

/// Alice, whose phone a thief uses, and what the thief has added there.
struct Theft {
    nodes: [TestNode; 2],
    alice: User,
    /// The thief's session.
    phone: User,
    session: String,
    /// The thief's own agent, of another account.
    foreign: Agent,
    /// An agent that the thief has made in Alice's account.
    planted: Agent,
    /// The token that Alice's agent has now.
    replaced: Agent,
    /// The agent of Alice whose token is another.
    owned: Agent,
    /// The agent of Alice whose webhook the thief has set.
    hooked: Agent,
    conversation: String,
    group: String,
    share: String,
}

async fn session_of(user: &User, device: &str) -> String {
    let devices = user.get("/users/me/devices").await.expect(200);
    let devices = devices.data().as_array().expect("devices");
    let of_device = devices.iter().find(|it| it["device_id"] == device);
    text(of_device.expect("the device"), "session_id")
}

pub fn text(value: &Value, name: &str) -> String {
    value[name].as_str().expect(name).to_owned()
}

async fn regenerate(owner: &User, agent: &Agent) -> Agent {
    let path = format!("/agents/{}/token/regenerate", agent.id);
    let answer = owner.post(path, json!({ "emergency": false })).await;
    let token = text(answer.expect(200).data(), "token");
    Agent {
        caller: agent.with_token(&token),
        token,
        ..agent.clone()
    }
}

async fn share(owner: &User) -> String {
    let body = json!({ "contact": true, "expires_at": owner.after_its_end(86_400) });
    let made = owner.post("/shares", body).await.expect(201);
    text(made.data(), "share_id")
}

pub async fn let_in(by: &User, group: &str, agent: &Agent, visibility: &str) -> Answer {
    let place = json!({ "agent_id": agent.id, "visibility": visibility });
    by.post(format!("/groups/{group}/agent-instances"), place)
        .await
}

impl Theft {
    async fn new(receiver: &Receiver) -> Self {
        let nodes = nodes_with(&[RAISED_LIMITS]).await;
        let [a, b] = &nodes;
        let alice = a.user("alice").await;
        let [owned, hooked] = [
            a.agent(&alice, "owned").await,
            a.agent(&alice, "hooked").await,
        ];
        alice.talk_to(&owned).await;
        let group = alice.group_with(&[]).await;
        let phone = alice.login(b, Some("phone")).await;
        let mallory = b.user("mallory").await;
        let foreign = b.agent(&mallory, "foreign").await;
        let planted = b.agent(&phone, "planted").await;
        let replaced = regenerate(&phone, &owned).await;
        let hook = json!({ "url": receiver.url });
        phone.put(hooked.webhook(""), hook).await.expect(200);
        let conversation = phone.talk_to(&foreign).await;
        let_in(&phone, &group, &foreign, "all").await.expect(201);
        Authenticator::enrol(&phone, "key").await;
        let share = share(&phone).await;
        let session = session_of(&alice, "phone").await;
        Theft {
            nodes,
            alice,
            phone,
            session,
            foreign,
            planted,
            replaced,
            owned,
            hooked,
            conversation,
            group,
            share,
        }
    }

    fn path(&self, below: &str) -> String {
        format!("/users/me/sessions/{}/{below}", self.session)
    }

    async fn changes(&self) -> Vec<Value> {
        let changes = self.alice.get(self.path("changes")).await.expect(200);
        changes.data().as_array().expect("a list").clone()
    }

    async fn undo(&self, body: Value) -> Vec<Value> {
        let undone = self.alice.post(self.path("undo"), body).await.expect(200);
        undone.data()["undone"].as_array().expect("a list").clone()
    }

    /// The agent settles within seconds.
    async fn until_settled(&self) {
        for _ in 0..400 {
            let path = format!("/agents/{}", self.owned.id);
            let shown = self.alice.get(path).await.expect(200);
            if shown.data()["token"]["grace_until"].is_null() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("it does not settle");
    }
}

fn kinds(changes: &[Value]) -> Vec<String> {
    let mut kinds: Vec<_> = changes.iter().map(|it| text(it, "kind")).collect();
    kinds.sort();
    kinds
}

const ALL_KINDS: [&str; 7] = [
    "agent", "instance", "passkey", "relation", "share", "token", "webhook",
];

#[tokio::test(flavor = "multi_thread")]
async fn what_a_thief_added_is_seen_and_undone_after_the_session_s_end() {
    let receiver = Receiver::start().await;
    let theft = Theft::new(&receiver).await;
    let [a, b] = &theft.nodes;
    let planted_socket = theft.planted.on(b).connect().await;
    let mut foreign_socket = theft.foreign.on(a).connect().await;
    foreign_socket.expect("caught_up").await;
    let kept = session_of(&theft.alice, &theft.alice.device_id).await;
    let own = |session: &str| format!("/users/me/sessions/{session}/changes");
    let before = theft.alice.get(own(&kept)).await.expect(200);

    // The owner ends the session first; the thief may have ended it long before.
    let revoked = theft
        .alice
        .delete("/users/me/devices/phone")
        .await
        .expect(200);
    assert_eq!(text(revoked.data(), "session_id"), theft.session);
    let changes = theft.changes().await;
    assert_eq!(kinds(&changes), ALL_KINDS, "{changes:?}");
    let names: BTreeSet<_> = changes.iter().map(|it| text(it, "name")).collect();
    let wanted = ["contact", "foreign", "hooked", "key", "owned", "planted"];
    assert_eq!(names, wanted.map(str::to_owned).into());
    let listed = theft.alice.get("/users/me/sessions").await.expect(200);
    let listed = listed.data().as_array().expect("a list").clone();
    let of_phone = listed.iter().find(|it| it["session_id"] == theft.session);
    let of_phone = of_phone.expect("it is listed");
    assert_eq!(
        (&of_phone["changes"], &of_phone["device_id"]),
        (&json!(7), &json!("phone"))
    );
    assert!(of_phone["revoked_at"].is_string(), "{of_phone}");

    let since = Instant::now();
    let undone = theft.undo(json!({})).await;
    assert_eq!(kinds(&undone), ALL_KINDS);
    let frames = planted_socket.expect_close(4403).await;
    assert!(
        since.elapsed() < Duration::from_secs(1),
        "{:?}",
        since.elapsed()
    );
    assert_eq!(
        frames.last().expect("a frame")["type"],
        "session.invalidated"
    );

    // Each is gone on both nodes.
    for node in [a, b] {
        let alice = theft.alice.on(node);
        let path = format!("/agents/{}", theft.planted.id);
        alice.get(path).await.refused(404, "AGENT_NOT_REGISTERED");
        let limits = theft.replaced.on(node).get("/limits").await;
        limits.refused(401, "AGENT_TOKEN_INVALID");
        let webhook = alice.get(theft.hooked.webhook("")).await.expect(200);
        assert_eq!(webhook.data()["status"], "suspended");
        let said = theft
            .foreign
            .on(node)
            .say(&theft.conversation, "hello")
            .await;
        said.refused(403, "RELATION_REVOKED");
        let said = theft.foreign.on(node).say(&theft.group, "hello").await;
        said.refused(403, "NOT_CONVERSATION_MEMBER");
        let path = format!("/share/{}", theft.share);
        node.anon().get(path).await.refused(404, "NOT_FOUND");
        let passkeys = alice.get("/users/me/passkeys").await.expect(200);
        assert_eq!(passkeys.data(), &json!([]));
    }
    theft.alice.say(&theft.group, "a secret").await.expect(201);
    foreign_socket.event("member.removed").await;
    let page = theft.foreign.poll("limit=100").await.expect(200);
    assert!(!page.body.to_string().contains("a secret"));

    // What other sessions made stays: the owner's token counts again.
    theft.until_settled().await;
    theft.owned.get("/limits").await.expect(200);
    let after = theft.alice.get(own(&kept)).await.expect(200);
    assert_eq!(after.data(), before.data());
    assert!(theft.changes().await.is_empty());
    assert!(theft.undo(json!({})).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_its_user_s_alone_and_names_choose_what_is_undone() {
    let receiver = Receiver::start().await;
    let theft = Theft::new(&receiver).await;
    let [a, b] = &theft.nodes;
    let bob = b.user("bob").await;
    for path in [
        theft.path("changes"),
        format!("/users/me/sessions/{}/changes", ulid()),
    ] {
        bob.get(path).await.refused(404, "NOT_FOUND");
    }
    let foreign = bob.post(theft.path("undo"), json!({})).await;
    foreign.refused(404, "NOT_FOUND");
    let changes = theft.changes().await;
    assert_eq!(kinds(&changes), ALL_KINDS);
    let id = |kind: &str| {
        let it = changes.iter().find(|it| it["kind"] == kind);
        text(it.expect(kind), "id")
    };
    let ids = json!({ "ids": [id("relation"), id("share"), "nothing"] });
    assert_eq!(kinds(&theft.undo(ids).await), ["relation", "share"]);

    // A passkey ends under the rule of its own removal. The thief's live session has no better right.
    a.advance(Duration::from_secs(601)).await;
    let alice = theft.alice.refreshed().await;
    let ids = json!({ "ids": [id("passkey")] });
    let stale = alice.post(theft.path("undo"), ids.clone()).await;
    stale.refused(403, "REAUTH_REQUIRED");
    assert_eq!(
        kinds(&theft_of(&theft, &alice).await),
        ["agent", "instance", "passkey", "token", "webhook"]
    );
    let proof = json!({ "account_password": PASSWORD });
    alice.on(b).post("/auth/reauth", proof).await.expect(200);
    alice.post(theft.path("undo"), ids).await.expect(200);
    let phone = theft.phone.refreshed().await;
    let rest = phone.post(theft.path("undo"), json!({})).await.expect(200);
    let rest = rest.data()["undone"].as_array().expect("a list").clone();
    assert_eq!(kinds(&rest), ["agent", "instance", "token", "webhook"]);
}

async fn theft_of(theft: &Theft, alice: &User) -> Vec<Value> {
    let changes = alice.get(theft.path("changes")).await.expect(200);
    changes.data().as_array().expect("a list").clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_racing_undos_one_undoes_each_thing() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let phone = alice.login(&b, Some("phone")).await;
    let developer = b.user("dev").await;
    for n in 0..4 {
        let foreign = b.agent(&developer, &n.to_string()).await;
        phone.talk_to(&foreign).await;
        b.agent(&phone, &format!("planted {n}")).await;
        share(&phone).await;
    }
    let session = session_of(&alice, "phone").await;
    let path = format!("/users/me/sessions/{session}/undo");
    let laptop = alice.login(&b, Some("laptop")).await;
    let racing = (0..6).map(|n| {
        let by = [&alice, &laptop][n % 2].on([&a, &b][n / 2 % 2]);
        let path = path.clone();
        async move { by.post(path, json!({})).await.expect(200) }
    });
    // The thief goes on meanwhile.
    let adding = async {
        for _ in 0..4 {
            share(&phone).await;
        }
    };
    let (answers, ()) = tokio::join!(futures_util::future::join_all(racing), adding);
    let undone = answers.iter().flat_map(|answer| {
        let undone = answer.data()["undone"].as_array().expect("a list");
        undone.iter().map(|it| text(it, "id"))
    });
    let mut undone: Vec<_> = undone.collect();
    let all = undone.len();
    undone.sort();
    undone.dedup();
    assert_eq!(undone.len(), all, "nothing is undone twice");
    let last = alice.post(&path, json!({})).await.expect(200);
    let last = last.data()["undone"].as_array().expect("a list").len();
    assert_eq!(all + last, 16);
}

/// The text of the mail with this subject to a user, once it is there.
async fn mail(node: &TestNode, user: &User, subject: &str) -> String {
    let (to, subject) = (format!("To: {}", user.email), format!("Subject: {subject}"));
    for _ in 0..400 {
        let mails = std::fs::read_dir(&node.world.mail_dir).expect("a folder");
        let texts = mails
            .flatten()
            .filter_map(|mail| std::fs::read_to_string(mail.path()).ok());
        let mut texts = texts.map(|text| text.replace("=\r\n", "").replace("\r\n", "\n"));
        if let Some(text) = texts.find(|text| text.contains(&to) && text.contains(&subject)) {
            return text;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("no mail: {subject}");
}

#[tokio::test(flavor = "multi_thread")]
async fn mails_after_a_reset_and_a_revocation_count_what_sessions_added() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let phone = alice.login(&a, Some("phone")).await;
    for _ in 0..3 {
        share(&phone).await;
    }
    a.agent(&phone, "planted").await;
    alice.delete("/users/me/devices/phone").await.expect(200);
    let told = mail(&a, &alice, "A device was revoked").await;
    assert!(
        told.contains("have added 4 things to your account"),
        "{told}"
    );

    let german = json!({ "device_locale": "de-CH" });
    alice.patch("/users/me", german).await.expect(200);
    let code = a.anon().code(&alice.email, "reset").await;
    let body = json!({ "email": alice.email, "code": code, "new_account_password": PASSWORD });
    a.anon()
        .post("/auth/reset-password", body)
        .await
        .expect(200);
    let told = mail(&a, &alice, "Ein neues Passwort").await;
    assert!(told.contains("Ihrem Konto 4 Dinge"), "{told}");
}
