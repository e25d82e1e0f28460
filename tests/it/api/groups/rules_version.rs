//! Every change that a send must not miss raises the version of the conversation's rules.

use serde_json::json;

use crate::support::{Answer, connect, nodes_with, psql};

use super::{RAISED_LIMITS, add, remove};

/// At commit, each changed member, relation and encryption must come with a raised version.
const CHECKS: &str = "
    create table raised (conversation_id uuid, tx xid8);
    grant insert, select on raised to public;
    create function note_raise() returns trigger language plpgsql as $$ begin
        if tg_op = 'INSERT' or new.rules_version > old.rules_version then
            insert into raised values (new.conversation_id, pg_current_xact_id());
        end if;
        return null;
    end $$;
    create trigger note_raise after insert or update on conversation for each row execute function note_raise();
    create function expect_raise() returns trigger language plpgsql as $$
    declare
        changed uuid[];
    begin
        changed := case tg_table_name
            when 'relation' then array(select conversation_id from member where relation_id = (to_json(new) ->> 'relation_id')::uuid)
            else array[(to_json(coalesce(new, old)) ->> 'conversation_id')::uuid] end;
        if exists (select unnest(changed) except select conversation_id from raised where tx = pg_current_xact_id()) then
            raise exception 'the version of the rules did not rise';
        end if;
        return null;
    end $$;
    create constraint trigger expect_raise
        after insert or delete or update of role, relation_id, visibility, from_seq, all_from_seq on member
        deferrable initially deferred for each row execute function expect_raise();
    create constraint trigger expect_raise after update of encryption on conversation
        deferrable initially deferred for each row when (old.encryption <> new.encryption) execute function expect_raise();
    create constraint trigger expect_raise after update of state on relation
        deferrable initially deferred for each row when (old.state <> new.state) execute function expect_raise();";

#[tokio::test(flavor = "multi_thread")]
async fn every_change_of_the_rules_raises_their_version_and_no_message_does() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    psql(&a.world.database, CHECKS).await;
    let [alice, bob, carol] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("carol").await,
    ];
    let agent = a.agent(&alice, "helper").await;
    let pair = alice.talk_to(&agent).await;
    let group = alice.group_with(&[&bob]).await;
    let versions = async || -> i64 {
        let sql = "select sum(rules_version)::int8 from conversation";
        let client = connect(&a.world.database).await;
        client.query_one(sql, &[]).await.expect("a sum").get(0)
    };
    let mut last = versions().await;
    let mut rises = async |what: &str, answer: Answer| {
        assert!(answer.status < 300, "{what}: {answer:?}");
        let now = versions().await;
        assert!(now > last, "{what}");
        last = now;
    };
    rises("a member", add(&alice, &group, &[&carol.id]).await).await;
    let role = format!("/groups/{group}/members/{}", bob.id);
    rises(
        "a role",
        alice.patch(&role, json!({ "role": "admin" })).await,
    )
    .await;
    let instances = format!("/groups/{group}/agent-instances");
    for visibility in ["addressed", "all"] {
        let body = json!({ "agent_id": agent.id, "visibility": visibility });
        rises(visibility, alice.post(&instances, body).await).await;
    }
    let relations = alice.get("/relations").await.expect(200);
    let relation = relations.body["data"][0]["relation_id"]
        .as_str()
        .expect("an id");
    let end = alice.delete(format!("/relations/{relation}")).await;
    rises("the end of a relation", end).await;
    let open = json!({ "type": "agent", "agent_id": agent.id });
    rises("a new relation", alice.post("/conversations", open).await).await;
    let body = json!({ "agent_id": agent.id, "visibility": "all" });
    rises("the agent's return", alice.post(&instances, body).await).await;
    let removed = remove(&bob, &group, &carol.id).await;
    rises("a removal", removed).await;
    for conversation in [&pair, &group] {
        let before = versions().await;
        alice.say(conversation, "hello").await.expect(201);
        assert_eq!(versions().await, before, "a message");
    }
    let path = format!("/conversations/{group}");
    let required = alice
        .patch(&path, json!({ "encryption": "required" }))
        .await;
    rises("encryption", required).await;
    rises("the owner leaves", remove(&alice, &group, &alice.id).await).await;
    // The checks themselves: a change by hand is refused.
    connect(&a.world.database)
        .await
        .batch_execute("update member set role = 'member'")
        .await
        .expect_err("the version did not rise");
}
