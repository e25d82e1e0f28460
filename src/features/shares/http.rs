//! `POST /shares`, `GET /share/{share_id}`, `DELETE /shares/{share_id}`.

use axum::{
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, Method, header},
    response::{IntoResponse, Response},
};
use blindpipe_protocol::shares::{
    CreateShare, CreatedShare, DeletedShare, FileCard, ShareCard, SharedAgent, SharedContact,
};

use super::{
    page,
    rules::{self, Subject},
    store::{self, OpenedShare, ShareTarget},
};
use crate::{
    auth::user::{User, lock_live_session},
    clock::Clock,
    error::{Code, Error, Result},
    http::{Created, Data, Json, Path, client::ClientIp},
    limits::{Limiter, quotas::SHARE_URL_TTL, table::Limit},
    metrics,
    objects::Objects,
    work::UnitOfWork,
};

/// Random characters of a share's id: 190 bits.
const SHARE_ID_CHARS: usize = 32;

/// `POST /shares`: shares a file, an agent's card or the caller's own card.
///
/// Caller: user. Body `{file_id | agent_id | contact:true, expires_at, max_access_count?}`. Answers
/// 201 with [`CreatedShare`]. Errors: `NOT_FOUND` (no file of the caller's conversations),
/// `AGENT_NOT_REGISTERED` (an agent without a relation with the caller).
pub async fn create(
    user: User,
    State(work): State<UnitOfWork>,
    State(clock): State<Clock>,
    State(objects): State<Objects>,
    Json(asked): Json<CreateShare>,
) -> Result<Created<CreatedShare>> {
    let subject = rules::check(&asked, clock.now())?;
    let share_id = work.random().base62(SHARE_ID_CHARS);
    let hash = rules::hash_of(&share_id);
    let made = work.run("shares.create", async |tx| {
        // A share outlives the access token.
        lock_live_session(tx, user.id, user.session).await?;
        store::insert(tx, &hash, &user, subject, &asked).await
    });
    if !made.await? {
        return Err(match subject {
            Subject::Agent(_) => Code::AgentNotRegistered.into(),
            Subject::File(_) | Subject::Contact => Code::NotFound.into(),
        });
    }
    let url = objects.signed_urls.absolute(&format!("/share/{share_id}"));
    Ok(Created(CreatedShare { share_id, url }))
}

/// `GET /share/{share_id}`: opens a share. For an agent or a contact that counts, except by `HEAD`; a
/// file counts when it is downloaded.
///
/// Caller: anyone. Limit: `share_open`, 30/min per IP. Answers 200 with [`ShareCard`], or a page if
/// `Accept` prefers `text/html`. Errors: `NOT_FOUND`, whatever the reason.
pub async fn open(
    State(work): State<UnitOfWork>,
    State(objects): State<Objects>,
    limiter: Limiter,
    ip: ClientIp,
    Path(share_id): Path<String>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response> {
    limiter.check(Limit::ShareOpen, ip).await?;
    let hash = rules::hash_of(&share_id);
    let accesses = i32::from(method != Method::HEAD);
    let opened = store::open(work.db(), &hash, accesses).await?;
    metrics::share_opened(if opened.is_some() {
        "opened"
    } else {
        "refused"
    });
    let card = opened.map(|opened| shown(&objects, &hash, opened));
    let answer = match (card, rules::wants_page(&headers)) {
        (Some(card), true) => page::card(&card),
        (Some(card), false) => Data(card).into_response(),
        (None, true) => page::nothing(),
        (None, false) => Error::from(Code::NotFound).into_response(),
    };
    Ok(unlisted(answer))
}

fn shown(objects: &Objects, hash: &[u8; 32], opened: OpenedShare) -> ShareCard {
    let expires_at = opened.expires_at.into();
    match opened.target {
        ShareTarget::File(key, content, filename) => {
            let share = base16ct::lower::encode_string(hash);
            let (url, end) = objects
                .signed_urls
                .object(&key, Some(&share), SHARE_URL_TTL);
            ShareCard::File(FileCard {
                filename,
                size: content.size,
                sha256: content.sha256,
                url,
                url_expires_at: end.into(),
                expires_at,
            })
        }
        ShareTarget::Agent(agent_id, display_name, description) => ShareCard::Agent(SharedAgent {
            agent_id,
            display_name,
            description,
            expires_at,
        }),
        ShareTarget::Contact(user_id, display_name) => ShareCard::Contact(SharedContact {
            user_id,
            display_name,
            expires_at,
        }),
    }
}

/// Neither search engines nor caches nor other sites hear of a share.
fn unlisted(mut answer: Response) -> Response {
    for (name, value) in [
        (HeaderName::from_static("x-robots-tag"), "noindex, nofollow"),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::VARY, "Accept"),
    ] {
        answer
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// `DELETE /shares/{share_id}`: ends a share, and the addresses that came from it.
///
/// Caller: the user who made it. Answers 200 with [`DeletedShare`]. Errors: `NOT_FOUND`.
pub async fn end(
    user: User,
    State(work): State<UnitOfWork>,
    Path(share_id): Path<String>,
) -> Result<Data<DeletedShare>> {
    let hash = rules::hash_of(&share_id);
    let client = work.db().write().await?;
    match store::delete(&client, &hash, user.id).await? {
        true => Ok(Data(DeletedShare { deleted: true })),
        false => Err(Code::NotFound.into()),
    }
}
