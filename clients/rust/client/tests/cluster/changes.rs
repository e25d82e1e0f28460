//! Edits, deletions, reactions, replies and captions, of people and of agents, on two nodes.

use std::sync::Arc;

use blindpipe_client::{
    Context, Error, FileDetails, NewFile,
    client::{Conversation, TimelineItem, TimelineState, timeline},
};
use parking_lot::Mutex;

use crate::support::{cluster, direct, pair, scene, until};

async fn shown(conversation: &Conversation) -> Vec<TimelineItem> {
    let page = conversation.history_page(None).await.expect("a page");
    timeline(&page.messages, &page.refs)
}

fn text(item: &TimelineItem) -> &str {
    let text = item.content.as_ref().and_then(|it| it.get("text"));
    text.and_then(serde_json::Value::as_str).unwrap_or_default()
}

fn emojis(item: &TimelineItem) -> Vec<&str> {
    item.reactions.iter().map(|it| it.emoji.as_str()).collect()
}

#[tokio::test]
async fn people_change_their_messages() {
    let cluster = cluster().await;
    let (ada, bob) = pair(&cluster).await;
    let own = direct(&ada, &bob).await;
    let theirs = bob.client.conversation(own.id());
    for text in ["first", "second", "third"] {
        own.send(text).await.expect("sent");
    }
    let seen = shown(&theirs).await;
    let (first, second) = (&seen[0].received, &seen[1].received);
    for (emoji, remove) in [("👍", false), ("🎉", false), ("🎉", true)] {
        theirs.react(first, emoji, remove).await.expect("sent");
    }
    theirs.reply(second, "an answer").await.expect("sent");
    let refused = theirs.edit(first, "not mine").await;
    assert!(matches!(refused, Err(Error::Usage(_))), "{refused:?}");
    let mine = shown(&own).await;
    for text in ["2nd", "zweite"] {
        own.edit(&mine[1].received, text).await.expect("sent");
    }
    for _ in 0..2 {
        own.delete(&mine[2].received).await.expect("deleted");
    }
    for side in [&own, &theirs] {
        let items = shown(side).await;
        let [one, two, three, answer] = items.as_slice() else {
            panic!("{items:?}")
        };
        assert_eq!(emojis(one), ["👍"]);
        assert_eq!((text(two), two.edits), ("zweite", 2));
        assert_eq!(three.state, TimelineState::Deleted);
        assert!(three.received.message.payload.is_none());
        let answered = answer.received.message.in_reply_to;
        assert_eq!(answered, Some(two.received.message.message_id));
    }
}

#[tokio::test]
async fn a_file_has_a_caption() {
    let cluster = cluster().await;
    let (ada, bob) = pair(&cluster).await;
    let own = direct(&ada, &bob).await;
    let file = NewFile {
        name: "map.png".to_owned(),
        content_type: "image/png".to_owned(),
        bytes: vec![7; 300_000],
    };
    let details = FileDetails {
        caption: Some("the way".to_owned()),
        ..FileDetails::default()
    };
    own.send_file_with(file, details).await.expect("sent");
    let theirs = bob.client.conversation(own.id());
    let items = shown(&theirs).await;
    let content = items[0].content.as_ref().expect("it opens");
    assert_eq!(content["caption"], "the way");
    let bytes = theirs.download(content).await.expect("the bytes");
    assert_eq!(bytes, vec![7; 300_000]);
}

#[tokio::test]
async fn agents_change_their_messages_and_see_those_of_others() {
    let scene = scene("editor").await;
    let heard = Arc::<Mutex<Vec<String>>>::default();
    let (hears, sees) = (heard.clone(), heard.clone());
    let editor = scene
        .builder()
        .on_message(move |ctx: Context| {
            hears.lock().push(ctx.text().to_owned());
            async move {
                ctx.react("👀", false).await?;
                let draft = ctx.reply("a draft").await?;
                let mistake = ctx.reply("a mistake").await?;
                ctx.edit(&draft, "done").await?;
                ctx.delete(&mistake).await
            }
        })
        .on("reaction", move |ctx: Context| {
            sees.lock().push(ctx.content()["emoji"].to_string());
            async { Ok(()) }
        });
    let mut talk = scene.talk(editor).await;
    talk.conversation.send("please").await.expect("sent");
    let draft = talk.answer().await;
    let reacted = talk.conversation.react(&draft, "❤️", false).await;
    reacted.expect("sent");
    until(|| heard.lock().iter().any(|it| it.contains("❤️"))).await;
    talk.agent.stop().await;
    assert_eq!(heard.lock().len(), 2, "{heard:?}");
    let items = shown(&talk.conversation).await;
    let [asked, draft, mistake] = items.as_slice() else {
        panic!("{items:?}")
    };
    assert_eq!(emojis(asked), ["👀"]);
    assert_eq!((text(draft), draft.edits), ("done", 1));
    assert_eq!(mistake.state, TimelineState::Deleted);
}
