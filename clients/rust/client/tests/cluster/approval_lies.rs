//! Approvals: decisions that nobody signed, and fewer than the agent has asked for.

use std::sync::Arc;

use blindpipe_client::{
    ApprovalState, Error, agent::ApprovalDraft, client::Conversation, protocol::groups::Visibility,
    testing::TestUser,
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    attacks::Told,
    durable_approvals::{Decided, deciding, me, version},
    proxy::Proxy,
    support::{Running, Scene, running, scene, until},
};

const CLOSED: &str = "approval.closed";
/// The id of nobody.
const STRANGER: &str = "01BX5ZZKBKACTAV9WEVGEMMVRY";

/// An agent that decides behind a proxy, which keeps the ends of approvals.
struct Lied {
    scene: Scene,
    proxy: Proxy,
    told: Told,
    decided: Decided,
    conversation: Conversation,
    agent: Running,
    /// The genuine ends.
    kept: Arc<Mutex<Vec<Value>>>,
}

async fn lied_to(name: &str) -> Lied {
    let scene = scene(name).await;
    let (proxy, told) = (Proxy::before(&scene.cluster, 1).await, Told::default());
    let kept = Arc::<Mutex<Vec<Value>>>::default();
    let keep = kept.clone();
    proxy.on_frame(move |frame| {
        if frame["event"] == CLOSED {
            keep.lock().push(frame["data"].clone());
            return Vec::new();
        }
        vec![frame]
    });
    let builder = proxy.agent(&scene.agent).on_hook(told.hook());
    let (builder, decided) = deciding(builder, "deploy");
    let agent = running(builder).await;
    let conversation = scene.conversation().await;
    Lied {
        scene,
        proxy,
        told,
        decided,
        conversation,
        agent,
        kept,
    }
}

impl Lied {
    /// Tells the agent of an end, and waits until it has refused that.
    async fn is_refused(&self, lie: &Value) {
        let before = self.told.refused().len();
        let place = self.conversation.id().to_string();
        self.proxy.inject_event(CLOSED, &place, lie);
        until(|| self.told.refused().len() > before).await;
        assert_eq!(self.told.refused().last(), Some(&"bad_signature"), "{lie}");
        assert!(self.decided.is_empty(), "{lie}");
    }
}

fn altered(approval: &Value, alter: impl FnOnce(&mut Value)) -> Value {
    let mut altered = approval.clone();
    alter(&mut altered);
    altered
}

#[tokio::test]
async fn no_handler_runs_for_a_decision_that_nobody_signed() {
    let mut lied = lied_to("believer").await;
    let (ada, conversation) = (&lied.scene.ada, &lied.conversation);
    conversation.send("hello").await.expect("sent");
    let mut draft = ApprovalDraft::new("deploy", version());
    draft.of = vec![me(ada)];
    for _ in 0..2 {
        let told = lied.agent.agent.approve(conversation.id(), &draft).await;
        let request = ada.client.approval(told.expect("asked").approval_id).await;
        request.expect("read").approve().await.expect("approved");
    }
    until(|| lied.kept.lock().len() == 2).await;
    let [other, told] = <[Value; 2]>::try_from(lied.kept.lock().clone()).expect("two");
    let lies = [
        altered(&told, |it| it["decisions"] = json!([])),
        altered(&told, |it| {
            it["state"] = "denied".into();
            it["decisions"][0]["decision"] = "denied".into();
        }),
        altered(&told, |it| it["decisions"] = other["decisions"].clone()),
        altered(&told, |it| {
            it["decisions"][0]["user_id"] = STRANGER.into();
        }),
        altered(&told, |it| it["quorum"] = 2.into()),
        altered(&told, |it| it["deny_quorum"] = 2.into()),
        altered(&told, |it| it["kind"] = "ask".into()),
        altered(&told, |it| it["digest"] = other["digest"].clone()),
        altered(&told, |it| it["approval_id"] = other["approval_id"].clone()),
        altered(&told, |it| {
            let asked = it["asked"].as_array_mut().expect("a list");
            asked.push(STRANGER.into());
        }),
    ];
    for lie in &lies {
        lied.is_refused(lie).await;
    }
    let place = conversation.id().to_string();
    lied.proxy.inject_event(CLOSED, &place, &told);
    let result = lied.decided.next().await;
    assert_eq!(result.outcome, ApprovalState::Approved);
    assert_eq!(lied.told.refused().len(), lies.len());
    lied.agent.stop().await;
}

#[tokio::test]
async fn as_many_must_agree_as_the_agent_has_said() {
    let mut lied = lied_to("careful").await;
    let bob = lied.scene.cluster.user("bob").await.expect("a person");
    let ada = &lied.scene.ada;
    let group = ada.client.open_group("two", vec![me(&bob)]).await;
    let group = group.expect("a group");
    let added = group.add_agent(lied.scene.agent.id, Visibility::All).await;
    added.expect("added");
    group.send("hello").await.expect("sent");
    let mut draft = ApprovalDraft::new("deploy", version());
    (draft.quorum, draft.deny_quorum) = (2, 2);
    let told = lied.agent.agent.approve(group.id(), &draft).await;
    let told = told.expect("asked");
    assert_eq!((told.quorum, told.asked.len()), (2, 2));
    let of = async |user: &TestUser| {
        let request = user.client.approval(told.approval_id).await;
        request.expect("read")
    };
    let half = of(ada).await.approve().await.expect("approved");
    assert_eq!(half.state, ApprovalState::Open);
    // The service says that one yes was enough.
    let half = serde_json::to_value(half).expect("JSON");
    let lie = altered(&half, |it| {
        it["state"] = "approved".into();
        it["quorum"] = 1.into();
        it["closed_at"] = it["created_at"].clone();
    });
    lied.is_refused(&lie).await;
    let whole = of(&bob).await.approve().await.expect("approved");
    assert_eq!(whole.state, ApprovalState::Approved);
    until(|| !lied.kept.lock().is_empty()).await;
    let told = lied.kept.lock()[0].clone();
    let place = group.id().to_string();
    lied.proxy.inject_event(CLOSED, &place, &told);
    let result = lied.decided.next().await;
    assert_eq!(result.outcome, ApprovalState::Approved);
    let mut deciders: Vec<_> = result
        .approval
        .decisions
        .iter()
        .map(|it| it.user_id)
        .collect();
    deciders.sort_unstable();
    let mut both = [me(ada), me(&bob)];
    both.sort_unstable();
    assert_eq!(deciders, both);
    let proof = of(ada).await.verify(&result.receipt).await.expect("keys");
    assert_eq!(proof.expect("it holds").decisions.len(), 2);

    // One no of two is not enough either.
    let again = lied.agent.agent.approve(group.id(), &draft).await;
    let again = again.expect("asked").approval_id;
    for (user, state) in [(ada, ApprovalState::Open), (&bob, ApprovalState::Denied)] {
        let request = user.client.approval(again).await.expect("read");
        let denied = request.deny(None).await.expect("denied");
        assert_eq!(denied.state, state);
    }

    // Nobody else than the named ones is asked.
    draft.of = vec![me(&bob)];
    (draft.quorum, draft.deny_quorum) = (1, 1);
    let named = lied.agent.agent.approve(group.id(), &draft).await;
    let named = named.expect("asked");
    assert_eq!(named.asked, [me(&bob)]);
    let request = ada.client.approval(named.approval_id).await;
    let refused = request.expect("read").approve().await;
    assert!(matches!(refused, Err(Error::Api(_))), "{refused:?}");
    lied.agent.stop().await;
}
