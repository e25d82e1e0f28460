//! `GET /objects/{object_key}`.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::stream;
use tokio::time::Instant;

use crate::auth::Reverify;
use crate::{
    access_log::{self, AccessKind, Read},
    auth::{caller::Caller, signed::TokenOrSignature},
    db::Db,
    error::{Code, Error, Result},
    features::files::{
        CountDownloads,
        rules::{self, Selection},
        store::{self, FoundObject, Reader},
    },
    http::{Path, Query, client::ClientIp},
    ids::Principal,
    limits::{Limiter, table::Limit},
    metrics,
    objects::{Bytestream, ObjectKey, Objects, SignedQuery},
};

/// Interval at which a long download proves its right again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(2);

/// `GET /objects/{object_key}`: reads the bytes of a file, or of an event's data.
///
/// Caller: a member of the file's conversation, or anyone with a signed address. Limit:
/// `agent_object_get` or `user_object_get`, 5/s; a signed address of an event is charged to its
/// agent, and that of a share to `default_ip`. Headers `Range` (a single one), `If-None-Match`,
/// `If-Range`. Answers 200, 206 or 304. Each answer with bytes counts as a download of the share.
/// Errors: `NOT_FOUND`, `RANGE_NOT_SATISFIABLE`. A download that goes on is cut within two seconds
/// of the end of the caller's right.
pub async fn read(
    token: TokenOrSignature<Caller>,
    (limiter, ip): (Limiter, ClientIp),
    State(db): State<Db>,
    (State(objects), State(count_downloads)): (State<Objects>, State<CountDownloads>),
    (Path(key), Query(signed)): (Path<String>, Query<SignedQuery>),
    method: Method,
    headers: HeaderMap,
) -> Result<Response> {
    let key = ObjectKey::read(&key).ok_or(Code::NotFound)?;
    let reader = match &token.caller {
        Some(caller) => Reader::Principal(caller.principal()),
        None => {
            let end = objects.signed_urls.verify_object(&signed, &key)?;
            if signed.share.is_some() {
                limiter.check_route(Limit::DefaultIp, ip).await?;
            }
            let event = || Reader::Event(Objects::event_signed_before(end));
            signed.share.map_or_else(event, Reader::Share)
        }
    };
    let found = find(&db, &key, &reader).await?;
    if let (Reader::Event(_), Some(agent)) = (&reader, found.agent) {
        limiter.check(Limit::AgentObjectGet, agent).await?;
    }
    let right = Right {
        db,
        key,
        reader,
        credential: token.credential,
        checked_at: Instant::now(),
        count_downloads,
        downloads: i32::from(method != Method::HEAD),
    };
    answer(&objects, &headers, found, right).await
}

/// Finds an object for its reader. An agent's read of a file is logged in the reading transaction.
async fn find(db: &Db, key: &ObjectKey, reader: &Reader) -> Result<FoundObject> {
    let Reader::Principal(Principal::Agent(agent)) = reader else {
        let found = store::readable(&db.read().await?, key, reader).await?;
        return found.ok_or(Code::NotFound.into());
    };
    let read = db.run("files.read_as_agent", async |tx| {
        let found = store::readable(tx, key, reader)
            .await?
            .ok_or(Code::NotFound)?;
        if let Some(conversation) = found.conversation {
            let read = Read::of(conversation);
            access_log::record(tx, *agent, AccessKind::Object, &[read]).await?;
        }
        Ok(found)
    });
    read.await
}

async fn answer(
    objects: &Objects,
    asked: &HeaderMap,
    found: FoundObject,
    right: Right,
) -> Result<Response> {
    let (size, etag) = (found.content.size, rules::etag(&found.content.sha256));
    let selection = rules::select(asked, &etag, size);
    let (status, from, to) = match selection {
        Selection::Unchanged => (StatusCode::NOT_MODIFIED, 0, 0),
        Selection::Whole => (StatusCode::OK, 0, size),
        Selection::Part(from, to) => (StatusCode::PARTIAL_CONTENT, from, to),
        Selection::Unsatisfiable => {
            let refusal = Error::from(Code::RangeNotSatisfiable);
            return Err(refusal.header("content-range", format!("bytes */{size}")));
        }
    };
    let mut headers = HeaderMap::new();
    let mut put = |name, value: String| {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    };
    put(header::ETAG, etag);
    put(header::CACHE_CONTROL, "private, no-cache".to_owned());
    if status == StatusCode::NOT_MODIFIED {
        return Ok((status, headers).into_response());
    }
    put(header::ACCEPT_RANGES, "bytes".to_owned());
    put(header::CONTENT_TYPE, "application/octet-stream".to_owned());
    put(
        header::CONTENT_DISPOSITION,
        rules::disposition(found.filename.as_deref()),
    );
    put(header::CONTENT_LENGTH, (to - from).to_string());
    if status == StatusCode::PARTIAL_CONTENT {
        put(
            header::CONTENT_RANGE,
            format!("bytes {from}-{}/{size}", to - 1),
        );
    }
    let bytes = objects.read(&right.key, &found.content, from..to).await?;
    let bytes = bytes.ok_or(Code::NotFound)?;
    right.count().await?;
    Ok((status, headers, Body::from_stream(chunks(bytes, right))).into_response())
}

/// The right of a download, which may end while bytes flow.
struct Right {
    db: Db,
    key: ObjectKey,
    reader: Reader,
    credential: Option<Arc<dyn Reverify>>,
    checked_at: Instant,
    count_downloads: CountDownloads,
    /// The downloads that the answer counts as: none for a HEAD.
    downloads: i32,
}

impl Right {
    /// Counts the download if it is one of a share. Errors: `NOT_FOUND` if the share has none left.
    async fn count(&self) -> Result<()> {
        let Reader::Share(share) = &self.reader else {
            return Ok(());
        };
        let client = self.db.write().await?;
        match (self.count_downloads.0)(&client, share, self.downloads).await? {
            true => Ok(()),
            false => Err(Code::NotFound.into()),
        }
    }

    async fn recheck(&mut self) -> Result<()> {
        if self.checked_at.elapsed() < RECHECK_INTERVAL {
            return Ok(());
        }
        if let Some(credential) = &self.credential {
            credential.reverify().await?;
        }
        let found = store::readable(&self.db.read().await?, &self.key, &self.reader).await?;
        found.ok_or(Code::NotFound)?;
        self.checked_at = Instant::now();
        Ok(())
    }
}

/// The chunks of an answer. An error breaks the connection, so that the client sees a cut answer.
fn chunks(
    bytes: Bytestream,
    right: Right,
) -> impl stream::Stream<Item = Result<Bytes, std::io::Error>> {
    stream::try_unfold((bytes, right), async |(mut bytes, mut right)| {
        let over = |_| std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        right.recheck().await.map_err(over)?;
        let Some(chunk) = bytes.next().await? else {
            return Ok(None);
        };
        metrics::object_bytes("out", chunk.len() as u64);
        Ok(Some((chunk, (bytes, right))))
    })
}
