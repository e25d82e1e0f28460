//! Pages of a list: `limit` and `cursor`, the last id seen.

use blindpipe_protocol::bad_text::BadText;
use serde::{Deserialize, Deserializer, de::Error as _};

use tokio_postgres::types::ToSql;

use super::List;
use crate::{
    db::Conn,
    error::{Error, Result},
    ids::UserId,
};

/// The query of a list whose items have ids of type `I`.
#[derive(Debug, Deserialize)]
pub struct Page<I> {
    /// The last item of the previous page.
    pub cursor: Option<I>,
    #[serde(default, deserialize_with = "limit")]
    limit: PageLimit,
}

/// The number of items of a page.
#[derive(Clone, Copy, Debug)]
struct PageLimit(usize);

impl Default for PageLimit {
    fn default() -> Self {
        PageLimit(50)
    }
}

fn limit<'de, D: Deserializer<'de>>(from: D) -> Result<PageLimit, D::Error> {
    let n = String::deserialize(from)?
        .parse()
        .ok()
        .filter(|n| (1..=100).contains(n));
    n.map(PageLimit)
        .ok_or_else(|| D::Error::custom(BadText::new("range", "must be from 1 to 100")))
}

impl<I: ToString> Page<I> {
    /// Rows to read: an extra row shows whether there is another page.
    pub fn rows(&self) -> i64 {
        i64::try_from(self.limit.0).unwrap_or(i64::MAX - 1) + 1
    }

    /// Makes the page out of [`rows`](Self::rows) rows.
    pub fn of<T>(&self, mut rows: Vec<T>, id: impl Fn(&T) -> I) -> List<T> {
        let more = rows.len() > self.limit.0;
        rows.truncate(self.limit.0);
        let next_cursor = rows.last().filter(|_| more).map(|row| id(row).to_string());
        List {
            data: rows,
            next_cursor,
        }
    }
}

/// The refusal of a cursor that names no item of the list.
pub fn unknown() -> Error {
    Error::field("cursor", "cursor", "is the id of no item of this list")
}

/// Refuses a cursor that `sql` does not find: `$1` is the cursor, `$2` the owner of the list.
pub async fn must_be_listed<I: ToSql + Sync>(
    client: &Conn,
    sql: &str,
    cursor: Option<I>,
    owner: UserId,
) -> Result<()> {
    if let Some(cursor) = cursor {
        let found = client.query_opt(sql, &[&cursor, &owner]).await?;
        found.ok_or_else(unknown)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(limit: usize) -> Page<usize> {
        Page {
            cursor: None,
            limit: PageLimit(limit),
        }
    }

    #[test]
    fn a_cursor_is_there_only_if_more_is() {
        let read = |page: &Page<usize>| {
            page.of(
                (1..=usize::try_from(page.rows()).expect("few"))
                    .take(3)
                    .collect(),
                |n| *n,
            )
        };
        let full = read(&page(2));
        assert_eq!(
            (full.data, full.next_cursor.as_deref()),
            (vec![1, 2], Some("2"))
        );
        let last = read(&page(3));
        assert_eq!((last.data, last.next_cursor), (vec![1, 2, 3], None));
    }
}
