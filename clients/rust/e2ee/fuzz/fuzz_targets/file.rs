//! Files: arbitrary bytes do not open; a sealed file opens.
#![no_main]

use blindpipe_e2ee::{Secret, file};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let key = Secret::new([4; 32]);
    assert!(file::open_chunks(bytes, &key).is_err());
    let sealed = file::seal_with(bytes, &key, [5; 16]);
    assert_eq!(file::open_chunks(&sealed, &key).as_deref(), Ok(bytes));
});
