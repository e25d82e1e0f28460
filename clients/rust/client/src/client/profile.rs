//! The account itself: its profile, password, address and passkeys.

use blindpipe_protocol::{
    accounts::{
        Account, AccountDeleted, ChangeEmail, ChangePassword, ChangeProfile, CodeSent,
        ConfirmEmail, PasswordChanged,
    },
    ids::{ChallengeId, PasskeyId},
    passkeys::{CompleteEnrolment, DeletedPasskey, EnrolledPasskey, EnrolmentChallenge, Passkey},
    text::{DisplayName, EmailAddress, Locale, MailedCode, PasskeyName, Secret},
};
use serde_json::{Value, json};

use super::Client;
use crate::{Result, session::raw, transport::Call};

impl Client {
    /// The person's own account.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn profile(&self) -> Result<Account> {
        self.http().data(Call::get("/users/me")).await
    }

    /// Changes the name that others see, or the language of mails. `None` leaves one as it is.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn update_profile(
        &self,
        display_name: Option<&str>,
        device_locale: Option<&str>,
    ) -> Result<Account> {
        let body = ChangeProfile {
            display_name: display_name.map(|it| DisplayName(it.to_owned())),
            device_locale: device_locale.map(|it| Locale(it.to_owned())),
        };
        self.http().data(Call::patch("/users/me", &body)).await
    }

    /// Another password for the account, which ends the other sessions. It protects no keys.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn change_password(&self, current: &str, new: &str) -> Result<PasswordChanged> {
        let body = ChangePassword {
            current_password: Secret::from(current),
            new_account_password: Secret::from(new),
        };
        let changed = self.http().data(Call::post("/users/me/password", &body));
        let changed = changed.await?;
        self.0.account.signed_in_by(new);
        Ok(changed)
    }

    /// Mails a code to the new address. It needs a sign-in of the last 10 minutes.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn change_email(&self, email: &str) -> Result<CodeSent> {
        let email = EmailAddress::from(email);
        let call = Call::post("/users/me/email", &ChangeEmail { email });
        self.http().data(call).await
    }

    /// Takes the new address, with the code that was mailed there.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn confirm_email(&self, email: &str, code: &str) -> Result<Account> {
        let body = ConfirmEmail {
            email: EmailAddress::from(email),
            code: MailedCode(code.to_owned()),
            turnstile_token: None,
        };
        let call = Call::post("/users/me/email/confirm", &body);
        self.http().data(call).await
    }

    /// Deletes the account with all that is its own, for good. It needs a sign-in of the last 10 minutes.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn delete_account(&self) -> Result<AccountDeleted> {
        self.http().data(Call::delete("/users/me")).await
    }

    /// A page of the passkeys of this account, and the cursor of the next.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn passkeys(&self, cursor: Option<String>) -> Result<(Vec<Passkey>, Option<String>)> {
        let call = Call::get("/users/me/passkeys").query("cursor", cursor);
        let page = self.http().page(call).await?;
        Ok((page.data, page.next_cursor))
    }

    /// Begins a new passkey: its `public_key` is what a browser's `credentials.create` takes. It needs a
    /// sign-in of the last 10 minutes.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn begin_passkey(&self) -> Result<EnrolmentChallenge> {
        let call = Call::post("/users/me/passkeys/begin", &json!({}));
        self.http().data(call).await
    }

    /// Keeps the passkey that an authenticator made: `credential` is its answer as JSON.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn add_passkey(
        &self,
        challenge_id: ChallengeId,
        credential: &Value,
        name: Option<&str>,
    ) -> Result<EnrolledPasskey> {
        let body = CompleteEnrolment {
            challenge_id,
            credential: raw(credential),
            name: name.map(|name| PasskeyName(name.to_owned())),
        };
        let call = Call::post("/users/me/passkeys/complete", &body);
        self.http().data(call).await
    }

    /// Deletes a passkey.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn delete_passkey(&self, id: PasskeyId) -> Result<DeletedPasskey> {
        let call = Call::delete(format!("/users/me/passkeys/{id}"));
        self.http().data(call).await
    }
}
