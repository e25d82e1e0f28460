//! Wraps, up to the HPKE tag.
#![no_main]

use blindpipe_e2ee::{
    Principal, Secret,
    wrap::{self, OpeningKey},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(key_id) = wrap::recipient_key(bytes) else { return };
    let key = OpeningKey {
        key_id,
        x25519: Secret::new([1; 32]),
    };
    assert!(wrap::open(bytes, [1; 16], 1, Principal::User([2; 16]), &key, |_, _| None).is_err());
});
