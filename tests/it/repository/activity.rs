//! The list of conversations: its order is exact, and a page costs the same beside many.

use blindpipe::db::migrate;
use tokio_postgres::Client;
use uuid::Uuid;

use super::refilled::{pages, statement};
use crate::support::{Dice, connect, empty_database};

const STATEMENT: &str = "conversations.show";
/// Members of few and of many conversations.
const FEW: u64 = 100;
const MANY: u64 = 20_000;
/// A page of many may touch so many times the pages of one of few: indexes are a level deeper.
const MAX_GROWTH: f64 = 1.3;

/// A user without anything else.
async fn user(client: &Client) -> Uuid {
    let sql =
        "insert into user_account (user_id, email, display_name, device_locale, password_hash)
        select id, id || '@example.org', 'x', 'en', '' from gen_random_uuid() id returning user_id";
    client.query_one(sql, &[]).await.expect("a user").get(0)
}

/// The id of a moment, in milliseconds from an arbitrary one.
fn id(at_ms: i64) -> Uuid {
    let random = Uuid::from_u128(rand::random());
    let time = u128::from((1_700_000_000_000 + at_ms).unsigned_abs());
    Uuid::from_u128(time << 80 | random.as_u128() >> 48)
}

fn one_of(dice: &mut Dice, len: usize) -> usize {
    usize::try_from(dice.below(len as u64)).expect("an index")
}

async fn begun() -> Client {
    let url = empty_database().await;
    migrate::run_at(&url).await.expect("migrated");
    let client = connect(&url).await;
    let sql = statement(STATEMENT);
    let prepare = format!("set plan_cache_mode = force_generic_plan; prepare show as {sql}");
    client.batch_execute(&prepare).await.expect(STATEMENT);
    client
}

