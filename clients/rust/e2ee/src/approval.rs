//! Approvals: what an agent asks, what a person signs, and the receipt that proves it without the
//! service.

use std::fmt;

use serde_json::Value;

use crate::{
    PublicKeys,
    bytes::{from_base64, hex, prefixed, sha256},
};

/// The digest of a question: over the exact bytes of its content.
#[must_use]
pub fn question_digest(content: &str) -> [u8; 32] {
    sha256(&[b"blindpipe approval digest v1\0", content.as_bytes()])
}

/// The digest of an answer: over the exact bytes of its content.
#[must_use]
pub fn answer_digest(content: &str) -> [u8; 32] {
    sha256(&[b"blindpipe answer digest v1\0", content.as_bytes()])
}

/// A person's decision, in the words of the wire.
#[derive(Clone, Copy, Debug)]
pub struct Decision<'a> {
    pub approval_id: &'a str,
    pub agent_id: &'a str,
    pub conversation_id: &'a str,
    pub user_id: &'a str,
    /// The signing key, 32 digits in lower-case hex.
    pub key_id: &'a str,
    /// `approved`, `answered` or `denied`.
    pub decision: &'a str,
    /// Of the question.
    pub digest: [u8; 32],
    /// Of the answer; none without one.
    pub answer_digest: Option<[u8; 32]>,
    /// Unix milliseconds.
    pub decided_at: u64,
}

impl Decision<'_> {
    /// The bytes that the person's device signs.
    ///
    /// # Errors
    ///
    /// `malformed` for a text over 65,535 bytes.
    pub fn to_bytes(&self) -> crate::Result<Vec<u8>> {
        let mut bytes = b"blindpipe approval v1\0".to_vec();
        for text in [
            self.approval_id,
            self.agent_id,
            self.conversation_id,
            self.user_id,
            self.key_id,
            self.decision,
        ] {
            bytes.extend(prefixed(text.as_bytes())?);
        }
        bytes.extend(self.digest);
        bytes.extend(self.answer_digest.unwrap_or_default());
        bytes.extend(self.decided_at.to_be_bytes());
        Ok(bytes)
    }
}

/// The reason why a receipt does not prove what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiptError {
    /// A field is missing, or has another form.
    Malformed,
    /// The question has another digest.
    WrongQuestion,
    /// An answer has another digest, or its decision names none.
    WrongAnswer,
    /// No key of the person has this id.
    UnknownKey,
    /// The signature does not hold.
    BadSignature,
    /// The decisions do not lead to the state, or are not by those who were asked, once each.
    WrongOutcome,
}

impl ReceiptError {
    /// The name of the reason, the same in every language.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::WrongQuestion => "wrong_question",
            Self::WrongAnswer => "wrong_answer",
            Self::UnknownKey => "unknown_key",
            Self::BadSignature => "bad_signature",
            Self::WrongOutcome => "wrong_outcome",
        }
    }
}

impl fmt::Display for ReceiptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl std::error::Error for ReceiptError {}

/// The facts that a receipt proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// `approved`, `answered`, `denied`, or a state that nobody signs: `open`, `expired`, `withdrawn`.
    pub state: String,
    /// Each person's id and word, in the order of the receipt.
    pub decisions: Vec<(String, String)>,
}

/// Verifies a receipt, `{approval, question, answers?}`, with the keys that `key_of` finds by the
/// ids of a user and of a key.
///
/// The signatures cover the question, the answers, and who decided what and when. Who was asked and
/// how many had to agree is the word of the agent and the service.
///
/// # Errors
///
/// The first reason why it does not hold.
pub fn verify_receipt(
    receipt: &Value,
    key_of: impl Fn(&str, &str) -> Option<PublicKeys>,
) -> Result<Proof, ReceiptError> {
    let item = &receipt["approval"];
    let digest = bytes(&item["digest"])?;
    if question_digest(text(&receipt["question"])?) != digest {
        return Err(ReceiptError::WrongQuestion);
    }
    let mut decisions = Vec::new();
    for one in list(&item["decisions"])? {
        let user = text(&one["user_id"])?;
        let answer = &receipt["answers"][user];
        verify_decision(item, digest, one, answer, &key_of)?;
        decisions.push((user.to_owned(), text(&one["decision"])?.to_owned()));
    }
    verify_outcome(item, &decisions)?;
    let state = text(&item["state"])?.to_owned();
    Ok(Proof { state, decisions })
}

