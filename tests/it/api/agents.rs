//! Agents: creation, lists, views, deletion.

use std::{collections::HashSet, time::Duration};

use serde_json::{Value, json};

use crate::support::{Agent, Answer, ProcessNode, blocked, connect, nodes, nodes_with, psql};

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_has_a_token_of_the_documented_form() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let body = agent.token.strip_prefix("hsk_").expect("the prefix");
    assert!(
        body.len() == 40 && body.bytes().all(|byte| byte.is_ascii_alphanumeric()),
        "{body:?}"
    );
    assert_eq!(
        uuid::Uuid::parse_str(&agent.id)
            .expect("a UUID")
            .get_version_num(),
        7
    );
    agent.on(&b).poll("").await.expect(200);
    alice
        .post("/agents", json!({}))
        .await
        .refused(400, "VALIDATION_ERROR");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_its_own_token_opens_an_agents_routes() {
    let [a] = nodes().await;
    // A process of its own, so that its hashes are those of this test.
    let b = ProcessNode::start(&a).await;
    let alice = a.user("alice").await;
    let [one, two] = [a.agent(&alice, "one").await, a.agent(&alice, "two").await];
    let hashed = b.metric("token_cache_total", "hashed").await;
    let path = format!("/agents/{}/messages/poll", one.id);
    for token in [
        "",
        "junk",
        "hsk_",
        &alice.access_token,
        &two.token,
        &one.token[..43],
        &format!(
            "{}{}",
            &one.token[..43],
            if one.token.ends_with('0') { '1' } else { '0' }
        ),
    ] {
        a.anon()
            .at(&b.base)
            .with_token(token)
            .get(&path)
            .await
            .refused(401, "AGENT_TOKEN_INVALID");
    }
    a.anon()
        .at(&b.base)
        .get(&path)
        .await
        .refused(401, "AGENT_TOKEN_INVALID");
    one.at(&b.base)
        .get("/agents/not-an-id/messages/poll")
        .await
        .refused(401, "AGENT_TOKEN_INVALID");
    alice
        .at(&b.base)
        .with_token(&one.token)
        .post("/agents", json!({ "display_name": "x" }))
        .await
        .refused(401, "UNAUTHORIZED");
    // Of all these, only what was somebody's token was worth a hash.
    let hashes = b.metric("token_cache_total", "hashed").await - hashed;
    assert!(hashes <= 2.0, "{hashes}");
}

