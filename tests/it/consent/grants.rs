//! Grants: requests, decisions, and the ways in which they end.

use serde_json::{Value, json};

use super::{Stage, ask, call, decide, devices, group_with, respond, text};

async fn statuses(user: &crate::support::User, query: &str) -> Vec<String> {
    let list = user.get(format!("/grants?{query}")).await.expect(200);
    let grants = list.body["data"].as_array().expect("a list").clone();
    grants.iter().map(|grant| text(grant, "status")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_asks_and_its_user_decides() {
    let stage = Stage::new().await;
    let (alice, agent) = (&stage.alice, &stage.agent);
    let mut alice_socket = alice.on(&stage.nodes[1]).connect().await;
    let mut agent_socket = agent.on(&stage.nodes[0]).connect().await;
    let body = json!({
        "conversation_id": stage.conversation, "scopes": ["location:read", "clipboard:read", "location:read"],
        "reason": "to find you", "ttl_seconds": 3600,
    });
    let asked = ask(agent, body.clone()).await.expect(201);
    let grant = asked.data();
    assert_eq!(grant["status"], "pending");
    assert_eq!(
        grant["requested"],
        json!([
            { "scope": "clipboard:read", "sensitivity": "medium" },
            { "scope": "location:read", "sensitivity": "high" },
        ])
    );
    for socket in [&mut alice_socket, &mut agent_socket] {
        let event = socket.event("grant.requested").await;
        assert_eq!(
            (&event["data"], &event["conversation_id"]),
            (grant, &json!(stage.conversation))
        );
    }
    // A repeated request finds the one that waits, and tells nobody again.
    assert_eq!(ask(agent, body).await.expect(200).data(), grant);

    let id = text(grant, "grant_id");
    for bad in [
        json!({ "decision": "maybe" }),
        json!({ "decision": "approve", "scopes": [] }),
        json!({ "decision": "approve", "scopes": ["notification:send"] }),
        json!({ "decision": "deny", "scopes": ["location:read"] }),
    ] {
        decide(alice, &id, bad)
            .await
            .refused(400, "VALIDATION_ERROR");
    }
    let some = json!({ "decision": "approve", "scopes": ["location:read"] });
    let decided = decide(alice, &id, some).await.expect(200);
    let decided = decided.data();
    assert_eq!(
        (&decided["status"], &decided["scopes"]),
        (&json!("approved"), &json!(["location:read"]))
    );
    let at = |name: &str| {
        chrono::DateTime::parse_from_rfc3339(decided[name].as_str().expect(name)).expect("a time")
    };
    assert_eq!(
        at("expires_at") - at("decided_at"),
        chrono::TimeDelta::hours(1)
    );
    for socket in [&mut alice_socket, &mut agent_socket] {
        assert_eq!(&socket.event("grant.decided").await["data"], decided);
    }
    let late = decide(alice, &id, json!({ "decision": "deny" })).await;
    let late = late.refused(409, "ALREADY_DECIDED");
    assert_eq!(late.body["error"]["params"]["status"], "approved");

    let denied = text(&stage.ask(&["filesystem:read"]).await, "grant_id");
    decide(alice, &denied, json!({ "decision": "deny" }))
        .await
        .expect(200);
    stage.ask(&["notification:send"]).await;
    let page = alice.get("/grants?limit=2").await.expect(200);
    assert_eq!(page.body["data"].as_array().map(Vec::len), Some(2));
    let next = format!("limit=2&cursor={}", text(&page.body, "next_cursor"));
    assert_eq!(statuses(alice, &next).await, ["approved"]);
    for (query, expected) in [
        ("", &["pending", "denied", "approved"][..]),
        ("state=denied", &["denied"]),
        ("state=expired", &[]),
        (
            &format!("agent_id={}", agent.id),
            &["pending", "denied", "approved"],
        ),
        (&format!("agent_id={}", uuid::Uuid::nil()), &[]),
        (
            &format!("conversation_id={}&state=approved", stage.conversation),
            &["approved"],
        ),
        (&format!("conversation_id={}", crate::support::ulid()), &[]),
    ] {
        assert_eq!(statuses(alice, query).await, expected, "{query}");
    }
    alice
        .get(format!("/grants?cursor={}", crate::support::ulid()))
        .await
        .refused(400, "VALIDATION_ERROR");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_declared_scopes_of_related_users_are_requested() {
    let stage = Stage::new().await;
    let [a, b] = &stage.nodes;
    let (alice, agent) = (&stage.alice, &stage.agent);
    let [bob, carol] = [a.user("bob").await, b.user("carol").await];
    bob.talk_to(agent).await;
    let group = group_with(alice, &[&bob, &carol], agent).await;
    let request = |conversation: &str, user: Option<&str>, scope: &str| {
        let mut body = json!({ "conversation_id": conversation, "scopes": [scope] });
        if let Some(user) = user {
            body["user_id"] = json!(user);
        }
        ask(agent, body)
    };
    let (mine, scope) = (stage.conversation.as_str(), "location:read");
    let undeclared = request(mine, None, "camera:use").await;
    let undeclared = undeclared.refused(403, "SCOPE_NOT_DECLARED");
    assert_eq!(
        undeclared.body["error"]["params"]["scopes"],
        json!(["camera:use"])
    );
    let missing = request(&group, None, scope)
        .await
        .refused(400, "VALIDATION_ERROR");
    assert_eq!(
        missing.body["error"]["params"]["fields"][0]["path"],
        "user_id"
    );
    request(&group, Some(&carol.id), scope)
        .await
        .refused(403, "RELATION_REQUIRED");
    request(mine, Some(&bob.id), scope)
        .await
        .refused(403, "RELATION_REQUIRED");
    request(mine, Some(&crate::support::ulid().to_string()), scope)
        .await
        .refused(403, "RELATION_REQUIRED");
    let elsewhere = alice.group_with(&[&bob]).await;
    request(&elsewhere, Some(&bob.id), scope)
        .await
        .refused(404, "NOT_FOUND");
    for bad in [
        json!({ "conversation_id": mine, "scopes": [] }),
        json!({ "conversation_id": mine, "scopes": vec!["x"; 17] }),
        json!({ "conversation_id": mine, "scopes": [scope], "ttl_seconds": 59 }),
    ] {
        ask(agent, bad).await.refused(400, "VALIDATION_ERROR");
    }

    // In a group one user is asked, and nobody else knows.
    let mut bob_socket = bob.on(a).connect().await;
    let asked = request(&group, Some(&bob.id), scope).await.expect(201);
    let id = text(asked.data(), "grant_id");
    assert_eq!(
        bob_socket.event("grant.requested").await["data"]["grant_id"],
        json!(id)
    );
    for other in [alice, &carol] {
        assert_eq!(statuses(other, "").await, Vec::<String>::new());
        decide(other, &id, json!({ "decision": "approve" }))
            .await
            .refused(404, "NOT_FOUND");
        other
            .delete(format!("/grants/{id}"))
            .await
            .refused(404, "NOT_FOUND");
    }
    decide(&bob, &id, json!({ "decision": "approve" }))
        .await
        .expect(200);
    // It holds in the group and for him only.
    for (conversation, user, status) in [
        (group.as_str(), bob.id.as_str(), "pending"),
        (group.as_str(), alice.id.as_str(), "denied"),
        (mine, alice.id.as_str(), "denied"),
    ] {
        let mut body = stage.request(scope);
        body["conversation_id"] = json!(conversation);
        body["user_id"] = json!(user);
        let state = call(agent, body).await.expect(201);
        assert_eq!(state.data()["status"], status, "{conversation} {user}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_twenty_devices_one_decides_and_one_answers() {
    let stage = Stage::new().await;
    let devices = devices(&stage, 20).await;
    let grant = text(&stage.ask(&["location:read"]).await, "grant_id");
    let decisions = devices.iter().enumerate().map(|(n, device)| {
        let decision = if n % 2 == 0 { "approve" } else { "deny" };
        decide(device, &grant, json!({ "decision": decision }))
    });
    let answers = futures_util::future::join_all(decisions).await;
    let won: Vec<_> = answers
        .iter()
        .filter(|answer| answer.status == 200)
        .collect();
    assert_eq!(won.len(), 1, "{answers:?}");
    let lost = answers
        .iter()
        .filter(|answer| answer.code() == "ALREADY_DECIDED");
    assert_eq!(lost.count(), 19);
    let list = stage.alice.get("/grants").await.expect(200);
    assert_eq!(&list.body["data"][0], won[0].data());

    stage.grant(&["location:read", "clipboard:read"]).await;
    let id = text(&stage.call("location:read").await, "request_id");
    let responses = devices.iter().enumerate().map(|(n, device)| {
        let status = ["executed", "denied", "failed"][n % 3];
        respond(
            device,
            &id,
            json!({ "status": status, "payload": { "n": n } }),
        )
    });
    let answers = futures_util::future::join_all(responses).await;
    let won: Vec<_> = answers
        .iter()
        .filter(|answer| answer.status == 200)
        .collect();
    assert_eq!(won.len(), 1, "{answers:?}");
    let lost = answers
        .iter()
        .filter(|answer| answer.code() == "ALREADY_DECIDED");
    assert_eq!(lost.count(), 19);
    let seen = stage.agent.poll("limit=100").await.expect(200);
    let outcomes: Vec<Value> = seen.body["data"].as_array().expect("events").clone();
    let outcomes: Vec<&Value> = outcomes
        .iter()
        .filter(|event| event["event"] == "artifact_response")
        .map(|event| &event["data"])
        .collect();
    assert_eq!(outcomes.len(), 1, "{outcomes:?}");
    assert_eq!(outcomes[0]["payload"], won[0].data()["payload"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_end_by_time_and_by_their_user() {
    let stage = Stage::new().await;
    let (alice, agent) = (&stage.alice, &stage.agent);
    let body = json!({ "conversation_id": stage.conversation, "scopes": ["clipboard:read"], "ttl_seconds": 60 });
    let short = text(ask(agent, body).await.expect(201).data(), "grant_id");
    decide(alice, &short, json!({ "decision": "approve" }))
        .await
        .expect(200);
    let waiting = text(&stage.ask(&["location:read"]).await, "grant_id");
    stage.advance(50).await;
    let call = stage.call("clipboard:read").await;
    assert_eq!(call["status"], "pending");
    stage.advance(10).await;
    // A call outlives its grant in no device.
    let late = respond(
        alice,
        &text(&call, "request_id"),
        json!({ "status": "executed" }),
    )
    .await;
    late.refused(409, "TOOL_CALL_EXPIRED");
    assert_eq!(stage.call("clipboard:read").await["status"], "denied");
    assert_eq!(statuses(alice, "").await, ["pending", "expired"]);
    let unchanged = alice.delete(format!("/grants/{short}")).await.expect(200);
    assert_eq!(unchanged.data()["status"], "expired");

    // Nobody decides on a request for ever, and the agent may ask again.
    stage.advance(7 * 86_400).await;
    let alice = &alice.refreshed().await;
    let late = decide(alice, &waiting, json!({ "decision": "approve" })).await;
    let late = late.refused(409, "ALREADY_DECIDED");
    assert_eq!(late.body["error"]["params"]["status"], "expired");
    let again = text(&stage.ask(&["location:read"]).await, "grant_id");
    assert_ne!(again, waiting);

    // Taken back before and after the decision.
    let mut agent_socket = agent.connect().await;
    let revoked = alice.delete(format!("/grants/{again}")).await.expect(200);
    assert_eq!(revoked.data()["status"], "revoked");
    assert_eq!(
        &agent_socket.event("grant.revoked").await["data"],
        revoked.data()
    );
    assert_eq!(
        alice
            .delete(format!("/grants/{again}"))
            .await
            .expect(200)
            .data(),
        revoked.data()
    );
    decide(alice, &again, json!({ "decision": "approve" }))
        .await
        .refused(409, "ALREADY_DECIDED");
}

/// Waits for the job that follows the end of a relation or a membership.
async fn until_revoked(user: &crate::support::User, grant: &str) {
    for _ in 0..200 {
        let list = user.get("/grants?state=revoked").await.expect(200);
        let ids = list.body["data"].as_array().expect("a list").clone();
        if ids
            .iter()
            .any(|one| one["grant_id"] == *grant && !one["revoked_at"].is_null())
        {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
    panic!("the grant goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_end_with_their_relation_and_with_a_membership() {
    let stage = Stage::new().await;
    let (alice, agent) = (&stage.alice, &stage.agent);
    let group = group_with(alice, &[], agent).await;
    let body =
        json!({ "conversation_id": group, "user_id": alice.id, "scopes": ["location:read"] });
    let in_group = text(ask(agent, body).await.expect(201).data(), "grant_id");
    decide(alice, &in_group, json!({ "decision": "approve" }))
        .await
        .expect(200);
    let in_pair = stage.grant(&["clipboard:read"]).await;
    let mut agent_socket = agent.on(&stage.nodes[0]).connect().await;

    let members = format!("/groups/{group}/members/{}", agent.id);
    alice.delete(members).await.expect(200);
    until_revoked(alice, &in_group).await;
    let told = agent_socket.event("grant.revoked").await;
    assert_eq!(told["data"]["grant_id"], json!(in_group));
    assert_eq!(
        statuses(alice, "state=approved").await,
        ["approved"],
        "the pair's"
    );

    let pending = text(&stage.call("clipboard:read").await, "request_id");
    let relations = alice.get("/relations").await.expect(200);
    let relation = text(&relations.body["data"][0], "relation_id");
    alice
        .delete(format!("/relations/{relation}"))
        .await
        .expect(200);
    // From the answer on it allows nothing, whatever its row says.
    let answer = json!({ "status": "executed" });
    respond(alice, &pending, answer)
        .await
        .refused(409, "TOOL_CALL_EXPIRED");
    assert_eq!(
        statuses(alice, "state=approved").await,
        Vec::<String>::new()
    );
    call(agent, stage.request("clipboard:read"))
        .await
        .refused(403, "RELATION_REQUIRED");
    until_revoked(alice, &in_pair).await;
    let told = agent_socket.event("artifact_response").await;
    assert_eq!(
        (&told["data"]["request_id"], &told["data"]["reason"]),
        (&json!(pending), &json!("grant_revoked"))
    );
    // A new relation revives nothing.
    let open = json!({ "type": "agent", "agent_id": agent.id });
    alice.post("/conversations", open).await.expect(200);
    assert_eq!(stage.call("clipboard:read").await["status"], "denied");
}
