//! `blindpipe audit verify`: walks every chain of the access log and names each row that does not
//! fit.

use std::{collections::HashMap, fmt, pin::pin};

use chrono::NaiveDate;
use futures_util::TryStreamExt;
use sha2::{Digest as _, Sha256};
use tokio_postgres::{Client, Row};

use super::{
    digest::{self, Digest},
    rules::{self, GENESIS, Hash},
};
use crate::ids::{AccessId, SubjectId};

/// Most faults of a report. A changed row can be followed by many.
const MAX_FAULTS: usize = 100;

/// The outcome of a verification.
#[derive(Debug, Default)]
pub struct Report {
    pub rows: u64,
    pub chains: usize,
    /// The faults found, at most [`MAX_FAULTS`].
    pub faults: Vec<Fault>,
    /// SHA-256 over the ends of all chains. Kept elsewhere, it tells two states of the log apart.
    pub digest: String,
    /// The day that was asked for, and its digest as it was published.
    pub of_day: Option<(NaiveDate, String)>,
}

/// A row or chain that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The user or group of the chain.
    pub subject: SubjectId,
    /// The number of the row.
    pub seq: i64,
    pub kind: FaultKind,
}

/// The way in which a row does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The row's hash is not that of its columns and its predecessor.
    Changed,
    /// Rows with this number and perhaps more are missing.
    Missing,
    /// The row stands behind the end of its chain.
    Unexpected,
    /// The end of the chain has another hash than its last row.
    End,
}

impl fmt::Display for Fault {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { subject, seq, kind } = self;
        let what = match kind {
            FaultKind::Changed => "does not fit its hash: it or its predecessor was changed",
            FaultKind::Missing => "is missing",
            FaultKind::Unexpected => "stands behind the end of its chain",
            FaultKind::End => "is not the end that the chain remembers",
        };
        write!(to, "chain {}: row {seq} {what}", subject.0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fault in &self.faults {
            writeln!(to, "{fault}")?;
        }
        let Report { rows, chains, .. } = self;
        let found = self.faults.len();
        writeln!(to, "{rows} rows in {chains} chains, {found} faults")?;
        writeln!(to, "digest {}", self.digest)?;
        match &self.of_day {
            Some((day, digest)) => writeln!(to, "digest of {day} {digest}"),
            None => Ok(()),
        }
    }
}

/// The present place in a chain.
struct Walk {
    subject: SubjectId,
    seq: i64,
    hash: Hash,
    /// Its end at the end of the day: the id, the number and the hash of a row.
    end_of_day: Option<(AccessId, i64, Hash)>,
}

/// The digest of a day, out of the rows that were logged before its end.
struct OfDay {
    day: NaiveDate,
    digest: Digest,
}

impl OfDay {
    fn new(day: NaiveDate) -> Self {
        OfDay {
            day,
            digest: Digest::default(),
        }
    }

    fn see(&self, walk: &mut Walk, id: AccessId) {
        let newest = walk.end_of_day.is_none_or(|(newest, ..)| id > newest);
        if newest && id < digest::end_of(self.day) {
            walk.end_of_day = Some((id, walk.seq, walk.hash));
        }
    }

    fn add(&mut self, walk: &Walk) {
        if let Some((_, seq, hash)) = walk.end_of_day {
            self.digest.add(walk.subject, seq, &hash);
        }
    }
}

/// Verifies the log at `url`, and computes the digest of a day.
pub async fn at(
    url: &str,
    day: Option<NaiveDate>,
) -> Result<Report, Box<dyn std::error::Error + Send + Sync>> {
    let client = crate::db::connect(url).await?;
    Ok(verify(&client, day).await?)
}

