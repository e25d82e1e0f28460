//! A person stops an agent, and steers it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use blindpipe_client::{Context, Error, agent::BusyPolicy};
use parking_lot::Mutex;

use crate::support::{scene, texts, until};

#[tokio::test]
async fn a_stop_reaches_a_busy_handler_within_a_second() {
    let scene = scene("busy").await;
    let (begun, ended) = (
        Arc::<Mutex<Vec<String>>>::default(),
        Arc::<Mutex<u32>>::default(),
    );
    let (begins, ends) = (begun.clone(), ended.clone());
    let busy = scene
        .builder()
        .on_message(move |ctx: Context| {
            begins.lock().push(ctx.text().to_owned());
            async move {
                if ctx.text() == "quick" {
                    return ctx.reply("yes").await;
                }
                ctx.stopped().cancelled().await;
                ctx.reply("I stop").await?;
                Err(Error::Usage("stopped"))
            }
        })
        .on_stop(move |_| {
            *ends.lock() += 1;
            async { Ok(()) }
        });
    let mut talk = scene.talk(busy).await;
    talk.conversation.send("slow").await.expect("sent");
    until(|| !begun.lock().is_empty()).await;
    let asked = Instant::now();
    assert_eq!(talk.conversation.stop(None, None).await.expect("asked"), 1);
    until(|| *ended.lock() > 0).await;
    assert!(asked.elapsed() < Duration::from_secs(1));
    // It is not handled again, and what comes after is.
    talk.answer().await;
    assert_eq!(talk.events.ask(&talk.conversation, "quick").await, "yes");
    assert_eq!(*begun.lock(), ["slow", "quick"]);
    let wanted = ["slow", "I stop", "quick", "yes"];
    assert_eq!(texts(&talk.conversation).await, wanted);
    talk.agent.stop().await;
}

#[tokio::test]
async fn a_handler_takes_what_arrives_meanwhile() {
    let scene = scene("steered").await;
    let begun = Arc::<Mutex<Vec<String>>>::default();
    let begins = begun.clone();
    let steered = scene.builder().on_message(move |ctx: Context| {
        begins.lock().push(ctx.text().to_owned());
        async move {
            let mut taken = vec![ctx.text().to_owned()];
            while ctx.text() == "plan" && taken.len() < 3 {
                let arrived = ctx.steer().await?;
                taken.extend(arrived.iter().map(|it| it.text().to_owned()));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            ctx.reply(taken.join(" and ")).await
        }
    });
    let mut talk = scene.talk(steered).await;
    talk.conversation.send("plan").await.expect("sent");
    until(|| !begun.lock().is_empty()).await;
    talk.conversation.send("in red").await.expect("sent");
    let said = talk.events.ask(&talk.conversation, "with a hat").await;
    assert_eq!(said, "plan and in red and with a hat");
    assert_eq!(talk.events.ask(&talk.conversation, "next").await, "next");
    assert_eq!(*begun.lock(), ["plan", "next"]);
    talk.agent.stop().await;
}

#[tokio::test]
async fn a_newer_message_interrupts() {
    let scene = scene("hasty").await;
    let begun = Arc::<Mutex<Vec<String>>>::default();
    let begins = begun.clone();
    let hasty = scene.builder().busy_policy(BusyPolicy::Interrupt);
    let hasty = hasty.on_message(move |ctx: Context| {
        begins.lock().push(ctx.text().to_owned());
        async move {
            if ctx.text() == "first" {
                ctx.stopped().cancelled().await;
                return Ok(());
            }
            ctx.reply(ctx.text()).await.map(drop)
        }
    });
    let mut talk = scene.talk(hasty).await;
    talk.conversation.send("first").await.expect("sent");
    until(|| !begun.lock().is_empty()).await;
    assert_eq!(
        talk.events.ask(&talk.conversation, "second").await,
        "second"
    );
    assert_eq!(*begun.lock(), ["first", "second"]);
    talk.agent.stop().await;
}
