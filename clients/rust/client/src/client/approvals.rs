//! The approvals that agents ask a person for, and the person's signed decision.

use blindpipe_e2ee::{
    approval::{Decision, Proof, ReceiptError, answer_digest},
    from_base64, to_base64,
};
use blindpipe_protocol::{
    ids::{MessageId, Principal},
    time::Timestamp,
};
use rand::RngExt;
use serde_json::{Value, json};

use super::{Client, Conversation, Received, SendOptions};
use crate::{
    Approval, Content, Error, OpenedMessage, Receipt, Result,
    content::{self, text_of_bytes},
    session::{hex, unix_ms},
    transport::{Call, rng},
};

/// An approval that a person sees, with its question.
#[derive(Clone, Debug)]
pub struct ApprovalRequest {
    /// The approval, as the service shows it.
    pub approval: Approval,
    /// The question; why it does not open, or is not what the digest says.
    pub question: std::result::Result<OpenedMessage, blindpipe_e2ee::Error>,
    received: Option<Received>,
    conversation: Conversation,
}

impl Client {
    /// A page of the approvals that this person was asked for in all conversations, the newest
    /// first, and the cursor of the next page.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn approvals(
        &self,
        is_open: bool,
        cursor: Option<String>,
    ) -> Result<(Vec<ApprovalRequest>, Option<String>)> {
        let state = if is_open { "open" } else { "closed" };
        let call = Call::get("/approvals")
            .query("state", Some(state))
            .query("cursor", cursor);
        let page = self.http().page::<Approval>(call).await?;
        let mut requests = Vec::with_capacity(page.data.len());
        for approval in page.data {
            requests.push(self.approval_request(approval).await?);
        }
        Ok((requests, page.next_cursor))
    }

    /// An approval with its question.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn approval(&self, id: MessageId) -> Result<ApprovalRequest> {
        let call = Call::get(format!("/approvals/{id}"));
        let approval = self.http().data(call).await?;
        self.approval_request(approval).await
    }

    /// Opens the question of an approval, such as that of an event.
    ///
    /// # Errors
    ///
    /// A read that failed; a question that does not open is no error here.
    pub async fn approval_request(&self, approval: Approval) -> Result<ApprovalRequest> {
        let conversation = self.conversation(approval.conversation_id);
        let messages = self.session()?.approval_messages(&approval).await?;
        let received = match messages.question {
            Some(message) => Some(conversation.open(message, false).await?),
            None => None,
        };
        let opened = received.as_ref().map(|received| received.opened.clone());
        let question = match opened {
            Some(Ok(opened)) if approval.is_of(&opened) => Ok(opened),
            Some(Err(reason)) => Err(reason),
            Some(Ok(_)) => Err(blindpipe_e2ee::Error::BadSignature),
            None => Err(blindpipe_e2ee::Error::Malformed),
        };
        Ok(ApprovalRequest {
            approval,
            question,
            received,
            conversation,
        })
    }
}

impl ApprovalRequest {
    fn opened(&self) -> Result<&OpenedMessage> {
        let opened = self.question.as_ref();
        opened.map_err(|reason| Error::Decrypt(*reason))
    }

    /// The conversation of the approval.
    #[must_use]
    pub const fn conversation(&self) -> &Conversation {
        &self.conversation
    }

    /// The question's words; empty if it does not open.
    #[must_use]
    pub fn text(&self) -> &str {
        let text = self.question.as_ref().ok().map(|it| it.content.get("text"));
        text.flatten().and_then(Value::as_str).unwrap_or_default()
    }

    /// The subject of the approval; empty if the question does not open.
    #[must_use]
    pub fn arguments(&self) -> Content {
        let opened = self.question.as_ref().ok();
        let arguments = opened.and_then(|it| it.content.get("arguments")?.as_object());
        arguments.cloned().unwrap_or_default()
    }

    /// The answers to choose from.
    #[must_use]
    pub fn choices(&self) -> Vec<&str> {
        let opened = self.question.as_ref().ok();
        let choices = opened.and_then(|it| it.content.get("choices")?.as_array());
        let choices = choices.into_iter().flatten();
        choices.filter_map(Value::as_str).collect()
    }

    /// Says yes, signed by this device.
    ///
    /// # Errors
    ///
    /// [`Error::Decrypt`] if the question does not open, [`Error::KeyUnavailable`], `ALREADY_DECIDED`
    /// and `APPROVAL_CLOSED`.
    pub async fn approve(&self) -> Result<Approval> {
        self.decide("approved", Content::new()).await
    }

    /// Says no, signed by this device. The agent gets the words.
    ///
    /// # Errors
    ///
    /// As [`Self::approve`].
    pub async fn deny(&self, words: Option<&str>) -> Result<Approval> {
        let words = words.map(|words| ("text".to_owned(), words.into()));
        self.decide("denied", words.into_iter().collect()).await
    }

