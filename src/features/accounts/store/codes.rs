//! Mailed codes: the newest of each e-mail and scene, and the wrong tries within the limit's
//! window.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::{
    error::Result,
    features::accounts::{Codes, rules::Scene},
    jobs::Job,
    limits::{
        quotas::{CODE_TTL, MAX_TRIES_PER_CODE, MAX_WRONG_CODES_OF_ANYBODY},
        table::Budget,
    },
    validation::Email,
    work::Tx,
};

/// Stores the newest code of an e-mail and scene, and puts the job that mails it.
pub async fn put_code(
    tx: &Tx,
    email: &Email,
    scene: Scene,
    nonce: Uuid,
    locale: Option<String>,
) -> Result<()> {
    tx.execute(
        "-- accounts.put_code
        insert into email_code (email, scene, nonce, tries_left, expires_at)
        values ($1, $2, $3, $4, app_now() + make_interval(secs => $5))
        on conflict (email, scene) do update
        set nonce = excluded.nonce, tries_left = excluded.tries_left, expires_at = excluded.expires_at",
        &[
            &email.as_str(),
            &scene,
            &nonce,
            &MAX_TRIES_PER_CODE,
            &CODE_TTL.as_secs_f64(),
        ],
    )
    .await?;
    tx.enqueue(Job::Mail {
        recipient: email.as_str().to_owned(),
        scene: scene.to_string(),
        nonce,
        locale,
    });
    Ok(())
}

/// A code with its claims.
pub struct GivenCode<'a> {
    pub email: &'a Email,
    pub scene: Scene,
    pub code: &'a str,
    pub sender: Sender,
}

/// The sender of a code.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// A verified human.
    Human,
    /// Somebody who sent no proof of being human.
    Anybody,
}

/// The verdict on a code.
pub enum CodeCheck {
    /// The code matches.
    Right,
    /// The code does not match, or it is used, burnt or too old.
    Wrong,
    /// After so many wrong tries, only a verified human gets a verdict.
    NeedsHuman,
    /// Too many wrong tries over all scenes and codes. Even a right code is refused for this long.
    TooMany(Duration),
}

/// Uses a code. A right code is worth nothing afterwards.
pub async fn use_code(
    tx: &Tx,
    codes: &Codes,
    given: &GivenCode<'_>,
    budget: Budget,
) -> Result<CodeCheck> {
    let checked = check_code(tx, codes, given, budget).await?;
    if matches!(checked, CodeCheck::Right) {
        tx.execute(
            "-- accounts.burn_code
            delete from email_code where email = $1 and scene = $2",
            &[&given.email.as_str(), &given.scene],
        )
        .await?;
    }
    Ok(checked)
}

/// Checks a code and counts a wrong one. The guard's row lock serialises parallel tries of one
/// e-mail. A try without a live code could not have been right, so it is not counted.
pub async fn check_code(
    tx: &Tx,
    codes: &Codes,
    given: &GivenCode<'_>,
    budget: Budget,
) -> Result<CodeCheck> {
    let (email, scene) = (given.email, given.scene);
    if let Some(refused) = guard(tx, email, given.sender, budget).await? {
        return Ok(refused);
    }
    let nonce: Option<Uuid> = tx
        .query_opt(
            "-- accounts.try_code
            select nonce from email_code
            where email = $1 and scene = $2 and expires_at > app_now() and tries_left > 0 for update",
            &[&email.as_str(), &scene],
        )
        .await?
        .map(|row| row.get("nonce"));
    let Some(nonce) = nonce else {
        return Ok(CodeCheck::Wrong);
    };
    if codes.verify(email.as_str(), scene.into(), nonce, given.code) {
        return Ok(CodeCheck::Right);
    }
    count_wrong(tx, email).await?;
    tx.execute(
        "-- accounts.wrong_code
        update email_code set tries_left = tries_left - 1 where email = $1 and scene = $2",
        &[&email.as_str(), &scene],
    )
    .await?;
    Ok(CodeCheck::Wrong)
}

/// Locks the guard of an e-mail. Returns the refusal of one that has had too many wrong tries.
pub async fn guard(
    tx: &Tx,
    email: &Email,
    sender: Sender,
    budget: Budget,
) -> Result<Option<CodeCheck>> {
    let row = tx
        .query_one(
            "-- accounts.guard_code
            insert into code_guard as g (email, failures) values ($1, '{}')
            on conflict (email) do update
            set failures = array(select at from unnest(g.failures) as at where at > app_now() - make_interval(secs => $2) order by at)
            returning failures, app_now() as now",
            &[&email.as_str(), &budget.window.as_secs_f64()],
        )
        .await?;
    let (failures, now): (Vec<DateTime<Utc>>, DateTime<Utc>) =
        (row.get("failures"), row.get("now"));
    if sender == Sender::Anybody && failures.len() >= MAX_WRONG_CODES_OF_ANYBODY {
        return Ok(Some(CodeCheck::NeedsHuman));
    }
    // More are kept only after an operator has lowered the limit.
    let Some(surplus) = failures.len().checked_sub(budget.count as usize) else {
        return Ok(None);
    };
    let frees = failures[surplus] + budget.window;
    // A parallel try that began later may have been counted first.
    let wait = (frees - now).to_std().unwrap_or_default();
    Ok(Some(CodeCheck::TooMany(wait.min(budget.window))))
}

/// Counts a wrong try of an e-mail, whose guard is locked.
pub async fn count_wrong(tx: &Tx, email: &Email) -> Result<()> {
    tx.execute(
        "-- accounts.count_wrong
        update code_guard set failures = failures || app_now() where email = $1",
        &[&email.as_str()],
    )
    .await?;
    Ok(())
}
