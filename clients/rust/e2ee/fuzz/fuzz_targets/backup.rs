//! Backups: arbitrary halves do not open.
#![no_main]

use std::sync::LazyLock;

use blindpipe_e2ee::{
    PrivateKeys, Secret,
    backup::{self, Backup, BackupKey, BackupOwner, Costs},
};
use libfuzzer_sys::fuzz_target;

static KEY: LazyLock<BackupKey> = LazyLock::new(|| {
    let costs = Costs {
        m: 19_456,
        t: 2,
        p: 1,
    };
    BackupKey::derive("a password", [1; 32], costs).expect("good costs")
});

fuzz_target!(|halves: (&[u8], &[u8])| {
    let keys = PrivateKeys::new(Secret::new([1; 32]), &Secret::new([2; 32]));
    let owner = BackupOwner {
        user: [3; 16],
        device_id: "laptop",
        keys: keys.public(),
    };
    let backup = Backup {
        backup_a: halves.0.to_vec(),
        backup_b: halves.1.to_vec(),
    };
    assert!(backup::open(&KEY, &owner, &backup).is_err());
});
