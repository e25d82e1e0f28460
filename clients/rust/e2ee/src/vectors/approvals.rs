//! Decisions with their signatures, and receipts with each of their fields changed.

use blindpipe_e2ee::{
    PrivateKeys,
    approval::{Decision, answer_digest, question_digest, verify_receipt},
    to_base64,
};
use serde_json::{Value, json};

use crate::vectors::{
    basics::private_json,
    cast::{device, other_device},
    hold,
    support::hex,
};

const APPROVAL: &str = "01JZX3N4Q5R6S7T8V9WAXBYCZD";
const OTHER_APPROVAL: &str = "01JZX3N4Q5R6S7T8V9WAXBYCZE";
const AGENT: &str = "0190b5e0-7c6e-7d3a-9c1b-2f4a5b6c7d8e";
const CONVERSATION: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAW";
const ALICE: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
const BOB: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAX";
const QUESTION: &str = r#"{"type":"approval","title":"Pay 12 € to Zoë?","fallback":"Pay?"}"#;
const ANSWER: &str = r#"{"type":"answer","text":"On Friday, not before."}"#;
const DECIDED_AT: (&str, u64) = ("2026-03-01T12:00:00.123Z", 1_772_366_400_123);

/// A person's word: user, keys, decision, answer.
type Word<'a> = (&'a str, PrivateKeys, &'a str, Option<&'a str>);

fn sign(word: &Word<'_>) -> (Vec<u8>, [u8; 64]) {
    let (user_id, keys, decision, answer) = word;
    let key_id = hex(keys.key_id());
    let signed = Decision {
        approval_id: APPROVAL,
        agent_id: AGENT,
        conversation_id: CONVERSATION,
        user_id,
        key_id: &key_id,
        decision,
        digest: question_digest(QUESTION),
        answer_digest: answer.map(answer_digest),
        decided_at: DECIDED_AT.1,
    };
    let bytes = signed.to_bytes().expect("short");
    let signature = keys.sign(&bytes);
    (bytes, signature)
}

fn signature(word: &Word<'_>) -> Value {
    let (user_id, keys, decision, answer) = word;
    let (bytes, signature) = sign(word);
    json!({
        "approval_id": APPROVAL,
        "agent_id": AGENT,
        "conversation_id": CONVERSATION,
        "user_id": user_id,
        "keys": private_json(keys),
        "decision": decision,
        "question": QUESTION,
        "digest": to_base64(&question_digest(QUESTION)),
        "answer": answer,
        "answer_digest": answer.map(|text| to_base64(&answer_digest(text))),
        "decided_at": DECIDED_AT.0,
        "decided_at_ms": DECIDED_AT.1,
        "signed": hex(bytes),
        "signature": to_base64(&signature),
    })
}

fn receipt(kind: &str, state: &str, quorum: u32, words: &[Word<'_>]) -> Value {
    let decisions: Vec<Value> = words
        .iter()
        .map(|word| {
            json!({
                "user_id": word.0,
                "decision": word.2,
                "decided_at": DECIDED_AT.0,
                "answer_digest": word.3.map(|text| to_base64(&answer_digest(text))),
                "key_id": hex(word.1.key_id()),
                "signature": to_base64(&sign(word).1),
            })
        })
        .collect();
    let closed_at = (state != "open").then_some("2026-03-01T12:00:01.000Z");
    let mut made = json!({
        "approval": {
            "approval_id": APPROVAL,
            "conversation_id": CONVERSATION,
            "agent_id": AGENT,
            "seq": 7,
            "kind": kind,
            "digest": to_base64(&question_digest(QUESTION)),
            "asked": [ALICE, BOB],
            "quorum": quorum,
            "deny_quorum": 1,
            "decisions": decisions,
            "state": state,
            "created_at": "2026-03-01T11:00:00.000Z",
            "expires_at": "2026-03-04T11:00:00.000Z",
            "closed_at": closed_at,
        },
        "question": QUESTION,
    });
    for word in words {
        if let Some(answer) = word.3 {
            made["answers"][word.0] = answer.into();
        }
    }
    made
}

fn verify(receipt: &Value) -> Result<Value, &'static str> {
    let keys = |user: &str, key_id: &str| {
        let keys = match user {
            ALICE => device(),
            BOB => other_device(),
            _ => return None,
        };
        (hex(keys.key_id()) == key_id).then(|| *keys.public())
    };
    let proof = verify_receipt(receipt, keys).map_err(|error| error.reason())?;
    Ok(json!({ "state": proof.state, "decisions": proof.decisions }))
}

