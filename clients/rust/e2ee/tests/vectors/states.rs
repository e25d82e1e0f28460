//! The state machine as a table of cases: events, and what each must give. The expectations are
//! written by hand; the interpreter runs them.

use blindpipe_e2ee::{
    EpochKey, Id, KeyId, Principal, PrivateKeys, Secret, Sid,
    envelope::{self, Draft, Place, Request, fingerprint},
    introduce, to_base64,
    wrap::{self, Recipient, Rotation},
};
use rand::{SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use crate::{
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

    fn step(&mut self, event: Value, expect: Value) {
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
        let me = Principal::from_bytes(crate::support::array(&self.json, "me"));
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

#[test]
fn states() {
    let mut cases = trust_cases();
    for more in [
        list_cases(),
        epoch_cases(),
        rotator_cases(),
        reader_cases(),
        message_cases(),
        time_cases(),
        clear_cases(),
        consent_cases(),
        forged_requests(),
    ] {
        cases.extend(more);
    }
    hold("states.json", &json!({ "cases": cases }));
}

fn trust_cases() -> Vec<Value> {
    let mut first = Case::new(
        "first keys are known, later ones wait for a tap",
        AS_USER,
        &json!({}),
    );
    first.directory(BOB, &[key(2)], &[]);
    first.standing(BOB, id(2), "known", false, true);
    first.directory(BOB, &[key(2), key(3)], &[told("waiting_key", BOB, 3)]);
    first.standing(BOB, id(3), "waiting", false, true);
    first.directory(BOB, &[key(2), key(3)], &[]);
    first.with_key("confirm", BOB, id(3), done(true));
    first.standing(BOB, id(3), "known", false, true);
    first.with_key("confirm", BOB, id(9), done(false));

    let strict = json!({"policy": "strict"});
    let mut strict = Case::new(
        "under the strict policy first keys wait too",
        AS_USER,
        &strict,
    );
    strict.directory(BOB, &[key(2)], &[told("waiting_key", BOB, 2)]);
    strict.with_key("confirm", BOB, id(2), done(true));
    let list = [key(2), introduced(BOB, 3, 2)];
    strict.directory(BOB, &list, &[told("introduced_key", BOB, 3)]);
    strict.standing(BOB, id(3), "introduced", false, true);

    let mut chain = Case::new("an introduced key introduces the next", AS_USER, &json!({}));
    chain.directory(BOB, &[key(2)], &[]);
    let list = [introduced(BOB, 4, 3), introduced(BOB, 3, 2), key(2)];
    let mut notices = [
        told("introduced_key", BOB, 3),
        told("introduced_key", BOB, 4),
    ];
    notices.sort_by_key(|notice| notice[2].to_string());
    chain.directory(BOB, &list, &notices);
    chain.with_key("verify", BOB, id(2), done(true));
    chain.standing(BOB, id(4), "verified", false, true);

    let mut stolen = Case::new("a retired key introduces nobody", AS_USER, &json!({}));
    stolen.directory(BOB, &[key(2), key(3)], &[]);
    stolen.directory(BOB, &[key(3)], &[told("retired_key", BOB, 2)]);
    stolen.standing(BOB, id(2), "known", true, true);
    let list = [key(3), introduced(BOB, 4, 2)];
    stolen.directory(BOB, &list, &[told("waiting_key", BOB, 4)]);

    let mut forged = Case::new(
        "an introduction of another device counts for nothing",
        AS_USER,
        &json!({}),
    );
    forged.directory(BOB, &[key(2)], &[]);
    let mut moved = introduced(BOB, 3, 2);
    moved["device_id"] = "another".into();
    forged.directory(BOB, &[key(2), moved], &[told("waiting_key", BOB, 3)]);
    forged.directory(BOB, &[key(2), introduced(EVE, 3, 2)], &[]);
    forged.standing(BOB, id(3), "waiting", false, true);

    let cases = [first, strict, chain, stolen, forged];
    cases.into_iter().map(Case::end).collect()
}

fn list_cases() -> Vec<Value> {
    let mut back = Case::new(
        "a retired key comes back only by a tap",
        AS_USER,
        &json!({}),
    );
    back.directory(BOB, &[key(2), key(3)], &[]);
    back.directory(
        BOB,
        &[key(2), retired(key(3))],
        &[told("retired_key", BOB, 3)],
    );
    back.directory(BOB, &[key(2), key(3)], &[told("returned_key", BOB, 3)]);
    back.standing(BOB, id(3), "known", true, true);
    back.with_key("verify", BOB, id(3), done(false));
    back.with_key("confirm", BOB, id(3), done(true));
    back.standing(BOB, id(3), "known", false, true);

    let mut own = Case::new(
        "an unknown key on one's own list is an alarm, each time",
        AS_USER,
        &json!({}),
    );
    own.directory(
        AS_USER,
        &[key(1), introduced(AS_USER, 2, 1)],
        &[told("introduced_key", AS_USER, 2)],
    );
    own.standing(AS_USER, id(2), "verified", false, true);
    for _ in 0..2 {
        own.directory(
            AS_USER,
            &[key(1), key(2), key(3)],
            &[told("own_list_key", AS_USER, 3)],
        );
    }

    let mut unusable = Case::new("a key of small order is no key", AS_USER, &json!({}));
    let mut small = key(3);
    small["signing_public_key"] = format!("01{}", "00".repeat(31)).into();
    unusable.directory(BOB, &[key(2), small.clone()], &[said("unusable_key", BOB)]);
    unusable.members(&[AS_USER, BOB], &[]);
    unusable.give(
        BOB,
        small,
        json!({"given": "nothing", "because": "unusable_key"}),
    );
    unusable.give(BOB, key(2), json!({"given": "secret"}));

    let mut link = Case::new(
        "an agent's link verifies its key at first contact",
        AS_USER,
        &json!({}),
    );
    link.with_key("link", AS_AGENT, id(3), json!({"notices": []}));
    link.directory(AS_AGENT, &[key(3)], &[]);
    link.standing(AS_AGENT, id(3), "verified", false, true);
    let list = [key(3), introduced(AS_AGENT, 4, 3)];
    link.directory(AS_AGENT, &list, &[told("introduced_key", AS_AGENT, 4)]);
    link.directory(AS_AGENT, &list[1..], &[told("retired_key", AS_AGENT, 3)]);
    link.with_key("link", AS_AGENT, id(3), json!({"notices": []}));
    link.standing(AS_AGENT, id(4), "verified", false, true);

    let mut dead = Case::new(
        "a link to a retired key verifies nothing",
        AS_USER,
        &json!({}),
    );
    dead.with_key("link", AS_AGENT, id(3), json!({"notices": []}));
    let list = [retired(key(3)), key(4)];
    dead.directory(AS_AGENT, &list, &[told("link_retired", AS_AGENT, 3)]);
    dead.standing(AS_AGENT, id(4), "known", false, true);
    let cases = [back, own, unusable, link, dead];
    cases.into_iter().map(Case::end).collect()
}

fn epoch_cases() -> Vec<Value> {
    let rotate = |base: u32| json!({ "rotate": base });
    let mut newest_wins = Case::of_user("the newest wrap seals, whatever the server calls current");
    newest_wins.sealing(None, TIME, rotate(0));
    let sid = newest_wins.wrap((BOB, 2), 0xa1, 1, TIME, newest());
    newest_wins.server_epoch(1, false, 5);
    newest_wins.seals_with(1, 0xa1);
    let more = More {
        previous: sid,
        ..newest()
    };
    newest_wins.wrap((AS_USER, 1), 0xa2, 2, TIME + 1, more);
    newest_wins.server_epoch(2, false, 0);
    newest_wins.seals_with(2, 0xa2);
    newest_wins.wrap((BOB, 2), 0xa1, 1, TIME, More::default());
    newest_wins.seals_with(2, 0xa2);
    newest_wins.server_epoch(1, false, 0);
    newest_wins.sealing(None, TIME, rotate(1));
    newest_wins.server_epoch(9, false, 0);
    newest_wins.seals_with(2, 0xa2);
    newest_wins.sealing(Some(3), TIME, rotate(9));

    let mut due = Case::of_user("people rotate when it is due");
    due.wrap((BOB, 2), 0xa1, 1, TIME, newest());
    due.server_epoch(1, true, 0);
    due.sealing(None, TIME, rotate(1));
    due.server_epoch(1, false, 10_000);
    due.sealing(None, TIME, rotate(1));
    due.server_epoch(1, false, 9_999);
    due.seals_with(1, 0xa1);
    due.sealing(None, TIME + 7 * DAY_MS + 1, rotate(1));
    due.directory(
        BOB,
        &[key(2), introduced(BOB, 6, 2)],
        &[told("introduced_key", BOB, 6)],
    );
    due.sealing(None, TIME, rotate(1));

    [newest_wins, due].into_iter().map(Case::end).collect()
}

fn rotator_cases() -> Vec<Value> {
    let rotate = |base: u32| json!({ "rotate": base });
    let mut outsider = Case::of_user("an epoch by somebody who is no member opens and never seals");
    outsider.directory(EVE, &[key(9)], &[]);
    outsider.wrap((EVE, 9), 0xa1, 1, TIME, newest());
    outsider.server_epoch(1, false, 0);
    outsider.sealing(None, TIME, rotate(1));
    outsider.message(&Sent::by(BOB, 2), shown("known", &[]));

    let mut retired_rotator = Case::of_user("an epoch by a retired key opens and never seals");
    retired_rotator.directory(
        BOB,
        &[key(7)],
        &[told("waiting_key", BOB, 7), told("retired_key", BOB, 2)],
    );
    retired_rotator.wrap((BOB, 2), 0xa1, 1, TIME, newest());
    retired_rotator.server_epoch(1, false, 0);
    retired_rotator.sealing(None, TIME, rotate(1));

    let mut left = Case::of_user("what a member made before leaving goes on until the rotation");
    left.wrap((BOB, 2), 0xa1, 1, TIME, newest());
    left.server_epoch(1, false, 0);
    left.members(&[AS_USER, AS_AGENT], &[said("member_removed", BOB)]);
    left.sealing(None, TIME, rotate(1));
    left.wrap((AS_USER, 1), 0xa2, 2, TIME + 1, newest());
    left.server_epoch(2, false, 0);
    left.seals_with(2, 0xa2);

    let mut waiting = Case::of_user("a wrap by a key that waits opens, and is not the newest");
    waiting.directory(BOB, &[key(2), key(8)], &[told("waiting_key", BOB, 8)]);
    waiting.wrap((BOB, 8), 0xa1, 1, TIME, More::default());
    waiting.server_epoch(1, false, 0);
    waiting.sealing(None, TIME, rotate(1));
    waiting.message(&Sent::by(BOB, 2), shown("known", &[]));

    let mut ahead = Case::of_user("a wrap from the future is not the newest");
    ahead.wrap(
        (BOB, 2),
        0xa1,
        1,
        TIME + 10 * MINUTE_MS + 1,
        More::default(),
    );
    ahead.wrap((BOB, 2), 0xa2, 1, TIME + 10 * MINUTE_MS, newest());

    let mut restored = Case::of_user("after a restored database a later secret is the newest");
    restored.wrap((BOB, 2), 0xa1, 9, TIME, newest());
    restored.server_epoch(3, false, 0);
    restored.sealing(None, TIME, rotate(3));
    let more = More {
        now: Some(TIME + 1),
        ..newest()
    };
    restored.wrap((AS_USER, 1), 0xa2, 4, TIME + 1, more);
    restored.server_epoch(4, false, 0);
    restored.seals_with(4, 0xa2);

    let cases = [outsider, retired_rotator, left, waiting, ahead, restored];
    cases.into_iter().map(Case::end).collect()
}

fn reader_cases() -> Vec<Value> {
    let rotate = |base: u32| json!({ "rotate": base });
    let mut split = Case::of_user("somebody was given something else");
    split.wrap((BOB, 2), 0xa1, 1, TIME, newest());
    let other = More {
        previous: [0x77; 16],
        notices: vec![told("other_secret_before", BOB, 2)],
        ..newest()
    };
    split.wrap((BOB, 2), 0xa2, 2, TIME + 1, other);
    let unknown = Sent {
        epoch: 2,
        secret: 0xee,
        ..Sent::by(BOB, 2)
    };
    split.message(
        &unknown,
        refused("no_epoch_key", &[said("other_secret", BOB)]),
    );
    let later = Sent {
        epoch: 3,
        ..unknown
    };
    split.message(&later, refused("no_epoch_key", &[]));

    let mut waits = Case::of_agent("an agent cannot rotate: it waits");
    waits.sealing(None, TIME, json!({"wait": true}));
    waits.wrap((BOB, 2), 0xa1, 1, TIME, newest());
    waits.server_epoch(1, true, 20_000);
    waits.seals_with(1, 0xa1);
    waits.sealing(Some(2), TIME, json!({"wait": true}));
    waits.server_epoch(0, false, 0);
    waits.sealing(None, TIME, json!({"wait": true}));

    let mut lane = Case::new(
        "an addressed agent believes its lane by the signature",
        AS_ADDRESSED,
        &json!({}),
    );
    lane.directory(BOB, &[key(2)], &[]);
    lane.members(&[AS_USER, BOB], &[]);
    let stranger = More {
        refused: Some("unknown_sender_key"),
        ..More::default()
    };
    lane.wrap((BOB, 9), 0xa1, 1, TIME, stranger);
    lane.wrap((BOB, 2), 0xa1, 1, TIME, newest());
    lane.server_epoch(1, false, 0);
    lane.seals_with(1, 0xa1);

    let mut refused_wraps = Case::of_user("wraps that are not for this client");
    for (wrap, reason) in [
        ("00", "no_epoch_key"),
        ("", "malformed"),
        ("02", "unknown_version"),
    ] {
        let event = json!({"do": "wrap", "epoch": 1, "wrap": wrap, "now": TIME});
        refused_wraps.step(event, json!({"refused": reason}));
    }

    let mut gives = Case::of_user("who is given what");
    gives.give(BOB, key(2), json!({"given": "secret"}));
    gives.give(AS_AGENT, key(3), json!({"given": "secret"}));
    gives.give(AS_ADDRESSED, key(4), json!({"given": "lane"}));
    gives.give(
        EVE,
        key(9),
        json!({"given": "nothing", "because": "not_member"}),
    );
    gives.give(
        BOB,
        key(9),
        json!({"given": "nothing", "because": "waiting_key"}),
    );
    gives.directory(
        BOB,
        &[key(9)],
        &[told("waiting_key", BOB, 9), told("retired_key", BOB, 2)],
    );
    gives.give(
        BOB,
        key(2),
        json!({"given": "nothing", "because": "retired_key"}),
    );
    gives.with_key("confirm", BOB, id(9), done(true));
    gives.give(BOB, key(9), json!({"given": "secret"}));

    let mut sees_all = Case::of_user("an agent that became `all` and a new member are named");
    sees_all.wrap((AS_USER, 1), 0xa1, 1, TIME, newest());
    sees_all.server_epoch(1, false, 0);
    let everybody = [AS_USER, BOB, AS_AGENT, AS_ADDRESSED, EVE];
    let notices = [
        said("member_added", EVE),
        said("agent_sees_all", AS_ADDRESSED),
    ];
    sees_all.members_and(&everybody, &[], &notices);
    sees_all.sealing(None, TIME, rotate(1));
    sees_all.give(AS_ADDRESSED, key(4), json!({"given": "secret"}));
    let cases = [split, waits, lane, refused_wraps, gives, sees_all];
    cases.into_iter().map(Case::end).collect()
}

/// With a secret by Bob.
fn ready(mut case: Case) -> Case {
    case.wrap((BOB, 2), 0xa1, 1, TIME, newest());
    case.server_epoch(1, false, 0);
    case
}

fn message_cases() -> Vec<Value> {
    let mut replay = ready(Case::of_user("a message is shown once"));
    replay.message(&Sent::by(BOB, 2), shown("known", &[]));
    replay.message(&Sent::by(BOB, 2), json!({"repeated": true}));
    let by_agent = Sent::by(AS_AGENT, 3);
    replay.message(&by_agent, shown("known", &[]));
    let unopened = Sent {
        epoch: 5,
        place: message(2, None),
        ..Sent::by(BOB, 2)
    };
    replay.message(&unopened, refused("no_epoch_key", &[]));
    let opened = Sent {
        epoch: 1,
        ..unopened
    };
    replay.message(&opened, shown("known", &[]));

    let mut keys_of_sender = ready(Case::of_user("what a sender's key is worth"));
    keys_of_sender.message(&Sent::by(BOB, 9), refused("unknown_sender_key", &[]));
    keys_of_sender.directory(BOB, &[key(2), key(9)], &[told("waiting_key", BOB, 9)]);
    let waits = shown("waiting", &[told("waiting_key", BOB, 9)]);
    keys_of_sender.message(&Sent::by(BOB, 9), waits);
    keys_of_sender.with_key("verify", BOB, id(2), done(true));
    let second = Sent {
        place: message(2, None),
        ..Sent::by(BOB, 2)
    };
    keys_of_sender.message(&second, shown("verified", &[]));
    keys_of_sender.directory(BOB, &[key(9)], &[told("retired_key", BOB, 2)]);
    let third = Sent {
        place: message(3, None),
        ..Sent::by(BOB, 2)
    };
    let left = [told("retired_key", BOB, 2)];
    keys_of_sender.message(&third, refused("retired_key", &left));
    let history = Sent {
        live: false,
        ..third
    };
    keys_of_sender.message(&history, shown("verified", &left));
    keys_of_sender.directory(EVE, &[key(8)], &[]);
    keys_of_sender.message(
        &Sent::by(EVE, 8),
        shown("known", &[said("not_member", EVE)]),
    );

    [replay, keys_of_sender]
        .into_iter()
        .map(Case::end)
        .collect()
}

fn time_cases() -> Vec<Value> {
    let mut times = ready(Case::of_user("times that are far off are shown"));
    let off = Sent {
        created_at: TIME + 5 * MINUTE_MS + 1,
        ..Sent::by(BOB, 2)
    };
    times.message(&off, shown("known", &[said("other_time", BOB)]));
    let old = Sent {
        now: TIME + 40 * DAY_MS,
        place: message(2, None),
        ..Sent::by(BOB, 2)
    };
    times.message(&old, shown("known", &[]));

    let mut quotes = ready(Case::of_user("a quote is shown only with a fitting `re`"));
    let question = Sent::by(AS_AGENT, 3);
    quotes.message(&question, shown("known", &[]));
    let answered = fingerprint(&question.envelope());
    let re = to_base64(&answered);
    let answer = |number, re: &str, answered| Sent {
        place: message(number, Some([0x44; 16])),
        content: json!({"type": "answer", "choice": "yes", "re": re}).to_string(),
        answered,
        ..Sent::by(BOB, 2)
    };
    quotes.message(&answer(2, &re, Some(answered)), shown("known", &[]));
    let no_quote = shown("known", &[said("no_quote", BOB)]);
    quotes.message(&answer(3, &re, Some([1; 32])), no_quote.clone());
    quotes.message(&answer(4, &re, None), no_quote.clone());
    quotes.message(&answer(5, "nonsense", Some(answered)), no_quote);

    let stream = || Sent {
        place: Place::Delta {
            stream_id: blindpipe_e2ee::ids::ulid([1; 16]),
            n: 0,
        },
        content: "{\"append\":\"Hel\"}".to_owned(),
        ..Sent::by(AS_AGENT, 3)
    };
    let mut deltas = ready(Case::of_user(
        "deltas are shown while they are fresh and the end is not known",
    ));
    deltas.message(&stream(), shown("known", &[]));
    let old = Sent {
        now: TIME + 5 * MINUTE_MS + 1,
        ..stream()
    };
    deltas.message(&old, refused("stale", &[]));
    let clear = Sent {
        clear: true,
        ..stream()
    };
    deltas.message(&clear, refused("clear", &[]));
    deltas.message(&Sent::by(AS_AGENT, 3), shown("known", &[]));
    deltas.message(&stream(), json!({"repeated": true}));

    let mut handler = ready(Case::of_agent(
        "a handler gets nothing old, and nothing by a key that waits",
    ));
    let old = |days| Sent {
        now: TIME + days * DAY_MS,
        place: message(days as u8, None),
        ..Sent::by(BOB, 2)
    };
    handler.message(&old(31), shown("known", &[]));
    handler.message(&old(32), refused("stale", &[]));
    handler.directory(BOB, &[key(2), key(9)], &[told("waiting_key", BOB, 9)]);
    let waits = refused("unknown_sender_key", &[told("waiting_key", BOB, 9)]);
    handler.message(&Sent::by(BOB, 9), waits);
    handler.with_key("confirm", BOB, id(9), done(true));
    handler.message(&Sent::by(BOB, 9), shown("known", &[]));
    let cases = [times, quotes, deltas, handler];
    cases.into_iter().map(Case::end).collect()
}

fn clear_cases() -> Vec<Value> {
    let clear = |sender, keys| Sent {
        clear: true,
        ..Sent::by(sender, keys)
    };
    let mut person =
        Case::of_user("clear text stands under its mark, until anything was encrypted");
    let marked = json!({"shown": null, "notices": [said("not_encrypted", BOB)]});
    person.message(&clear(BOB, 2), marked);
    person.wrap((BOB, 2), 0xa1, 1, TIME, newest());
    person.message(&clear(BOB, 2), refused("clear", &[]));

    let mut agent = Case::of_agent("an agent with a key handles nothing that comes in clear");
    agent.message(&clear(BOB, 2), refused("clear", &[]));

    let mut allows = Case::new(
        "an agent that allows clear text",
        AS_AGENT,
        &json!({"plaintext": true}),
    );
    allows.people();
    let marked = json!({"shown": null, "notices": [said("not_encrypted", BOB)]});
    allows.message(&clear(BOB, 2), marked);
    allows.server_epoch(1, false, 0);
    allows.message(&clear(BOB, 2), refused("clear", &[]));

    let mut writes = Case::new(
        "clear text is written only where a person chose it",
        AS_USER,
        &json!({}),
    );
    let mut plain = key(3);
    plain["schemes"] = json!([]);
    writes.directory(BOB, &[key(2)], &[]);
    writes.directory(AS_AGENT, &[plain], &[]);
    writes.members_and(&[AS_USER, BOB, AS_AGENT], &[], &[]);
    writes.writing(false, "ask_person");
    writes.writing(true, "clear");
    writes.directory(AS_AGENT, &[key(3)], &[]);
    writes.writing(true, "encrypted");
    let mut spoke = key(3);
    spoke["schemes"] = json!([]);
    writes.directory(AS_AGENT, &[spoke], &[]);
    writes.writing(true, "encrypted");
    [person, agent, allows, writes]
        .into_iter()
        .map(Case::end)
        .collect()
}

fn request(number: u8, tool: &str, scope: &str) -> Sent {
    Sent {
        place: Place::Request(Request {
            asked: USER,
            request_id: format!("r-{number}"),
            tool: tool.to_owned(),
            scope: scope.to_owned(),
            device_id: None,
        }),
        content: "{\"arguments\":{\"to\":\"eve\"}}".to_owned(),
        ..Sent::by(AS_AGENT, 3)
    }
}

fn decision(decision: &str) -> Value {
    json!({"decision": decision, "notices": []})
}

/// A device with three tools.
fn device(name: &str) -> Case {
    let tools = json!([
        {"tool": "notify", "scope": "notification:send", "sensitivity": "low"},
        {"tool": "read", "scope": "filesystem:read", "sensitivity": "medium"},
        {"tool": "locate", "scope": "location:read", "sensitivity": "high"},
    ]);
    let mut case = Case::new(name, AS_USER, &json!({ "tools": tools }));
    case.people();
    case.wrap((BOB, 2), 0xa1, 1, TIME, newest());
    case
}

fn ask(case: &mut Case, sent: &Sent, expect: Value) {
    case.step(sent.event("request"), expect);
}

fn approve(case: &mut Case, scope: &str, now: u64) {
    let agent = hex(AS_AGENT.to_bytes());
    let event = json!({"do": "approve", "agent": agent, "scope": scope, "now": now});
    case.step(event, json!({}));
}

fn notify() -> Sent {
    request(1, "notify", "notification:send")
}

fn consent_cases() -> Vec<Value> {
    let mut low = device("a low tool runs unasked once it was approved here");
    ask(&mut low, &notify(), decision("ask"));
    approve(&mut low, "notification:send", TIME);
    ask(&mut low, &notify(), decision("execute"));
    let raised = Sent {
        more: json!({"manifest": "high"}),
        ..notify()
    };
    ask(&mut low, &raised, decision("ask"));
    let agent = hex(AS_AGENT.to_bytes());
    let begin = json!({"do": "begin", "agent": agent, "request_id": "r-1"});
    low.step(begin.clone(), done(true));
    low.step(begin, done(false));
    ask(&mut low, &notify(), decision("repeated"));
    low.step(
        json!({"do": "withdraw", "agent": agent, "scope": "notification:send"}),
        json!({}),
    );
    ask(
        &mut low,
        &request(2, "notify", "notification:send"),
        decision("ask"),
    );

    let mut medium = device("a medium tool runs unasked for 24 hours, sliding");
    let read = |number, now| Sent {
        time: now,
        created_at: now,
        now,
        ..request(number, "read", "filesystem:read")
    };
    approve(&mut medium, "filesystem:read", TIME);
    ask(
        &mut medium,
        &read(1, TIME + DAY_MS - 1),
        decision("execute"),
    );
    ask(
        &mut medium,
        &read(2, TIME + 2 * DAY_MS - 2),
        decision("execute"),
    );
    ask(
        &mut medium,
        &read(3, TIME + 3 * DAY_MS - 2),
        decision("ask"),
    );
    let lowered = Sent {
        more: json!({"manifest": "low"}),
        ..read(4, TIME + 4 * DAY_MS)
    };
    ask(&mut medium, &lowered, decision("ask"));

    let mut high = device("a high tool never runs unasked, and only one's own tools run");
    approve(&mut high, "location:read", TIME);
    ask(
        &mut high,
        &request(1, "locate", "location:read"),
        decision("ask"),
    );
    ask(
        &mut high,
        &request(2, "format_disk", "location:read"),
        decision("unable"),
    );
    ask(
        &mut high,
        &request(3, "locate", "notification:send"),
        decision("unable"),
    );
    let mut elsewhere = request(4, "locate", "location:read");
    if let Place::Request(request) = &mut elsewhere.place {
        request.asked = OTHER_USER;
    }
    ask(&mut high, &elsewhere, decision("unable"));

    [low, medium, high].into_iter().map(Case::end).collect()
}

fn forged_requests() -> Vec<Value> {
    let mut forged = device("requests that a device does not take");
    approve(&mut forged, "notification:send", TIME);
    let clear = Sent {
        clear: true,
        ..notify()
    };
    ask(&mut forged, &clear, refused("clear", &[]));
    let late = Sent {
        now: TIME + 5 * MINUTE_MS + 1,
        ..notify()
    };
    ask(&mut forged, &late, refused("stale", &[]));
    let early = Sent {
        now: TIME - 5 * MINUTE_MS - 1,
        ..notify()
    };
    ask(&mut forged, &early, refused("stale", &[]));
    let unknown = Sent {
        keys: 9,
        ..notify()
    };
    ask(&mut forged, &unknown, refused("unknown_sender_key", &[]));
    let list = [key(3), key(9)];
    forged.directory(AS_AGENT, &list, &[told("waiting_key", AS_AGENT, 9)]);
    let waits = refused("unknown_sender_key", &[told("waiting_key", AS_AGENT, 9)]);
    ask(&mut forged, &unknown, waits);
    forged.directory(AS_AGENT, &list[1..], &[told("retired_key", AS_AGENT, 3)]);
    let left = refused("retired_key", &[told("retired_key", AS_AGENT, 3)]);
    ask(&mut forged, &notify(), left);

    [forged, responses()].into_iter().map(Case::end).collect()
}

/// An agent believes consent to exactly what it asked.
fn responses() -> Case {
    let mut case = Case::of_agent("an agent believes consent to exactly what it asked");
    case.wrap((BOB, 2), 0xa1, 1, TIME, newest());
    let Place::Request(asked) = request(1, "notify", "notification:send").place else {
        panic!("a request")
    };
    let digest = |content: &str| {
        let digest = asked.digest(CONVERSATION, AGENT, content.as_bytes());
        digest.expect("short")
    };
    let content = "{\"arguments\":{\"to\":\"eve\"}}";
    let place = place_json(&Place::Request(asked.clone()));
    let event = json!({"do": "ask", "place": place, "content": content});
    case.step(event, json!({"digest": hex(digest(content))}));
    let response = |content: &str, sender, number| Sent {
        place: Place::Response {
            digest: digest(content),
            request_id: "r-1".to_owned(),
            status: "executed".to_owned(),
            reason: None,
        },
        content: "{\"result\":1}".to_owned(),
        ..Sent::by(sender, number)
    };
    let mut answer = |sent: &Sent, expect: Value| case.step(sent.event("response"), expect);
    answer(&response(content, AS_USER, 5), shown("known", &[]));
    let other = response("{\"arguments\":{\"to\":\"bob\"}}", AS_USER, 5);
    answer(&other, refused("bad_ciphertext", &[]));
    answer(
        &response(content, BOB, 2),
        refused("unknown_sender_key", &[]),
    );
    let clear = Sent {
        clear: true,
        ..response(content, AS_USER, 5)
    };
    answer(&clear, refused("clear", &[]));
    let stranger = response(content, AS_USER, 9);
    answer(&stranger, refused("unknown_sender_key", &[]));
    case
}
