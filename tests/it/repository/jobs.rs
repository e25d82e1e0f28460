//! The queue of jobs: claims, leases, retries, unique keys. Each job's work is tested with its
//! feature.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use blindpipe::{
    db::{Db, Plans},
    error::{Code, Error},
    ids::UserId,
    jobs::{
        Job, Kind, Upkeep,
        queue::{self, Lease, NewJob},
    },
};
use serde_json::json;

use crate::support::{World, blocked, connect, nodes, nodes_with, serving, ulid};

const ROOM: &[(Kind, i32)] = &[(Kind::Mail, 2), (Kind::EraseAccount, 8)];

fn queue_of(world: &World) -> Db {
    let wait = Duration::from_secs(10);
    Db::new(
        &serving(&world.database).into(),
        "test",
        4,
        Plans::Free,
        wait,
    )
    .expect("a pool")
}

async fn enqueue(db: &Db, jobs: Vec<Job>) {
    let jobs: Vec<NewJob> = jobs
        .into_iter()
        .map(|job| NewJob {
            job,
            delay: Duration::ZERO,
        })
        .collect();
    let client = db.write().await.expect("a connection");
    queue::enqueue(&client, &jobs).await.expect("queued");
}

async fn claim(db: &Db) -> Vec<Lease> {
    let leases = queue::claim(db, ROOM).await.expect("leases");
    leases.into_iter().map(|(lease, _)| lease).collect()
}

fn erasure() -> Job {
    Job::EraseAccount {
        user: UserId(ulid().into()),
    }
}

fn mail() -> Job {
    Job::Mail {
        recipient: "a@example.org".to_owned(),
        scene: "login".to_owned(),
        nonce: ulid().into(),
        locale: None,
    }
}

