//! Runs the events of `states.json`: JSON in, JSON out, as `clients/vectors/README.md` says.

use std::collections::BTreeMap;

use blindpipe_e2ee::{
    KeyId, Principal,
    consent::{Asked, Consents, Decision, Sensitivity, Tool},
    envelope::Place,
    room::{
        Given, Incoming, Refusal, Room, Sealing, ServerEpoch, Shown, Taken, Visibility, Writing,
    },
    trust::{DirectoryKey, Introduction, Notice, Policy, Trust},
    wrap::OpeningKey,
};
use serde_json::{Value, json};

use crate::vectors::support::{
    array, bytes, hex, number, optional, place, principal, secret, text,
};

/// A client with one conversation.
pub struct Machine {
    trust: Trust,
    room: Room,
    keys: Vec<OpeningKey>,
    consents: Consents,
    asked: Option<Asked>,
    conversation: [u8; 16],
}

impl Machine {
    pub fn new(case: &Value) -> Self {
        let policy = if case["policy"] == "strict" {
            Policy::Strict
        } else {
            Policy::Tofu
        };
        let keys: Vec<_> = items(&case["keys"])
            .map(|key| OpeningKey {
                key_id: array(key, "key_id"),
                x25519: secret(key, "x25519_private"),
            })
            .collect();
        let own = keys.iter().map(|key| key.key_id);
        let conversation = array(case, "conversation");
        Self {
            trust: Trust::new(principal(case, "me"), policy, own),
            room: Room::new(conversation, case["plaintext"] == true),
            keys,
            consents: Consents::new(tools(&case["tools"])),
            asked: None,
            conversation,
        }
    }

    pub fn step(&mut self, event: &Value) -> Value {
        match text(event, "do").as_str() {
            "directory" | "confirm" | "standing" | "introduced_by" => self.trust_step(event),
            "safety_number" | "verify_number" | "verify" | "link" => self.comparison_step(event),
            "members" | "server_epoch" | "wrap" | "sealing" | "give" => self.room_step(event),
            "writing" => {
                let chosen = event["clear_chosen"] == true;
                let writing = match self.room.writing(&self.trust, chosen) {
                    Writing::Encrypted => "encrypted",
                    Writing::Clear => "clear",
                    Writing::AskPerson => "ask_person",
                };
                json!({ "writing": writing })
            }
            "message" => {
                let place = place(&event["place"]);
                let envelope = envelope(event);
                let incoming = incoming(event, &place, envelope.as_deref());
                let now = number(event, "now");
                taken(self.room.message(&mut self.trust, &incoming, now))
            }
            _ => self.consent_step(event),
        }
    }

    fn trust_step(&mut self, event: &Value) -> Value {
        let (of, now) = (principal(event, "of"), clock(event));
        match text(event, "do").as_str() {
            "directory" => {
                let list: Vec<_> = items(&event["keys"]).map(directory_key).collect();
                let told = self.trust.directory(of, &list, now);
                if !told.is_empty() {
                    self.room.keys_changed(of);
                }
                json!({"notices": notices(&told)})
            }
            "confirm" => {
                let done = self.trust.confirm(of, array(event, "key"), now);
                self.room.keys_changed(of);
                json!({"done": done})
            }
            "introduced_by" => {
                let device_id = text(event, "device_id");
                json!({"devices": self.trust.introduced_by(of, &device_id, now)})
            }
            _ => {
                let pin = self.trust.pin(of, array(event, "key"));
                json!({
                    "standing": pin.map(|pin| pin.standing.name()),
                    "retired": pin.is_some_and(|pin| pin.is_retired(now)),
                    "speaks_bp1": self.trust.speaks_bp1(of),
                })
            }
        }
    }

    fn comparison_step(&mut self, event: &Value) -> Value {
        let (of, now) = (principal(event, "of"), clock(event));
        let told = match text(event, "do").as_str() {
            "safety_number" => return json!({"number": self.trust.safety_number(of, now)}),
            "link" => Some(self.trust.link(of, array(event, "key"), now)),
            "verify" => self.trust.verify(of, array(event, "key"), now),
            _ => self.trust.verify_number(of, &text(event, "number"), now),
        };
        if told.as_ref().is_some_and(|told| !told.is_empty()) {
            self.room.keys_changed(of);
        }
        json!({"done": told.is_some(), "notices": notices(&told.unwrap_or_default())})
    }

