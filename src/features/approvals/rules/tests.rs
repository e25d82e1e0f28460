use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use blindpipe_protocol::{
    approvals::SignedDecision,
    text::{Key32, KeyId, Signature},
};
use serde_json::Value;

use super::*;
use crate::ids::{AgentId, ConversationId, MessageId};

fn approval(kind: ApprovalKind, asked: usize, quorums: [i64; 2]) -> Approval {
    let at = DateTime::UNIX_EPOCH.into();
    let users = 1..=asked as u128;
    Approval {
        approval_id: MessageId::NIL,
        conversation_id: ConversationId::NIL,
        agent_id: AgentId::NIL,
        seq: 1,
        kind,
        digest: Key32([7; 32]),
        asked: users.map(|n| UserId::from_bytes(n.to_be_bytes())).collect(),
        quorum: quorums[0],
        deny_quorum: quorums[1],
        decisions: Vec::new(),
        state: ApprovalState::Open,
        reason: None,
        created_at: at,
        expires_at: at,
        closed_at: None,
    }
}

fn said(decision: ApprovalDecision) -> SignedDecision {
    SignedDecision {
        user_id: UserId::NIL,
        decision,
        decided_at: DateTime::UNIX_EPOCH.into(),
        answer_digest: None,
        key_id: KeyId("k".to_owned()),
        signature: Signature([0; 64]),
        message_id: None,
    }
}

#[test]
fn an_approval_ends_when_a_quorum_is_reached_or_none_can_be() {
    use ApprovalState::{Answered, Approved, Denied, Expired};
    let undecidable = Some((Expired, Some(ApprovalReason::Undecidable)));
    for (asked, quorums, yes, no, expected) in [
        (3, [1, 1], 0, 0, None),
        (3, [1, 1], 1, 0, Some((Approved, None))),
        (3, [1, 1], 0, 1, Some((Denied, None))),
        (3, [2, 2], 1, 1, None),
        (3, [3, 3], 1, 1, undecidable),
        (3, [3, 2], 1, 1, None),
        (2, [2, 2], 1, 1, undecidable),
        (1, [2, 1], 1, 0, undecidable),
        (1, [2, 2], 0, 0, undecidable),
        (
            0,
            [1, 1],
            0,
            0,
            Some((Expired, Some(ApprovalReason::NobodyLeft))),
        ),
        // The yes comes first: an answer and its end are one change.
        (2, [1, 1], 1, 1, Some((Approved, None))),
    ] {
        let mut one = approval(ApprovalKind::Approve, asked, quorums);
        one.decisions = vec![said(ApprovalDecision::Approved); yes];
        one.decisions
            .extend(vec![said(ApprovalDecision::Denied); no]);
        assert_eq!(outcome(&one), expected, "{asked} {quorums:?} {yes} {no}");
    }
    let mut one = approval(ApprovalKind::Ask, 1, [1, 1]);
    one.decisions = vec![said(ApprovalDecision::Answered)];
    assert_eq!(outcome(&one), Some((Answered, None)));
}

/// The vectors are made by the clients' crate, which builds the bytes by itself.
#[test]
fn the_signatures_of_the_vectors_hold_and_others_do_not() {
    let vectors = include_str!("../../../../clients/vectors/approvals.json");
    let vectors: Value = serde_json::from_str(vectors).expect("JSON");
    let cases = vectors["signatures"].as_array().expect("cases");
    assert!(cases.len() > 3);
    for case in cases {
        let read = |name: &str| case[name].as_str().expect(name).to_owned();
        let mut one = approval(ApprovalKind::Approve, 0, [1, 1]);
        one.approval_id = read("approval_id").parse().expect("an id");
        one.agent_id = read("agent_id").parse().expect("an id");
        one.conversation_id = read("conversation_id").parse().expect("an id");
        one.digest = serde_json::from_value(case["digest"].clone()).expect("a digest");
        let user: UserId = read("user_id").parse().expect("an id");
        let mut body = case.clone();
        body["key_id"] = case["keys"]["key_id"].clone();
        let decision: DecideApproval = serde_json::from_value(body).expect("a decision");
        let hex = |text: &str| -> Vec<u8> {
            let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
            (0..text.len()).step_by(2).map(byte).collect()
        };
        assert_eq!(signed(&decision, &one, user), hex(&read("signed")));
        let key = hex(case["keys"]["signing_public_key"].as_str().expect("a key"));
        assert!(verify(&decision, &one, user, &key).is_ok());
        let mut other = decision.clone();
        other.signature.0[0] ^= 1;
        assert!(verify(&other, &one, user, &key).is_err());
        one.digest = Key32([8; 32]);
        let refused = verify(&decision, &one, user, &key).expect_err("another question");
        assert_eq!(refused.code(), Code::SignatureInvalid);
        assert_eq!(BASE64.encode(decision.signature.0), read("signature"));
    }
}
