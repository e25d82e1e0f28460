//! `GET /search`.

use axum::extract::State;
use blindpipe_protocol::search::SearchHit;
use serde::Deserialize;

use super::{
    rules::{self, Search, SearchCursor},
    store::{self, Hit},
};
use crate::{
    auth::user::User,
    db::Db,
    error::Result,
    http::{List, Query, page::Page},
};

/// The query of a search.
#[derive(Deserialize)]
pub struct Parameters {
    #[serde(flatten)]
    page: Page<SearchCursor>,
    q: Option<String>,
    types: Option<String>,
    tokens: Option<String>,
}

/// `GET /search`: finds conversations, users and agents by name, and messages by tokens.
///
/// Caller: user. Limit: `user_search`, 10/min. Query `q` and `types`, or `tokens`; `limit`,
/// `cursor`. Answers 200 with [`SearchHit`]s: the kinds in the order of the list, each newest
/// first. Errors: `SEARCH_CONTENT_ENCRYPTED` (words for messages).
pub async fn search(
    user: User,
    State(db): State<Db>,
    Query(parameters): Query<Parameters>,
) -> Result<List<SearchHit>> {
    let Parameters {
        page,
        q,
        types,
        tokens,
    } = parameters;
    let search = rules::read(q.as_deref(), types.as_deref(), tokens.as_deref())?;
    let client = db.read().await?;
    let hits = match &search {
        Search::Tokens(tokens) => {
            store::messages(&client, user.id, tokens, page.cursor, page.rows()).await?
        }
        Search::Words(words, kinds) => {
            let mut hits: Vec<Hit> = Vec::new();
            for kind in kinds {
                let left = page.rows() - i64::try_from(hits.len()).unwrap_or(i64::MAX);
                let after = match page.cursor {
                    Some(seen) if *kind < seen.kind => continue,
                    Some(seen) if *kind == seen.kind => Some(seen.id),
                    _ => None,
                };
                if left > 0 {
                    hits.extend(store::named(&client, *kind, user.id, words, after, left).await?);
                }
            }
            hits
        }
    };
    let List { data, next_cursor } = page.of(hits, |hit| hit.cursor);
    Ok(List {
        data: data.into_iter().map(SearchHit::from).collect(),
        next_cursor,
    })
}