    fn room_step(&mut self, event: &Value) -> Value {
        match text(event, "do").as_str() {
            "members" => {
                let list: Vec<_> = items(&event["list"]).map(member).collect();
                json!({"notices": notices(&self.room.members(&list))})
            }
            "server_epoch" => {
                self.room.server_epoch(ServerEpoch {
                    epoch: epoch(&event["epoch"]).expect("an epoch"),
                    rotation_required: event["rotation_required"] == true,
                    messages: number(event, "messages"),
                });
                json!({})
            }
            "wrap" => {
                let (epoch, now) = (
                    epoch(&event["epoch"]).expect("an epoch"),
                    number(event, "now"),
                );
                let wrap = bytes(event, "wrap");
                match self
                    .room
                    .wrap(&mut self.trust, &self.keys, epoch, &wrap, now)
                {
                    Err(error) => json!({"refused": error.reason()}),
                    Ok(taken) => json!({
                        "newest": taken.newest,
                        "rotator": hex(taken.rotator.to_bytes()),
                        "sid": hex(taken.sid),
                        "notices": notices(&taken.notices),
                    }),
                }
            }
            "give" => {
                let key = directory_key(&event["key"]);
                let of = principal(event, "of");
                match self.room.give(&self.trust, of, &key, clock(event)) {
                    Given::Secret => json!({"given": "secret"}),
                    Given::Lane => json!({"given": "lane"}),
                    Given::Nothing(why) => json!({"given": "nothing", "because": why.name()}),
                }
            }
            _ => {
                let answered = epoch(&event["answered"]);
                match self
                    .room
                    .sealing(self.trust.me(), answered, number(event, "now"))
                {
                    Sealing::With { epoch, sid } => json!({"epoch": epoch, "sid": hex(sid)}),
                    Sealing::Rotate { base } => json!({"rotate": base}),
                    Sealing::Wait => json!({"wait": true}),
                }
            }
        }
    }

    fn consent_step(&mut self, event: &Value) -> Value {
        let agent = || principal(event, "agent");
        match text(event, "do").as_str() {
            "remember" => {
                let Place::Request(request) = place(&event["place"]) else {
                    panic!("a request")
                };
                let days = u32::try_from(number(event, "days")).expect("few");
                let until = (days, number(event, "now"));
                let here = self.conversation;
                let done = self.consents.remember(here, agent(), &request, None, until);
                json!({ "done": done })
            }
            "withdraw" => {
                let (scope, here) = (text(event, "scope"), self.conversation);
                json!({"done": self.consents.withdraw(agent(), Some(&scope), Some(here))})
            }
            "begin" => {
                json!({"done": self.consents.begin(agent(), &text(event, "request_id"))})
            }
            "ask" => {
                let Place::Request(request) = place(&event["place"]) else {
                    panic!("a request")
                };
                let Principal::Agent(agent) = self.trust.me() else {
                    panic!("an agent")
                };
                let content = text(event, "content");
                let asked = Asked::new(self.conversation, agent, &request, content.as_bytes());
                let asked = asked.expect("short");
                self.asked = Some(asked);
                json!({"digest": hex(asked.digest)})
            }
            "request" => self.request(event),
            "response" => self.response(event),
            other => panic!("{other}"),
        }
    }

    fn request(&mut self, event: &Value) -> Value {
        let place = place(&event["place"]);
        let envelope = envelope(event);
        let incoming = incoming(event, &place, envelope.as_deref());
        let now = number(event, "now");
        let shown = match self.room.open(&mut self.trust, &incoming, now) {
            Ok(shown) => shown,
            Err(refusal) => return refused(&refusal),
        };
        let Place::Request(request) = &place else {
            panic!("a request")
        };
        let me = self.trust.me();
        let manifest = optional(event, "manifest").map(|text| sensitivity(&text));
        let sender = incoming.sender;
        let decision = self
            .consents
            .decide(me, self.conversation, sender, request, manifest, now);
        let decision = match decision {
            Decision::Execute => "execute",
            Decision::Ask => "ask",
            Decision::Unable => "unable",
            Decision::Repeated => "repeated",
        };
        json!({"decision": decision, "notices": notices(&shown.notices)})
    }

