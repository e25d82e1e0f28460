//! Search: what it finds, what it never finds, pages, tokens, and its cost at size.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{
    repository::sources::statements,
    support::{Caller, TestNode, User, connect, db, nodes_with, psql, ulid},
};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "user_search=10000/s,conversation_open=10000/s,user_message_send=10000/s",
);

async fn found(user: &Caller, query: &str) -> Vec<Value> {
    let answer = user.get(format!("/search?{query}")).await.expect(200);
    answer.body["data"].as_array().expect("a list").clone()
}

fn titles(hits: &[Value]) -> Vec<(&str, &str)> {
    let each = hits.iter();
    each.map(|hit| {
        (
            hit["kind"].as_str().expect("a kind"),
            hit["title"].as_str().unwrap_or_default(),
        )
    })
    .collect()
}

/// A user whose name is no part of an address.
async fn named(node: &TestNode, name: &str) -> User {
    let user = node.user("user").await;
    let id = uuid::Uuid::from(user.id.parse::<ulid::Ulid>().expect("a ULID"));
    let sql = format!("update user_account set display_name = '{name}' where user_id = '{id}'");
    psql(&node.world.database, &sql).await;
    user
}

async fn group(user: &User, title: &str, members: &[&User]) -> String {
    let members: Vec<&String> = members.iter().map(|user| &user.id).collect();
    let body = json!({ "title": title, "member_ids": members });
    let answer = user.post("/groups", body).await.expect(201);
    answer.data()["conversation_id"]
        .as_str()
        .expect("an id")
        .to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_finds_names_that_the_caller_may_see_and_no_others() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob, stranger] = [
        named(&a, "Alice Gardener").await,
        named(&a, "Bob Gärtner").await,
        named(&a, "Gardener Unknown").await,
    ];
    let owned = a.agent(&alice, "Garden helper").await;
    let related = a.agent(&bob, "Gardenia").await;
    a.agent(&stranger, "Garden spy").await;
    alice.talk_to(&related).await;
    let garden = group(&alice, "The Garden", &[&bob]).await;
    let secret = group(&stranger, "Secret garden", &[]).await;

    let alice = alice.on(&b);
    let hits = found(&alice, "q=gArDeN").await;
    assert_eq!(
        titles(&hits),
        [
            ("conversation", "The Garden"),
            ("conversation", "Gardenia"),
            ("agent", "Gardenia"),
            ("agent", "Garden helper"),
        ]
    );
    assert!(
        hits.iter().all(|hit| hit["match"] == "substring"),
        "{hits:?}"
    );
    assert_eq!(hits[3]["id"], json!(owned.id));
    // A part in the middle, a slip, and a letter that is no ASCII.
    assert_eq!(titles(&found(&alice, "q=ener&types=user").await), []);
    let slip = found(&alice, "q=gardn+helper&types=agent").await;
    assert_eq!(titles(&slip), [("agent", "Garden helper")]);
    assert_eq!(slip[0]["match"], "trigram");
    let bob_hit = found(&alice, "q=%C3%84RTN&types=user").await;
    assert_eq!(titles(&bob_hit), [("user", "Bob Gärtner")]);
    // Wildcards are letters, and no e-mail is searched.
    for query in ["q=%25", "q=_", "q=example.org", "q=x%27--"] {
        assert_eq!(titles(&found(&alice, query).await), [], "{query}");
    }
    let upload = |name: &str, state: &str, of: &str| {
        let [id, conversation] = [ulid(), of.parse().expect("a ULID")].map(uuid::Uuid::from);
        format!(
            "insert into object (object_key, size, sha256) values ('{id}', 1, '');
             insert into upload (upload_id, conversation_id, uploader_id, uploader_kind, credential_id, filename,
                                 content_type, size, state, url_expires_at, object_key)
             values ('{id}', '{conversation}', '{id}', 'user', '{id}', '{name}', 'x', 1, '{state}', app_now(), '{id}');"
        )
    };
    let uploads = [
        upload("garden plan.pdf", "confirmed", &garden),
        upload("garden draft.pdf", "pending", &garden),
        upload("garden spy.pdf", "confirmed", &secret),
    ];
    psql(&a.world.database, &uploads.concat()).await;
    let files = found(&alice, "q=garden&types=file").await;
    assert_eq!(titles(&files), [("file", "garden plan.pdf")]);
    assert_eq!(files[0]["conversation_id"], json!(garden));
    // A file whose object has ended is not found.
    let ended = "update object set delete_at = app_now()";
    psql(&a.world.database, ended).await;
    assert_eq!(titles(&found(&alice, "q=garden&types=file").await), []);
    let relation = alice.get("/relations").await.body["data"][0]["relation_id"].clone();
    let relation = relation.as_str().expect("an id");
    alice
        .delete(format!("/relations/{relation}"))
        .await
        .expect(200);
    let after = found(&alice, "q=denia").await;
    // She is still in the conversation, and so is the agent.
    assert_eq!(
        titles(&after),
        [("conversation", "Gardenia"), ("agent", "Gardenia")]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_go_on_over_the_kinds_and_repeat_nothing() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    for n in 0..5 {
        group(&alice, &format!("page {n}"), &[]).await;
        a.agent(&alice, &format!("page {n}")).await;
    }
    let whole = found(&alice, "q=page").await;
    assert_eq!(whole.len(), 10);
    for limit in [1, 3, 5, 9, 10] {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("/search?q=page&limit={limit}{cursor}");
            let page = alice.get(path).await.expect(200);
            seen.extend(page.body["data"].as_array().expect("a list").clone());
            match page.body["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(seen, whole, "{limit}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_found_by_tokens_and_not_by_words() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob, carol] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("carol").await,
    ];
    let team = group(&alice, "team", &[&bob]).await;
    let token = |word: &str| format!("{word:0>20}");
    let path = format!("/conversations/{team}/messages");
    let say =
        |words: Vec<String>| json!({ "payload": { "type": "encrypted" }, "search_tokens": words });
    let plain = json!({ "payload": { "type": "encrypted" } });
    let mut sent = Vec::new();
    for words in [vec!["red", "green"], vec!["red"], vec!["green", "green"]] {
        let words = words.into_iter().map(token).collect();
        let answer = alice.post(&path, say(words)).await.expect(201);
        sent.push(answer.data()["message_id"].clone());
        alice.post(&path, plain.clone()).await.expect(201);
    }
    // A frame goes the same way.
    let mut socket = alice.on(&b).connect().await;
    let frame = json!({
        "type": "message.send", "ref": 1, "conversation_id": team, "payload": { "type": "encrypted" },
        "search_tokens": [token("blue")],
    });
    socket.say(frame).await;
    let framed = socket.expect("message.sent").await;

    let ids =
        |hits: Vec<Value>| -> Vec<Value> { hits.iter().map(|hit| hit["id"].clone()).collect() };
    let [red, green, blue] = ["red", "green", "blue"].map(token);
    for reader in [&alice, &bob.on(&b)] {
        let of_red = found(reader, &format!("tokens={red}")).await;
        assert_eq!(of_red[0]["conversation_id"], json!(team));
        assert_eq!(ids(of_red), [sent[1].clone(), sent[0].clone()]);
        let both = found(reader, &format!("tokens={red},{green}&types=message")).await;
        assert_eq!(ids(both), [sent[0].clone()]);
        let of_blue = found(reader, &format!("tokens={blue}")).await;
        assert_eq!(ids(of_blue), [framed["data"]["message_id"].clone()]);
    }
    // Neither a stranger nor a later member.
    assert_eq!(found(&carol, &format!("tokens={red}")).await.len(), 0);
    let body = json!({ "user_ids": [carol.id] });
    alice
        .post(format!("/groups/{team}/members"), body)
        .await
        .expect(201);
    assert_eq!(found(&carol, &format!("tokens={red}")).await.len(), 0);
    let first = alice.get(format!("/search?tokens={red}&limit=1")).await;
    let cursor = first.body["next_cursor"].as_str().expect("a cursor");
    let second = found(&alice, &format!("tokens={red}&limit=1&cursor={cursor}")).await;
    assert_eq!(ids(second), [sent[0].clone()]);

    for query in [
        "q=red&types=message",
        "q=red&types=user,message",
        &format!("q=a&tokens={red}"),
    ] {
        alice
            .get(format!("/search?{query}"))
            .await
            .refused(400, "SEARCH_CONTENT_ENCRYPTED");
    }
    for query in [
        "",
        "types=message",
        "q=",
        "tokens=red",
        "q=a&types=x",
        "q=a&cursor=x",
        "q=a&limit=0",
    ] {
        alice
            .get(format!("/search?{query}"))
            .await
            .refused(400, "VALIDATION_ERROR");
    }
    let many: Vec<String> = (0..65).map(|n| token(&n.to_string())).collect();
    for tokens in [json!(many), json!(["red"]), json!("red"), json!([1])] {
        let body = json!({ "payload": { "type": "encrypted" }, "search_tokens": tokens });
        alice
            .post(&path, body)
            .await
            .refused(400, "VALIDATION_ERROR");
    }
    alice
        .post(&path, say(many[..64].to_vec()))
        .await
        .expect(201);
}