/// All ids of a user's list, read in pages.
async fn walk(client: &Client, user: Uuid, rows: usize) -> Vec<Uuid> {
    let (mut all, mut cursor) = (Vec::new(), "null".to_owned());
    loop {
        let page = client
            .simple_query(&format!("execute show(null, '{user}', {cursor}, {rows})"))
            .await
            .expect(STATEMENT);
        let mut len = 0;
        for message in page {
            if let tokio_postgres::SimpleQueryMessage::Row(row) = message {
                let own = row.get("conversation_id").expect("an id");
                let latest = row.get("last_message_id").unwrap_or(own);
                all.push(own.parse().expect("an id"));
                cursor = format!("'{latest}'");
                len += 1;
            }
        }
        if len < rows {
            return all;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_is_in_the_order_of_activity_whatever_happens_between_two_notes() {
    let client = begun().await;
    let (owner, other) = (user(&client).await, user(&client).await);
    let mut dice = Dice::new();
    let mut now_ms = 0;
    let mut ids: Vec<Uuid> = Vec::new();
    for step in 0..400 {
        // Some steps are within the 60 s of a note, some far beyond, and some clocks are behind.
        now_ms += [1, 900, 20_000, 70_000, 600_000][one_of(&mut dice, 5)];
        let at = id(now_ms - [0, 0, 0, 3_000, 90_000][one_of(&mut dice, 5)]);
        match dice.below(10) {
            0 | 1 => {
                let sql = "with made as (
                        insert into conversation (conversation_id, kind, created_by) values ($1, 'group', $2) returning 1
                    ) insert into member (conversation_id, principal_id, principal_kind, role)
                    select $1, $2, 'user', 'owner' from made";
                client.execute(sql, &[&at, &owner]).await.expect("made");
                ids.push(at);
            }
            2 if !ids.is_empty() => {
                // Somebody comes later, and one who left comes back.
                let place = ids[one_of(&mut dice, ids.len())];
                let gone = "delete from member where conversation_id = $1 and principal_id = $2";
                let come =
                    "insert into member (conversation_id, principal_id, principal_kind, role)
                    values ($1, $2, 'user', 'member')";
                client.execute(gone, &[&place, &other]).await.expect("left");
                client.execute(come, &[&place, &other]).await.expect("came");
            }
            _ if !ids.is_empty() => {
                let place = ids[one_of(&mut dice, ids.len())];
                let sql = "update conversation set last_message_id = $2 where conversation_id = $1";
                client.execute(sql, &[&place, &at]).await.expect("said");
            }
            _ => {}
        }
        if step % 20 != 19 {
            continue;
        }
        for viewer in [owner, other] {
            let sql = "select conversation_id from member join conversation using (conversation_id)
                where principal_id = $1 order by coalesce(last_message_id, conversation_id) desc";
            let expected: Vec<Uuid> = client
                .query(sql, &[&viewer])
                .await
                .expect("an order")
                .iter()
                .map(|row| row.get(0))
                .collect();
            for rows in [1, 3, 50] {
                let seen = walk(&client, viewer, rows).await;
                assert_eq!(seen, expected, "step {step}, pages of {rows}");
            }
        }
    }
    assert!(ids.len() > 40, "{} conversations only", ids.len());
}

/// The last message comes from a node whose clock is minutes behind the one before.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_whose_activity_falls_back_is_where_it_belongs() {
    let client = begun().await;
    let owner = user(&client).await;
    let mut expected = Vec::new();
    for (n, said_ms) in [400_000, 500_000, 600_000].into_iter().enumerate() {
        let place = id(i64::try_from(n).expect("small"));
        let sql = "with made as (
                insert into conversation (conversation_id, kind, created_by) values ($1, 'group', $2) returning 1
            ) insert into member (conversation_id, principal_id, principal_kind, role)
            select $1, $2, 'user', 'owner' from made";
        client.execute(sql, &[&place, &owner]).await.expect("made");
        for at_ms in [if n == 1 { 900_000 } else { said_ms }, said_ms] {
            let sql = "update conversation set last_message_id = $2 where conversation_id = $1";
            client
                .execute(sql, &[&place, &id(at_ms)])
                .await
                .expect("said");
        }
        expected.insert(0, place);
    }
    for rows in [1, 2, 50] {
        assert_eq!(
            walk(&client, owner, rows).await,
            expected,
            "pages of {rows}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_the_list_costs_the_same_beside_many_conversations() {
    let client = begun().await;
    let (few, many) = (user(&client).await, user(&client).await);
    let fill = format!(
        "with made as (
            insert into conversation (conversation_id, kind, created_by, last_message_id)
            select id_at(n * 60), 'group', '{many}', id_at(n * 20) from generate_series(1, {MANY}) n
            returning conversation_id
        ) insert into member (conversation_id, principal_id, principal_kind, role)
        select conversation_id, '{many}', 'user', 'owner' from made"
    )
    .replace("id_at(n * 60)", &at("n * 60"))
    .replace("id_at(n * 20)", &at("n * 20"));
    client.batch_execute(&fill).await.expect("filled");
    let join = format!(
        "insert into member (conversation_id, principal_id, principal_kind, role)
        select conversation_id, '{few}', 'user', 'member'
        from (select conversation_id from conversation order by last_message_id desc limit {FEW}) latest"
    );
    client.batch_execute(&join).await.expect("joined");
    client
        .batch_execute("vacuum (analyze) conversation, member, member_activity")
        .await
        .expect("vacuumed");
    let middle: Uuid = client
        .query_one(
            "select last_message_id from conversation order by 1 offset $1 limit 1",
            &[&(i64::try_from(MANY / 2).expect("a place"))],
        )
        .await
        .expect("a place")
        .get(0);
    let small = pages(&client, &format!("execute show(null, '{few}', null, 50)")).await;
    for (cursor, place) in [
        ("null".to_owned(), "first"),
        (format!("'{middle}'"), "middle"),
    ] {
        let large = pages(
            &client,
            &format!("execute show(null, '{many}', {cursor}, 50)"),
        )
        .await;
        assert!(
            large as f64 <= small as f64 * MAX_GROWTH,
            "the {place} page of {MANY} touches {large} pages, and one of {FEW} {small}"
        );
    }
}

/// SQL for the id of a moment that lies some seconds back.
fn at(seconds: &str) -> String {
    format!(
        "(left(replace(ulid_floor(app_now() - ({seconds}) * interval '1 second')::text, '-', ''), 12)
            || substr(replace(gen_random_uuid()::text, '-', ''), 13))::uuid"
    )
}
