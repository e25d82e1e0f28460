//! The log of deliveries: filters, pages, partitions.

use std::time::Duration;

use serde_json::Value;

use super::{deliveries, registered, talking, until_logged};
use crate::support::{Reply, World, connect, nodes};

#[tokio::test(flavor = "multi_thread")]
async fn the_log_has_a_partition_per_day_and_forgets_after_thirty() {
    let world = World::new(&[]).await;
    let a = world.node().await;
    let (alice, agent, receiver) = registered(&a).await;
    alice.talk_to(&agent).await;
    receiver.receives(2).await;
    let client = connect(&world.database).await;
    let partitions = async || {
        let sql = "select count(*) from pg_inherits where inhparent = 'webhook_delivery'::regclass";
        client
            .query_one(sql, &[])
            .await
            .expect("a count")
            .get::<_, i64>(0)
    };
    assert_eq!(partitions().await, 9);
    // With statistics Postgres reads the catalog in another order.
    client.batch_execute("analyze").await.expect("analysed");
    a.advance(Duration::from_secs(20 * 86_400)).await;
    let rotate = "select rotate_webhook_deliveries(30)";
    client.query_one(rotate, &[]).await.expect("rotated");
    assert_eq!(partitions().await, 18);
    a.advance(Duration::from_secs(20 * 86_400)).await;
    client.query_one(rotate, &[]).await.expect("rotated");
    // The first nine days are gone, and so is their log.
    assert_eq!(partitions().await, 18);
    let left: i64 = client
        .query_one("select count(*) from webhook_delivery", &[])
        .await
        .expect("a count")
        .get(0);
    assert_eq!(left, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_the_log_reads_one_index_range_however_long_it_is() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let client = connect(&a.world.database).await;
    // A hundred thousand deliveries in the partitions of nine days, one in a hundred failed.
    let fill = "insert into webhook_delivery (agent_id, delivery_id, seq, event, status)
        select agent_id, (left(replace(first_uuid_of((app_now() at time zone 'utc')::date - 1 + n / 12000)::text, '-', ''), 12)
                || lpad(to_hex(n), 20, '0'))::uuid, n, 'message.created',
            case when n % 100 = 0 then 'exhausted' else 'success' end
        from agent, generate_series(1, 100000) n";
    client.batch_execute(fill).await.expect("filled");
    client
        .batch_execute("analyze webhook_delivery")
        .await
        .expect("analysed");
    for (condition, index) in [("", "_pkey"), ("and status = 'exhausted'", "status")] {
        let sql = format!(
            "explain analyze select * from webhook_delivery
            where agent_id = '{}' and delivery_id < 'ffffffff-ffff-ffff-ffff-ffffffffffff' {condition}
            order by delivery_id desc limit 51",
            agent.id
        );
        let rows = client.query(&sql, &[]).await.expect("a plan");
        let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let plan = plan.join("\n");
        assert!(plan.contains(index), "{plan}");
        for costly in ["Sort", "Seq Scan", "Rows Removed"] {
            assert!(!plan.contains(costly), "{plan}");
        }
    }
    let page = deliveries(&alice, &agent, "status=exhausted&limit=100").await;
    assert_eq!((page.len(), page[0]["seq"].as_i64()), (100, Some(100_000)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_filtered_and_paged() {
    let [a] = nodes().await;
    let (alice, agent, receiver, conversation) = talking(&a).await;
    // The first two events are of different lanes, so their order in the log may vary.
    receiver.behave(|call| Reply::status(if call.seq() == 6 { 410 } else { 200 }));
    for n in 3..7 {
        alice.say(&conversation, "x").await.expect(201);
        receiver.receives(n).await;
    }
    let path = format!("/agents/{}/deliveries", agent.id);
    let list = async |query: &str| {
        let answer = alice.get(format!("{path}?{query}")).await.expect(200);
        let seqs = answer.data().as_array().expect("a list").iter();
        let seqs: Vec<i64> = seqs
            .map(|one| one["seq"].as_i64().expect("a number"))
            .collect();
        (seqs, answer.body["next_cursor"].as_str().map(str::to_owned))
    };
    let ended = |log: &[Value]| log.first().is_some_and(|one| one["seq"] == 6);
    until_logged(&alice, &agent, "status=exhausted", ended).await;
    assert_eq!(list("limit=4").await.0, [6, 5, 4, 3]);
    assert_eq!(list("").await.0.len(), 6);
    assert_eq!(list("status=exhausted").await, (vec![6], None));
    assert_eq!(list("status=failed").await, (vec![], None));
    let (first, cursor) = list("status=success&limit=2").await;
    assert_eq!(first, [5, 4]);
    let cursor = cursor.expect("another page");
    let (rest, end) = list(&format!("status=success&cursor={cursor}")).await;
    assert_eq!((rest.len(), rest[0], end), (3, 3, None));
}
