//! The state machine as a table of cases: events, and what each must give. The expectations are
//! written by hand; the interpreter runs them.

mod comparison;
mod consent;
mod ends;
mod epochs;
mod messages;
mod trust;

use blindpipe_e2ee::{
    EpochKey, Id, KeyId, Principal, PrivateKeys, Secret, Sid,
    envelope::{self, Draft, Place, Request, fingerprint},
    introduce, to_base64,
    wrap::{self, Recipient, Rotation},
};
use rand::{SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use crate::vectors::{
    cast::{AGENT, AS_ADDRESSED, AS_AGENT, AS_USER, CONVERSATION, OTHER_USER, TIME, USER},
    hold,
    machine::{Machine, notice},
    support::{hex, place_json},
};

const BOB: Principal = Principal::User(OTHER_USER);
const EVE: Principal = Principal::User([0x66; 16]);
const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 24 * 60 * MINUTE_MS;

/// Keys by a number, so that cases read easily.
fn keys(number: u8) -> PrivateKeys {
    PrivateKeys::new(Secret::new([number; 32]), &Secret::new([number + 100; 32]))
}

/// The keys of the client whose state it is.
fn mine() -> PrivateKeys {
    keys(1)
}

fn id(number: u8) -> KeyId {
    keys(number).key_id()
}

struct Case {
    json: Value,
    steps: Vec<Value>,
    machine: Machine,
    seed: u64,
    /// The client's clock, where it matters to a key's end.
    clock: Option<u64>,
}

impl Case {
    fn new(name: &str, me: Principal, more: &Value) -> Self {
        let mine = mine();
        let mut json = json!({
            "name": name,
            "me": hex(me.to_bytes()),
            "policy": "tofu",
            "plaintext": false,
            "conversation": hex(CONVERSATION),
            "keys": [{
                "key_id": hex(mine.key_id()),
                "x25519_private": hex(mine.x25519().expose()),
            }],
            "tools": [],
        });
        for (field, value) in more.as_object().into_iter().flatten() {
            json[field] = value.clone();
        }
        let machine = Machine::new(&json);
        Self {
            json,
            steps: Vec::new(),
            machine,
            seed: 0,
            clock: None,
        }
    }

    /// A person who knows the members: Bob, an agent that sees all, an `addressed` one.
    fn of_user(name: &str) -> Self {
        let mut case = Self::new(name, AS_USER, &json!({}));
        case.people();
        case
    }

    fn of_agent(name: &str) -> Self {
        let mut case = Self::new(name, AS_AGENT, &json!({}));
        case.people();
        case
    }

    fn people(&mut self) {
        let me = self.json["me"].clone();
        for (who, number) in [(AS_USER, 1), (BOB, 2), (AS_AGENT, 3), (AS_ADDRESSED, 4)] {
            let number = if me == hex(who.to_bytes()) { 1 } else { number };
            let number = if who == AS_USER && number == 1 && me != hex(AS_USER.to_bytes()) {
                5
            } else {
                number
            };
            self.directory(who, &[key(number)], &[]);
        }
        self.members(&[AS_USER, BOB, AS_AGENT], &[]);
    }

    fn step(&mut self, mut event: Value, expect: Value) {
        if let Some(now) = self.clock.filter(|_| event["of"].is_string()) {
            event["now"] = now.into();
        }
        let given = self.machine.step(&event);
        assert_eq!(
            given,
            expect,
            "{}, step {}: {event}",
            self.json["name"],
            self.steps.len()
        );
        self.steps.push(json!({"event": event, "expect": expect}));
    }

    fn directory(&mut self, of: Principal, keys: &[Value], notices: &[Value]) {
        let event = json!({"do": "directory", "of": hex(of.to_bytes()), "keys": keys});
        self.step(event, json!({"notices": notices}));
    }

    /// The second list is of agents that are `addressed`.
    fn members_and(&mut self, all: &[Principal], addressed: &[Principal], notices: &[Value]) {
        let row = |who: &Principal, visibility| json!({"principal": hex(who.to_bytes()), "visibility": visibility});
        let mut list: Vec<_> = all.iter().map(|who| row(who, "all")).collect();
        list.extend(addressed.iter().map(|who| row(who, "addressed")));
        self.step(
            json!({"do": "members", "list": list}),
            json!({"notices": notices}),
        );
    }

    fn members(&mut self, all: &[Principal], notices: &[Value]) {
        self.members_and(all, &[AS_ADDRESSED], notices);
    }

    fn with_key(&mut self, verb: &str, of: Principal, key: KeyId, expect: Value) {
        let event = json!({"do": verb, "of": hex(of.to_bytes()), "key": hex(key)});
        self.step(event, expect);
    }

    /// `verify` or `link`.
    fn compare(&mut self, verb: &str, of: Principal, number: u8, notices: &[Value]) {
        let expect = json!({"done": true, "notices": notices});
        self.with_key(verb, of, id(number), expect);
    }

    fn verify_number(&mut self, of: Principal, number: &str, done: bool, notices: &[Value]) {
        let event = json!({"do": "verify_number", "of": hex(of.to_bytes()), "number": number});
        self.step(event, json!({"done": done, "notices": notices}));
    }

    fn safety_number(&mut self, of: Principal, number: Option<&str>) {
        let event = json!({"do": "safety_number", "of": hex(of.to_bytes())});
        self.step(event, json!({ "number": number }));
    }

    fn introduced_by(&mut self, device_id: &str, devices: &[&str]) {
        let event = json!({
            "do": "introduced_by",
            "of": hex(AS_USER.to_bytes()),
            "device_id": device_id,
        });
        self.step(event, json!({ "devices": devices }));
    }

    fn standing(&mut self, of: Principal, key: KeyId, standing: &str, retired: bool, speaks: bool) {
        let expect = json!({"standing": standing, "retired": retired, "speaks_bp1": speaks});
        self.with_key("standing", of, key, expect);
    }

    /// A wrap for this client: by whom, with which keys, of which secret, when.
    fn wrap(&mut self, by: (Principal, u8), secret: u8, epoch: u32, time: u64, more: More) -> Sid {
        self.seed += 1;
        let key = epoch_key(epoch, secret);
        let (Principal::User(rotator), number) = by else {
            panic!("a user")
        };
        let rotator_keys = keys(number);
        let rotation = Rotation {
            key: &key,
            previous: more.previous,
            rotator,
            rotator_keys: &rotator_keys,
            time,
        };
        let me = Principal::from_bytes(crate::vectors::support::array(&self.json, "me"));
        let me = me.expect("a principal");
        let mine = mine();
        let to = Recipient {
            principal: me,
            keys: mine.public(),
            addressed: me == AS_ADDRESSED,
        };
        let mut rng = StdRng::seed_from_u64(self.seed);
        let wrap = wrap::seal(&rotation, &to, &mut rng).expect("a wrap");
        let expect = match more.refused {
            Some(reason) => json!({"refused": reason}),
            None => json!({
                "newest": more.newest,
                "rotator": hex(by.0.to_bytes()),
                "sid": hex(key.sid()),
                "notices": more.notices,
            }),
        };
        let now = more.now.unwrap_or(TIME);
        let event = json!({"do": "wrap", "epoch": epoch, "wrap": hex(wrap), "now": now});
        self.step(event, expect);
        key.sid()
    }

    fn server_epoch(&mut self, epoch: u32, required: bool, messages: u64) {
        let event = json!({
            "do": "server_epoch",
            "epoch": epoch,
            "rotation_required": required,
            "messages": messages,
        });
        self.step(event, json!({}));
    }

    fn sealing(&mut self, answered: Option<u32>, now: u64, expect: Value) {
        self.step(
            json!({"do": "sealing", "answered": answered, "now": now}),
            expect,
        );
    }

    fn seals_with(&mut self, epoch: u32, secret: u8) {
        let expect = json!({"epoch": epoch, "sid": hex(epoch_key(epoch, secret).sid())});
        self.sealing(None, TIME, expect);
    }

    fn give(&mut self, to: Principal, key: Value, expect: Value) {
        let event = json!({"do": "give", "of": hex(to.to_bytes()), "key": key});
        self.step(event, expect);
    }

    fn writing(&mut self, clear_chosen: bool, expect: &str) {
        let event = json!({"do": "writing", "clear_chosen": clear_chosen});
        self.step(event, json!({ "writing": expect }));
    }

    fn message(&mut self, what: &Sent, expect: Value) {
        let event = what.event("message");
        self.step(event, expect);
    }

    fn end(mut self) -> Value {
        self.json["steps"] = self.steps.into();
        self.json
    }
}

/// The other fields of a wrap, and its expected effect.
#[derive(Default)]
struct More {
    previous: Sid,
    now: Option<u64>,
    newest: bool,
    refused: Option<&'static str>,
    notices: Vec<Value>,
}

fn newest() -> More {
    More {
        newest: true,
        ..More::default()
    }
}

fn epoch_key(epoch: u32, secret: u8) -> EpochKey {
    EpochKey::new(CONVERSATION, epoch, Secret::new([secret; 32]))
}

/// A key of the directory that speaks `bp1`.
fn key(number: u8) -> Value {
    let keys = keys(number);
    json!({
        "device_id": format!("device-{number}"),
        "public_key": hex(keys.public().public_key()),
        "signing_public_key": hex(keys.public().signing_public_key()),
        "schemes": ["bp1"],
        "introduction": null,
        "retired": false,
    })
}

fn introduced(of: Principal, number: u8, by: u8) -> Value {
    let device = format!("device-{number}");
    let signature = introduce(&keys(by), of, Some(&device), keys(number).public());
    let mut json = key(number);
    let signature = hex(signature.expect("short"));
    json["introduction"] = json!({"by": hex(id(by)), "signature": signature});
    json
}

fn retired(mut key: Value) -> Value {
    key["retired"] = true.into();
    key
}

fn ends(mut key: Value, at: u64) -> Value {
    key["retired_at"] = at.into();
    key
}

/// An envelope, or a clear payload, that comes to the client.
struct Sent {
    sender: Principal,
    keys: u8,
    epoch: u32,
    secret: u8,
    place: Place,
    content: String,
    time: u64,
    created_at: u64,
    now: u64,
    live: bool,
    answered: Option<[u8; 32]>,
    clear: bool,
    more: Value,
}

impl Sent {
    fn by(sender: Principal, keys: u8) -> Self {
        Self {
            sender,
            keys,
            epoch: 1,
            secret: 0xa1,
            place: message(1, None),
            content: "{\"type\":\"text\",\"text\":\"hello\"}".to_owned(),
            time: TIME,
            created_at: TIME,
            now: TIME,
            live: true,
            answered: None,
            clear: false,
            more: json!({}),
        }
    }

    fn envelope(&self) -> Vec<u8> {
        let draft = Draft {
            key: &epoch_key(self.epoch, self.secret),
            sender: self.sender,
            sender_keys: &keys(self.keys),
            place: &self.place,
            readers: &[],
            time: self.time,
            view: envelope::View::default(),
            content: self.content.as_bytes(),
        };
        envelope::seal_with_salt(&draft, [self.keys; 16]).expect("seals")
    }

    fn event(&self, verb: &str) -> Value {
        let mut event = json!({
            "do": verb,
            "sender": hex(self.sender.to_bytes()),
            "place": place_json(&self.place),
            "envelope": (!self.clear).then(|| hex(self.envelope())),
            "created_at": self.created_at,
            "live": self.live,
            "answered": self.answered.map(hex),
            "now": self.now,
        });
        for (field, value) in self.more.as_object().into_iter().flatten() {
            event[field] = value.clone();
        }
        event
    }
}

fn message(number: u8, in_reply_to: Option<Id>) -> Place {
    Place::Message {
        client_message_id: [number; 16],
        in_reply_to,
    }
}

fn shown(standing: &str, notices: &[Value]) -> Value {
    json!({"shown": standing, "notices": notices})
}

fn refused(reason: &str, notices: &[Value]) -> Value {
    json!({"refused": reason, "notices": notices})
}

fn done(done: bool) -> Value {
    json!({"done": done})
}

fn told(kind: &str, about: Principal, number: u8) -> Value {
    notice(kind, about, Some(id(number)))
}

fn said(kind: &str, about: Principal) -> Value {
    notice(kind, about, None)
}

/// With a secret by Bob.
fn ready(mut case: Case) -> Case {
    case.wrap((BOB, 2), 0xa1, 1, TIME, newest());
    case.server_epoch(1, false, 0);
    case
}

#[test]
fn states() {
    let cases = [
        trust::cases(),
        comparison::cases(),
        ends::cases(),
        epochs::cases(),
        messages::cases(),
        consent::cases(),
    ]
    .concat();
    hold("states.json", &json!({ "cases": cases }));
}
