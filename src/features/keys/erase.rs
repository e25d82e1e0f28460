//! `blindpipe erase`: the erasure of key backups whose accounts were deleted 7 days ago.
//!
//! Its database role may do this and nothing else, and nodes do not have its password. So neither a
//! node nor a thief of the serving role's password erases a backup.

/// Erases what is due at `url`, in batches. Returns the number of accounts.
pub async fn at(url: &str) -> Result<i64, Box<dyn std::error::Error + Send + Sync>> {
    let client = crate::db::connect(url).await?;
    let mut accounts = 0;
    loop {
        let row = client
            .query_one("select erase_accounts() as accounts", &[])
            .await?;
        match row.get("accounts") {
            0 => return Ok(accounts),
            erased => accounts += erased,
        }
    }
}