    /// Answers with one of the choices, signed by this device.
    ///
    /// # Errors
    ///
    /// As [`Self::approve`].
    pub async fn answer(&self, choice: &str) -> Result<Approval> {
        let words = [("choice".to_owned(), choice.into())];
        self.decide("answered", words.into_iter().collect()).await
    }

    /// Answers in words a question without choices, signed by this device.
    ///
    /// # Errors
    ///
    /// As [`Self::approve`].
    pub async fn answer_in_words(&self, words: &str) -> Result<Approval> {
        let words = [("text".to_owned(), words.into())];
        self.decide("answered", words.into_iter().collect()).await
    }

    pub(super) async fn answer_either(&self, answer: &str, in_words: bool) -> Result<Approval> {
        if in_words {
            return self.answer_in_words(answer).await;
        }
        self.answer(answer).await
    }

    async fn decide(&self, decision: &str, words: Content) -> Result<Approval> {
        let question = self.opened()?;
        let (payload, digest) = match words.is_empty() {
            true => (Value::Null, None),
            false => self.answer_payload(question, decision, words).await?,
        };
        let signed = self.sign(decision, digest)?;
        let mut body = json!({
            "decision": decision,
            "decided_at": signed.decided_at,
            "key_id": signed.key_id,
            "signature": to_base64(&signed.signature),
        });
        if let Some(digest) = digest {
            body["payload"] = payload;
            body["answer_digest"] = to_base64(&digest).into();
        }
        let path = format!("/approvals/{}/decision", self.approval.approval_id);
        let call = Call::post(path, &body).repeatable();
        self.conversation.client.http().data(call).await
    }

    /// Its envelope stands at the place of a reply that is named by what it answers.
    async fn answer_payload(
        &self,
        question: &OpenedMessage,
        decision: &str,
        mut content: Content,
    ) -> Result<(Value, Option<[u8; 32]>)> {
        let nonce: [u8; 16] = rng().random();
        content.insert("type".to_owned(), "decision".into());
        content.insert("decision".to_owned(), decision.into());
        content.insert("nonce".to_owned(), to_base64(&nonce).into());
        if let Some(re) = question.re {
            content.insert("re".to_owned(), to_base64(&re).into());
        }
        let digest = answer_digest(text_of_bytes(&content::encode(&content)?)?);
        let options = SendOptions {
            in_reply_to: self.received.clone(),
            // An agent that reads only what names it needs the words, too: they are signed.
            to: vec![Principal::Agent(self.approval.agent_id)],
            ..SendOptions::default()
        };
        let id = self.approval.approval_id;
        let payload = self.conversation.payload(content, id, &options).await?;
        let payload = serde_json::from_str(payload.as_str()).map_err(Error::other)?;
        Ok((payload, Some(digest)))
    }

    fn sign(&self, decision: &str, answer_digest: Option<[u8; 32]>) -> Result<Signed> {
        let (client, approval) = (&self.conversation.client, &self.approval);
        let session = client.session()?;
        let keys = session.keys.as_ref();
        let keys = keys.ok_or(Error::KeyUnavailable("this device has no keys yet"))?;
        let (key_id, decided_at) = (hex(&keys.signer.key_id()), session.clock.timestamp());
        let digest = from_base64(&approval.digest)?.try_into();
        let signed = Decision {
            approval_id: &approval.approval_id.to_string(),
            agent_id: &approval.agent_id.to_string(),
            conversation_id: &approval.conversation_id.to_string(),
            user_id: &client.user_id()?.to_string(),
            key_id: &key_id,
            decision,
            digest: digest.map_err(|_| blindpipe_e2ee::Error::Malformed)?,
            answer_digest,
            decided_at: unix_ms(decided_at),
        };
        let signature = keys.signer.sign(&signed.to_bytes()?);
        Ok(Signed {
            decided_at,
            key_id,
            signature,
        })
    }

    /// The proof of what was decided, for a store.
    ///
    /// # Errors
    ///
    /// [`Error::Decrypt`] if the question does not open; a read that failed.
    pub async fn receipt(&self) -> Result<Receipt> {
        let question = self.opened()?;
        let session = self.conversation.client.session()?;
        let messages = session.approval_messages(&self.approval).await?;
        session
            .receipt(&self.approval, question, &messages, true)
            .await
    }

    /// Verifies a receipt with the keys that are accepted on this device.
    ///
    /// # Errors
    ///
    /// A read that failed.
    pub async fn verify(
        &self,
        receipt: &Receipt,
    ) -> Result<std::result::Result<Proof, ReceiptError>> {
        let session = self.conversation.client.session()?;
        session.verify_receipt(&self.approval, receipt).await
    }
}

struct Signed {
    decided_at: Timestamp,
    key_id: String,
    signature: [u8; 64],
}
