//! `bp search`.

use blindpipe_client::protocol::search::SearchKind;
use clap::Args;

use crate::{
    context::Context,
    failure::{Failure, Result},
    output::{Output, line},
};

#[derive(Args)]
pub struct Search {
    /// A part of a name. The service cannot read messages.
    words: String,
    /// Only these kinds: conversation, user, agent, file.
    #[arg(long, value_delimiter = ',')]
    kind: Vec<String>,
}

pub async fn run(search: Search, at: &Context, output: &Output) -> Result<()> {
    let kinds: std::result::Result<Vec<SearchKind>, _> =
        search.kind.iter().map(|kind| kind.parse()).collect();
    let kinds = kinds.map_err(|_| Failure::usage("there is no such kind"))?;
    let client = at.client().await?;
    let mut cursor = None;
    loop {
        let (hits, next) = client.search(&search.words, &kinds, cursor).await?;
        for hit in &hits {
            let title = output.bold(&line(hit.title.as_deref().unwrap_or_default()));
            let kind = hit.kind.to_string();
            output.item(hit, &format!("{kind:<12} {}  {title}", hit.id))?;
        }
        cursor = next;
        if cursor.is_none() {
            return Ok(());
        }
    }
}
