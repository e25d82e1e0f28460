//! Files: sealed here, stored as ciphertext, opened here.

use blindpipe_e2ee::{Secret, file, from_base64, to_base64};
use blindpipe_protocol::{
    files::{
        ConfirmUpload, ConfirmedUpload, RequestUpload, RequestedUpload, Sha256Hash, UploadedBytes,
    },
    ids::ConversationId,
    text::{ContentType, Filename},
};
use serde_json::json;

use crate::{
    Content, Error, Result,
    transport::{Call, Http, rng},
};

/// The server sees this name and this type of every file.
const UPLOAD_NAME: &str = "blob";
const UPLOAD_TYPE: &str = "application/octet-stream";

/// A file to send.
#[derive(Clone, Debug)]
pub struct NewFile {
    /// Its name, for the readers.
    pub name: String,
    /// Its MIME type, for the readers.
    pub content_type: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// Seals and uploads; `base` is the route of one's kind. Answers the content of the message.
pub(crate) async fn upload(
    http: &Http,
    base: &str,
    conversation_id: ConversationId,
    file: NewFile,
) -> Result<Content> {
    let sealed = file::seal(&file.bytes, &mut rng());
    let request = RequestUpload {
        filename: Filename(UPLOAD_NAME.to_owned()),
        content_type: ContentType(UPLOAD_TYPE.to_owned()),
        size: sealed.bytes.len() as u64,
        conversation_id,
    };
    let upload: RequestedUpload = http.data(Call::post(base, &request)).await?;
    let upload_id = upload.upload_id;
    let put = Call::upload(format!("{base}/{upload_id}/upload"), sealed.bytes);
    http.data::<UploadedBytes>(put).await?;
    let sha256 = Sha256Hash(sealed.sha256);
    let confirm = Call::post("/files/confirm", &ConfirmUpload { upload_id, sha256 });
    let stored: ConfirmedUpload = http.data(confirm.repeatable()).await?;
    let content = json!({
        "type": "file",
        "file_id": stored.file_id,
        "object_key": stored.object_key,
        "name": file.name,
        "content_type": file.content_type,
        "size": file.bytes.len(),
        "sha256": sha256,
        "key": to_base64(sealed.key.expose()),
    });
    match content {
        serde_json::Value::Object(content) => Ok(content),
        _ => unreachable!("an object"),
    }
}

/// The bytes of a file; nothing is given out before hash and last chunk are checked.
pub(crate) async fn download(http: &Http, content: &Content) -> Result<Vec<u8>> {
    let field = |name: &str| content.get(name).and_then(serde_json::Value::as_str);
    let no_file = Error::Usage("this message is no file");
    let (Some("file"), Some(object_key), Some(sha256), Some(key)) = (
        field("type"),
        field("object_key"),
        field("sha256"),
        field("key"),
    ) else {
        return Err(no_file);
    };
    let plain = |character: char| character.is_ascii_alphanumeric() || "._-/".contains(character);
    if !object_key.chars().all(plain) || object_key.contains("..") {
        return Err(no_file);
    }
    let sha256: Sha256Hash = sha256
        .parse()
        .map_err(|_| blindpipe_e2ee::Error::Malformed)?;
    let key = from_base64(key)?.try_into();
    let key = Secret::new(key.map_err(|_| blindpipe_e2ee::Error::Malformed)?);
    let bytes = http
        .bytes(Call::get(format!("/objects/{object_key}")))
        .await?;
    Ok(file::open(&bytes, &key, &sha256.0)?)
}
