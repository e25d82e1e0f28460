//! Tool calls: consent that nobody gave, and requests that nobody made.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use blindpipe_client::{
    Clock, Content, Error,
    e2ee::consent::{Decision, Sensitivity},
    protocol::groups::Visibility,
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{Proxy, flip, victim_with};
use crate::{
    approvals::{SCOPE, TOOL, agent_of, asking, grant, next_request, person, send_email},
    faults::Fault,
    proxy::{in_event, without},
    support::{cluster, running, until, watch},
};

#[tokio::test]
async fn the_server_can_refuse_for_a_person_and_not_consent() {
    let cluster = cluster().await;
    let ada = person(&cluster, Sensitivity::Low).await;
    let made = agent_of(&cluster, &ada).await;
    let proxy = Proxy::before(&cluster, 1).await;
    let agent = running(asking(proxy.agent(&made))).await;
    let conversation = ada.client.open_agent(made.id).await.expect("opened");
    grant(&ada, &agent.agent, &conversation).await;
    let mut events = watch(&ada).await;

    // An honest consent, which the server keeps.
    let kept = Arc::new(Mutex::new(Value::Null));
    let (keep, lie) = (kept.clone(), Arc::new(Mutex::new("")));
    let how = lie.clone();
    let tell = move |outcome: &mut Value| {
        if outcome["status"] == "executed" && keep.lock().is_null() {
            *keep.lock() = outcome["payload"].clone();
        }
        if outcome["status"] != "denied" || how.lock().is_empty() {
            return;
        }
        outcome["status"] = "executed".into();
        outcome["reason"] = Value::Null;
        outcome["code"] = Value::Null;
        match *how.lock() {
            "moved" => outcome["payload"] = keep.lock().clone(),
            "clear" => outcome["payload"] = json!({ "type": "result", "result": "done" }),
            _ => {}
        }
    };
    let by_answer = tell.clone();
    proxy.on_frame(in_event("artifact_response", tell));
    proxy.on_answer(move |call, answer| {
        if call.contains("/artifact-requests") {
            by_answer(&mut answer["data"]);
        }
    });
    conversation.send("first").await.expect("sent");
    let request = next_request(&mut events).await;
    request.approve();
    let ran = request.execute_with(|_, _| async { Ok(Value::Null) }).await;
    ran.expect("executed");
    let answer = events.answer(&conversation).await;
    assert_eq!(answer.text(), "Executed ");
    for way in ["altered", "moved", "clear"] {
        *lie.lock() = way;
        conversation.send(way).await.expect("sent");
        let request = next_request(&mut events).await;
        request.deny("not_today").await.expect("denied");
        let answer = events.answer(&conversation).await;
        assert_eq!(answer.text(), "Failed unproven", "{way}");
    }
    assert!(!kept.lock().is_null());
    agent.stop().await;
}

#[tokio::test]
async fn a_device_runs_what_its_agent_asked_once_and_nothing_else() {
    let cluster = cluster().await;
    let clock = Clock::default();
    let (ada, proxy, told) = victim_with(&cluster, "ada", |builder| {
        let builder = builder.clock(clock.clone());
        builder.tool(TOOL, SCOPE, Sensitivity::High)
    })
    .await;
    let made = agent_of(&cluster, &ada).await;
    let builder = cluster.builder(&made, 0).expect("a node");
    let agent = running(asking(builder)).await;
    let conversation = ada.client.open_agent(made.id).await.expect("opened");
    grant(&ada, &agent.agent, &conversation).await;
    let mut events = watch(&ada).await;
    // Every request comes altered in each way, then as it was made, twice, and as harmless.
    proxy.on_frame(|frame| {
        if frame["event"] != "artifact_request" {
            return vec![frame];
        }
        let altered = |alter: &dyn Fn(&mut Value)| {
            let mut frame = frame.clone();
            alter(&mut frame["data"]);
            frame
        };
        vec![
            altered(&|call| call["tool"] = "delete_account".into()),
            altered(&|call| call["scope"] = "account:delete".into()),
            altered(&|call| call["request_id"] = "another".into()),
            altered(&|call| call["device_id"] = "another".into()),
            altered(&|call| flip(&mut call["payload"], |len| len - 1)),
            altered(&|call| call["payload"] = json!({ "type": "tool_call", "arguments": {} })),
            altered(&|call| {
                call["sensitivity"] = "low".into();
                call["prompt_required"] = false.into();
            }),
            frame,
        ]
    });
    conversation.send("hello").await.expect("sent");
    let harmless = next_request(&mut events).await;
    harmless.approve();
    // The device's own table says that this tool asks each time.
    assert_eq!(harmless.decide(), Decision::Ask);
    let runs = Arc::new(Mutex::new(0));
    for request in [harmless, next_request(&mut events).await] {
        let counting = runs.clone();
        let run = async move |_, arguments: Content| {
            *counting.lock() += 1;
            Ok(arguments["text"].clone())
        };
        request.execute_with(run).await.expect("executed");
    }
    assert_eq!(*runs.lock(), 1, "the second one is the first");
    let answer = events.answer(&conversation).await;
    assert_eq!(answer.text(), "Executed ");
    let mut wanted = vec!["bad_ciphertext"; 5];
    wanted.push("clear");
    assert_eq!(told.refused(), wanted);

    // Held back for six minutes, a request is nobody's wish any more.
    clock.advance(Duration::from_secs(6 * 60));
    conversation.send("late").await.expect("sent");
    let refuse_all = async {
        loop {
            events.next().await;
        }
    };
    tokio::select! {
        () = refuse_all => {}
        () = until(|| told.refused().len() >= 14) => {}
    }
    assert!(told.refused().ends_with(&["clear", "stale", "stale"]));
    agent.agent.stop();
}

