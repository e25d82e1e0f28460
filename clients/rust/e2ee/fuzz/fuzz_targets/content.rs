//! Contents: an accepted content is an object in UTF-8 that is read the same again.
#![no_main]

use blindpipe_e2ee::content;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(value) = content::parse(bytes) else { return };
    assert!(value.is_object());
    let again = value.to_string();
    assert_eq!(content::parse(again.as_bytes()), Ok(value));
});
