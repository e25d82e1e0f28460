//! Several processes of one agent share its conversations.

use std::{
    collections::{BTreeSet, HashMap},
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use blindpipe_client::{
    Agent, Context, Error, FileStore, PostgresStore, Result, SharedFolder,
    agent::{AgentBuilder, Transport},
    client::Conversation,
    protocol::ids::{AgentId, Principal},
    testing::{DevCluster, TestAgent, TestUser},
};
use futures_util::future::join_all;
use tokio::{
    sync::RwLockWriteGuard,
    time::{sleep, timeout},
};
use tokio_postgres::NoTls;
use uuid::Uuid;

use crate::{
    postgres_store::Database,
    support::{self, PATIENCE, QUIET, Shared, cluster, folder, running, texts},
};

/// The longest time until a frozen process has lost its conversations, and what follows.
const FROZEN_PATIENCE: Duration = Duration::from_secs(120);
const PEOPLE: usize = 4;

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

struct Scene {
    cluster: &'static DevCluster,
    /// Other tests wait for one that kills a node, and it waits for them.
    _others: Others,
    agent: TestAgent,
    /// Kept for their sockets.
    _people: Vec<TestUser>,
    talks: Vec<Conversation>,
    folder: PathBuf,
    children: Vec<Child>,
    sent: usize,
    /// The database of its store; none for a folder.
    store_url: Option<String>,
}

enum Others {
    Run(#[expect(dead_code, reason = "it is held")] Shared),
    Wait(#[expect(dead_code, reason = "it is held")] RwLockWriteGuard<'static, ()>),
}

async fn scene(name: &str) -> Result<Scene> {
    let shared = cluster().await;
    let cluster = shared.cluster;
    scene_in(cluster, Others::Run(shared), name).await
}

async fn scene_in(cluster: &'static DevCluster, others: Others, name: &str) -> Result<Scene> {
    let mut people = Vec::new();
    for n in 0..PEOPLE {
        people.push(cluster.user(&format!("person-{n}")).await?);
    }
    let agent = cluster.agent(name, &people[0].client, None).await?;
    cluster.builder(&agent, 0)?.build().check().await?;
    let mut talks = Vec::new();
    for person in &people {
        talks.push(person.client.open_agent(agent.id).await?);
    }
    let folder = folder().join(format!("shared-{name}-{}", agent.id));
    fs::create_dir_all(&folder).map_err(Error::other)?;
    Ok(Scene {
        cluster,
        _others: others,
        agent,
        _people: people,
        talks,
        folder,
        children: Vec::new(),
        sent: 0,
        store_url: None,
    })
}

impl Scene {
    fn environment(&self, node: usize) -> Result<Vec<(&'static str, String)>> {
        let authority = self.cluster.ca_file()?;
        Ok(vec![
            ("BLINDPIPE_URL", self.cluster.node(node)?.url().to_owned()),
            ("BLINDPIPE_CA", authority.display().to_string()),
            ("BLINDPIPE_AGENT_ID", self.agent.id.to_string()),
            ("BLINDPIPE_TOKEN", self.agent.token.clone()),
            ("BLINDPIPE_KEY", self.agent.key.clone()),
            ("SHARED_FOLDER", self.folder.display().to_string()),
        ])
    }

    /// Starts a process of the agent.
    fn start(&mut self, node: usize) -> Result<()> {
        let program = env::current_exe().map_err(Error::other)?;
        let mut command = Command::new(program);
        command.args(["shared::sharer", "--exact", "--ignored", "--nocapture"]);
        command.envs(self.environment(node)?);
        command.envs(self.store_url.iter().map(|url| ("STORE_URL", url)));
        self.children.push(command.spawn().map_err(Error::other)?);
        Ok(())
    }

    async fn say(&mut self, times: usize) -> Result<()> {
        for _ in 0..times {
            let text = format!("message {}", self.sent);
            let sends = self.talks.iter().map(|talk| talk.send(text.clone()));
            for sent in join_all(sends).await {
                sent?;
            }
            self.sent += 1;
        }
        Ok(())
    }

    /// Waits until all is answered, which takes 10 s after a death.
    async fn until_answered(&self, patience: Duration) {
        let answered = async {
            for talk in &self.talks {
                while answers(talk).await.len() < self.sent {
                    sleep(Duration::from_millis(200)).await;
                }
            }
        };
        timeout(patience, answered).await.expect("all is answered");
    }

    /// Sends until more than one process has answered: the first to connect may answer all that was
    /// sent before the others came.
    async fn until_split(&mut self) -> Result<()> {
        let split = async {
            loop {
                self.say(1).await?;
                self.until_answered(PATIENCE).await;
                let mut answering = BTreeSet::new();
                for talk in &self.talks {
                    let all = answers(talk).await;
                    answering.extend(all.iter().map(|text| by(text).to_owned()));
                }
                if answering.len() > 1 {
                    return Ok(());
                }
                sleep(Duration::from_millis(200)).await;
            }
        };
        timeout(PATIENCE, split).await.expect("a second process")
    }

    /// A process that has the first conversation.
    async fn owner(&self) -> usize {
        let all = answers(&self.talks[0]).await;
        let last = all.last().expect("an answer");
        let owner = self
            .children
            .iter()
            .position(|child| by(last) == child.id().to_string());
        owner.expect("a process")
    }

    fn signal(&self, child: usize, name: &str) {
        let mut kill = Command::new("kill");
        let kill = kill.arg(name).arg(self.children[child].id().to_string());
        assert!(kill.status().expect("kill").success());
    }

    /// Ends a process as an operator does.
    fn stop(&mut self, child: usize) {
        self.signal(child, "-TERM");
        let mut child = self.children.remove(child);
        let ended = child.wait().expect("its end");
        assert!(ended.success(), "an orderly end");
    }

    fn stop_all(&mut self) {
        while !self.children.is_empty() {
            self.stop(0);
        }
    }

    fn kill(&mut self, child: usize) {
        let mut child = self.children.remove(child);
        child.kill().expect("killed");
        child.wait().expect("its end");
    }

    /// The answers of each conversation, which are one to each message, in order.
    async fn ordered_answers(&self) -> Vec<Vec<String>> {
        let sent: Vec<_> = (0..self.sent).map(|n| format!("message {n}")).collect();
        let mut found = Vec::new();
        for talk in &self.talks {
            let all = answers(talk).await;
            let answered = all.iter().filter_map(|text| text.split(',').next());
            assert_eq!(answered.collect::<Vec<_>>(), sent);
            found.push(all);
        }
        found
    }

    /// Each message has one answer, in order, and no conversation was in two processes at once.
    async fn check(&self) {
        let mut answering = BTreeSet::new();
        for all in self.ordered_answers().await {
            answering.extend(all.iter().map(|text| by(text).to_owned()));
        }
        assert!(answering.len() > 1, "one process has answered all");
        let history = fs::read_to_string(self.folder.join("history")).expect("a history");
        for (conversation, turns) in turns_of(&history) {
            for pair in turns.windows(2) {
                let [before, next] = pair else { continue };
                // A turn of a killed process has no end.
                let is_over = before
                    .ends
                    .map_or(before.by != next.by, |end| end <= next.begins);
                assert!(is_over, "{conversation}: {before:?}, {next:?}");
            }
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for child in &mut self.children {
            child.kill().ok();
            child.wait().ok();
        }
        fs::remove_dir_all(&self.folder).ok();
    }
}

#[derive(Debug)]
struct Turn {
    by: u32,
    begins: u128,
    ends: Option<u128>,
}

fn turns_of(history: &str) -> HashMap<&str, Vec<Turn>> {
    let mut found = HashMap::<_, Vec<Turn>>::new();
    for line in history.lines() {
        let parts: Vec<_> = line.split(' ').collect();
        let [at, by, what, conversation] = parts[..] else {
            panic!("{line}");
        };
        let (at, by) = (at.parse().expect("a time"), by.parse().expect("a process"));
        let turns = found.entry(conversation).or_default();
        if what == "begins" {
            let (begins, ends) = (at, None);
            turns.push(Turn { by, begins, ends });
        } else {
            let turn = turns.iter_mut().rev().find(|turn| turn.by == by);
            turn.expect("a begin").ends = Some(at);
        }
    }
    found
}

fn by(answer: &str) -> &str {
    answer.rsplit(' ').next().unwrap_or_default()
}

async fn answers(of: &Conversation) -> Vec<String> {
    let mut all = texts(of).await;
    all.retain(|text| text.contains(", by "));
    all
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