/// Verifies the log in one snapshot, and computes the digest of a day.
pub async fn verify(
    client: &Client,
    day: Option<NaiveDate>,
) -> Result<Report, tokio_postgres::Error> {
    client
        .batch_execute("begin isolation level repeatable read read only")
        .await?;
    let heads = client
        .query(
            "-- access_log.heads
            select subject_id, seq, hash from access_log_head order by subject_id",
            &[],
        )
        .await?;
    let mut report = Report {
        chains: heads.len(),
        digest: digest(&heads),
        ..Report::default()
    };
    let mut heads: HashMap<SubjectId, (i64, Vec<u8>)> = heads
        .iter()
        .map(|row| (row.get("subject_id"), (row.get("seq"), row.get("hash"))))
        .collect();
    let rows = client
        .query_raw(
            "-- access_log.rows
            select subject_id, seq, access_id, agent_id, conversation_id, kind, items, from_seq, to_seq, at, hash
            from access_log order by subject_id, seq",
            Vec::<i64>::new(),
        )
        .await?;
    let mut rows = pin!(rows);
    let mut walk: Option<Walk> = None;
    let mut text = String::new();
    let mut of_day = day.map(OfDay::new);
    while let Some(row) = rows.try_next().await? {
        report.rows += 1;
        let subject: SubjectId = row.get("subject_id");
        if walk.as_ref().is_none_or(|walk| walk.subject != subject) {
            finish(walk.take(), &mut heads, of_day.as_mut(), &mut report);
        }
        let walk = walk.get_or_insert(Walk {
            subject,
            seq: 0,
            hash: GENESIS,
            end_of_day: None,
        });
        step(walk, &row, &mut text, &mut report);
        if let Some(of_day) = &of_day {
            of_day.see(walk, row.get("access_id"));
        }
    }
    finish(walk, &mut heads, of_day.as_mut(), &mut report);
    report.of_day = of_day.map(|of_day| (of_day.day, of_day.digest.finish()));
    // A chain of which nothing is left.
    for (subject, _) in heads {
        report.add(subject, 1, FaultKind::Missing);
    }
    client.batch_execute("commit").await?;
    Ok(report)
}

/// Compares a row with its predecessor. The stored hash goes on, so that one fault is one fault.
fn step(walk: &mut Walk, row: &Row, text: &mut String, report: &mut Report) {
    let seq: i64 = row.get("seq");
    if seq != walk.seq + 1 {
        report.add(walk.subject, walk.seq + 1, FaultKind::Missing);
    }
    let stored: &[u8] = row.get("hash");
    let expected = rules::hash(
        &walk.hash,
        &rules::Row {
            subject: walk.subject,
            seq,
            id: row.get("access_id"),
            agent: row.get("agent_id"),
            conversation: row.get("conversation_id"),
            kind: row.get("kind"),
            items: row.get("items"),
            from_seq: row.get("from_seq"),
            to_seq: row.get("to_seq"),
            at: row.get("at"),
        },
        text,
    );
    if seq == walk.seq + 1 && expected != stored {
        report.add(walk.subject, seq, FaultKind::Changed);
    }
    walk.seq = seq;
    walk.hash = Hash::try_from(stored).unwrap_or(GENESIS);
}

/// Compares the last row of a chain with its end.
fn finish(
    walk: Option<Walk>,
    heads: &mut HashMap<SubjectId, (i64, Vec<u8>)>,
    of_day: Option<&mut OfDay>,
    report: &mut Report,
) {
    let Some(walk) = walk else { return };
    if let Some(of_day) = of_day {
        of_day.add(&walk);
    }
    let Walk {
        subject, seq, hash, ..
    } = walk;
    match heads.remove(&subject) {
        Some((head, _)) if head > seq => report.add(subject, seq + 1, FaultKind::Missing),
        Some((head, _)) if head < seq => report.add(subject, seq, FaultKind::Unexpected),
        Some((_, end)) if end != hash => report.add(subject, seq, FaultKind::End),
        Some(_) => {}
        None => report.add(subject, seq, FaultKind::Unexpected),
    }
}

fn digest(heads: &[Row]) -> String {
    let mut digest = Sha256::new();
    for row in heads {
        digest.update(row.get::<_, SubjectId>("subject_id").as_bytes());
        digest.update(row.get::<_, i64>("seq").to_be_bytes());
        digest.update(row.get::<_, &[u8]>("hash"));
    }
    base16ct::lower::encode_string(&digest.finalize())
}

impl Report {
    fn add(&mut self, subject: SubjectId, seq: i64, kind: FaultKind) {
        if self.faults.len() < MAX_FAULTS {
            self.faults.push(Fault { subject, seq, kind });
        }
    }
}
