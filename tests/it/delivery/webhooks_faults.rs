//! Webhooks beside faults: killed workers, lost wake-ups, hanging receivers; and the log's
//! partitions.

use std::time::{Duration, Instant};

use serde_json::json;

use super::webhooks::{BUSY, agent_with, deliveries};
use crate::support::{ProcessNode, Receiver, Reply, World, connect, nodes, nodes_with, psql};

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_workers_delivery_is_made_again_with_its_id() {
    let [a] = nodes_with(&[BUSY, ("WEBHOOK_WORKER", "false")]).await;
    let mut worker = ProcessNode::start_worker(&a, &[]).await;
    let receiver = Receiver::start().await;
    let (alice, agent) = agent_with(&a, &receiver.url).await;
    let conversation = alice.talk_to(&agent).await;
    receiver.receives(2).await;
    receiver.behave(|_| Reply::status(200).after(Duration::from_secs(9)));
    alice.say(&conversation, "one").await.expect(201);
    receiver.receives(3).await;
    worker.kill();
    receiver.answer(200);
    let _other = a.world.node_with(&[("WEBHOOK_WORKER", "true")]).await;
    a.advance(Duration::from_secs(31)).await;
    let calls = receiver.receives(4).await;
    assert_eq!(
        (calls[3].delivery(), calls[3].attempt()),
        (calls[2].delivery(), 2)
    );
    for _ in 0..100 {
        let log = deliveries(&alice, &agent, "limit=1").await;
        if log[0]["status"] == "success" {
            assert_eq!(log[0]["attempts"][0]["error"], "interrupted");
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("the delivery does not end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_wake_up_is_found_by_the_sweep() {
    let [a, _b] = nodes().await;
    let receiver = Receiver::start().await;
    let (alice, agent) = agent_with(&a, &receiver.url).await;
    let conversation = alice.talk_to(&agent).await;
    receiver.receives(2).await;
    // A closed turn ignores the wake-up.
    let set = |open: bool| format!("update webhook_turn set is_open = {open}, due_at = null");
    tokio::time::sleep(Duration::from_millis(200)).await;
    psql(&a.world.database, &set(false)).await;
    alice.say(&conversation, "one").await.expect(201);
    tokio::time::sleep(Duration::from_millis(200)).await;
    psql(&a.world.database, &set(true)).await;
    // The sweep runs every five seconds.
    receiver.receives(3).await;
    assert_eq!(deliveries(&alice, &agent, "").await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_receiver_delays_nobody_else() {
    let [a] = nodes_with(&[BUSY, ("EGRESS_MAX_IN_FLIGHT", "8")]).await;
    let hanging = Receiver::start().await;
    let receiver = Receiver::start().await;
    let (alice, agent) = agent_with(&a, &receiver.url).await;
    let other = a.agent(&alice, "other").await;
    alice
        .put(other.webhook(""), json!({ "url": hanging.url }))
        .await
        .expect(200);
    hanging.behave(|_| Reply::status(200).after(Duration::from_secs(60)));
    let busy = alice.talk_to(&other).await;
    hanging.receives(1).await;
    let conversation = alice.talk_to(&agent).await;
    receiver.receives(2).await;
    for n in 0..20 {
        alice.say(&busy, "x").await.expect(201);
        let started = Instant::now();
        alice.say(&conversation, "y").await.expect(201);
        receiver.receives(3 + n).await;
        assert!(
            started.elapsed() < Duration::from_secs(2),
            "{:?}",
            started.elapsed()
        );
    }
    let calls = hanging.events().len();
    assert!(calls <= 3, "{calls}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_has_a_partition_per_day_and_forgets_after_thirty() {
    let world = World::new(&[]).await;
    let a = world.node().await;
    let receiver = Receiver::start().await;
    let (alice, agent) = agent_with(&a, &receiver.url).await;
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
    // A hundred thousand deliveries of today, one in a hundred failed.
    let fill = "insert into webhook_delivery (agent_id, delivery_id, seq, event, status)
        select agent_id, (left(replace(first_uuid_of((app_now() at time zone 'utc')::date)::text, '-', ''), 12)
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
