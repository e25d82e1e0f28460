//! How many envelopes and wraps are sealed and opened a second, on one core:
//! `cargo run --release -p blindpipe-e2ee --example speed`.

use std::{
    io::{self, Write},
    time::{Duration, Instant},
};

use blindpipe_e2ee::{
    EpochKey, Principal, PrivateKeys, View,
    envelope::{self, Draft, Place},
    wrap::{self, Recipient, Rotation},
};
use rand::{SeedableRng, rngs::StdRng};

const CONVERSATION: [u8; 16] = [1; 16];
const SENDER: Principal = Principal::User([2; 16]);

fn main() -> io::Result<()> {
    let mut rng = StdRng::from_seed(rand::random());
    let (key, keys) = (
        EpochKey::random(CONVERSATION, 1, &mut rng),
        PrivateKeys::random(&mut rng),
    );
    let place = Place::Message {
        client_message_id: [3; 16],
        in_reply_to: None,
    };
    let content = serde_json::json!({"type": "text", "text": "x".repeat(200)}).to_string();
    let draft = Draft {
        key: &key,
        sender: SENDER,
        sender_keys: &keys,
        place: &place,
        readers: &[],
        time: 1,
        view: View::default(),
        content: content.as_bytes(),
    };
    let sealed = envelope::seal(&draft, &mut rng).expect("seals");
    report("envelopes sealed", || {
        drop(envelope::seal(&draft, &mut rng).expect("seals"));
    })?;
    report("envelopes opened", || {
        let signer = |_| Some(*keys.public());
        let opened = envelope::open(
            &sealed,
            CONVERSATION,
            SENDER,
            &place,
            |_, _| Some(&key),
            signer,
        );
        drop(opened.expect("opens"));
    })?;
    let rotation = Rotation {
        key: &key,
        previous: [0; 16],
        rotator: [2; 16],
        rotator_keys: &keys,
        time: 1,
    };
    let to = Recipient {
        principal: SENDER,
        keys: keys.public(),
        addressed: false,
    };
    let wrapped = wrap::seal(&rotation, &to, &mut rng).expect("a wrap");
    report("wraps sealed", || {
        drop(wrap::seal(&rotation, &to, &mut rng).expect("a wrap"));
    })?;
    let opening = (&keys).into();
    report("wraps opened", || {
        let opened = wrap::open(&wrapped, CONVERSATION, 1, SENDER, &opening, |_, _| None);
        drop(opened.expect("opens"));
    })
}

/// Runs for a second and says how often.
fn report(what: &str, mut run: impl FnMut()) -> io::Result<()> {
    let start = Instant::now();
    let mut count = 0_u32;
    while start.elapsed() < Duration::from_secs(1) {
        run();
        count += 1;
    }
    let each = start.elapsed() / count;
    writeln!(
        io::stdout(),
        "{what:>18}: {count:>7} a second, {each:?} each"
    )
}