/// The end of a relation purges messages, and with them their tokens.
#[tokio::test(flavor = "multi_thread")]
async fn a_purged_message_is_found_no_more() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let path = format!("/conversations/{conversation}/messages");
    let token = "0123456789abcdef";
    let body = json!({ "payload": { "type": "encrypted" }, "search_tokens": [token] });
    alice.post(path, body).await.expect(201);
    let relation = alice.get("/relations").await.body["data"][0]["relation_id"].clone();
    let relation = relation.as_str().expect("an id");
    alice
        .delete(format!("/relations/{relation}"))
        .await
        .expect(200);
    assert_eq!(found(&alice, &format!("tokens={token}")).await.len(), 1);
    a.advance(Duration::from_secs(8 * 86_400)).await;
    let jobs = db(&a.world.database);
    while blindpipe::features::retention::purge_relations(&jobs)
        .await
        .expect("purged")
    {}
    let client = connect(&a.world.database).await;
    let left = client.query("select 1 from message_token", &[]).await;
    assert_eq!(left.expect("rows").len(), 0);
}

/// Others' conversations cost a search nothing. The statements are timed in Postgres, on rows that
/// SQL made.
#[tokio::test(flavor = "multi_thread")]
async fn the_cost_follows_what_the_caller_may_see() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let me: uuid::Uuid = alice.id.parse::<ulid::Ulid>().expect("a ULID").into();
    let grow = |from: usize, to: usize, member: uuid::Uuid| {
        format!(
            "with made as (
                 insert into conversation (conversation_id, kind, created_by, title)
                 select gen_random_uuid(), 'group', '{me}', 'garden ' || n from generate_series({from}, {to}) n
                 returning conversation_id
             ), members as (
                 insert into member (conversation_id, principal_id, principal_kind, role)
                 select conversation_id, '{member}', 'user', 'member' from made
             ), messages as (
                 insert into message (conversation_id, seq, message_id, sender_id, sender_kind, hop, created_at, payload)
                 select conversation_id, 1, gen_random_uuid(), '{member}', 'user', 0, app_now(), '{{}}' from made
             )
             insert into message_token select conversation_id, '0123456789abcdef', 1 from made;
             analyze;"
        )
    };
    let stranger = uuid::Uuid::from(ulid());
    psql(&a.world.database, &grow(1, 200, me)).await;
    let search = async |query: &str| {
        let mut times = Vec::new();
        for _ in 0..15 {
            let started = Instant::now();
            found(&alice, query).await;
            times.push(started.elapsed());
        }
        times.sort_unstable();
        times[7]
    };
    let queries = ["q=garden+1", "tokens=0123456789abcdef"];
    let mut small = Vec::new();
    for query in queries {
        small.push(search(query).await);
    }
    psql(&a.world.database, &grow(201, 40_000, stranger)).await;
    for (query, small) in queries.iter().zip(small) {
        let large = search(query).await;
        // 200 times the rows. A scan of them takes a hundred milliseconds.
        let most = small * 3 + Duration::from_millis(20);
        assert!(large < most, "{query}: {small:?}, then {large:?}");
    }
    // The planner chooses indexes by itself at this size.
    let client = connect(&a.world.database).await;
    for (_, sql) in statements() {
        let Some((name, _)) = sql
            .strip_prefix("-- search.")
            .and_then(|sql| sql.split_once('\n'))
        else {
            continue;
        };
        let prepare = format!("deallocate all; prepare s as {sql}");
        client.batch_execute(&prepare).await.expect(name);
        let values = match name {
            "messages" => format!("'{me}', array['0123456789abcdef'], null, 50"),
            _ => format!("'{me}', 'garden', null, 50, 0.6"),
        };
        let plan = client
            .query(&format!("explain execute s({values})"), &[])
            .await
            .expect(name);
        let plan: Vec<String> = plan.iter().map(|row| row.get("QUERY PLAN")).collect();
        for table in ["conversation", "member", "message_token", "message"] {
            let scan = format!("Seq Scan on {table}");
            let is_scan =
                |line: &String| line.trim_start_matches([' ', '-', '>']).starts_with(&scan);
            assert!(!plan.iter().any(is_scan), "{name}: {}", plan.join("\n"));
        }
    }
}

