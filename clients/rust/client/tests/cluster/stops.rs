//! A person stops an agent, and steers it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use blindpipe_client::{
    Context, Error,
    agent::{AgentBuilder, BusyPolicy},
    client::Conversation,
};
use parking_lot::Mutex;

use crate::support::{Watch, receiving, scene, texts, until, watch};

/// The runs of a handler that works until it is stopped, and the stops that were told.
#[derive(Clone, Default)]
struct Busy {
    begun: Arc<Mutex<Vec<String>>>,
    stops: Arc<Mutex<u32>>,
}

impl Busy {
    fn agent(&self, builder: AgentBuilder) -> AgentBuilder {
        let (begins, stops) = (self.begun.clone(), self.stops.clone());
        builder
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
                *stops.lock() += 1;
                async { Ok(()) }
            })
    }

    async fn is_stopped(&self, conversation: &Conversation, events: &mut Watch) {
        conversation.send("slow").await.expect("sent");
        until(|| !self.begun.lock().is_empty()).await;
        let asked = Instant::now();
        assert_eq!(conversation.stop(None, None).await.expect("asked"), 1);
        let stopped = events.answer(conversation).await;
        assert_eq!(stopped.text(), "I stop");
        assert!(asked.elapsed() < Duration::from_secs(1));
        until(|| *self.stops.lock() > 0).await;
        // It is not handled again, and what comes after is.
        assert_eq!(events.ask(conversation, "quick").await, "yes");
        assert_eq!(*self.begun.lock(), ["slow", "quick"]);
        let wanted = ["slow", "I stop", "quick", "yes"];
        assert_eq!(texts(conversation).await, wanted);
        assert_eq!(*self.stops.lock(), 1);
    }
}

#[tokio::test]
async fn a_stop_reaches_a_busy_handler_within_a_second() {
    let (scene, busy) = (scene("busy").await, Busy::default());
    let mut talk = scene.talk(busy.agent(scene.builder())).await;
    busy.is_stopped(&talk.conversation, &mut talk.events).await;
    talk.agent.stop().await;
}

#[tokio::test]
async fn a_stop_reaches_a_busy_webhook_within_a_second() {
    let (scene, busy) = (scene("busy-webhook").await, Busy::default());
    let agent = busy.agent(scene.builder()).build();
    agent.check().await.expect("a key");
    let _receiving = receiving(&agent).await;
    let conversation = scene.conversation().await;
    let mut events = watch(&scene.ada).await;
    busy.is_stopped(&conversation, &mut events).await;
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
