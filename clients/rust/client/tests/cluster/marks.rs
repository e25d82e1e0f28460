//! No text of people and agents is on the server: in no row, log, mail, stored file or Redis.

use std::{
    io::{self, Write},
    process::Command,
};

use blindpipe_client::{
    NewFile, Result,
    client::SendOptions,
    protocol::{groups::Visibility, ids::Principal},
};

use crate::{
    redis::{Redis, holds},
    support::{cluster, folder, running, texts, watch},
};

const MARKS: [&str; 5] = [
    "mark-between-people-7341",
    "mark-of-the-name-1187",
    "mark-of-the-content-6602",
    "mark-for-the-agent-4470",
    "mark-of-the-reply-5518",
];

/// The files that hold a mark: data and log of Postgres, logs of nodes, objects, mails.
fn holders(mark: &str) -> Vec<String> {
    let mut grep = Command::new("grep");
    let grep = grep.args(["-rlaF", mark]).arg(folder());
    let found = grep.output().expect("grep");
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    found.lines().map(str::to_owned).collect()
}

/// Redis holds no mark, in no key, value or buffer. A planted one shows that the search finds it.
fn redis_holds_no_mark() {
    let planted = "mark-planted-2296";
    let mut redis = Redis::connect();
    redis.call(&["SET", "planted", planted]);
    let (keys, memory) = (redis.everything(), redis.memory());
    redis.call(&["DEL", "planted"]);
    if memory.is_none() {
        let loud = "*** The memory of Redis was not searched: the kernel refuses it.";
        writeln!(io::stderr(), "{loud}").expect("written");
    }
    for place in [Some(keys), memory].into_iter().flatten() {
        assert!(holds(&place, planted), "the search finds what is there");
        for mark in MARKS {
            assert!(!holds(&place, mark), "{mark}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_holds_none_of_what_a_group_and_its_addressed_agent_say() -> Result<()> {
    let cluster = cluster().await;
    let ada = cluster.user("ada").await?;
    let bob = cluster.user("bob").await?;
    let agent = cluster.agent("discreet", &ada.client, None).await?;
    let builder = cluster.builder(&agent, 1)?;
    let discreet = running(builder.on_message(async |ctx| {
        ctx.reply(format!("mark-of-the-reply-5518 to {}", ctx.text()))
            .await
    }))
    .await;
    ada.client.open_agent(agent.id).await?;
    let group = ada
        .client
        .open_group("title-in-clear-9023", vec![bob.client.user_id()?])
        .await?;
    group.add_agent(agent.id, Visibility::Addressed).await?;
    let mut events = watch(&ada).await;
    group.send("mark-between-people-7341").await?;
    let file = NewFile {
        name: "mark-of-the-name-1187".to_owned(),
        content_type: "text/plain".to_owned(),
        bytes: b"mark-of-the-content-6602".repeat(40),
    };
    group.send_file(file).await?;
    let options = SendOptions {
        to: vec![Principal::Agent(agent.id)],
        ..SendOptions::default()
    };
    group.send_with("mark-for-the-agent-4470", options).await?;
    events.answer(&group).await;
    discreet.stop().await;
    let bobs = texts(&bob.client.conversation(group.id())).await;
    assert!(
        bobs.iter()
            .any(|text| text.starts_with("mark-of-the-reply-5518"))
    );
    let looked = tokio::task::spawn_blocking(|| {
        assert!(
            !holders("title-in-clear-9023").is_empty(),
            "the search finds what is there"
        );
        for mark in MARKS {
            assert_eq!(holders(mark), Vec::<String>::new(), "{mark}");
        }
        redis_holds_no_mark();
    });
    looked.await.expect("nothing is found");
    Ok(())
}
