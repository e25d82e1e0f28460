//! Envelopes too large to be spelled: the parts that they are made of.

use blindpipe_e2ee::content::MAX_CONTENT_BYTES;

use super::*;

/// The largest content opens; one byte more does not.
pub(super) fn all() -> Vec<Value> {
    vec![
        row(MAX_CONTENT_BYTES, None),
        row(MAX_CONTENT_BYTES + 1, Some("malformed")),
    ]
}

fn row(length: usize, reason: Option<&str>) -> Value {
    let mut content = b"{}".to_vec();
    content.resize(length, b' ');
    let craft = Craft {
        content,
        ..Craft::honest()
    };
    let (key, signer) = (cast::epoch_key(), cast::device());
    let opened = envelope::open(
        &craft.seal(),
        CONVERSATION,
        AS_USER,
        &craft.place,
        |_, _| Some(&key),
        |_| Some(*signer.public()),
    );
    let refused = opened.as_ref().map_err(|error| error.reason()).err();
    assert_eq!(refused, reason);
    let parts = craft.parts();
    json!({
        "length": length,
        "reason": reason,
        "sender": hex(AS_USER.to_bytes()),
        "public_key": hex(signer.public().public_key()),
        "signing_public_key": hex(signer.public().signing_public_key()),
        "place": place_json(&craft.place),
        "header": hex(parts.header),
        "key": hex(parts.key),
        "nonce": hex(parts.nonce),
        "aad": hex(parts.aad),
        "front": hex(&parts.plaintext[..96]),
        "padded": parts.plaintext.len(),
    })
}
