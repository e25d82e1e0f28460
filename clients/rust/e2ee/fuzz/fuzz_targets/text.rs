//! Written forms: agents' keys, base64, ULIDs. An accepted text has one spelling only.
#![no_main]

use blindpipe_e2ee::{AgentKey, from_base64, ids, to_base64};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(key) = AgentKey::parse(text) {
        assert_eq!(key.to_text().as_str(), text);
    }
    let _ = AgentKey::parse_all(text);
    if let Ok(bytes) = from_base64(text) {
        assert_eq!(to_base64(&bytes), text);
    }
    if let Some(id) = ids::from_ulid(text) {
        assert_eq!(ids::ulid(id), text.to_ascii_uppercase());
    }
});
