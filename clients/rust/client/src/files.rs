//! Files: sealed here, stored as ciphertext, opened here.

use blindpipe_e2ee::{Error::Malformed, Secret, file, from_base64, to_base64};
use blindpipe_protocol::{
    files::{
        ConfirmUpload, ConfirmedUpload, RequestUpload, RequestedUpload, Sha256Hash, UploadedBytes,
    },
    ids::ConversationId,
    text::{ContentType, Filename},
};
use serde_json::json;
use sha2::{Digest, Sha256};

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

/// The properties of a file that readers show beside its name.
#[derive(Clone, Debug, Default)]
pub struct FileDetails {
    /// The words beside it.
    pub caption: Option<String>,
    /// `image`, `audio`, `video` or `document`; by default readers take it from the type.
    pub kind: Option<String>,
    /// A small picture of it.
    pub thumbnail: Option<Thumbnail>,
}

/// A small picture: PNG, JPEG or WebP of at most 24 KiB.
#[derive(Clone, Debug)]
pub struct Thumbnail {
    /// Its MIME type.
    pub content_type: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// In pixels.
    pub width: u32,
    /// In pixels.
    pub height: u32,
}

impl FileDetails {
    pub(crate) fn add_to(self, content: &mut Content) {
        let text = |text: Option<String>| text.map(serde_json::Value::String);
        let thumbnail = self.thumbnail.map(|picture| {
            json!({
                "content_type": picture.content_type,
                "data": to_base64(&picture.bytes),
                "width": picture.width,
                "height": picture.height,
            })
        });
        let details = [
            ("caption", text(self.caption)),
            ("kind", text(self.kind)),
            ("thumbnail", thumbnail),
        ];
        let given = details.into_iter();
        content.extend(given.filter_map(|(name, value)| Some((name.to_owned(), value?))));
    }
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
    if content.get("type").is_none_or(|kind| kind != "file") {
        return Err(Error::Usage("this message is no file"));
    }
    download_reference(http, content).await
}

/// The bytes that the fields of a file lead to, checked.
pub(crate) async fn download_reference(http: &Http, content: &Content) -> Result<Vec<u8>> {
    let Named { path, sha256, key } = named(content)?;
    let bytes = http.bytes(Call::get(path)).await?;
    Ok(file::open(&bytes, &key, &sha256.0)?)
}

/// The file that a message names.
struct Named {
    path: String,
    sha256: Sha256Hash,
    key: Secret,
}

/// Another member wrote these fields: any other path would be another call of this principal.
fn named(content: &Content) -> Result<Named> {
    let field = |name: &str| content.get(name).and_then(serde_json::Value::as_str);
    let sha256 = field("sha256").and_then(|hash| hash.parse().ok());
    let key = from_base64(field("key").ok_or(Malformed)?)?;
    Ok(Named {
        path: object_path(content)?,
        sha256: sha256.ok_or(Malformed)?,
        key: Secret::new(key.try_into().map_err(|_| Malformed)?),
    })
}

/// The bytes of an object with a signed address. The address is asked of the own service, whatever
/// host it names.
pub(crate) async fn read_signed(http: &Http, named: &Content) -> Result<Vec<u8>> {
    let field = |name: &str| named.get(name).and_then(serde_json::Value::as_str);
    let url = field("url").and_then(|url| reqwest::Url::parse(url).ok());
    let signed = |name: &str| {
        let mut pairs = url.as_ref()?.query_pairs();
        pairs
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.into_owned())
    };
    let call = Call::get(object_path(named)?)
        .query("expires", signed("expires"))
        .query("sig", signed("sig"));
    let bytes = http.bytes(call).await?;
    let hash = crate::session::hex(&Sha256::digest(&bytes));
    match field("sha256") {
        Some(sha256) if sha256.eq_ignore_ascii_case(&hash) => Ok(bytes),
        _ => Err(Error::lost()),
    }
}

/// The path of the object that something names.
fn object_path(named: &Content) -> Result<String> {
    let object_key = named.get("object_key").and_then(serde_json::Value::as_str);
    let is_plain = |path: &&str| {
        let plain =
            |character: char| character.is_ascii_alphanumeric() || "._-/".contains(character);
        !path.is_empty() && path.chars().all(plain) && !path.contains("..")
    };
    let object_key = object_key.filter(is_plain).ok_or(Malformed)?;
    Ok(format!("/objects/{object_key}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_leads_to_its_file_and_nowhere_else() {
        let vectors: serde_json::Value =
            serde_json::from_str(include_str!("../../../vectors/files.json")).expect("JSON");
        let content =
            |message: &serde_json::Value| message.as_object().cloned().expect("an object");
        let named_one = named(&content(&vectors["message"])).expect("a file");
        assert_eq!(named_one.path, "/objects/files/0192f0c1/blob-1_2.bin");
        for message in vectors["messages_refused"].as_array().expect("a list") {
            let refused = named(&content(message)).map(drop);
            let reason = matches!(refused, Err(Error::Decrypt(Malformed)));
            assert!(reason, "{message}: {refused:?}");
        }
    }
}