fn count(answers: &[Answer], status: u16) -> usize {
    answers
        .iter()
        .filter(|answer| answer.status == status)
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fiftieth_agent_is_the_last_however_many_ask() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    // 49 that cost no hashes.
    let sql = format!(
        "insert into agent (agent_id, owner_user_id, display_name)
         select gen_random_uuid(), user_id, 'agent ' || n from user_account, generate_series(1, 49) n where email = '{}'",
        alice.email
    );
    psql(&a.world.database, &sql).await;
    let users = [alice.on(&a), alice.on(&b)];
    let tries = (0..50)
        .map(|n| users[n % 2].post("/agents", json!({ "display_name": format!("agent {n}") })));
    let answers = futures_util::future::join_all(tries).await;
    assert_eq!((count(&answers, 201), count(&answers, 403)), (1, 49));
    let last = answers
        .iter()
        .find(|answer| answer.status == 201)
        .expect("one")
        .data()["agent_id"]
        .clone();
    for answer in answers.into_iter().filter(|answer| answer.status != 201) {
        let refused = answer.refused(403, "AGENT_LIMIT_EXCEEDED");
        let params = &refused.body["error"]["params"];
        assert_eq!(
            (&params["limit"], &params["alias"]),
            (&json!(50), &json!("AGT_008"))
        );
    }
    // A deleted one does not count.
    alice
        .delete(format!("/agents/{}", last.as_str().expect("an id")))
        .await
        .expect(200);
    let tries = (0..6).map(|n| users[n % 2].post("/agents", json!({ "display_name": "another" })));
    assert_eq!(count(&futures_util::future::join_all(tries).await, 201), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_are_listed_page_by_page() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    assert_eq!(
        alice.get("/agents").await.expect(200).body,
        json!({ "data": [], "next_cursor": null })
    );
    let mut made = Vec::new();
    for n in 0..5 {
        made.push(a.agent(&alice, &format!("agent {n}")).await.id);
    }
    let bob = a.user("bob").await;
    let his = a.agent(&bob, "his").await;
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    for size in [2, 2, 1] {
        let page = alice
            .on(&b)
            .get(format!("/agents?limit=2{cursor}"))
            .await
            .expect(200);
        let items = page.body["data"].as_array().expect("a list");
        assert_eq!(items.len(), size);
        seen.extend(
            items
                .iter()
                .map(|item| item["agent_id"].as_str().expect("an id").to_owned()),
        );
        assert_eq!(page.body["next_cursor"].is_null(), size == 1);
        cursor = format!(
            "&cursor={}",
            page.body["next_cursor"].as_str().unwrap_or_default()
        );
    }
    assert_eq!(seen, made);
    assert_eq!(
        alice.get("/agents?limit=5").await.expect(200).body["next_cursor"],
        Value::Null
    );
    // A cursor outlives the agent that it names.
    alice
        .delete(format!("/agents/{}", made[1]))
        .await
        .expect(200);
    let rest = alice
        .get(format!("/agents?cursor={}", made[1]))
        .await
        .expect(200);
    assert_eq!(rest.body["data"].as_array().map(Vec::len), Some(3));
    for query in [
        "limit=0",
        "limit=101",
        "limit=x",
        "cursor=x",
        &format!("cursor={}", his.id),
    ] {
        alice
            .get(format!("/agents?{query}"))
            .await
            .refused(400, "VALIDATION_ERROR");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_large_manifests_ends_early() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let sql = format!(
        "insert into agent (agent_id, owner_user_id, display_name, manifest)
         select gen_random_uuid(), user_id, 'large', '{{\"permission_scopes\":[],\"tools\":[],\"note\":\"' || repeat('x', 130955) || '\"}}'
         from user_account, generate_series(1, 40) n where email = '{}'",
        alice.email
    );
    psql(&a.world.database, &sql).await;
    let first = alice.get("/agents?limit=100").await.expect(200);
    let cursor = first.body["next_cursor"].as_str().expect("more");
    let second = alice
        .get(format!("/agents?limit=100&cursor={cursor}"))
        .await
        .expect(200);
    let ids = [&first, &second]
        .map(|page| page.body["data"].as_array().expect("a list").clone())
        .concat();
    let ids: HashSet<&str> = ids
        .iter()
        .filter_map(|item| item["agent_id"].as_str())
        .collect();
    assert_eq!((ids.len(), &second.body["next_cursor"]), (40, &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_shown_whole_to_its_owner_and_as_a_card_to_its_users() {
    let [a, b] = nodes().await;
    let [alice, bob, eve] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("eve").await,
    ];
    let manifest =
        json!({ "tools": [], "permission_scopes": [{ "scope": "a:b", "sensitivity": "low" }] });
    let body = json!({ "display_name": "helper", "description": "helps", "manifest": manifest });
    let made = alice.post("/agents", body).await.expect(201);
    let id = made.data()["agent_id"].as_str().expect("an id").to_owned();
    let agent = alice.with_token(made.data()["token"].as_str().expect("a token"));
    let path = format!("/agents/{id}");

    let full = alice.on(&b).get(&path).await.expect(200);
    let data = full.data();
    let text = manifest.to_string();
    assert_eq!(
        *data,
        json!({
            "agent_id": id, "owner_user_id": alice.id, "display_name": "helper", "description": "helps",
            "state": "registered", "delivery_mode": "pull", "manifest": manifest, "manifest_version": 1,
            "manifest_size_bytes": text.len(), "key_id": null,
            "token": { "created_at": data["token"]["created_at"], "last_used_at": null, "grace_until": null },
            "connections": [], "inbox": { "head_seq": 0, "acked_seq": 0, "lag": 0 }, "unreachable_since": null,
            "created_at": made.data()["created_at"],
        })
    );
    assert!(data["token"]["created_at"].is_string());

    for stranger in [&bob, &eve] {
        stranger
            .get(&path)
            .await
            .refused(404, "AGENT_NOT_REGISTERED");
    }
    let opened = bob
        .post("/conversations", json!({ "type": "agent", "agent_id": id }))
        .await
        .expect(201);
    let conversation = opened.data()["conversation_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    bob.say(&conversation, "hello").await.expect(201);
    let card = bob.on(&b).get(&path).await.expect(200);
    let mut names: Vec<&String> = card.data().as_object().expect("an object").keys().collect();
    names.sort();
    let shown = [
        "agent_id",
        "created_at",
        "description",
        "display_name",
        "key_id",
        "manifest",
        "manifest_version",
        "state",
    ];
    assert_eq!(names, shown);
    eve.get(&path).await.refused(404, "AGENT_NOT_REGISTERED");

    // To itself it is whole, too; and by now it has events, a connection, and has used its token.
    let made = Agent {
        caller: agent.clone(),
        id: id.clone(),
        token: made.data()["token"].as_str().expect("a token").to_owned(),
    };
    let socket = made.on(&b).connect().await;
    let seen = agent.get(&path).await.expect(200);
    let connection = &seen.data()["connections"][0];
    assert_eq!(
        (&connection["connection_id"], &connection["kind"]),
        (&socket.ready["connection_id"], &json!("websocket"))
    );
    assert!(connection["connected_at"].is_string());
    let listed = alice.get("/agents").await.expect(200);
    assert_eq!(
        listed.body["data"][0]["connections"],
        seen.data()["connections"]
    );
    assert_eq!(
        seen.data()["inbox"],
        json!({ "head_seq": 3, "acked_seq": 0, "lag": 3 })
    );
    for _ in 0..100 {
        if alice.get(&path).await.data()["token"]["last_used_at"].is_string() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the use of a token was never written");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_agent_is_gone_and_its_conversations_stay() {
    let [a, b] = nodes().await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let agent = a.agent(&alice, "helper").await;
    let conversation = bob.talk_to(&agent).await;
    agent.say(&conversation, "hello").await.expect(201);
    let socket = agent.on(&b).connect().await;
    let (mut hers, mut his) = (alice.on(&b).connect().await, bob.on(&b).connect().await);
    let made = bob
        .post("/groups", json!({ "member_ids": [] }))
        .await
        .expect(201);
    let group = made.data()["conversation_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let places = format!("/groups/{group}/agent-instances");
    bob.post(&places, json!({ "agent_id": agent.id }))
        .await
        .expect(201);
    let path = format!("/agents/{}", agent.id);
    bob.delete(&path).await.refused(404, "AGENT_NOT_REGISTERED");

    let gone = alice.delete(&path).await.expect(200);
    assert_eq!(gone.data()["agent_id"], agent.id);
    assert!(gone.data()["deleted_at"].is_string());
    assert_eq!(gone.data()["connections_closed"], 1);
    for node in [&a, &b] {
        agent
            .on(node)
            .say(&conversation, "x")
            .await
            .refused(401, "AGENT_TOKEN_INVALID");
        agent
            .on(node)
            .poll("")
            .await
            .refused(401, "AGENT_TOKEN_INVALID");
        alice
            .on(node)
            .get(&path)
            .await
            .refused(404, "AGENT_NOT_REGISTERED");
    }
    let told = socket.expect_close(4403).await;
    assert_eq!(told.last().expect("a farewell")["reason"], "token_revoked");
    let event = hers.event("agent.state_changed").await;
    assert_eq!(
        (&event["data"]["state"], &event["data"]["previous_state"]),
        (&json!("deleted"), &json!("registered"))
    );
    let end = |way: &str| format!("{path}{way}");
    alice
        .delete(&path)
        .await
        .refused(404, "AGENT_NOT_REGISTERED");
    alice
        .delete(end("/token"))
        .await
        .refused(404, "AGENT_NOT_REGISTERED");
    let again = alice
        .post(end("/token/regenerate"), json!({ "emergency": true }))
        .await;
    again.refused(404, "AGENT_NOT_REGISTERED");
    let eve = a.user("eve").await;
    let open = json!({ "type": "agent", "agent_id": agent.id });
    eve.post("/conversations", open)
        .await
        .refused(404, "AGENT_NOT_REGISTERED");
    // Its ties to others end, though nobody waited for that.
    let event = his.event("relation.revoked").await;
    let data = &event["data"];
    assert_eq!(
        (&data["agent_id"], &data["state"]),
        (&json!(agent.id), &json!("revoked"))
    );
    assert!(data["purge_at"].is_string());
    let event = his.event("member.removed").await;
    let data = &event["data"];
    assert_eq!(
        (&data["conversation_id"], &data["by"]),
        (&json!(group), &json!(alice.id))
    );
    assert_eq!(
        (
            &data["member"]["principal_id"],
            &data["member"]["display_name"]
        ),
        // Its own words went with it.
        (&json!(agent.id), &json!("Deleted agent"))
    );
    let left = bob.get(format!("/conversations/{group}")).await.expect(200);
    assert_eq!(
        (
            &left.data()["member_count"],
            &left.data()["rotation_required"]
        ),
        (&json!(1), &json!(true))
    );
    let ended = bob.get("/relations").await.expect(200);
    assert_eq!(ended.body["data"][0]["state"], "revoked");
    // The messages stay, and the user may still write there.
    bob.say(&conversation, "are you there?").await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relation_that_ends_by_itself_meanwhile_does_not_keep_the_others() {
    let [a] = nodes().await;
    let [alice, bob, carol] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("carol").await,
    ];
    let agent = a.agent(&alice, "helper").await;
    let first = bob.talk_to(&agent).await;
    let second = carol.talk_to(&agent).await;
    let mut carol_socket = carol.on(&a).connect().await;
    // As its user would end it, and not committed yet.
    let first: uuid::Uuid = first.parse::<ulid::Ulid>().expect("a ULID").into();
    let mut client = connect(&a.world.database).await;
    let tx = client.transaction().await.expect("begun");
    let sql = "update conversation set last_seq = last_seq where conversation_id = $1";
    tx.execute(sql, &[&first]).await.expect("locked");
    let sql = "update relation set state = 'revoked', revoked_at = app_now() where relation_id in (
                   select relation_id from member where conversation_id = $1)";
    assert_eq!(tx.execute(sql, &[&first]).await.expect("ended"), 1);
    alice
        .delete(format!("/agents/{}", agent.id))
        .await
        .expect(200);
    blocked(&tx, 1).await;
    tx.commit().await.expect("committed");
    assert_eq!(
        carol_socket.event("relation.revoked").await["data"]["agent_id"],
        agent.id
    );
    carol.say(&second, "are you there?").await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_token_spends_nobodys_budget() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    agent
        .say(&conversation, "known to the node")
        .await
        .expect(201);
    alice
        .delete(format!("/agents/{}/token", agent.id))
        .await
        .expect(200);
    // Far more than the budget of five a second; every one is told that its token is dead, none
    // that it is too fast.
    for _ in 0..20 {
        agent
            .say(&conversation, "x")
            .await
            .refused(401, "AGENT_TOKEN_INVALID");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sets_how_many_agents_a_user_has() {
    let [a, b] = nodes_with(&[("AGENTS_PER_USER", "5")]).await;
    let alice = a.user("alice").await;
    let users = [alice.on(&a), alice.on(&b)];
    let tries = (0..12).map(|n| users[n % 2].post("/agents", json!({ "display_name": "agent" })));
    let answers = futures_util::future::join_all(tries).await;
    assert_eq!((count(&answers, 201), count(&answers, 403)), (5, 7));
}
