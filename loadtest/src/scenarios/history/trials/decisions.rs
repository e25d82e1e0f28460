//! Approvals are decided and calls of tools answered, at two nodes at once.

use std::{cell::Cell, time::Duration};

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use blindpipe_protocol::text::{Key32, Signature};
use chrono::{DateTime, SecondsFormat, Utc};
use futures_util::future::join_all;
use history::{Actor, Answer, Span, Thing};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use ulid::Ulid;

use super::{Stage, text};
use crate::{
    Result,
    scenarios::history::{
        NODES,
        clients::{Name, Player},
    },
};

/// A call under this scope asks nobody, and one under the other waits for half a minute.
const SCOPE: &str = "notification:send";
const SLOW_SCOPE: &str = "payment:send";
/// The time between two trials of a kind. An agent may ask for 30 approvals in a minute.
const PAUSE: Duration = Duration::from_millis(2_200);
/// Calls that are answered after their deadline.
const LATE_CALLS: usize = 12;
/// The time from a deadline to the answer. The sweep denies such a call within a second.
const LATE_PAUSE: Duration = Duration::from_millis(5);

/// The keys of the first user.
pub(super) struct Keys {
    signing: Ed25519KeyPair,
    /// The public half of a key that nothing is encrypted with.
    public: [u8; 32],
}

impl Keys {
    pub(super) fn new() -> Result<Self> {
        let seed = Sha256::digest(Ulid::generate().to_string());
        Ok(Keys {
            signing: Ed25519KeyPair::from_seed_unchecked(&seed)?,
            public: seed.into(),
        })
    }

    fn id(&self) -> String {
        let both = [&self.public[..], self.signing.public_key().as_ref()].concat();
        let hash = Sha256::digest(both);
        base16ct::lower::encode_string(&hash[..16])
    }

    /// The body that keeps them on a device.
    fn backup(&self) -> Result<Value> {
        let signing: [u8; 32] = self.signing.public_key().as_ref().try_into()?;
        Ok(json!({
            "device_id": "device-0", "public_key": Key32(self.public), "signing_public_key": Key32(signing),
            "backup_a": "AQEB".repeat(20), "backup_b": "AgIC".repeat(20), "argon2_salt": Key32([9; 32]),
            "argon2_params": { "m": 65_536, "t": 3, "p": 4 },
        }))
    }

    /// The body of a decision.
    fn decide(&self, approval: &Value, user: &str, decision: &str) -> Result<String> {
        let (key_id, at) = (self.id(), Utc::now());
        let mut bytes = b"blindpipe approval v1\0".to_vec();
        for part in [
            &text(approval, "approval_id")?,
            &text(approval, "agent_id")?,
            &text(approval, "conversation_id")?,
            user,
            &key_id,
            decision,
        ] {
            bytes.extend(u16::try_from(part.len())?.to_be_bytes());
            bytes.extend(part.as_bytes());
        }
        // The digests of the question and of no answer.
        bytes.extend([0; 64]);
        bytes.extend(at.timestamp_millis().to_be_bytes());
        let signature = Signature(self.signing.sign(&bytes).as_ref().try_into()?);
        let at = at.to_rfc3339_opts(SecondsFormat::Millis, true);
        let body = json!({ "decision": decision, "decided_at": at, "key_id": key_id, "signature": signature });
        Ok(body.to_string())
    }
}

impl Stage {
    /// Keeps the keys, and grants the asking agent its scopes.
    pub(super) async fn grant(&self) -> Result<()> {
        self.make("/keys/backup", self.keys.backup()?).await?;
        let own = format!("/agents/{}", self.asking.id());
        let scopes = json!([
            { "scope": SCOPE, "sensitivity": "low" }, { "scope": SLOW_SCOPE, "sensitivity": "high" },
        ]);
        let manifest = json!({ "manifest": { "tools": [], "permission_scopes": scopes } });
        self.must(&self.asking, "PATCH", &own, manifest, &[200])
            .await?;
        let wanted = json!({ "conversation_id": self.talk, "scopes": [SCOPE, SLOW_SCOPE] });
        let path = format!("{own}/grants/request");
        let asked = self.must(&self.asking, "POST", &path, wanted, &[200, 201]);
        let grant = text(&asked.await?.0["data"], "grant_id")?;
        let decision = json!({ "decision": "approve" });
        self.make(&format!("/grants/{grant}/decision"), decision)
            .await?;
        Ok(())
    }

