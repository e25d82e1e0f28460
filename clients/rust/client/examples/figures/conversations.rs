//! The start of an agent whose store has 100,000 conversations with as many people, and a change of it.

use std::{env, fs, process, time::Instant};

use blindpipe_client::{
    Entries, Error, FileStore, Handled, Result, Store,
    e2ee::{
        Principal, PrivateKeys, Secret,
        room::{Marks, Visibility},
        trust::{DirectoryKey, Policy, Trust},
    },
    protocol::ids::ConversationId,
    testing::DevCluster,
};

use crate::{
    backlog::{memory, reset_peak},
    report, scaled,
};

const CONVERSATIONS: usize = 100_000;
/// Conversations that are filled in at once, so that the filling leaves no memory behind.
const PART: usize = 1_000;
const CHANGES: u32 = 100;
/// Unix milliseconds of the year 2106: nothing is too old.
const LATER: u64 = 4_294_967_295_000;

pub async fn measure(cluster: &DevCluster) -> Result<()> {
    let owner = cluster.user("owner").await?;
    let agent = cluster.agent("popular", &owner.client, None).await?;
    cluster.builder(&agent, 0)?.build().check().await?;
    let folder = env::temp_dir().join(format!("blindpipe-figures-{}", process::id()));
    fs::create_dir_all(&folder).map_err(Error::Store)?;
    let store = FileStore::new(folder.join("pins"));
    let me = Principal::Agent(agent.id.0.into_bytes());
    let count = scaled(CONVERSATIONS);
    for first in (0..count).step_by(PART) {
        fill(&store, me, first..(first + PART).min(count)).map_err(Error::Store)?;
    }
    reset_peak();
    let before = memory("VmRSS");
    let start = Instant::now();
    let started = cluster.builder(&agent, 0)?.store(store.clone()).build();
    started.check().await?;
    let took = start.elapsed();
    let grown = memory("VmHWM").saturating_sub(before);
    let start = Instant::now();
    for number in 0..CHANGES {
        let number = number as usize;
        fill(&store, me, number..number + 1).map_err(Error::Store)?;
    }
    let change = start.elapsed() / CHANGES;
    report(&format!(
        "store of {count} conversations: start {took:?}, {} MiB more at most; a change is kept in {change:?}",
        grown / 1024
    ));
    fs::remove_dir_all(folder).map_err(Error::Store)
}

/// For each number a person with a key, a conversation with the agent, and a handled message.
fn fill(store: &FileStore, me: Principal, numbers: std::ops::Range<usize>) -> std::io::Result<()> {
    let keys = PrivateKeys::new(Secret::new([1; 32]), &Secret::new([2; 32]));
    let shown = DirectoryKey {
        device_id: Some("phone".to_owned()),
        public_key: *keys.public().public_key(),
        signing_public_key: *keys.public().signing_public_key(),
        schemes: vec!["bp1".to_owned()],
        introduction: None,
        retired: false,
        retired_at: None,
    };
    let mut trust = Trust::new(me, Policy::Tofu, []);
    let (mut entries, mut handled) = (Entries::default(), Vec::new());
    for number in numbers {
        let id = (number as u128 + 1).to_be_bytes();
        let person = Principal::User(id);
        trust.directory(person, std::slice::from_ref(&shown), 1);
        let members = [(person, Visibility::All), (me, Visibility::All)];
        let marks = Marks {
            epoch: 3,
            time: 1,
            members: Some(members.into()),
            encrypted: true,
            changed: false,
        };
        let conversation_id = ConversationId(uuid::Uuid::from_bytes(id));
        entries.marks.insert(conversation_id, marks.store());
        handled.push(Handled {
            at: LATER,
            conversation_id,
            sender: person,
            client_message_id: id,
        });
    }
    (_, entries.pins) = trust.take_changed();
    store.save_entries(&entries)?;
    store.add_handled(&handled)
}
