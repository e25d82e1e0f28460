//! Tool requests and their responses.

use super::*;

/// The cases, in the order of the file.
pub(super) fn cases() -> Vec<Value> {
    [consent_cases(), forged_requests()].concat()
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

fn remember(case: &mut Case, sent: &Sent, days: u32, is_fit: bool) {
    let agent = hex(AS_AGENT.to_bytes());
    let place = place_json(&sent.place);
    let event =
        json!({"do": "remember", "agent": agent, "place": place, "days": days, "now": TIME});
    case.step(event, done(is_fit));
}

fn notify() -> Sent {
    request(1, "notify", "notification:send")
}

fn consent_cases() -> Vec<Value> {
    let mut low = device("a tool runs unasked once it is remembered here");
    ask(&mut low, &notify(), decision("ask"));
    remember(&mut low, &notify(), 30, true);
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
        done(true),
    );
    ask(
        &mut low,
        &request(2, "notify", "notification:send"),
        decision("ask"),
    );

    let mut medium = device("silence is of one tool, and ends by time");
    let read = |number, now| Sent {
        time: now,
        created_at: now,
        now,
        ..request(number, "read", "filesystem:read")
    };
    remember(&mut medium, &read(1, TIME), 31, false);
    remember(&mut medium, &read(1, TIME), 2, true);
    ask(
        &mut medium,
        &read(1, TIME + 2 * DAY_MS - 1),
        decision("execute"),
    );
    ask(&mut medium, &read(2, TIME + 2 * DAY_MS), decision("ask"));
    ask(&mut medium, &notify(), decision("ask"));
    let lowered = Sent {
        more: json!({"manifest": "low"}),
        ..read(4, TIME + 4 * DAY_MS)
    };
    ask(&mut medium, &lowered, decision("ask"));

    let mut high = device("a high tool never runs unasked, and only one's own tools run");
    let locate = request(1, "locate", "location:read");
    remember(&mut high, &locate, 1, false);
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
    remember(&mut forged, &notify(), 30, true);
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
