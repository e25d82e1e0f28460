//! Seals and opens for the tests of other languages: a JSON request a line on standard input, a
//! JSON answer a line on standard output. `clients/vectors/README.md` says the format.

#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod support;

use std::io::{self, BufRead, Write};

use blindpipe_e2ee::{
    Error, PrivateKeys, PublicKeys, Result,
    envelope::{self, Draft},
    file,
    wrap::{self, Recipient, Rotation},
};
use serde_json::{Value, json};
use support::{array, bytes, epoch_key, hex, number, place, principal, secret, text, unhex, view};

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let request = serde_json::from_str(&line?)?;
        let answer = answer(&request).unwrap_or_else(|error| json!({"refused": error.reason()}));
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

fn answer(request: &Value) -> Result<Value> {
    match text(request, "do").as_str() {
        "seal" => seal(request),
        "open" => open(request),
        "wrap" => seal_wrap(request),
        "unwrap" => open_wrap(request),
        "seal_file" => {
            let sealed = file::seal(&bytes(request, "content"), &mut rng());
            let (key, sha256) = (hex(sealed.key.expose()), hex(sealed.sha256));
            Ok(json!({"file": hex(sealed.bytes), "key": key, "sha256": sha256}))
        }
        "open_file" => {
            let key = secret(request, "key");
            let content = file::open(&bytes(request, "file"), &key, &array(request, "sha256"))?;
            Ok(json!({"content": hex(content)}))
        }
        _ => Err(Error::UnknownKind),
    }
}

fn rng() -> impl rand::CryptoRng {
    use rand::{SeedableRng, rngs::StdRng};
    StdRng::from_seed(rand::random())
}

fn private(request: &Value) -> PrivateKeys {
    PrivateKeys::new(
        secret(request, "x25519_private"),
        &secret(request, "ed25519_seed"),
    )
}

fn public(request: &Value) -> Result<PublicKeys> {
    PublicKeys::new(
        array(request, "public_key"),
        array(request, "signing_public_key"),
    )
}

fn epoch(request: &Value) -> u32 {
    u32::try_from(number(request, "epoch")).expect("an epoch")
}

fn seal(request: &Value) -> Result<Value> {
    let key = epoch_key(request, array(request, "conversation"), epoch(request));
    let keys = private(request);
    let readers = request["readers"].as_array().into_iter().flatten();
    let readers: Vec<_> = readers
        .map(|id| {
            unhex(id.as_str().expect("hex"))
                .try_into()
                .expect("16 bytes")
        })
        .collect();
    let content = text(request, "content");
    let draft = Draft {
        key: &key,
        sender: principal(request, "sender"),
        sender_keys: &keys,
        place: &place(&request["place"]),
        readers: &readers,
        time: number(request, "time"),
        view: view(request, "view"),
        content: content.as_bytes(),
    };
    Ok(json!({"envelope": hex(envelope::seal(&draft, &mut rng())?)}))
}

fn open(request: &Value) -> Result<Value> {
    let key = epoch_key(request, array(request, "conversation"), epoch(request));
    let signer = public(request)?;
    let opened = envelope::open(
        &bytes(request, "envelope"),
        key.conversation(),
        principal(request, "sender"),
        &place(&request["place"]),
        |epoch, sid| (epoch == key.epoch() && sid == key.sid()).then_some(&key),
        |id| (id == signer.key_id()).then_some(signer),
    )?;
    let content = String::from_utf8(opened.content).map_err(|_| Error::NotJson)?;
    let view = hex(opened.view.to_bytes());
    Ok(json!({"content": content, "time": opened.time, "view": view}))
}

fn seal_wrap(request: &Value) -> Result<Value> {
    let key = epoch_key(request, array(request, "conversation"), epoch(request));
    let rotator_keys = private(request);
    let keys = public(request)?;
    let rotation = Rotation {
        key: &key,
        previous: array(request, "previous"),
        rotator: array(request, "rotator"),
        rotator_keys: &rotator_keys,
        time: number(request, "time"),
    };
    let to = Recipient {
        principal: principal(request, "recipient"),
        keys: &keys,
        addressed: request["addressed"] == true,
    };
    Ok(json!({"wrap": hex(wrap::seal(&rotation, &to, &mut rng())?)}))
}

fn open_wrap(request: &Value) -> Result<Value> {
    let rotator = public(request)?;
    let opened = wrap::open(
        &bytes(request, "wrap"),
        array(request, "conversation"),
        epoch(request),
        principal(request, "recipient"),
        &private(request).into(),
        |_, id| (id == rotator.key_id()).then_some(rotator),
    )?;
    opened.verify(&rotator)?;
    Ok(json!({
        "secret": hex(opened.key.secret().expose()),
        "sid": hex(opened.key.sid()),
        "previous": hex(opened.previous),
        "rotator": hex(opened.rotator.to_bytes()),
        "time": opened.time,
    }))
}
