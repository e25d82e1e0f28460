//! Processes of one agent that share its conversations, and what they answer.

use std::{
    collections::{BTreeSet, HashMap},
    env, fs,
    path::PathBuf,
    process::{Child, Command},
    time::Duration,
};

use blindpipe_client::{
    Error, Result,
    client::Conversation,
    testing::{DevCluster, TestAgent, TestUser},
};
use futures_util::future::join_all;
use tokio::{
    sync::RwLockWriteGuard,
    time::{sleep, timeout},
};

use crate::support::{PATIENCE, Shared, cluster, folder, texts};

pub const PEOPLE: usize = 4;

/// Processes of an agent, and people who write to it.
pub struct Scene {
    pub cluster: &'static DevCluster,
    /// Other tests wait for one that kills a node, and it waits for them.
    _others: Others,
    pub agent: TestAgent,
    /// Kept for their sockets.
    _people: Vec<TestUser>,
    talks: Vec<Conversation>,
    pub folder: PathBuf,
    children: Vec<Child>,
    pub sent: usize,
    /// The database of its store; none for a folder.
    pub store_url: Option<String>,
}

pub enum Others {
    Run(#[expect(dead_code, reason = "it is held")] Shared),
    Wait(#[expect(dead_code, reason = "it is held")] RwLockWriteGuard<'static, ()>),
}

pub async fn scene(name: &str) -> Result<Scene> {
    let shared = cluster().await;
    let cluster = shared.cluster;
    scene_in(cluster, Others::Run(shared), name).await
}

pub async fn scene_in(cluster: &'static DevCluster, others: Others, name: &str) -> Result<Scene> {
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
    pub fn start(&mut self, node: usize) -> Result<()> {
        let program = env::current_exe().map_err(Error::other)?;
        let mut command = Command::new(program);
        command.args(["shared::sharer", "--exact", "--ignored", "--nocapture"]);
        command.envs(self.environment(node)?);
        command.envs(self.store_url.iter().map(|url| ("STORE_URL", url)));
        self.children.push(command.spawn().map_err(Error::other)?);
        Ok(())
    }

    pub async fn say(&mut self, times: usize) -> Result<()> {
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
    pub async fn until_answered(&self, patience: Duration) {
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
    pub async fn until_split(&mut self) -> Result<()> {
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
    pub async fn owner(&self) -> usize {
        let all = answers(&self.talks[0]).await;
        let last = all.last().expect("an answer");
        let owner = self
            .children
            .iter()
            .position(|child| by(last) == child.id().to_string());
        owner.expect("a process")
    }

    pub fn signal(&self, child: usize, name: &str) {
        let mut kill = Command::new("kill");
        let kill = kill.arg(name).arg(self.children[child].id().to_string());
        assert!(kill.status().expect("kill").success());
    }

    /// Ends a process as an operator does.
    pub fn stop(&mut self, child: usize) {
        self.signal(child, "-TERM");
        let mut child = self.children.remove(child);
        let ended = child.wait().expect("its end");
        assert!(ended.success(), "an orderly end");
    }

    pub fn stop_all(&mut self) {
        while !self.children.is_empty() {
            self.stop(0);
        }
    }

    pub fn kill(&mut self, child: usize) {
        let mut child = self.children.remove(child);
        child.kill().expect("killed");
        child.wait().expect("its end");
    }

    /// The answers of each conversation, which are one to each message, in order.
    pub async fn ordered_answers(&self) -> Vec<Vec<String>> {
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
    pub async fn check(&self) {
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