/// A receipt with another value at a place.
fn changed(receipt: &Value, place: &str, value: Value) -> Value {
    let mut changed = receipt.clone();
    let field = changed.pointer_mut(place).expect("a field");
    assert_ne!(*field, value, "{place}");
    *field = value;
    changed
}

/// The receipt of an answer, with each of its fields changed, and why it holds no more.
fn changes(answered: &Value) -> Vec<Value> {
    let other_digest = to_base64(&[7; 32]);
    let decision = "/approval/decisions/0";
    let bob_key = hex(other_device().key_id());
    let cases = [
        ("/question".to_owned(), json!("{}"), "wrong_question"),
        (
            "/approval/digest".to_owned(),
            json!(other_digest),
            "wrong_question",
        ),
        ("/approval/digest".to_owned(), json!("AAAA"), "malformed"),
        (format!("/answers/{ALICE}"), json!("{}"), "wrong_answer"),
        (
            "/approval/approval_id".to_owned(),
            json!(OTHER_APPROVAL),
            "bad_signature",
        ),
        (
            "/approval/agent_id".to_owned(),
            json!("0190b5e0-7c6e-7d3a-9c1b-2f4a5b6c7d8f"),
            "bad_signature",
        ),
        (
            "/approval/conversation_id".to_owned(),
            json!(BOB),
            "bad_signature",
        ),
        (
            "/approval/kind".to_owned(),
            json!("approve"),
            "wrong_outcome",
        ),
        ("/approval/kind".to_owned(), json!("order"), "malformed"),
        (
            "/approval/state".to_owned(),
            json!("denied"),
            "wrong_outcome",
        ),
        (
            "/approval/state".to_owned(),
            json!("withdrawn"),
            "wrong_outcome",
        ),
        ("/approval/quorum".to_owned(), json!(2), "wrong_outcome"),
        ("/approval/quorum".to_owned(), json!(0), "malformed"),
        ("/approval/asked".to_owned(), json!([BOB]), "wrong_outcome"),
        (format!("{decision}/user_id"), json!(BOB), "unknown_key"),
        (format!("{decision}/key_id"), json!(bob_key), "unknown_key"),
        (
            format!("{decision}/decision"),
            json!("denied"),
            "bad_signature",
        ),
        (
            format!("{decision}/decided_at"),
            json!("2026-03-01T12:00:00.124Z"),
            "bad_signature",
        ),
        (
            format!("{decision}/decided_at"),
            json!("2026-03-01T12:00:00Z"),
            "malformed",
        ),
        (
            format!("{decision}/answer_digest"),
            json!(other_digest),
            "wrong_answer",
        ),
        (
            format!("{decision}/answer_digest"),
            Value::Null,
            "wrong_answer",
        ),
        (
            format!("{decision}/signature"),
            json!(to_base64(&[7; 64])),
            "bad_signature",
        ),
    ];
    let case = |(place, value, reason): (String, Value, &'static str)| {
        let changed = changed(answered, &place, value.clone());
        assert_eq!(verify(&changed), Err(reason), "{place} {value}");
        json!({ "place": place, "value": value, "reason": reason })
    };
    cases.into_iter().map(case).collect()
}

#[test]
fn approvals() {
    let alice = |decision, answer| (ALICE, device(), decision, answer);
    let bob = |decision| (BOB, other_device(), decision, None);
    let answered = receipt("ask", "answered", 1, &[alice("answered", Some(ANSWER))]);
    let good = [
        receipt("approve", "approved", 1, &[alice("approved", None)]),
        receipt(
            "approve",
            "approved",
            2,
            &[alice("approved", None), bob("approved")],
        ),
        receipt("approve", "denied", 1, &[alice("denied", None)]),
        receipt("approve", "open", 2, &[alice("approved", None)]),
        receipt("ask", "expired", 1, &[]),
        answered.clone(),
    ];
    let proved: Vec<Value> = good
        .iter()
        .map(|receipt| json!({ "receipt": receipt, "proves": verify(receipt).expect("good") }))
        .collect();
    let twice = receipt(
        "approve",
        "approved",
        2,
        &[alice("approved", None), alice("approved", None)],
    );
    assert_eq!(verify(&twice), Err("wrong_outcome"));
    let words = [
        alice("approved", None),
        alice("denied", None),
        alice("answered", Some(ANSWER)),
        bob("approved"),
    ];
    hold(
        "approvals.json",
        &json!({
            "signatures": words.iter().map(signature).collect::<Vec<_>>(),
            "keys": { ALICE: [private_json(&device())], BOB: [private_json(&other_device())] },
            "receipts": proved,
            "changed": { "receipt": answered, "changes": changes(&answered) },
            "refused": [{ "receipt": twice, "reason": "wrong_outcome" }],
        }),
    );
}
