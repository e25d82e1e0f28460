//! A cursor that is of no use any more: the client is told, and goes on.

use std::sync::Arc;

use blindpipe_client::{Client, Hook};
use parking_lot::Mutex;
use serde_json::Value;

use crate::{
    proxy::Proxy,
    support::{cluster, direct, run, scene, until, watch},
};

/// How often a hook was told that events are missing.
#[derive(Clone, Default)]
struct Resyncs(Arc<Mutex<usize>>);

impl Resyncs {
    fn hook(&self) -> impl Fn(&Hook) + Send + Sync + 'static {
        let resyncs = self.0.clone();
        move |hook| {
            if let Hook::Resync { oldest, head } = hook {
                assert_eq!(oldest.epoch, head.epoch);
                *resyncs.lock() += 1;
            }
        }
    }

    fn count(&self) -> usize {
        *self.0.lock()
    }
}

/// The client comes back with a cursor of another history, as after a restored database.
fn forget_history(proxy: &Proxy) {
    proxy.on_sent_frame(|mut frame| {
        if let Some((_, seq)) = frame["resume"].as_str().and_then(|it| it.split_once('-')) {
            frame["resume"] = Value::from(format!("dead-{seq}"));
        }
        vec![frame]
    });
}

#[tokio::test]
async fn an_agent_is_told_that_events_are_missing_and_goes_on() {
    let scene = scene("resynced").await;
    let (proxy, resyncs) = (Proxy::before(&scene.cluster, 1).await, Resyncs::default());
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hearing = heard.clone();
    let builder = proxy.agent(&scene.agent).on_hook(resyncs.hook());
    let builder = builder.on_message(move |ctx| {
        hearing.lock().push(ctx.text().to_owned());
        async { Ok(()) }
    });
    let agent = run(builder.build()).await;
    let conversation = scene.conversation().await;
    conversation.send("before").await.expect("sent");
    until(|| heard.lock().len() == 1).await;
    forget_history(&proxy);
    proxy.cut();
    until(|| resyncs.count() == 1).await;
    conversation.send("after").await.expect("sent");
    until(|| heard.lock().len() == 2).await;
    agent.stop().await;
    assert_eq!(*heard.lock(), ["before", "after"]);
    assert_eq!(resyncs.count(), 1);
}

#[tokio::test]
async fn a_person_is_told_that_events_are_missing_and_goes_on() {
    let cluster = cluster().await;
    let bob = cluster.user("bob").await.expect("a person");
    let (proxy, resyncs) = (Proxy::before(&cluster, 1).await, Resyncs::default());
    let builder = Client::builder(proxy.server()).on_hook(resyncs.hook());
    let ada = cluster.user_with("ada", builder).await.expect("a person");
    let conversation = direct(&bob, &ada).await;
    let mut events = watch(&ada).await;
    conversation.send("before").await.expect("sent");
    let id = conversation.id();
    assert_eq!(
        crate::attacks::next_message(&mut events, id).await.text(),
        "before"
    );
    forget_history(&proxy);
    proxy.cut();
    until(|| resyncs.count() == 1).await;
    conversation.send("after").await.expect("sent");
    assert_eq!(
        crate::attacks::next_message(&mut events, id).await.text(),
        "after"
    );
}