    fn response(&mut self, event: &Value) -> Value {
        let place = place(&event["place"]);
        let envelope = envelope(event);
        let incoming = incoming(event, &place, envelope.as_deref());
        let now = number(event, "now");
        let asked = self.asked.expect("a request before");
        match asked.prove(&mut self.room, &mut self.trust, &incoming, now) {
            Ok(seen) => shown(&seen),
            Err(refusal) => refused(&refusal),
        }
    }
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Without a time, no key here has an end.
fn clock(event: &Value) -> u64 {
    event["now"].as_u64().unwrap_or_default()
}

fn epoch(value: &Value) -> Option<u32> {
    value
        .as_u64()
        .map(|epoch| u32::try_from(epoch).expect("an epoch"))
}

fn sensitivity(text: &str) -> Sensitivity {
    match text {
        "low" => Sensitivity::Low,
        "medium" => Sensitivity::Medium,
        "high" => Sensitivity::High,
        other => panic!("{other}"),
    }
}

fn tools(list: &Value) -> BTreeMap<String, Tool> {
    let tool = |tool: &Value| {
        let sensitivity = sensitivity(&text(tool, "sensitivity"));
        let scope = text(tool, "scope");
        (text(tool, "tool"), Tool { scope, sensitivity })
    };
    items(list).map(tool).collect()
}

fn member(row: &Value) -> (Principal, Visibility) {
    let addressed = row["visibility"] == "addressed";
    let visibility = if addressed {
        Visibility::Addressed
    } else {
        Visibility::All
    };
    (principal(row, "principal"), visibility)
}

fn directory_key(key: &Value) -> DirectoryKey {
    let introduction = &key["introduction"];
    let schemes = items(&key["schemes"]).map(|scheme| scheme.as_str().expect("text").to_owned());
    DirectoryKey {
        device_id: optional(key, "device_id"),
        public_key: array(key, "public_key"),
        signing_public_key: array(key, "signing_public_key"),
        schemes: schemes.collect(),
        introduction: introduction.is_object().then(|| Introduction {
            by: array(introduction, "by"),
            signature: array(introduction, "signature"),
        }),
        retired: key["retired"] == true,
        retired_at: key["retired_at"].as_u64(),
    }
}

fn envelope(event: &Value) -> Option<Vec<u8>> {
    event["envelope"]
        .is_string()
        .then(|| bytes(event, "envelope"))
}

fn incoming<'a>(event: &Value, place: &'a Place, envelope: Option<&'a [u8]>) -> Incoming<'a> {
    Incoming {
        sender: principal(event, "sender"),
        place,
        envelope,
        created_at: number(event, "created_at"),
        live: event["live"] == true,
        answered: event["answered"]
            .is_string()
            .then(|| array(event, "answered")),
    }
}

fn taken(taken: Result<Taken, Refusal>) -> Value {
    match taken {
        Ok(Taken::Shown(seen)) => shown(&seen),
        Ok(Taken::Repeated) => json!({"repeated": true}),
        Err(refusal) => refused(&refusal),
    }
}

fn shown(seen: &Shown) -> Value {
    let standing = seen.standing.map(|standing| standing.name());
    json!({"shown": standing, "notices": notices(&seen.notices)})
}

fn refused(refusal: &Refusal) -> Value {
    json!({"refused": refusal.error.reason(), "notices": notices(&refusal.notices)})
}

fn notices(list: &[Notice]) -> Value {
    list.iter()
        .map(|one| notice(one.kind.name(), one.about, one.key))
        .collect()
}

pub fn notice(kind: &str, about: Principal, key: Option<KeyId>) -> Value {
    json!([kind, hex(about.to_bytes()), key.map(hex)])
}