/// Messages with tokens share a statement as all messages do, and so do their tokens.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_a_batch_are_one_statement() {
    const SENDS: usize = 60;
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let team = group(&alice, "team", &[]).await;
    let count = "create table counted (what text);
        create function count_statement() returns trigger language plpgsql security definer as
            $$ begin insert into counted values (tg_table_name); return null; end $$;
        create trigger counted after insert on message for each statement execute function count_statement();
        create trigger counted after insert on message_token for each statement execute function count_statement()";
    psql(&a.world.database, count).await;
    let path = format!("/conversations/{team}/messages");
    let sends = (0..SENDS).map(|n| {
        let tokens = json!([format!("{n:0>20}"), "0123456789abcdef"]);
        let body = json!({ "payload": { "type": "encrypted" }, "search_tokens": tokens });
        let (alice, path) = (&alice, &path);
        async move { alice.post(path, body).await.expect(201) }
    });
    futures_util::future::join_all(sends).await;
    let client = connect(&a.world.database).await;
    let sql = "select count(*) filter (where what = 'message'), count(*) filter (where what = 'message_token') from counted";
    let row = client.query_one(sql, &[]).await.expect("counts");
    let (batches, of_tokens): (i64, i64) = (row.get(0), row.get(1));
    assert!(
        of_tokens <= batches,
        "{of_tokens} statements for tokens in {batches} batches"
    );
    assert!(batches < 40, "{batches} batches of {SENDS} sends");
    let all = found(&alice, "tokens=0123456789abcdef&limit=100").await;
    assert_eq!(all.len(), SENDS);
    assert_eq!(found(&alice, &format!("tokens={:0>20}", 7)).await.len(), 1);
}
