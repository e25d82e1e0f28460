//! The shape of requests and decisions, the bytes that a person signs, and when an approval closes.

use std::collections::BTreeSet;

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use axum::http::HeaderMap;
use blindpipe_protocol::approvals::{
    Approval, ApprovalDecision, ApprovalKind, ApprovalReason, ApprovalState, DecideApproval,
    RequestApproval,
};
use chrono::{DateTime, TimeDelta, Utc};

use crate::{
    error::{Code, Error, Result},
    features::messages::Draft,
    http::json,
    ids::{Principal, UserId},
    limits::quotas::{APPROVAL_TTL_SECONDS, DEFAULT_APPROVAL_TTL_SECONDS},
};

/// The largest difference between a decision's time and the server's, either way.
const DECISION_TOLERANCE: TimeDelta = TimeDelta::seconds(300);

/// A request that has been read and checked.
pub struct Question {
    pub kind: ApprovalKind,
    pub digest: [u8; 32],
    /// The users who are asked; none for every member who is a user.
    pub of: Option<BTreeSet<UserId>>,
    pub quorum: i64,
    pub deny_quorum: i64,
    pub ttl_seconds: i64,
}

/// Reads the body of a request: the approval, and its message.
pub fn read_question(bytes: &[u8], headers: &HeaderMap) -> Result<(Question, Draft)> {
    // The shape is checked before the payload is read, which keeps its bytes.
    json::check(bytes)?;
    let body: RequestApproval = json::parse(bytes)?;
    let (draft, _) = Draft::from_body(bytes, headers, Code::WebhookPayloadTooLarge)?;
    let ttl_seconds = body
        .expires_in_seconds
        .unwrap_or(DEFAULT_APPROVAL_TTL_SECONDS);
    if !APPROVAL_TTL_SECONDS.contains(&ttl_seconds) {
        let fault = "must be 60 seconds to 30 days";
        return Err(Error::field("expires_in_seconds", "range", fault));
    }
    let of = body.of.filter(|of| !of.is_empty());
    let question = Question {
        kind: body.kind,
        digest: body.digest.0,
        of: of.map(BTreeSet::from_iter),
        quorum: body.quorum.unwrap_or(1),
        deny_quorum: body.deny_quorum.unwrap_or(1),
        ttl_seconds,
    };
    Ok((question, draft))
}

impl Question {
    /// The users who are asked, of the conversation's users. Errors: `VALIDATION_ERROR` for a name
    /// that is none of them, and for a quorum that they cannot reach.
    pub fn asked(&self, users: Vec<UserId>) -> Result<Vec<UserId>> {
        let asked = match &self.of {
            None => users,
            Some(of) if of.iter().all(|one| users.contains(one)) => of.iter().copied().collect(),
            Some(_) => {
                let fault = "names someone who is no user of this conversation";
                return Err(Error::field("of", "member", fault));
            }
        };
        let count = i64::try_from(asked.len()).unwrap_or(i64::MAX);
        for (name, quorum) in [("quorum", self.quorum), ("deny_quorum", self.deny_quorum)] {
            if !(1..=count).contains(&quorum) {
                let fault = "must be from 1 to the number of users who are asked";
                return Err(Error::field(name, "range", fault));
            }
        }
        Ok(asked)
    }

    /// Whether an approval was made by this request. Its people may have changed since.
    pub fn made(&self, approval: &Approval) -> bool {
        self.kind == approval.kind
            && self.digest == approval.digest.0
            && self.quorum == approval.quorum
            && self.deny_quorum == approval.deny_quorum
    }
}

/// Reads the body of a decision, and its answer as a message if it has any.
pub fn read_decision(bytes: &[u8]) -> Result<(DecideApproval, Option<Draft>)> {
    json::check(bytes)?;
    let body: DecideApproval = json::parse(bytes)?;
    let draft = match body.payload {
        None => None,
        Some(_) => Some(Draft::from_body(bytes, &HeaderMap::new(), Code::MessageTooLarge)?.0),
    };
    Ok((body, draft))
}

