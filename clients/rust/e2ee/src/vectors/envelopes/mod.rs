//! Envelopes, and what is refused.

mod large;
mod refused;

use blindpipe_e2ee::{
    EpochKey, Principal, PrivateKeys, View,
    envelope::{self, Draft, Place, Request, fingerprint},
    to_base64,
};
use serde_json::{Value, json};

use crate::vectors::{
    cast::{self, ADDRESSED, AGENT, AS_ADDRESSED, AS_AGENT, AS_USER, CONVERSATION, EPOCH, TIME},
    craft::Craft,
    hold,
    support::{hex, place_json},
};

const GREETING: &str = "{\"type\":\"text\",\"text\":\"Grüße\"}";

/// An envelope of the vectors.
struct Case {
    name: &'static str,
    key: EpochKey,
    sender: Principal,
    keys: PrivateKeys,
    place: Place,
    readers: Vec<[u8; 16]>,
    time: u64,
    salt: u8,
    view: View,
    content: String,
}

impl Case {
    fn by_user(name: &'static str, salt: u8) -> Self {
        Self {
            name,
            key: cast::epoch_key(),
            sender: AS_USER,
            keys: cast::device(),
            place: message(None),
            readers: Vec::new(),
            time: TIME,
            salt,
            view: View::default(),
            content: GREETING.to_owned(),
        }
    }

    fn by_agent(name: &'static str, salt: u8) -> Self {
        Self {
            sender: AS_AGENT,
            keys: cast::agent_key().keys(),
            ..Self::by_user(name, salt)
        }
    }

    fn seal(&self) -> Vec<u8> {
        let draft = Draft {
            key: &self.key,
            sender: self.sender,
            sender_keys: &self.keys,
            place: &self.place,
            readers: &self.readers,
            time: self.time,
            view: self.view,
            content: self.content.as_bytes(),
        };
        envelope::seal_with_salt(&draft, [self.salt; 16]).expect("seals")
    }

    fn json(&self) -> Value {
        let sealed = self.seal();
        for key in [
            Some(cast::epoch_key()),
            self.readers.first().map(|_| cast::lane_key()),
        ] {
            let Some(key) = key else { continue };
            let opened = envelope::open(
                &sealed,
                CONVERSATION,
                self.sender,
                &self.place,
                |_, _| Some(&key),
                |_| Some(*self.keys.public()),
            );
            let opened = opened.expect("opens");
            assert_eq!(opened.content, self.content.as_bytes());
            assert_eq!((opened.time, opened.view), (self.time, self.view));
        }
        json!({
            "name": self.name,
            "sender": hex(self.sender.to_bytes()),
            "x25519_private": hex(self.keys.x25519().expose()),
            "ed25519_seed": hex(self.keys.ed25519_seed().expose()),
            "lane_agent": self.key.lane_agent().map(hex),
            "place": place_json(&self.place),
            "ctx": hex(self.place.context().expect("a context")),
            "readers": self.readers.iter().map(hex).collect::<Vec<_>>(),
            "time": self.time,
            "salt": hex([self.salt; 16]),
            "view": hex(self.view.to_bytes()),
            "content": self.content,
            "envelope": hex(&sealed),
            "fingerprint": hex(fingerprint(&sealed)),
        })
    }
}

fn message(in_reply_to: Option<[u8; 16]>) -> Place {
    Place::Message {
        client_message_id: cast::MESSAGE,
        in_reply_to,
    }
}

fn request() -> Request {
    Request {
        asked: cast::USER,
        request_id: "r-1".to_owned(),
        tool: "send_email".to_owned(),
        scope: "notification:send".to_owned(),
        device_id: Some("laptop-1".to_owned()),
    }
}

const REQUEST: &str = "{\"arguments\":{\"to\":\"eve\"},\"prompt\":\"Send?\"}";

fn digest() -> [u8; 32] {
    let digest = request().digest(CONVERSATION, AGENT, REQUEST.as_bytes());
    digest.expect("short")
}

fn response(status: &str, reason: Option<&str>) -> Place {
    Place::Response {
        digest: digest(),
        request_id: "r-1".to_owned(),
        status: status.to_owned(),
        reason: reason.map(str::to_owned),
    }
}

fn cases() -> Vec<Case> {
    let from_addressed = Case {
        key: cast::lane_key(),
        sender: AS_ADDRESSED,
        ..Case::by_agent("from an addressed agent", 6)
    };
    let re = to_base64(&fingerprint(&from_addressed.seal()));
    let answer = Case {
        place: Place::Message {
            client_message_id: [0xc2; 16],
            in_reply_to: Some([0xd1; 16]),
        },
        readers: vec![ADDRESSED],
        time: TIME + 60_000,
        content: format!("{{\"type\":\"answer\",\"choice\":\"Deploy\",\"re\":\"{re}\"}}"),
        ..Case::by_user("an answer to what the addressed agent said", 14)
    };
    let seen = View {
        list_version: 3,
        keys_hash: std::array::from_fn(|at| 0xa0 + at as u8),
    };
    vec![
        Case::by_user("to everyone", 6),
        Case {
            readers: vec![ADDRESSED],
            view: seen,
            ..Case::by_user("to everyone and an addressed agent", 5)
        },
        from_addressed,
        Case {
            place: Place::Delta {
                stream_id: "01HF7YAT00R70W3GE1R70W3GE1".to_owned(),
                n: 0,
            },
            content: "{\"append\":\"Hel\"}".to_owned(),
            ..Case::by_agent("a delta", 11)
        },
        Case {
            place: Place::Request(request()),
            content: REQUEST.to_owned(),
            ..Case::by_agent("a tool request", 12)
        },
        Case {
            place: response("executed", None),
            time: TIME + 9_000,
            content: "{\"result\":{\"id\":1}}".to_owned(),
            ..Case::by_user("its response", 13)
        },
        Case {
            place: response("failed", Some("TIMEOUT")),
            content: "{\"message\":\"no\"}".to_owned(),
            ..Case::by_user("a response with a reason", 15)
        },
        answer,
        Case {
            readers: (0..32).map(|n| [n; 16]).collect(),
            content: format!("{{\"text\":\"{}\"}}", "é".repeat(2500)),
            ..Case::by_user("a long one to 32 addressed agents", 16)
        },
    ]
}

#[test]
fn envelopes() {
    let request = json!({
        "conversation": hex(CONVERSATION),
        "agent": hex(AGENT),
        "place": place_json(&Place::Request(request())),
        "content": REQUEST,
        "digest": hex(digest()),
    });
    let cases: Vec<_> = cases().iter().map(json_of).collect();
    let made = json!({
        "conversation": hex(CONVERSATION),
        "epoch": EPOCH,
        "secret": hex([9; 32]),
        "sid": hex(cast::epoch_key().sid()),
        "lane_agent": hex(ADDRESSED),
        "lane_secret": hex(cast::lane_key().secret().expose()),
        "cases": cases,
        "digests": [request],
        "large": large::all(),
        "refused": refused::all(),
    });
    hold("envelopes.json", &made);
}

fn json_of(case: &Case) -> Value {
    // The long one names agents that hold no lane of the vectors.
    if case.readers.len() > 1 {
        let mut json = Case {
            readers: Vec::new(),
            ..Case::by_user(case.name, case.salt)
        }
        .json();
        json["readers"] = case.readers.iter().map(hex).collect();
        json["content"] = case.content.clone().into();
        let sealed = case.seal();
        json["envelope"] = hex(&sealed).into();
        json["fingerprint"] = hex(fingerprint(&sealed)).into();
        return json;
    }
    case.json()
}
