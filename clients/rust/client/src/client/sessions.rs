//! The sessions of a person, and the undo of what one has added: for the time after a theft.

use blindpipe_protocol::{
    ids::SessionId,
    sessions::{
        Reauthenticate, Reauthenticated, Session, SessionChange, UndoChanges, UndoneChanges,
    },
    text::{MailedCode, Secret},
};

use super::Client;
use crate::{Result, transport::Call};

/// The sessions of a person.
pub struct Sessions<'a>(pub(super) &'a Client);

impl Sessions<'_> {
    /// All sessions, newest first, with those that ended within 30 days.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn list(&self) -> Result<Vec<Session>> {
        let (mut sessions, mut cursor) = (Vec::new(), None);
        loop {
            let call = Call::get("/users/me/sessions").query("cursor", cursor);
            let page = self.0.http().page::<Session>(call).await?;
            sessions.extend(page.data);
            cursor = page.next_cursor;
            if cursor.is_none() {
                return Ok(sessions);
            }
        }
    }

    /// What a session has added and is still there: agents, tokens, webhooks, relations, and more.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn changes(&self, id: SessionId) -> Result<Vec<SessionChange>> {
        let call = Call::get(format!("/users/me/sessions/{id}/changes"));
        let page = self.0.http().page(call).await?;
        Ok(page.data)
    }

    /// Undoes what a session has added, also after its end: the changes with these ids, or all.
    /// Answers what this call has undone.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn undo(
        &self,
        id: SessionId,
        ids: Option<Vec<String>>,
    ) -> Result<Vec<SessionChange>> {
        let path = format!("/users/me/sessions/{id}/undo");
        // Nothing is undone twice, so a repeat is safe.
        let call = Call::post(path, &UndoChanges { ids }).repeatable();
        let answer: UndoneChanges = self.0.http().data(call).await?;
        Ok(answer.undone)
    }
}

/// A proof of identity.
pub enum Proof {
    /// The password of the account.
    Password(String),
    /// A code that was mailed for the scene `login`.
    Code(String),
}

impl Client {
    /// The sessions of this person.
    #[must_use]
    pub const fn sessions(&self) -> Sessions<'_> {
        Sessions(self)
    }

    /// Proves the person's identity anew. For ten minutes this session may then do what the service
    /// refuses with `REAUTH_REQUIRED`.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn reauth(&self, proof: Proof) -> Result<()> {
        let (password, code) = match proof {
            Proof::Password(password) => (Some(Secret::from(password.as_str())), None),
            Proof::Code(code) => (None, Some(MailedCode(code))),
        };
        let body = Reauthenticate {
            account_password: password,
            code,
            challenge_id: None,
            credential: None,
            turnstile_token: None,
        };
        let call = Call::post("/auth/reauth", &body);
        self.http().data::<Reauthenticated>(call).await?;
        Ok(())
    }
}