async fn world() -> (Arc<World>, Db) {
    let world = World::new(&[]).await;
    let db = queue_of(&world);
    (world, db)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_one_worker_s_until_its_lease_ends() {
    let (world, db) = world().await;
    enqueue(&db, vec![erasure()]).await;
    // Of many who ask at once one gets it.
    let leases = futures_util::future::join_all((0..4).map(|_| claim(&db))).await;
    let leases = leases.concat();
    assert_eq!((leases.len(), leases[0].attempts), (1, 1));
    world.advance(queue::LEASE / 2).await;
    assert!(queue::renew(&db, leases[0]).await.expect("renewed"));
    world
        .advance(queue::LEASE / 2 + Duration::from_secs(1))
        .await;
    assert!(claim(&db).await.is_empty());

    world.advance(queue::LEASE).await;
    let second = claim(&db).await;
    assert_eq!((second.len(), second[0].attempts), (1, 2));
    // The worker that lost it settles nothing any more.
    assert!(!queue::renew(&db, leases[0]).await.expect("an answer"));
    queue::finish(&db, leases[0]).await.expect("an answer");
    assert!(queue::renew(&db, second[0]).await.expect("renewed"));
    queue::finish(&db, second[0]).await.expect("finished");
    world.advance(queue::LEASE * 2).await;
    assert!(claim(&db).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_fails_waits_longer_each_time_and_is_given_up_when_told() {
    let (world, db) = world().await;
    let job = erasure();
    enqueue(&db, vec![job.clone()]).await;
    let why = Error::internal(Code::InternalError, "broken");
    for wait in [2, 4, 8] {
        let leases = claim(&db).await;
        queue::retry(&db, leases[0], &why).await.expect("settled");
        world
            .advance(Duration::from_millis(wait * 1000 - 900))
            .await;
        assert!(claim(&db).await.is_empty(), "{wait}");
        world.advance(Duration::from_millis(900)).await;
    }
    // Meanwhile it is there once.
    enqueue(&db, vec![job.clone(), job.clone()]).await;
    let leases = claim(&db).await;
    assert_eq!((leases.len(), leases[0].attempts), (1, 4));
    queue::fail(&db, leases[0], &why).await.expect("settled");
    world.advance(Duration::from_secs(3600)).await;
    assert!(claim(&db).await.is_empty());
    // A job that was given up is kept for a while, and in nobody's way.
    enqueue(&db, vec![job]).await;
    assert_eq!(claim(&db).await.len(), 1);
    let client = connect(&world.database).await;
    let failed = "select last_error from job where failed_at is not null";
    let failed = client.query_one(failed, &[]).await.expect("one");
    assert_eq!(failed.get::<_, &str>(0), "INTERNAL_ERROR (broken)");
    world.advance(Duration::from_secs(8 * 86_400)).await;
    queue::forget(&db).await.expect("forgotten");
    let left = client.query("select 1 from job", &[]).await.expect("rows");
    assert_eq!(left.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_has_room_of_its_own_and_what_expires_is_not_done() {
    let (world, db) = world().await;
    enqueue(&db, vec![mail(), mail(), mail(), erasure()]).await;
    let kinds = |leases: &[Lease], kind| leases.iter().filter(|lease| lease.kind == kind).count();
    let first = claim(&db).await;
    assert_eq!(
        (kinds(&first, Kind::Mail), kinds(&first, Kind::EraseAccount)),
        (2, 1)
    );
    assert_eq!(kinds(&claim(&db).await, Kind::Mail), 1);
    // A code is dead ten minutes later, and so is its mail; an account is erased whenever it may
    // be.
    world.advance(Duration::from_secs(601)).await;
    let late = claim(&db).await;
    assert_eq!(
        (kinds(&late, Kind::Mail), kinds(&late, Kind::EraseAccount)),
        (0, 1)
    );
    queue::forget(&db).await.expect("forgotten");
    let client = connect(&world.database).await;
    let left = client.query("select 1 from job", &[]).await.expect("rows");
    assert_eq!(left.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_cannot_be_read_is_given_up_and_the_next_one_done() {
    let [a, _b] = nodes().await;
    let client = connect(&a.world.database).await;
    let broken = "insert into job (kind, payload) values ('mail', '{\"of_another_build\":1}')";
    client.execute(broken, &[]).await.expect("inserted");
    a.user("alice").await;
    for _ in 0..200 {
        let failed = "select last_error from job where failed_at is not null";
        if let Some(row) = client.query_opt(failed, &[]).await.expect("an answer") {
            assert!(row.get::<_, &str>(0).contains("cannot be read"));
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("it still waits");
}

/// The tables of four kinds of upkeep. No ack and no look at credentials needs them.
const HOLD_UPKEEP: &str =
    "begin; lock table passkey_challenge, code_guard, login_guard, tool_call, upload
    in access exclusive mode";

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_wait_hold_up_no_ack() {
    // Longer than the test's patience.
    let [a] = nodes_with(&[("DATABASE_TIMEOUT_MS", "5000")]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut socket = agent.connect().await;
    alice.say(&conversation, "for the agent").await.expect(201);
    let event = socket.event("message.created").await;

    let (holder, db) = (connect(&a.world.database).await, queue_of(&a.world));
    holder.batch_execute(HOLD_UPKEEP).await.expect("held");
    enqueue(&db, Upkeep::ALL.iter().map(|one| one.job()).collect()).await;
    // As many as the jobs have connections.
    blocked(&holder, 3).await;
    let frame = json!({ "type": "ack", "cursor": event["cursor"] });
    socket.say(frame).await;
    let id: uuid::Uuid = agent.id.parse().expect("a UUID");
    let sql = "select 1 from inbox_reader r join inbox i using (principal_id)
               where principal_id = $1 and acked_seq = head_seq";
    let since = Instant::now();
    while holder.query(sql, &[&id]).await.expect("rows").is_empty() {
        assert!(since.elapsed() < Duration::from_secs(2), "the ack waits");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    holder.batch_execute("rollback").await.expect("let go");
}
