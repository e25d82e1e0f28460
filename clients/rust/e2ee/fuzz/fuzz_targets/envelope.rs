//! Envelopes: the header, then every check up to the tag, by lane and by slot.
#![no_main]

use blindpipe_e2ee::{
    EpochKey, Principal, Secret,
    envelope::{self, Header, Place},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = Header::parse(bytes) else { return };
    assert!(header.readers.windows(2).all(|pair| pair[0] < pair[1]));
    let place = Place::Message {
        client_message_id: [1; 16],
        in_reply_to: None,
    };
    let all = EpochKey::new([1; 16], header.epoch, Secret::new([9; 32]));
    let agent = header.readers.first().copied().unwrap_or([2; 16]);
    let lane = EpochKey::lane([1; 16], header.epoch, agent, Secret::new([8; 32]), header.sid);
    for key in [all, lane] {
        let sender = header.writer_lane.map_or(Principal::User([3; 16]), Principal::Agent);
        let opened = envelope::open(bytes, [1; 16], sender, &place, |_, _| Some(&key), |_| None);
        assert!(opened.is_err());
    }
});