/// The message of a decision: it answers the question, and names the agent, which may hear only
/// what names it.
pub fn answer(draft: Draft, approval: &Approval) -> Draft {
    Draft {
        key: None,
        client_message_id: None,
        in_reply_to: Some(approval.approval_id),
        recipients: Some(vec![Principal::Agent(approval.agent_id)]),
        ..draft
    }
}

/// Refuses a decision that the kind of the question does not have, or whose time is not now.
pub fn check(decision: &DecideApproval, approval: &Approval, now: DateTime<Utc>) -> Result<()> {
    if decision.decision != ApprovalDecision::Denied && decision.decision != yes(approval.kind) {
        let fault = "an `approve` is approved or denied, an `ask` is answered or denied";
        return Err(Error::field("decision", "kind", fault));
    }
    if (now - decision.decided_at.0).abs() > DECISION_TOLERANCE {
        let fault = "is more than 300 s away from now";
        return Err(Error::field("decided_at", "window", fault));
    }
    Ok(())
}

fn yes(kind: ApprovalKind) -> ApprovalDecision {
    match kind {
        ApprovalKind::Approve => ApprovalDecision::Approved,
        ApprovalKind::Ask => ApprovalDecision::Answered,
    }
}

/// Verifies a decision's signature by the user's key. Errors: `SIGNATURE_INVALID`.
pub fn verify(
    decision: &DecideApproval,
    approval: &Approval,
    user: UserId,
    key: &[u8],
) -> Result<()> {
    UnparsedPublicKey::new(&ED25519, key)
        .verify(&signed(decision, approval, user), &decision.signature.0)
        .map_err(|_| Code::SignatureInvalid.into())
}

/// The bytes that the user's device signs.
fn signed(decision: &DecideApproval, approval: &Approval, user: UserId) -> Vec<u8> {
    let mut bytes = b"blindpipe approval v1\0".to_vec();
    for text in [
        approval.approval_id.to_string(),
        approval.agent_id.to_string(),
        approval.conversation_id.to_string(),
        user.to_string(),
        decision.key_id.0.clone(),
        decision.decision.to_string(),
    ] {
        // Ids and words are short, and a key's id has at most 64 bytes.
        let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
        bytes.extend(length.to_be_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes.extend(approval.digest.0);
    bytes.extend(digest_of(decision));
    let decided_at = u64::try_from(decision.decided_at.0.timestamp_millis()).unwrap_or(0);
    bytes.extend(decided_at.to_be_bytes());
    bytes
}

/// The digest of the answer; zeros without one.
pub fn digest_of(decision: &DecideApproval) -> [u8; 32] {
    decision
        .answer_digest
        .as_ref()
        .map_or([0; 32], |digest| digest.0)
}

/// How an open approval has ended by its decisions; none if it has not.
pub fn outcome(approval: &Approval) -> Option<(ApprovalState, Option<ApprovalReason>)> {
    let count = |word| {
        let decisions = approval.decisions.iter();
        decisions.filter(|one| one.decision == word).count() as i64
    };
    let (said_yes, said_no) = (count(yes(approval.kind)), count(ApprovalDecision::Denied));
    let waiting = approval.asked.len() as i64 - said_yes - said_no;
    if said_yes >= approval.quorum {
        let state = match approval.kind {
            ApprovalKind::Approve => ApprovalState::Approved,
            ApprovalKind::Ask => ApprovalState::Answered,
        };
        return Some((state, None));
    }
    if said_no >= approval.deny_quorum {
        return Some((ApprovalState::Denied, None));
    }
    let reason = if approval.asked.is_empty() {
        ApprovalReason::NobodyLeft
    } else if said_yes + waiting < approval.quorum && said_no + waiting < approval.deny_quorum {
        ApprovalReason::Undecidable
    } else {
        return None;
    };
    Some((ApprovalState::Expired, Some(reason)))
}

#[cfg(test)]
mod tests;
