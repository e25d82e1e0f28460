//! Several processes of one agent share its conversations.

use std::{
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use blindpipe_client::{
    Agent, Context, Error, FileStore, PostgresStore, Result, SharedFolder,
    agent::{AgentBuilder, Transport},
    protocol::ids::{AgentId, Principal},
};
use tokio::time::{sleep, timeout};
use tokio_postgres::NoTls;
use uuid::Uuid;

use crate::{
    postgres_store::Database,
    processes::{Others, PEOPLE, scene, scene_in},
    support::{self, PATIENCE, QUIET, folder, running},
};

/// The longest time until a frozen process has lost its conversations, and what follows.
const FROZEN_PATIENCE: Duration = Duration::from_secs(120);

/// Nanoseconds by the clock of the machine, which is the same in all processes.
#[allow(clippy::disallowed_methods, reason = "no test moves it")]
fn now() -> u128 {
    let at = SystemTime::now().duration_since(UNIX_EPOCH);
    at.expect("a time").as_nanos()
}

fn note(folder: &Path, what: &str, ctx: &Context) -> Result<()> {
    let (at, process) = (now(), std::process::id());
    let conversation = ctx.conversation_id()?;
    let line = format!("{at} {process} {what} {conversation}\n");
    let mut options = fs::OpenOptions::new();
    let history = options
        .append(true)
        .create(true)
        .open(folder.join("history"));
    let mut history = history.map_err(Error::other)?;
    history.write_all(line.as_bytes()).map_err(Error::other)
}

/// Writes down what it handles, and answers each message.
fn sharing(builder: AgentBuilder, folder: PathBuf) -> AgentBuilder {
    let builder = match env::var("STORE_URL") {
        Ok(url) => {
            let config = url.parse().expect("an address");
            let store = PostgresStore::new(config, NoTls, "replies");
            builder.shared_store(store.expect("a thread"))
        }
        Err(_) => builder.shared_store(SharedFolder::new(folder.join("state"))),
    };
    builder.shared().on_message(move |ctx: Context| {
        let folder = folder.clone();
        async move {
            note(&folder, "begins", &ctx)?;
            // A handler that waits for something else, so that a kill meets it at work.
            sleep(Duration::from_millis(50)).await;
            ctx.reply(format!("{}, by {}", ctx.text(), std::process::id()))
                .await?;
            note(&folder, "ends", &ctx)
        }
    })
}

#[tokio::test]
#[ignore = "a process that other tests start"]
async fn sharer() -> Result<()> {
    let Some(folder) = env::var_os("SHARED_FOLDER") else {
        return Ok(());
    };
    sharing(Agent::from_env()?, folder.into()).run().await
}

#[tokio::test]
async fn processes_that_die_join_and_leave_answer_each_message_once_and_in_order() -> Result<()> {
    let mut scene = scene("dying").await?;
    scene.start(0)?;
    scene.start(1)?;
    scene.say(3).await?;
    scene.until_answered(PATIENCE).await;
    // A process that has conversations is killed, so others must take them.
    for node in 0..2 {
        scene.say(2).await?;
        let owner = scene.owner().await;
        scene.kill(owner);
        scene.say(3).await?;
        scene.start(node)?;
        scene.say(1).await?;
        scene.until_answered(PATIENCE).await;
    }
    scene.start(1)?;
    scene.say(3).await?;
    scene.stop(0);
    scene.say(2).await?;
    scene.until_answered(PATIENCE).await;
    scene.stop_all();
    scene.check().await;
    Ok(())
}

#[tokio::test]
async fn processes_with_a_store_in_postgres_answer_each_message_once_and_in_order() -> Result<()> {
    let mut scene = scene("tables").await?;
    let database = Database::new(&scene.cluster.postgres_url()?, "agents").await;
    scene.store_url = Some(database.url.clone());
    scene.start(0)?;
    scene.start(1)?;
    scene.say(3).await?;
    scene.until_answered(PATIENCE).await;
    let owner = scene.owner().await;
    scene.kill(owner);
    scene.say(2).await?;
    scene.start(0)?;
    scene.say(1).await?;
    scene.until_answered(PATIENCE).await;
    scene.stop_all();
    scene.check().await;
    assert!(!scene.folder.join("state").exists(), "a folder was used");
    Ok(())
}

#[tokio::test]
#[ignore = "two minutes of deaths"]
async fn of_four_processes_one_dies_each_second_and_each_message_is_answered_once() -> Result<()> {
    const DEATHS: usize = 120;
    let mut scene = scene("doomed").await?;
    for node in [0, 1, 0, 1] {
        scene.start(node)?;
    }
    for death in 0..DEATHS {
        scene.say(2).await?;
        sleep(Duration::from_secs(1)).await;
        // The oldest one: each has four seconds to connect and to work.
        scene.kill(0);
        scene.start(death % 2)?;
    }
    scene.until_answered(FROZEN_PATIENCE).await;
    scene.stop_all();
    scene.check().await;
    Ok(())
}

#[tokio::test]
async fn a_frozen_process_loses_its_conversations_and_answers_nothing_twice() -> Result<()> {
    let mut scene = scene("frozen").await?;
    scene.start(0)?;
    scene.start(1)?;
    scene.say(2).await?;
    scene.until_answered(PATIENCE).await;
    let owner = scene.owner().await;
    scene.say(1).await?;
    scene.signal(owner, "-STOP");
    scene.say(2).await?;
    scene.until_answered(FROZEN_PATIENCE).await;
    scene.signal(owner, "-CONT");
    scene.say(2).await?;
    scene.until_answered(PATIENCE).await;
    scene.stop_all();
    scene.ordered_answers().await;
    Ok(())
}

#[tokio::test]
async fn a_node_that_dies_leaves_each_message_answered_once_and_in_order() -> Result<()> {
    let quiet = QUIET.write().await;
    let cluster = support::the_cluster().await;
    let mut scene = scene_in(cluster, Others::Wait(quiet), "orphans").await?;
    for node in [0, 1, 1] {
        scene.start(node)?;
    }
    scene.until_split().await?;
    for _ in 0..2 {
        scene.say(1).await?;
        // People write to the other node, and the processes of this one come back to it.
        scene.cluster.kill(1)?;
        scene.say(3).await?;
        scene.until_answered(PATIENCE).await;
    }
    scene.stop_all();
    scene.check().await;
    Ok(())
}

#[tokio::test]
async fn each_group_handles_each_message() -> Result<()> {
    let mut scene = scene("groups").await?;
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let audit = scene.cluster.builder(&scene.agent, 0)?;
    // Another group has a store of its own, or it would take each message for handled.
    let audit = audit
        .shared_store(SharedFolder::new(scene.folder.join("audit")))
        .group("audit")
        .on_message(move |ctx| {
            let told = told.clone();
            async move { told.send(ctx.text().to_owned()).map_err(Error::other) }
        });
    let audit = running(audit).await;
    let replies = scene.cluster.builder(&scene.agent, 1)?;
    let replies = running(sharing(replies, scene.folder.clone())).await;
    scene.say(2).await?;
    scene.until_answered(PATIENCE).await;
    for _ in 0..scene.sent * PEOPLE {
        let text = timeout(PATIENCE, heard.recv()).await.expect("a message");
        assert!(text.expect("a message").starts_with("message "));
    }
    audit.stop().await;
    replies.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_tap_reaches_a_key_that_another_process_has_seen() -> Result<()> {
    let scene = support::scene("tapped").await;
    let folder = folder().join(format!("tapped-{}", scene.agent.id));
    let process = |node| -> Result<Agent> {
        let builder = scene.cluster.builder(&scene.agent, node)?;
        Ok(builder.shared_store(SharedFolder::new(&folder)).build())
    };
    let (one, other) = (process(0)?, process(1)?);
    one.check().await?;
    other.check().await?;
    let conversation = scene.conversation().await;
    conversation.send("hello").await?;
    one.send(conversation.id(), "hello", None).await?;
    let ada = Principal::User(scene.ada.client.user_id()?);
    assert!(other.trust(ada, scene.ada.client.key_id()?).await?);
    assert!(
        !other.trust(ada, [7; 16]).await?,
        "a key that nobody has seen"
    );
    fs::remove_dir_all(&folder).map_err(Error::other)
}

#[tokio::test]
async fn a_store_of_one_process_is_refused_and_so_are_polls_and_standbys() -> Result<()> {
    let id = AgentId(Uuid::from_u128(7));
    let builder = || Agent::builder("https://127.0.0.1:1", id, "token").allow_plaintext();
    let store = || SharedFolder::new("never-made");
    for builder in [
        builder().shared(),
        builder().shared().store(FileStore::new("never-made")),
        builder().shared().shared_store(store()).standby(),
        builder()
            .shared()
            .shared_store(store())
            .transport(Transport::Poll),
    ] {
        let refused = builder.build().run_until_stopped().await;
        assert!(matches!(refused, Err(Error::Usage(_))), "{refused:?}");
    }
    Ok(())
}
