//! `PUT /agents/{agent_id}/files/{upload_id}/upload`, `PUT /files/{upload_id}/upload`.

use std::time::Duration;

use axum::{body::Body, extract::State};
use blindpipe_protocol::files::UploadedBytes;
use hyper::body::Body as _;
use tokio::time::Instant;

use crate::{
    auth::{agent::Agent, signed::TokenOrSignature, user::User},
    error::{Code, Error, Result},
    features::files::{
        rules,
        store::{self, UploadRow},
    },
    http::{
        Data, Path, Query,
        client::ClientIp,
        paced::{PacedBody, closing},
    },
    ids::{AgentId, CredentialId, Principal, UploadId},
    limits::{Limiter, table::Limit},
    metrics,
    objects::{Content, ObjectKey, Objects, SignedQuery, UploadPermit, registry},
    work::UnitOfWork,
};

/// Interval at which a long write renews its lease.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(20);

/// The right to write the bytes of an upload, by a token or by the signature of its address.
struct UploadRight {
    owner: Principal,
    /// The session or token that must still be live when the bytes have arrived.
    credential: CredentialId,
    row: UploadRow,
}

/// `PUT /agents/{agent_id}/files/{upload_id}/upload`: receives the bytes of an agent's upload.
///
/// Caller: the agent that requested it, or anyone with the signed address. Limit:
/// `agent_file_upload`, 5/s, charged to the owner of the upload. Body: the bytes, of any content
/// type. Answers 200 with [`UploadedBytes`]. Errors: `NOT_FOUND`, `FORBIDDEN` (the address has
/// expired or is not genuine), `VERSION_MISMATCH` (the bytes are here), `VALIDATION_ERROR` (fewer
/// or more bytes than declared; the upload stays pending), `FILE_TOO_LARGE`, `REQUEST_TIMEOUT`,
/// `RATE_LIMITED` (also for more than four uploads at once), 503 after two seconds without a place
/// on the node.
pub async fn put_of_agent(
    token: TokenOrSignature<Agent>,
    limiter: Limiter,
    State(work): State<UnitOfWork>,
    State(objects): State<Objects>,
    ip: ClientIp,
    (Path((agent, upload)), Query(signed)): (Path<(AgentId, UploadId)>, Query<SignedQuery>),
    body: Body,
) -> Result<Data<UploadedBytes>> {
    let caller = token.caller;
    let caller = caller.map(|agent| (Principal::Agent(agent.id), agent.token.into()));
    let is_right = |owner| owner == Principal::Agent(agent);
    let charge = |owner| limiter.check(Limit::AgentFileUpload, owner);
    let right = admit(&work, &objects, upload, &signed, caller, is_right, charge).await?;
    put(&work, &objects, (upload, ip), right, body).await
}

/// `PUT /files/{upload_id}/upload`: receives the bytes of a user's upload, like that of an agent.
pub async fn put_of_user(
    token: TokenOrSignature<User>,
    limiter: Limiter,
    State(work): State<UnitOfWork>,
    State(objects): State<Objects>,
    ip: ClientIp,
    (Path(upload), Query(signed)): (Path<UploadId>, Query<SignedQuery>),
    body: Body,
) -> Result<Data<UploadedBytes>> {
    let caller = token.caller;
    let caller = caller.map(|user| (Principal::User(user.id), user.session.into()));
    let is_right = |owner| matches!(owner, Principal::User(_));
    let charge = |owner| limiter.check(Limit::UserFileUpload, owner);
    let right = admit(&work, &objects, upload, &signed, caller, is_right, charge).await?;
    put(&work, &objects, (upload, ip), right, body).await
}

/// Finds the upload that the caller may write. A signed address is charged to the owner of the
/// upload; a caller with a token is charged already.
async fn admit<C: Future<Output = Result<()>>>(
    work: &UnitOfWork,
    objects: &Objects,
    upload: UploadId,
    signed: &SignedQuery,
    caller: Option<(Principal, CredentialId)>,
    is_right: impl Fn(Principal) -> bool,
    charge: impl Fn(Principal) -> C,
) -> Result<UploadRight> {
    if caller.is_none() {
        objects.signed_urls.verify_upload(signed, upload)?;
    }
    let row = store::find(work.db(), upload).await?;
    let row = row.filter(|row| is_right(row.owner));
    let row = row.ok_or(Code::NotFound)?;
    let (owner, credential) = caller.unwrap_or((row.owner, row.credential));
    if owner != row.owner {
        return Err(Code::NotFound.into());
    }
    if caller.is_none() {
        charge(owner).await?;
    }
    Ok(UploadRight {
        owner,
        credential,
        row,
    })
}

async fn put(
    work: &UnitOfWork,
    objects: &Objects,
    (upload, ip): (UploadId, ClientIp),
    right: UploadRight,
    body: Body,
) -> Result<Data<UploadedBytes>> {
    right.row.must_take_bytes()?;
    must_declare(&body, right.row.size)?;
    let place = objects.upload_permits.take(right.row.account, ip).await?;
    let key = objects.new_key();
    store::begin(work, &key, right.owner).await?;
    let size = right.row.size;
    let content = match receive(work, objects, (&key, size), &place, body).await {
        Ok(content) => content,
        Err(error) => {
            metrics::upload("refused");
            store::discard(work, &key).await;
            return Err(error);
        }
    };
    store::received(work, upload, right.credential, right.owner, &key, content).await?;
    metrics::upload("uploaded");
    metrics::object_bytes("in", content.size);
    Ok(Data(UploadedBytes {
        upload_id: upload,
        size: content.size,
        received_sha256: content.sha256,
    }))
}

/// Refuses a body whose declared length is not that of the upload, before it is read.
fn must_declare(body: &Body, size: u64) -> Result<()> {
    let hint = body.size_hint();
    if hint.lower() > size {
        let refusal = rules::too_long(hint.lower());
        return Err(refusal.header("connection", "close".to_owned()));
    }
    match hint.exact() {
        Some(declared) if declared < size => Err(too_short()),
        _ => Ok(()),
    }
}

fn too_short() -> Error {
    Error::field("", "size", "the body is shorter than the declared size")
}

/// Streams the body into the store. The client waits while the store is slow.
async fn receive(
    work: &UnitOfWork,
    objects: &Objects,
    (key, size): (&ObjectKey, u64),
    place: &UploadPermit,
    body: Body,
) -> Result<Content> {
    let mut writer = objects.write(key, size).await?;
    let mut body = PacedBody::new(body);
    let mut renewed_at = Instant::now();
    while let Some(bytes) = body.next_under(|| place.is_pressed()).await? {
        let received = writer.size() + bytes.len() as u64;
        if received > size {
            let refusal = rules::too_long(received);
            return Err(refusal.header("connection", "close".to_owned()));
        }
        let began = Instant::now();
        writer.write(bytes).await?;
        if renewed_at.elapsed() > RENEWAL_INTERVAL {
            if !registry::renew(work.db(), key).await? {
                return Err(closing(Code::ServiceUnavailable));
            }
            renewed_at = Instant::now();
        }
        body.exclude(began.elapsed());
    }
    if writer.size() < size {
        return Err(too_short());
    }
    writer.finish().await
}
