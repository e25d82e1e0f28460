//! The public keys that directories show, and what their holders say of them.

use blindpipe_protocol::{
    keys::{Introduction, MAX_SCHEMES},
    text::{Blob, KeyId, Scheme},
};
use tokio_postgres::Row;

use crate::{
    error::{Error, Result},
    ids::Principal,
    work::Tx,
};

const SIGNATURE_BYTES: usize = 64;
const KEY_ID_DIGITS: usize = 32;

/// The holder's statements about a key. An omitted part stays as it is.
#[derive(Clone, Copy)]
pub struct Description<'a> {
    pub schemes: Option<&'a [Scheme]>,
    pub introduction: Option<&'a Introduction>,
}

impl Description<'_> {
    /// Errors: `VALIDATION_ERROR`.
    pub fn check(&self) -> Result<()> {
        let schemes = self.schemes.unwrap_or_default();
        if schemes.len() > MAX_SCHEMES {
            return Err(Error::field("schemes", "length", "has more than 8 items"));
        }
        let Some(Introduction {
            by_key_id,
            signature,
        }) = self.introduction
        else {
            return Ok(());
        };
        let is_hex = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
        if by_key_id.0.len() != KEY_ID_DIGITS || !by_key_id.0.bytes().all(is_hex) {
            let fault = "must be 32 lower-case hexadecimal digits";
            return Err(Error::field("introduction.by_key_id", "key_id", fault));
        }
        if signature.0.len() != SIGNATURE_BYTES {
            let fault = "must be base64 of 64 bytes";
            return Err(Error::field("introduction.signature", "length", fault));
        }
        Ok(())
    }
}

/// Stores what the holder of a shown key says of it. True if it said otherwise before.
pub async fn describe(
    tx: &Tx,
    who: Principal,
    device: &str,
    key_id: &str,
    said: Description<'_>,
) -> Result<bool> {
    let schemes: Option<Vec<&str>> = said
        .schemes
        .map(|all| all.iter().map(|one| one.0.as_str()).collect());
    let by = said.introduction.map(|by| by.by_key_id.0.as_str());
    let signature = said.introduction.map(|by| by.signature.0.as_slice());
    let changed = tx
        .execute(
            "-- keys.describe
            update public_key set schemes = coalesce($4, schemes), introduced_by = coalesce($5, introduced_by),
                                  introduction = coalesce($6, introduction)
            where principal_id = $1 and device_id = $2 and key_id = $3
              and (schemes, introduced_by, introduction)
                  is distinct from (coalesce($4, schemes), coalesce($5, introduced_by), coalesce($6, introduction))",
            &[&who.id(), &device, &key_id, &schemes, &by, &signature],
        )
        .await?;
    Ok(changed > 0)
}

/// The introduction in a row with `introduced_by` and `introduction`.
pub fn introduction(row: &Row) -> Option<Introduction> {
    let by: Option<String> = row.get("introduced_by");
    let signature: Option<Vec<u8>> = row.get("introduction");
    by.zip(signature).map(|(by, signature)| Introduction {
        by_key_id: KeyId(by),
        signature: Blob(signature),
    })
}