fn verify_decision(
    item: &Value,
    digest: [u8; 32],
    one: &Value,
    answer: &Value,
    key_of: impl Fn(&str, &str) -> Option<PublicKeys>,
) -> Result<(), ReceiptError> {
    let signed = Decision {
        approval_id: text(&item["approval_id"])?,
        agent_id: text(&item["agent_id"])?,
        conversation_id: text(&item["conversation_id"])?,
        user_id: text(&one["user_id"])?,
        key_id: text(&one["key_id"])?,
        decision: text(&one["decision"])?,
        digest,
        answer_digest: match &one["answer_digest"] {
            Value::Null => None,
            some => Some(bytes(some)?),
        },
        decided_at: milliseconds(text(&one["decided_at"])?).ok_or(ReceiptError::Malformed)?,
    };
    if !answer.is_null() && Some(answer_digest(text(answer)?)) != signed.answer_digest {
        return Err(ReceiptError::WrongAnswer);
    }
    let key = key_of(signed.user_id, signed.key_id)
        .filter(|key| hex(key.key_id()) == signed.key_id)
        .ok_or(ReceiptError::UnknownKey)?;
    let signature = bytes(&one["signature"])?;
    let signed = signed.to_bytes().map_err(|_| ReceiptError::Malformed)?;
    key.verify(&signed, &signature)
        .map_err(|_| ReceiptError::BadSignature)
}

/// Whether those who were asked have decided once each, and enough of them for the state.
fn verify_outcome(item: &Value, decisions: &[(String, String)]) -> Result<(), ReceiptError> {
    let yes = match text(&item["kind"])? {
        "approve" => "approved",
        "ask" => "answered",
        _ => return Err(ReceiptError::Malformed),
    };
    let asked = list(&item["asked"])?;
    let mut users: Vec<&str> = decisions.iter().map(|(user, _)| user.as_str()).collect();
    users.sort_unstable();
    users.dedup();
    let is_asked = |user: &&str| asked.iter().any(|one| one.as_str() == Some(user));
    let is_known = |word: &str| word == yes || word == "denied";
    let count = |word: &str| decisions.iter().filter(|one| one.1 == word).count() as u64;
    let reached = |word: &str, quorum: &Value| {
        let quorum = quorum.as_u64().filter(|quorum| *quorum > 0);
        Ok(count(word) >= quorum.ok_or(ReceiptError::Malformed)?)
    };
    let outcome = match text(&item["state"])? {
        state if state == yes => reached(yes, &item["quorum"])?,
        "denied" => reached("denied", &item["deny_quorum"])?,
        "open" | "expired" | "withdrawn" => {
            !reached(yes, &item["quorum"])? && !reached("denied", &item["deny_quorum"])?
        }
        _ => false,
    };
    let holds = outcome
        && users.len() == decisions.len()
        && users.iter().all(is_asked)
        && decisions.iter().all(|one| is_known(&one.1));
    holds.then_some(()).ok_or(ReceiptError::WrongOutcome)
}

fn text(value: &Value) -> Result<&str, ReceiptError> {
    value.as_str().ok_or(ReceiptError::Malformed)
}

fn list(value: &Value) -> Result<&Vec<Value>, ReceiptError> {
    value.as_array().ok_or(ReceiptError::Malformed)
}

fn bytes<const N: usize>(value: &Value) -> Result<[u8; N], ReceiptError> {
    let bytes = from_base64(text(value)?).map_err(|_| ReceiptError::Malformed)?;
    bytes.try_into().map_err(|_| ReceiptError::Malformed)
}

/// The Unix milliseconds of a time in the one form of the service: `2026-03-01T12:00:00.000Z`.
fn milliseconds(time: &str) -> Option<u64> {
    const FORM: &[u8] = b"0000-00-00T00:00:00.000Z";
    let fits = |(byte, form): (&u8, &u8)| match form {
        b'0' => byte.is_ascii_digit(),
        other => byte == other,
    };
    if time.len() != FORM.len() || !time.as_bytes().iter().zip(FORM).all(fits) {
        return None;
    }
    let number = |from: usize, to: usize| time[from..to].parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years that begin in March end with the day that some have not.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leap_days = year / 4 - year / 100 + year / 400;
    let days = year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468;
    let seconds = (number(11, 13)? * 60 + number(14, 16)?) * 60 + number(17, 19)?;
    Some((days * 86_400 + seconds) * 1000 + number(20, 23)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_one_form_and_its_milliseconds() {
        for (time, expected) in [
            ("1970-01-01T00:00:00.000Z", Some(0)),
            ("2000-02-29T23:59:59.999Z", Some(951_868_799_999)),
            ("2026-03-01T12:00:00.000Z", Some(1_772_366_400_000)),
            ("2026-03-01T12:00:00Z", None),
            ("2026-13-01T12:00:00.000Z", None),
            ("1969-12-31T23:59:59.999Z", None),
            ("2026-03-01t12:00:00.000z", None),
            ("2026-03-0éT12:00:00.00Z", None),
        ] {
            assert_eq!(milliseconds(time), expected, "{time}");
        }
    }
}
