//! Another proof of identity in a session that goes on: by the password, or by a mailed code.

use blindpipe_protocol::text::Secret;

use super::{
    http::Accounts,
    rules::{GivenPassword, Scene},
    store::{self, GivenCode, Sender},
};
use crate::{
    auth::user::User,
    error::{Code, Result},
    features::devices,
    http::client::ClientIp,
    limits::{Limiter, table::Limit},
    validation::parse_field,
};

impl Accounts {
    /// Notes that the session's user knows the password. A wrong one counts as a failed login.
    pub async fn prove_again(
        &self,
        (limiter, ip): (&Limiter, ClientIp),
        user: &User,
        password: &Secret,
    ) -> Result<()> {
        let password: GivenPassword = parse_field("account_password", password.expose())?;
        let email = store::email_of(self.work.db(), user.id).await?;
        let reservation = limiter.reserve(Limit::LoginIp, ip).await?;
        let proven = self.prove_password(limiter, &email, &password).await;
        if !matches!(proven, Ok(None)) {
            limiter.refund(reservation).await;
        }
        let known = proven?.filter(|known| known.user == user.id);
        let known = known.ok_or(Code::InvalidCredentials)?;
        let noted = self.work.run("accounts.prove_again", async |tx| {
            store::still_holds(tx, &known).await?;
            store::clear_failures(tx, &email).await?;
            devices::note_proof(tx, user.session).await
        });
        noted.await
    }

    /// Notes that the session's user reads the account's mail. A wrong code counts as in a login.
    pub async fn prove_again_by_code(
        &self,
        limiter: &Limiter,
        user: &User,
        (code, sender): (&str, Sender),
    ) -> Result<()> {
        let email = store::email_of(self.work.db(), user.id).await?;
        let given = GivenCode {
            email: &email,
            scene: Scene::Login,
            code,
            sender,
        };
        let noted = self.work.run("accounts.prove_again_by_code", async |tx| {
            self.use_code(tx, limiter, &given).await?;
            devices::note_proof(tx, user.session).await
        });
        noted.await
    }
}