    /// Two answers to one question, at two nodes at once. Each that is taken counts.
    async fn both(&self, path: &str, bodies: [String; 2], devices: [usize; 2]) {
        let id = self.id();
        let user = self.users[0].id();
        let answers = (0..)
            .zip(bodies)
            .zip(devices)
            .map(async |((n, body), device)| {
                let who = Player::new(&self.world, user.to_owned(), Name::User(0, device));
                let node = (id + n) % NODES;
                let answer = who.call(node, "POST", path, Some(body)).await;
                let choice = n as u64;
                matches!(answer, Some((200, _))).then_some(Answer { id, choice })
            });
        let taken = join_all(answers).await;
        self.found
            .borrow_mut()
            .answers
            .extend(taken.into_iter().flatten());
    }

    /// A user says yes at one node and no at another. Its peer never decides, so the question stays
    /// open.
    pub(super) async fn decide_approvals(&self, over: &Cell<bool>) -> Result<()> {
        let asking = &self.asking;
        let path = format!(
            "/agents/{}/conversations/{}/approvals",
            asking.id(),
            self.group
        );
        while !over.get() {
            let question = json!({
                "payload": { "type": "text" }, "kind": "approve", "digest": Key32([0; 32]), "quorum": 2,
                "deny_quorum": 2, "client_message_id": asking.fresh_id(),
            });
            let (asked, _) = self
                .must(asking, "POST", &path, question, &[200, 201])
                .await?;
            let approval = text(&asked["data"], "approval_id")?;
            let say = |word| self.keys.decide(&asked["data"], self.users[0].id(), word);
            let path = format!("/approvals/{approval}/decision");
            self.both(&path, [say("approved")?, say("denied")?], [0, 0])
                .await;
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    /// The agent calls a tool: the call's name, and its deadline.
    async fn call(&self, scope: &str) -> Result<(String, DateTime<Utc>)> {
        let id = Ulid::generate().to_string();
        let call = json!({
            "request_id": id, "conversation_id": self.talk, "tool": "notify", "scope": scope,
            "payload": { "type": "text" },
        });
        let path = format!("/agents/{}/artifact-requests", self.asking.id());
        let (made, _) = self
            .must(&self.asking, "POST", &path, call, &[200, 201])
            .await?;
        Ok((id, text(&made["data"], "expires_at")?.parse()?))
    }

    /// Two devices answer a call, one with a result and one with a denial.
    pub(super) async fn answer_calls(&self, over: &Cell<bool>) -> Result<()> {
        while !over.get() {
            let (call, _) = self.call(SCOPE).await?;
            let bodies =
                ["executed", "denied"].map(|status| json!({ "status": status }).to_string());
            let path = format!("/artifact-requests/{call}/response");
            self.both(&path, bodies, [0, 1]).await;
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Answers calls right after their deadlines.
    pub(in super::super) async fn answer_late(&self) -> Result<()> {
        let mut calls = Vec::new();
        for _ in 0..LATE_CALLS {
            calls.push(self.call(SLOW_SCOPE).await?);
        }
        for (call, deadline) in calls {
            // The server's clock is this machine's.
            let wait = (deadline - Utc::now()).to_std().unwrap_or_default();
            tokio::time::sleep(wait + LATE_PAUSE).await;
            let (id, began) = (self.id(), self.now());
            let ended = Some(began.saturating_sub(1));
            self.end(Thing::Deadline, id, Span { began: 0, ended });
            let path = format!("/artifact-requests/{call}/response");
            let body = json!({ "status": "executed" }).to_string();
            let answer = self.users[0]
                .call(id % NODES, "POST", &path, Some(body))
                .await;
            if let Some((status, _)) = answer {
                self.note(id, began, status == 200);
            }
        }
        Ok(())
    }
}
