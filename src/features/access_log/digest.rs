//! The daily digest of the access log: SHA-256 over the ends that all chains had at the end of a day
//! in UTC. It follows from the log alone, so that anybody with the log can compute it again. Kept
//! elsewhere, it shows a superuser who has rewritten a chain from some row to its end.

use chrono::{Days, NaiveDate, NaiveTime};
use sha2::{Digest as _, Sha256};

use super::rules;
use crate::{
    db::{Db, batches::paced},
    error::Result,
    ids::{AccessId, SubjectId},
    objects::Objects,
};

/// Chains of a page.
const PAGE_CHAINS: i64 = 2000;
/// The folder of the objects.
const FOLDER: &str = "access-log";

/// A digest on its way.
#[derive(Default)]
pub struct Digest {
    hash: Sha256,
    chains: i64,
}

impl Digest {
    /// Adds the end of a chain. Chains come in the order of their subjects.
    pub fn add(&mut self, subject: SubjectId, seq: i64, hash: &[u8]) {
        let (subject, hash) = (subject.0, base16ct::lower::encode_string(hash));
        self.hash.update(format!("{subject}|{seq}|{hash}\n"));
        self.chains += 1;
    }

    /// The digest as hex.
    pub fn finish(self) -> String {
        base16ct::lower::encode_string(&self.hash.finalize())
    }
}

/// The first id of the rows after a day.
pub fn end_of(day: NaiveDate) -> AccessId {
    let next = day.checked_add_days(Days::new(1)).unwrap_or(day);
    rules::ulid_floor(next.and_time(NaiveTime::MIN).and_utc())
}

/// Publishes the digest of yesterday, if no node has yet: a line of the log, and an object where
/// `objects` is given. A crash in between publishes the same once more.
pub async fn publish(db: &Db, objects: Option<&Objects>) -> Result<()> {
    let Some(day) = due(db).await? else {
        return Ok(());
    };
    let (mut digest, mut after) = (Digest::default(), SubjectId::NIL);
    while paced(add_page(db, day, &mut digest, &mut after)).await? {}
    let chains = digest.chains;
    let digest = digest.finish();
    if let Some(objects) = objects {
        let text = format!("{day} {digest} {chains}\n");
        objects
            .put_text(FOLDER, &format!("{day}.txt"), text)
            .await?;
    }
    tracing::info!(%day, digest, chains, "the digest of the access log");
    remember(db, day, &digest, chains).await
}

/// Yesterday, unless it is published. Transactions that began before midnight have ended by then.
async fn due(db: &Db) -> Result<Option<NaiveDate>> {
    let row = db
        .read()
        .await?
        .query_opt(
            "-- access_log.digest_due
            select y.day from (select (app_now() at time zone 'utc' - interval '10 minutes')::date - 1 as day) y
            where not exists (select from access_log_digest d where d.day = y.day)",
            &[],
        )
        .await?;
    Ok(row.map(|row| row.get("day")))
}

/// Adds the next chains after `after`. True if there may be more.
async fn add_page(
    db: &Db,
    day: NaiveDate,
    digest: &mut Digest,
    after: &mut SubjectId,
) -> Result<bool> {
    let rows = db
        .read()
        .await?
        .query(
            "-- access_log.ends_of_day
            select h.subject_id, l.seq, l.hash
            from (select subject_id from access_log_head where subject_id > $1 order by subject_id limit $3) h
            left join lateral (
                select seq, hash from access_log l
                where l.subject_id = h.subject_id and l.access_id < $2 order by l.access_id desc limit 1
            ) l on true
            order by h.subject_id",
            &[&*after, &end_of(day), &PAGE_CHAINS],
        )
        .await?;
    for row in &rows {
        *after = row.get("subject_id");
        if let Some(seq) = row.get("seq") {
            digest.add(*after, seq, row.get("hash"));
        }
    }
    Ok(!rows.is_empty())
}

async fn remember(db: &Db, day: NaiveDate, digest: &str, chains: i64) -> Result<()> {
    db.write()
        .await?
        .execute(
            "-- access_log.remember_digest
            insert into access_log_digest (day, digest, chains) values ($1, $2, $3) on conflict do nothing",
            &[&day, &digest, &chains],
        )
        .await?;
    Ok(())
}