#[tokio::test]
async fn a_request_to_another_person_is_neither_run_nor_remembered() {
    let cluster = cluster().await;
    let (ada, proxy, _) = victim_with(&cluster, "ada", |builder| {
        builder.tool(TOOL, SCOPE, Sensitivity::Low)
    })
    .await;
    let bob = person(&cluster, Sensitivity::Low).await;
    let made = agent_of(&cluster, &ada).await;
    let agent = asking(cluster.builder(&made, 0).expect("a node"));
    let agent = running(agent).await;
    for user in [&ada, &bob] {
        user.client.open_agent(made.id).await.expect("opened");
    }
    let bobs_id = bob.client.user_id().expect("an id");
    let group = ada.client.open_group("few", vec![bobs_id]).await;
    let group = group.expect("a group");
    let added = group.add_agent(made.id, Visibility::All).await;
    added.expect("added");
    let bobs = bob.client.conversation(group.id());
    grant(&bob, &agent.agent, &bobs).await;
    let (mut events, mut bobs_events) = (watch(&ada).await, watch(&bob).await);
    bobs.send("hello").await.expect("sent");
    let asked = next_request(&mut bobs_events).await;
    // The server shows it to Ada, who can read it: she is a member.
    let call = serde_json::to_value(asked.call()).expect("JSON");
    proxy.inject_event("artifact_request", &group.id().to_string(), &call);
    let shown = next_request(&mut events).await;
    assert_eq!(shown.decide(), Decision::Unable);
    shown.approve();
    let run = async |_, _| -> Result<Value, Error> { panic!("it runs") };
    let refused = shown.execute_with(run).await;
    assert!(matches!(refused, Err(Error::NotApproved)), "{refused:?}");
    let refused = shown.remember(30);
    assert!(matches!(refused, Err(Error::Usage(_))), "{refused:?}");
    assert!(!ada.client.withdraw(made.id, None).expect("stored"));
    asked.remember(30).expect("Bob is asked");
    asked.deny("enough").await.expect("denied");
    agent.stop().await;
}

#[tokio::test]
async fn an_outcome_whose_event_was_dropped_is_read() {
    let cluster = cluster().await;
    let ada = person(&cluster, Sensitivity::Low).await;
    let made = agent_of(&cluster, &ada).await;
    let proxy = Proxy::before(&cluster, 1).await;
    proxy.on_frame(without("artifact_response"));
    let agent = running(asking(proxy.agent(&made))).await;
    let conversation = ada.client.open_agent(made.id).await.expect("opened");
    grant(&ada, &agent.agent, &conversation).await;
    let mut events = watch(&ada).await;
    conversation.send("hello").await.expect("sent");
    let request = next_request(&mut events).await;
    request.approve();
    let ran = request.execute_with(|_, _| async { Ok(Value::Null) }).await;
    ran.expect("executed");
    let answer = events.answer(&conversation).await;
    assert_eq!(answer.text(), "Executed ");
    agent.stop().await;
}

#[tokio::test]
async fn a_look_for_an_outcome_goes_on_until_it_is_refused_for_good() {
    let cluster = cluster().await;
    let ada = person(&cluster, Sensitivity::Low).await;
    let made = agent_of(&cluster, &ada).await;
    let proxy = Proxy::before(&cluster, 1).await;
    let agent = proxy.agent(&made).on_message(async |ctx| {
        let called = ctx.call(send_email(ctx.text())).await;
        let status = match called {
            Err(Error::Api(error)) => error.status,
            other => panic!("{other:?}"),
        };
        ctx.reply(status.to_string()).await
    });
    let agent = running(agent).await;
    let conversation = ada.client.open_agent(made.id).await.expect("opened");
    grant(&ada, &agent.agent, &conversation).await;
    let mut events = watch(&ada).await;
    let is_asked = Arc::new(AtomicBool::default());
    let mut refusals = [vec![503; 5], vec![403]].concat().into_iter();
    let asked = is_asked.clone();
    proxy.on_call(move |call| {
        let looks = call.ends_with("/artifact-requests") && asked.swap(true, Ordering::Relaxed);
        looks.then(|| refusals.next().map(Fault::Refusal)).flatten()
    });
    // Nobody answers the request itself.
    assert_eq!(events.ask(&conversation, "anybody?").await, "403");
    agent.stop().await;
}
