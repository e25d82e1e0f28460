//! `POST /agents/{agent_id}/files`, `POST /files`.

use std::collections::BTreeMap;

use axum::extract::State;
use blindpipe_protocol::files::{RequestUpload, RequestedUpload};

use crate::{
    auth::{agent::Agent, user::User},
    error::Result,
    features::files::{
        StorageQuota, rules,
        store::{self, NewUpload},
    },
    http::{Created, Json},
    ids::{CredentialId, Principal, UploadId},
    limits::quotas::{UPLOAD_TTL, UPLOAD_URL_TTL},
    objects::{DirectUpload, Objects, registry},
    work::UnitOfWork,
};

/// `POST /agents/{agent_id}/files`: requests an upload for an agent.
///
/// Caller: agent. Limit: `agent_file_upload`, 5/s per agent, shared with the PUT. Body
/// `{filename, content_type, size, conversation_id}`. Answers 201 with [`RequestedUpload`]. Errors:
/// `FILE_TOO_LARGE`, `NOT_CONVERSATION_MEMBER_UPLOAD`, `RELATION_REVOKED`, `STORAGE_LIMIT_EXCEEDED`
/// (of the agent's owner).
pub async fn request_of_agent(
    agent: Agent,
    State(work): State<UnitOfWork>,
    State(objects): State<Objects>,
    State(quota): State<StorageQuota>,
    Json(asked): Json<RequestUpload>,
) -> Result<Created<RequestedUpload>> {
    let (owner, route) = (
        Principal::Agent(agent.id),
        format!("/agents/{}/files", agent.id),
    );
    let requester = Requester {
        owner,
        credential: agent.token.into(),
        quota,
    };
    request(&work, &objects, requester, asked, &route).await
}

/// `POST /files`: requests an upload for a user.
///
/// Caller: user. Limit: `user_file_upload`, 5/s per user, shared with the PUT. Otherwise like that
/// of an agent.
pub async fn request_of_user(
    user: User,
    State(work): State<UnitOfWork>,
    State(objects): State<Objects>,
    State(quota): State<StorageQuota>,
    Json(asked): Json<RequestUpload>,
) -> Result<Created<RequestedUpload>> {
    let owner = Principal::User(user.id);
    let requester = Requester {
        owner,
        credential: user.session.into(),
        quota,
    };
    request(&work, &objects, requester, asked, "/files").await
}

/// The principal that requests an upload, its session or token, and the quota of its account.
struct Requester {
    owner: Principal,
    credential: CredentialId,
    quota: StorageQuota,
}

async fn request(
    work: &UnitOfWork,
    objects: &Objects,
    requester: Requester,
    asked: RequestUpload,
    route: &str,
) -> Result<Created<RequestedUpload>> {
    rules::check_request(&asked)?;
    let Requester {
        owner,
        credential,
        quota,
    } = requester;
    let id = UploadId::generate(work.random());
    let direct_key = objects.backend.is_direct().then(|| objects.new_key());
    let expires_at = work
        .run("files.request", async |tx| {
            if let Some(key) = &direct_key {
                registry::begin(tx, key, None, UPLOAD_TTL).await?;
            }
            let upload = NewUpload {
                id,
                owner,
                credential,
                direct_key: direct_key.as_ref(),
            };
            let end = store::insert(tx, &upload, &asked).await?;
            store::must_fit(tx, quota, owner, asked.size).await?;
            Ok(end)
        })
        .await?;
    let direct = match &direct_key {
        Some(key) => objects.backend.direct_upload(key, UPLOAD_URL_TTL).await?,
        None => None,
    };
    let (upload_url, upload_headers) = match direct {
        Some(DirectUpload { url, headers }) => (url, headers),
        None => {
            let path = format!("{route}/{id}/upload");
            (
                objects.signed_urls.upload(&path, id, expires_at),
                BTreeMap::default(),
            )
        }
    };
    Ok(Created(RequestedUpload {
        upload_id: id,
        upload_url,
        expires_at: expires_at.into(),
        upload_headers,
    }))
}
