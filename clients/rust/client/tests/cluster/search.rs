//! Messages that are found by tokens: those of a program, and those of the client.

use std::slice;

use blindpipe_client::{
    Client, Error, client::SendOptions, protocol::search::SearchToken, testing::TestUser,
};

use crate::support::{cluster, direct, pair};

#[tokio::test]
async fn messages_are_found_by_the_tokens_of_a_program() {
    let cluster = cluster().await;
    let (ada, bob) = pair(&cluster).await;
    let conversation = direct(&ada, &bob).await;
    // A program hashes words under a key of its own.
    let tokens = |words: &str| -> Vec<SearchToken> {
        let token = |word: &str| format!("{word:x<16}").parse().expect("a token");
        words.split(' ').map(token).collect()
    };
    let send = async |words: &str| {
        let options = SendOptions {
            search_tokens: tokens(words),
            ..SendOptions::default()
        };
        let sent = conversation.send_with(words, options).await;
        sent.expect("sent").message_id.to_string()
    };
    let (both, red) = (send("red green").await, send("red").await);
    conversation.send("none").await.expect("sent");
    let found = async |words: &str| {
        let page = ada.client.search_tokens(&tokens(words), None).await;
        let (hits, next) = page.expect("a page");
        assert!(next.is_none());
        hits.into_iter().map(|hit| hit.id).collect::<Vec<_>>()
    };
    assert_eq!(found("red").await, [red, both.clone()]);
    assert_eq!(found("green red").await, [both]);
    assert!(found("none").await.is_empty());
}

#[tokio::test]
async fn words_are_found_where_a_person_wants_it() {
    let cluster = cluster().await;
    let builder = Client::builder(cluster.node(0).expect("a node")).searchable();
    let eve = cluster.user_with("eve", builder).await.expect("a person");
    let (bob, carol) = pair(&cluster).await;
    let ids = |person: &TestUser| vec![person.client.user_id().expect("an id")];
    let group = eve.client.open_group("words", ids(&bob)).await;
    let group = group.expect("a group");
    let search = async |reader: &TestUser, text: &str| {
        reader.client.conversation(group.id()).search(text).await
    };
    let found = async |reader: &TestUser, text: &str| {
        let hits = search(reader, text).await.expect("hits");
        hits.into_iter().map(|hit| hit.id).collect::<Vec<_>>()
    };
    let send = async |text: &str| group.send(text).await.expect("sent").message_id.to_string();
    let first = send("Deploy the Stra\u{df}e today").await;
    assert_eq!(
        found(&bob, "STRASSE, deploy!").await,
        slice::from_ref(&first)
    );
    assert!(found(&bob, "deploy tomorrow").await.is_empty());
    // Nothing is told of the words of others.
    let bobs = bob.client.conversation(group.id());
    bobs.send("deploy nothing").await.expect("sent");
    assert_eq!(found(&eve, "deploy").await, slice::from_ref(&first));
    let many: Vec<_> = (0..17).map(|number| number.to_string()).collect();
    for words in ["...", &many.join(" ")] {
        assert!(matches!(search(&eve, words).await, Err(Error::Usage(_))));
    }

    group.add_members(ids(&carol)).await.expect("added");
    let second = send("deploy again").await;
    assert_eq!(found(&bob, "deploy").await, [second.clone(), first]);
    assert_eq!(found(&carol, "deploy").await, [second]);
}
