//! Files: arbitrary bytes do not open; a sealed file opens.
#![no_main]

use blindpipe_e2ee::{Secret, file};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let key = Secret::new([4; 32]);
    assert!(file::open_chunks(bytes, &key).is_err());
    let sealed = file::seal(bytes, &mut rand::rng());
    let opened = file::open_chunks(&sealed.bytes, &sealed.key);
    assert_eq!(opened.as_deref(), Ok(bytes));
});
