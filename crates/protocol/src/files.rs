//! Files: uploads in three steps, objects, and the reference to an event's data.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{
    bad_text::BadText,
    ids::{ConversationId, FileId, UploadId},
    text::{ContentType, Filename},
    time::Timestamp,
};

words! {
    /// The state of an upload.
    pub enum UploadState {
        /// The bytes have not arrived.
        Pending = "pending",
        /// The bytes are stored, and their hash is not confirmed.
        Uploaded = "uploaded",
        /// The hash is confirmed: the upload is a file.
        Confirmed = "confirmed",
        /// The announced hash was wrong. The bytes are gone.
        Rejected = "rejected",
        /// The upload was not confirmed within 24 hours. The bytes are gone.
        Expired = "expired",
    }
}

/// A SHA-256 hash. The wire shows 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sha256Hash(pub [u8; 32]);

impl fmt::Display for Sha256Hash {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:x}", base16ct::HexDisplay(&self.0))
    }
}

impl fmt::Debug for Sha256Hash {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, to)
    }
}

/// The error for a text that is no hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadHash;

impl FromStr for Sha256Hash {
    type Err = BadHash;

    fn from_str(text: &str) -> Result<Self, BadHash> {
        let mut bytes = [0; 32];
        let read = base16ct::mixed::decode(text, &mut bytes).map_err(|_| BadHash)?;
        if read.len() != bytes.len() {
            return Err(BadHash);
        }
        Ok(Sha256Hash(bytes))
    }
}

impl Serialize for Sha256Hash {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Sha256Hash {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        text.parse().map_err(|BadHash| {
            D::Error::custom(BadText::new("format", "must be 64 hexadecimal digits"))
        })
    }
}

string_schema!(
    Sha256Hash,
    "A SHA-256 hash in lower-case hexadecimal digits.",
    |object| object.pattern(Some("^[0-9a-f]{64}$"))
);

/// The body of `POST /agents/{agent_id}/files` and `POST /files`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RequestUpload {
    /// The name of the file. Members who download it get it back.
    pub filename: Filename,
    /// The MIME type of the file.
    pub content_type: ContentType,
    /// The number of bytes, at most 100 MB.
    pub size: u64,
    /// The conversation whose members may read the file. The uploader must be one of them.
    pub conversation_id: ConversationId,
}

/// The answer to a request for an upload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RequestedUpload {
    /// The upload.
    pub upload_id: UploadId,
    /// The signed address to PUT the bytes to. It needs no token.
    pub upload_url: String,
    /// The end of the address.
    pub expires_at: Timestamp,
    /// Headers that the PUT must have; absent if none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub upload_headers: BTreeMap<String, String>,
}

/// The answer to a PUT of the bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UploadedBytes {
    /// The upload.
    pub upload_id: UploadId,
    /// The number of received bytes.
    pub size: u64,
    /// The hash of the received bytes.
    pub received_sha256: Sha256Hash,
}

/// The body of `POST /files/confirm`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ConfirmUpload {
    /// The upload.
    pub upload_id: UploadId,
    /// The hash of the file, in hexadecimal digits of either case.
    pub sha256: Sha256Hash,
}

/// The answer to `POST /files/confirm`: a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ConfirmedUpload {
    /// The file.
    pub file_id: FileId,
    /// The key of its bytes: `GET /objects/{object_key}`.
    pub object_key: String,
    /// The number of bytes.
    pub size: u64,
    /// The hash of the bytes.
    pub sha256: Sha256Hash,
    /// Always `confirmed`.
    pub state: UploadState,
}

/// The answer to `DELETE /objects/{object_key}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeletedObject {
    /// Always true.
    pub deleted: bool,
}

/// The data of `file.confirmed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FileConfirmation {
    /// The file.
    pub file_id: FileId,
    /// The key of its bytes: `GET /objects/{object_key}`.
    pub object_key: String,
    /// The number of bytes.
    pub size: u64,
    /// The hash of the bytes.
    pub sha256: Sha256Hash,
    /// The conversation whose members may read the file.
    pub conversation_id: ConversationId,
}

/// A reference to data that is too large for a webhook.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ObjectRef {
    /// The key of the object.
    pub object_key: String,
    /// The signed address of the object. It needs no token and is valid for 24 hours.
    pub url: String,
    /// The number of bytes.
    pub size: u64,
    /// The hash of the bytes.
    pub sha256: Sha256Hash,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_read_in_either_case_and_written_in_lower_case() {
        let text = "0123456789abcdef".repeat(4);
        let hash: Sha256Hash = text.to_uppercase().parse().expect("a hash");
        assert_eq!(hash.to_string(), text);
        for bad in [
            "",
            "0",
            &text[1..],
            &format!("{text}0"),
            &text.replace('0', "g"),
        ] {
            assert!(bad.parse::<Sha256Hash>().is_err(), "{bad}");
        }
    }
}
