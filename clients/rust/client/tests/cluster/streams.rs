//! Streams over lost connections, for listeners that come in their middle.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use blindpipe_client::{Clock, Context, client::ClientEvent};
use parking_lot::Mutex;
use tokio::{sync::Semaphore, time::sleep};

use crate::{
    proxy::Proxy,
    support::{Watch, is_by_agent, scene, until, watch},
};

/// A screen's view of a single stream, as events come.
#[derive(Default)]
struct Screen {
    text: String,
    status: Option<String>,
    message: Option<String>,
}

impl Screen {
    /// Shows the next event.
    async fn next(&mut self, events: &mut Watch) {
        match events.next().await {
            ClientEvent::Delta { append, .. } => self.text.push_str(&append),
            ClientEvent::Checkpoint { text, .. } => self.text = text,
            ClientEvent::Status { text, .. } => self.status = Some(text),
            ClientEvent::StreamCancelled { .. } => self.status = None,
            ClientEvent::Message { received, .. } if is_by_agent(&received) => {
                self.message = Some(received.text().to_owned());
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_device_that_comes_in_the_middle_sees_all_also_after_a_lost_connection() {
    let scene = scene("narrator").await;
    let proxy = Arc::new(Proxy::before(&scene.cluster, 1).await);
    let is_losing = Arc::new(AtomicBool::new(false));
    let losing = is_losing.clone();
    proxy.on_sent_frame(move |frame| {
        let is_lost = losing.load(Ordering::Relaxed) && frame["type"] == "stream.delta";
        if is_lost { Vec::new() } else { vec![frame] }
    });
    let (joined, back) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let parts = (proxy.clone(), joined.clone(), back.clone());
    let narrator = proxy.agent(&scene.agent).on_message(move |ctx| {
        let (proxy, joined, back) = parts.clone();
        let is_losing = is_losing.clone();
        async move {
            ctx.status("searching…")?;
            sleep(Duration::from_millis(500)).await;
            let mut out = ctx.stream()?;
            for n in 0..5 {
                out.write(&format!("{n} ")).await;
                out.flush().await;
            }
            ctx.status("reading…")?;
            let _joined = joined.acquire().await;
            is_losing.store(true, Ordering::Relaxed);
            out.write("5 ").await;
            out.flush().await;
            is_losing.store(false, Ordering::Relaxed);
            proxy.cut();
            let _back = back.acquire().await;
            out.end().await
        }
    });
    let mut talk = scene.talk(narrator).await;
    talk.conversation.send("?").await.expect("sent");
    let mut first = Screen::default();
    while first.status.as_deref() != Some("reading…") {
        first.next(&mut talk.events).await;
    }
    assert_eq!(first.text, "0 1 2 3 4 ");

    let (mut late, mut screen) = (watch(&scene.ada).await, Screen::default());
    let live = talk.conversation.streams().await.expect("a list");
    let agents: Vec<_> = live.iter().map(|stream| stream.agent_id).collect();
    assert_eq!(agents, [scene.agent.id]);
    while screen.status.is_none() {
        screen.next(&mut late).await;
    }
    assert_eq!(screen.text, "0 1 2 3 4 ");
    joined.add_permits(1);
    for (screen, events) in [(&mut screen, &mut late), (&mut first, &mut talk.events)] {
        while !screen.text.ends_with("5 ") {
            screen.next(events).await;
        }
        assert_eq!(screen.text, "0 1 2 3 4 5 ");
    }
    back.add_permits(1);
    while screen.message.is_none() {
        screen.next(&mut late).await;
    }
    assert_eq!(screen.message.as_deref(), Some("0 1 2 3 4 5 "));
    talk.agent.stop().await;
}

#[tokio::test]
async fn a_status_without_a_text_ends_with_the_reply() {
    let scene = scene("searcher").await;
    let searcher = scene.builder().on_message(async |ctx| {
        ctx.status("searching…")?;
        sleep(Duration::from_millis(500)).await;
        ctx.reply("found").await
    });
    let mut talk = scene.talk(searcher).await;
    talk.conversation.send("?").await.expect("sent");
    let mut screen = Screen::default();
    while screen.status.is_none() {
        screen.next(&mut talk.events).await;
    }
    assert_eq!(screen.status.as_deref(), Some("searching…"));
    while screen.status.is_some() || screen.message.is_none() {
        screen.next(&mut talk.events).await;
    }
    assert!(
        talk.conversation
            .streams()
            .await
            .expect("a list")
            .is_empty()
    );
    talk.agent.stop().await;
}

/// The frames that a silent agent sends in steps of 20 seconds.
async fn signs(has_text: bool, steps: usize) -> Vec<String> {
    let scene = scene("silent").await;
    let (proxy, clock) = (Proxy::before(&scene.cluster, 1).await, Clock::default());
    let frames = Arc::<Mutex<Vec<String>>>::default();
    let counting = frames.clone();
    proxy.on_sent_frame(move |frame| {
        let kind = frame["type"].as_str().unwrap_or_default();
        let Some(kind) = kind.strip_prefix("stream.") else {
            return vec![frame];
        };
        counting.lock().push(kind.to_owned());
        // The node's clock is not moved, and it takes a checkpoint every few seconds.
        Vec::new()
    });
    let (moving, counted) = (clock.clone(), frames.clone());
    let silent = proxy
        .agent(&scene.agent)
        .clock(clock)
        .on_message(move |ctx: Context| {
            let (clock, frames) = (moving.clone(), counted.clone());
            async move {
                let mut out = ctx.stream()?;
                if has_text {
                    out.write("one").await;
                    out.flush().await;
                } else {
                    out.status("searching…");
                }
                until(|| frames.lock().len() == 2).await;
                for step in 0..steps {
                    clock.advance(Duration::from_secs(19));
                    // A piece of nothing has it look.
                    out.write("").await;
                    sleep(Duration::from_millis(200)).await;
                    assert_eq!(frames.lock().len(), 2 + step, "it is too early: {frames:?}");
                    clock.advance(Duration::from_secs(1));
                    out.write("").await;
                    until(|| frames.lock().len() == 3 + step).await;
                }
                out.cancel(Some("enough"));
                Ok(())
            }
        });
    let talk = scene.talk(silent).await;
    talk.conversation.send("?").await.expect("sent");
    until(|| frames.lock().last().is_some_and(|kind| kind == "cancel")).await;
    talk.agent.stop().await;
    let frames = frames.lock().clone();
    frames[2..frames.len() - 1].to_vec()
}

#[tokio::test]
async fn a_silent_stream_gives_a_sign_every_twenty_seconds() {
    let (spoken, quiet) = tokio::join!(signs(true, 9), signs(false, 2));
    let mut wanted = vec!["keepalive"; 9];
    // The first sign brings the text, and so does one in two minutes.
    (wanted[0], wanted[6]) = ("checkpoint", "checkpoint");
    assert_eq!(spoken, wanted);
    assert_eq!(quiet, ["keepalive"; 2]);
}
