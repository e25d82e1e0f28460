//! Approvals: asked by one process, decided on a device, acted on by another process.

use std::{sync::Arc, time::Duration};

use blindpipe_client::{
    Approval, ApprovalState, Content, Error, Receipt,
    agent::{AgentBuilder, ApprovalDraft, ApprovalResult, Question},
    client::{ApprovalRequest, SendOptions},
    e2ee::{Error as Refusal, PublicKeys, approval::ReceiptError},
    protocol::{
        errors::Code,
        groups::Visibility,
        ids::{MessageId, Principal, UserId},
    },
    testing::{PROTECTION_PASSWORD, TestUser},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    time::{sleep, timeout},
};

use crate::support::{PATIENCE, running, scene, until};

/// The decisions that the handler of an agent gets.
pub struct Decided(UnboundedReceiver<ApprovalResult>);

impl Decided {
    pub async fn next(&mut self) -> ApprovalResult {
        let next = timeout(PATIENCE, self.0.recv()).await;
        next.expect("a decision in time").expect("an agent")
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// An agent of another process, which knows nothing of the one that asked.
pub fn deciding(builder: AgentBuilder, name: &str) -> (AgentBuilder, Decided) {
    let (sender, decided) = unbounded_channel();
    let builder = builder.on_decision(name, move |ctx| {
        let decision = ctx.decision().cloned().expect("a decision");
        sender.send(decision).expect("a test");
        async { Ok(()) }
    });
    (builder, Decided(decided))
}

/// The newest approval that waits for this person.
async fn asked(user: &TestUser) -> ApprovalRequest {
    let waits = async {
        loop {
            let (waiting, _) = user.client.approvals(true, None).await.expect("a page");
            if let Some(request) = waiting.into_iter().next() {
                return request;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, waits).await.expect("it is asked in time")
}

pub fn version() -> Content {
    Content::from_iter([("version".to_owned(), "1.4.2".into())])
}

pub fn me(user: &TestUser) -> UserId {
    user.client.user_id().expect("an id")
}

/// The keys of a person, as anybody reads them.
async fn keys_of(user: &TestUser) -> Vec<PublicKeys> {
    let listed = user.client.user_keys(me(user)).await.expect("read");
    let key = |bytes: &[u8]| <[u8; 32]>::try_from(bytes).expect("32 bytes");
    let keys = listed.devices.iter().map(|device| {
        let (public_key, signing) = (&device.public_key.0, &device.signing_public_key.0);
        PublicKeys::new(key(public_key), key(signing)).expect("keys")
    });
    keys.collect()
}

#[tokio::test]
async fn an_approval_outlives_the_process_that_asked() {
    let scene = scene("deployer").await;
    let ids = Arc::<Mutex<Vec<MessageId>>>::default();
    let asking = ids.clone();
    let first = scene.builder().on_message(move |ctx| {
        let ids = asking.clone();
        async move {
            let mut deploy = ApprovalDraft::new("deploy", version());
            deploy.text = Some(format!("{}?", ctx.text()));
            deploy.state = Content::from_iter([("n".to_owned(), 1.into())]);
            let asked = ctx.approve(&deploy).await?;
            // Asked again under the same id, it is the same one.
            deploy.key = Some("0".to_owned());
            let again = ctx.approve(&deploy).await?;
            ids.lock().extend([asked.approval_id, again.approval_id]);
            Ok(())
        }
    });
    let first = running(first).await;
    let conversation = scene.conversation().await;
    conversation.send("Deploy 1.4.2").await.expect("sent");
    until(|| ids.lock().len() == 2).await;
    first.stop().await;
    let request = asked(&scene.ada).await;
    assert_eq!(*ids.lock(), [request.approval.approval_id; 2]);
    assert_eq!(request.conversation().id(), conversation.id());
    assert_eq!(request.text(), "Deploy 1.4.2?");
    assert_eq!(request.arguments(), version());
    for way in ["said", "said again"] {
        let approved = request.approve().await.expect(way);
        assert_eq!(approved.state, ApprovalState::Approved, "{way}");
    }
    let refused = request.deny(None).await.expect_err("it is decided");
    assert_eq!(refused.code(), Some(Code::AlreadyDecided));
    let (waiting, _) = scene.ada.client.approvals(true, None).await.expect("read");
    assert!(waiting.is_empty());

    let (second, mut decided) = deciding(scene.builder(), "deploy");
    let second = running(second).await;
    let result = decided.next().await;
    assert_eq!(result.outcome, ApprovalState::Approved);
    assert_eq!(
        (result.name.as_str(), &result.arguments),
        ("deploy", &version())
    );
    assert_eq!(Value::from(result.state), json!({ "n": 1 }));
    check_receipt(&scene.ada, &result.receipt).await;
    second.stop().await;
}

/// It proves the decision without the service, and nothing once it is changed.
async fn check_receipt(of: &TestUser, receipt: &Receipt) {
    let (user, keys) = (me(of).to_string(), keys_of(of).await);
    let key_of = |who: &str, key_id: &str| {
        let hex = |id: [u8; 16]| id.map(|byte| format!("{byte:02x}")).concat();
        let mut keys = keys.iter();
        let found = keys.find(|keys| hex(keys.key_id()) == key_id);
        found.filter(|_| who == user).copied()
    };
    let stored = serde_json::to_string(receipt).expect("JSON");
    let stored: Receipt = serde_json::from_str(&stored).expect("a receipt");
    let proof = stored.verify(key_of).expect("it holds");
    assert_eq!(proof.decisions, [(user.clone(), "approved".to_owned())]);
    let unknown = stored.verify(|_, _| None);
    assert_eq!(unknown.err(), Some(ReceiptError::UnknownKey));
    let changed = Receipt {
        question: stored.question.replace("1.4.2", "6.6.6"),
        ..stored.clone()
    };
    let refused = changed.verify(key_of).err();
    assert_eq!(refused, Some(ReceiptError::WrongQuestion));
}

#[tokio::test]
async fn an_approval_is_answered_refused_and_withdrawn() {
    let scene = scene("asker").await;
    let (agent, mut decided) = deciding(scene.builder(), "when");
    let agent = running(agent).await;
    let conversation = scene.conversation().await;
    conversation.send("hello").await.expect("sent");
    let ask = async |draft: &ApprovalDraft| {
        let asked = agent.agent.approve(conversation.id(), draft).await;
        asked.expect("asked")
    };
    let mut choose = ApprovalDraft::new("when", Content::new());
    choose.choices = ["Now", "Later"].map(str::to_owned).into();
    ask(&choose).await;
    let request = asked(&scene.ada).await;
    assert_eq!(request.choices(), ["Now", "Later"]);
    request.answer("Later").await.expect("answered");
    let result = decided.next().await;
    assert_eq!(result.outcome, ApprovalState::Answered);
    assert_eq!(result.choice.as_deref(), Some("Later"));
    let answers: Vec<_> = result.receipt.answers.keys().copied().collect();
    assert_eq!(answers, [me(&scene.ada)]);

    let mut named = ApprovalDraft::new("when", Content::new());
    (named.of, named.expires_in) = (vec![me(&scene.ada)], Duration::from_secs(15 * 60));
    let approval = ask(&named).await;
    assert_eq!(approval.asked, [me(&scene.ada)]);
    let wait = approval.expires_at.0 - approval.created_at.0;
    assert_eq!(wait.num_minutes(), 15);
    // Another device of the person decides.
    let phone = scene.cluster.device(&scene.ada, 1, "phone").await;
    let phone = phone.expect("signed in");
    let restored = phone.devices().restore(PROTECTION_PASSWORD).await;
    restored.expect("restored");
    let on_phone = phone.approval(approval.approval_id).await.expect("read");
    on_phone.deny(Some("not today")).await.expect("denied");
    let result = decided.next().await;
    assert_eq!(result.outcome, ApprovalState::Denied);
    assert_eq!(result.text.as_deref(), Some("not today"));
    let shown = scene.ada.client.approval(approval.approval_id).await;
    let shown = shown.expect("read");
    let receipt = shown.receipt().await.expect("a receipt");
    assert_eq!(receipt, result.receipt);
    let proof = shown.verify(&receipt).await.expect("keys");
    assert_eq!(proof.expect("it holds").state, "denied");

    let approval = ask(&ApprovalDraft::new("when", Content::new())).await;
    let bob = scene.cluster.user("bob").await.expect("a person");
    let foreign = bob.client.approval(approval.approval_id).await;
    assert!(matches!(foreign, Err(Error::Api(_))), "{foreign:?}");
    let withdrawn = agent.agent.withdraw(approval.approval_id).await;
    assert_eq!(withdrawn.expect("open").state, ApprovalState::Withdrawn);
    let result = decided.next().await;
    assert_eq!(result.outcome, ApprovalState::Withdrawn);
    assert_eq!((result.choice, result.text), (None, None));
    let late = scene.ada.client.approval(approval.approval_id).await;
    let late = late.expect("read").approve().await.expect_err("too late");
    assert_eq!(late.code(), Some(Code::ApprovalClosed));
    agent.stop().await;
}

#[tokio::test]
async fn an_addressed_agent_reads_the_words_of_a_decision() {
    let scene = scene("addressed").await;
    let (agent, mut decided) = deciding(scene.builder(), "trip");
    let agent = running(agent.on_message(async |ctx| {
        let mut trip = ApprovalDraft::new("trip", Content::new());
        trip.text = Some("Go?".to_owned());
        ctx.approve(&trip).await
    }))
    .await;
    scene.conversation().await;
    let group = scene.ada.client.open_group("trips", Vec::new()).await;
    let group = group.expect("a group");
    let added = group.add_agent(scene.agent.id, Visibility::Addressed).await;
    added.expect("added");
    let to_agent = SendOptions {
        to: vec![Principal::Agent(scene.agent.id)],
        ..SendOptions::default()
    };
    let sent = group.send_with("plan one", to_agent).await;
    sent.expect("sent");
    let request = asked(&scene.ada).await;
    request.deny(Some("too far")).await.expect("denied");
    let result = decided.next().await;
    assert_eq!(result.outcome, ApprovalState::Denied);
    assert_eq!(result.text.as_deref(), Some("too far"));
    agent.stop().await;
}

#[tokio::test]
async fn a_question_is_an_approval_that_people_answer() {
    let scene = scene("curious").await;
    let (agent, mut decided) = deciding(scene.builder(), "sure");
    let heard = Arc::<Mutex<Vec<Value>>>::default();
    let (hearing, answered) = (heard.clone(), heard.clone());
    let agent = agent
        .on_message(async |ctx| {
            let when = Question {
                tag: "when".to_owned(),
                text: "When?".to_owned(),
                state: Content::from_iter([("n".to_owned(), 1.into())]),
                ..Question::default()
            };
            ctx.ask(when).await
        })
        .on_answer("when", move |ctx| {
            let answer = ctx.answer().expect("an answer");
            let (text, state) = (&answer.text, &answer.state);
            hearing.lock().push(json!([answer.question, text, state]));
            async move {
                // The person who answered is asked.
                let sure = Question {
                    tag: "sure".to_owned(),
                    text: "Sure?".to_owned(),
                    choices: vec!["Yes".to_owned()],
                    ..Question::default()
                };
                ctx.ask(sure).await
            }
        })
        .on_answer("sure", move |_| {
            answered.lock().push("no answer".into());
            async { Ok(()) }
        });
    let mut talk = scene.talk(agent).await;
    talk.conversation.send("hello").await.expect("sent");
    let question = talk.answer().await;
    assert_eq!(asked(&scene.ada).await.approval.kind, "ask");
    let answer = talk.conversation.answer(question, "tonight").await;
    answer.expect("answered");
    until(|| !heard.lock().is_empty()).await;
    let request = asked(&scene.ada).await;
    assert_eq!(request.approval.asked, [me(&scene.ada)]);
    request.deny(None).await.expect("denied");
    let result = decided.next().await;
    assert_eq!(result.outcome, ApprovalState::Denied);
    assert_eq!(result.question, "Sure?");
    assert_eq!(*heard.lock(), [json!(["When?", "tonight", { "n": 1 }])]);
    talk.agent.stop().await;
}

#[tokio::test]
async fn a_person_signs_nothing_that_does_not_open() {
    let scene = scene("liar").await;
    let agent = scene.builder().build();
    agent.check().await.expect("a key");
    let conversation = scene.conversation().await;
    conversation.send("hello").await.expect("sent");
    let another = scene.cluster.agent("another", &scene.ada.client, None);
    let another = another.await.expect("an agent");
    let draft = ApprovalDraft::new("deploy", version());
    let [told, other] = [
        agent.approve(conversation.id(), &draft).await,
        agent.approve(conversation.id(), &draft).await,
    ];
    let (told, other) = (told.expect("asked"), other.expect("asked"));
    let lies = [
        Approval {
            digest: other.digest.clone(),
            ..told.clone()
        },
        Approval {
            approval_id: other.approval_id,
            ..told.clone()
        },
        Approval {
            agent_id: another.id,
            ..told.clone()
        },
    ];
    for lie in lies {
        let request = scene.ada.client.approval_request(lie).await;
        let request = request.expect("read");
        assert_eq!(
            request.question.as_ref().err(),
            Some(&Refusal::BadSignature)
        );
        assert_eq!((request.text(), request.arguments().len()), ("", 0));
        let refused = request.approve().await;
        let reason = matches!(refused, Err(Error::Decrypt(Refusal::BadSignature)));
        assert!(reason, "{refused:?}");
    }
    // A question in clear is nobody's.
    let clear = json!({ "type": "approval" });
    let clear = scene.ada.client.send_raw(conversation.id(), &clear);
    let clear = clear.await.expect("sent");
    let lie = Approval {
        approval_id: clear.message_id,
        seq: clear.seq,
        ..told.clone()
    };
    let request = scene.ada.client.approval_request(lie).await.expect("read");
    assert!(request.question.is_err() && request.approve().await.is_err());
    let still = agent.approval(told.approval_id).await.expect("read");
    assert!(still.decisions.is_empty(), "nothing was signed");
    let honest = scene.ada.client.approval(told.approval_id).await;
    honest.expect("read").approve().await.expect("approved");
}
