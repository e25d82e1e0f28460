//! The calls of an account, and those of an agent and its owner.

use blindpipe_client::{
    Client, Error,
    protocol::{
        access_log::AccessQuery,
        agents::{AgentView, ChangeAgent, Manifest},
        groups::{UserRole, Visibility},
        ids::{ChallengeId, Principal},
        relations::RelationState,
        shares::{CreateShare, ShareCard},
        text::DisplayName,
        time::Timestamp,
    },
    testing::PROTECTION_PASSWORD,
};
use chrono::TimeDelta;
use serde_json::json;

use crate::support::{cluster, direct, echo, pair, running, scene};

#[tokio::test]
async fn an_account_is_changed_and_deleted() {
    let cluster = cluster().await;
    let ada = cluster.user("ada").await.expect("a person");
    let client = &ada.client;
    let changed = client.update_profile(Some("Ada L."), None).await;
    assert_eq!(changed.expect("changed").display_name, "Ada L.");
    assert_eq!(client.profile().await.expect("read").display_name, "Ada L.");
    assert!(client.passkeys(None).await.expect("a page").0.is_empty());
    let challenge = client.begin_passkey().await.expect("a challenge");
    assert!(challenge.public_key.as_str().contains("challenge"));
    let (id, nothing) = (challenge.challenge_id, json!({}));
    let refused = client.add_passkey(id, &nothing, Some("key")).await;
    assert!(matches!(refused, Err(Error::Api(_))));
    let password = format!("another {}", ada.password);
    let changed = client.change_password(&ada.password, &password).await;
    assert!(changed.expect("changed").changed);
    client
        .change_email("new@example.com")
        .await
        .expect("mailed");
    let refused = client.confirm_email("new@example.com", "000000").await;
    assert!(matches!(refused, Err(Error::Api(_))));

    let phone = Client::builder(cluster.node(1).expect("a node")).device_id("phone");
    let challenge = phone.begin_passkey_login(None).await.expect("a challenge");
    assert!(challenge.public_key.as_str().contains("challenge"));
    let challenge_id: ChallengeId = challenge.challenge_id;
    let refused = phone.login_with_passkey(challenge_id, &nothing).await;
    assert!(matches!(refused, Err(Error::Api(_))));
    let phone = Client::builder(cluster.node(1).expect("a node"));
    let refused = phone.reset_password(&ada.email, "000000", &password).await;
    assert!(matches!(refused, Err(Error::Api(_))));
    let login = phone.login(&ada.email, &password, "dev-pass").await;
    let login = login.expect("by the new password");
    let restored = login.devices().restore(PROTECTION_PASSWORD).await;
    restored.expect("the backup has another one");
    let deleted = client.delete_account().await.expect("deleted");
    assert_eq!(deleted.user_id, client.user_id().expect("an id"));
}

#[tokio::test]
async fn people_and_agents_are_blocked_shared_and_left() {
    let cluster = cluster().await;
    let (ada, bob) = pair(&cluster).await;
    let bobs = Principal::User(bob.client.user_id().expect("an id"));
    ada.client.block(bobs).await.expect("blocked");
    let (blocks, _) = ada.client.blocks(None).await.expect("a page");
    assert_eq!(blocks.first().expect("a block").principal_id, bobs);
    ada.client.unblock(bobs).await.expect("unblocked");
    assert!(ada.client.blocks(None).await.expect("a page").0.is_empty());

    let registered = ada.client.profile().await.expect("read").created_at;
    let share = CreateShare {
        file_id: None,
        agent_id: None,
        contact: true,
        expires_at: Timestamp(registered.0 + TimeDelta::hours(1)),
        max_access_count: None,
    };
    let made = ada.client.share(&share).await.expect("shared");
    let card = bob.client.open_share(&made.share_id).await.expect("a card");
    let ShareCard::Contact(card) = card else {
        panic!("{card:?}")
    };
    assert_eq!(card.user_id, ada.client.user_id().expect("an id"));
    let revoked = ada.client.revoke_share(&made.share_id).await;
    revoked.expect("revoked");
    assert!(bob.client.open_share(&made.share_id).await.is_err());

    let group = ada.client.open_group("two", Vec::new()).await;
    let group = group.expect("a group");
    let added = group.add_members(vec![bob.client.user_id().expect("an id")]);
    added.await.expect("added");
    let title = group.set_title("both").await.expect("changed").title;
    assert_eq!(title.as_deref(), Some("both"));
    group.require_encryption().await.expect("changed");
    let role = group.set_role(bob.client.user_id().expect("an id"), UserRole::Admin);
    assert_eq!(role.await.expect("changed").principal_id, bobs);
    let asked = direct(&ada, &bob).await.request_rotation().await;
    asked.expect("asked");
    let missing = ada.client.delete_object(&"0".repeat(32)).await;
    assert!(matches!(missing, Err(Error::Api(_))));
    let version = cluster.node(0).expect("a node").version().await;
    assert!(!version.expect("read").supported.is_empty());
}

#[tokio::test]
async fn an_owner_changes_an_agent_and_ends_what_it_has() {
    let scene = scene("clerk").await;
    let manifest: Manifest = serde_json::from_value(json!({
        "description": "files things",
        "tools": [{ "name": "file", "scope": "file:read" }],
        "permission_scopes": [{ "scope": "file:read", "sensitivity": "low" }],
    }))
    .expect("a manifest");
    // A start publishes the manifest.
    let running = running(echo(scene.builder().manifest(&manifest))).await;
    let AgentView::Full(shown) = scene.ada.client.agent(scene.agent.id).await.expect("read") else {
        panic!("it is Ada's")
    };
    let published = shown.manifest.expect("published");
    assert!(published.as_str().contains("file:read"));
    scene.conversation().await;
    let (client, id) = (&scene.ada.client, scene.agent.id);
    let change = ChangeAgent {
        display_name: Some(DisplayName("chief clerk".to_owned())),
        description: None,
    };
    let changed = client.update_agent(id, &change).await.expect("changed");
    assert_eq!(changed.display_name, "chief clerk");
    let (approvals, _) = running.agent.approvals(None).await.expect("a page");
    assert!(approvals.is_empty());
    let (conversations, _) = running.agent.conversations(None).await.expect("a page");
    assert_eq!(conversations.len(), 1);

    let group = client
        .open_group("some", Vec::new())
        .await
        .expect("a group");
    let instance = group.add_agent(id, Visibility::All).await.expect("added");
    let before = group.info().await.expect("read").epoch;
    let removal = group.remove_agent(instance.instance_id).await;
    assert_eq!(removal.expect("removed").principal_id, Principal::Agent(id));
    assert!(group.info().await.expect("read").epoch > before);

    let of = AccessQuery {
        agent_id: Some(id),
        ..AccessQuery::default()
    };
    let (reads, _) = client.access_log(&of, None).await.expect("a page");
    assert!(reads.iter().all(|read| read.agent_id == id));
    let (relations, _) = client.relations(None).await.expect("a page");
    let relation = relations.first().expect("a relation");
    let revoked = client.revoke_relation(relation.relation_id).await;
    assert_eq!(revoked.expect("revoked").state, RelationState::Revoked);
    let missing = client.webhooks(id).rotate_secret(Some(0)).await;
    assert!(matches!(missing, Err(Error::Api(_))), "there is no webhook");
    let revoked = client.revoke_token(id).await.expect("revoked");
    assert!(revoked.connections_closed >= 1);
}
