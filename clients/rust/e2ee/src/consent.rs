//! Consent: what a device may execute, by its own records, and what an agent believes of it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::{
    Error, Id, Principal, Result,
    bytes::{hex, unhex},
    envelope::{Place, Request},
    room::{Incoming, Refusal, Room, Shown},
    trust::Trust,
};

/// The longest time for which a person may let a tool run unasked, days.
pub const MAX_REMEMBERED_DAYS: u32 = 30;
const DAY_MS: u64 = 24 * 60 * 60_000;

/// How much harm a tool can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sensitivity {
    Low,
    Medium,
    High,
}

/// A tool of the device's own table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    pub scope: String,
    pub sensitivity: Sensitivity,
}

/// A device's decision on a tool request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Execute unasked.
    Execute,
    /// Show the decrypted arguments and ask.
    Ask,
    /// It is not for this person, or no tool of this device.
    Unable,
    /// It began before: it is never executed twice.
    Repeated,
}

/// The records of one device, kept for ever.
#[derive(Clone, Debug, Default)]
pub struct Consents {
    tools: BTreeMap<String, Tool>,
    /// The requests that began, by [`begun_name`].
    begun: BTreeSet<String>,
    /// Until when an agent may use a tool unasked, by conversation and tool.
    remembered: BTreeMap<(Id, Principal, String), u64>,
}

impl Consents {
    #[must_use]
    pub fn new(tools: BTreeMap<String, Tool>) -> Self {
        Self {
            tools,
            ..Self::default()
        }
    }

    /// Whether the device has a tool of this name.
    #[must_use]
    pub fn has_tool(&self, tool: &str) -> bool {
        self.tools.contains_key(tool)
    }

    /// Decides about a request that opened. `manifest` may raise the sensitivity, never lower it.
    pub fn decide(
        &self,
        me: Principal,
        conversation: Id,
        agent: Principal,
        request: &Request,
        manifest: Option<Sensitivity>,
        now: u64,
    ) -> Decision {
        if self.begun.contains(&begun_name(agent, &request.request_id)) {
            return Decision::Repeated;
        }
        let sensitivity = self.sensitivity(request, manifest);
        let Some(sensitivity) = sensitivity.filter(|_| me == Principal::User(request.asked)) else {
            return Decision::Unable;
        };
        if sensitivity == Sensitivity::High {
            return Decision::Ask;
        }
        let tool = (conversation, agent, request.tool.clone());
        let left = self.remembered.get(&tool);
        let left = left.map_or(0, |end| end.saturating_sub(now));
        // A clock that was set back makes no silence longer.
        if (1..=u64::from(MAX_REMEMBERED_DAYS) * DAY_MS).contains(&left) {
            Decision::Execute
        } else {
            Decision::Ask
        }
    }

    /// The sensitivity of a request for a tool of this device; none for any other.
    fn sensitivity(&self, request: &Request, manifest: Option<Sensitivity>) -> Option<Sensitivity> {
        let tool = self.tools.get(&request.tool)?;
        let raised = manifest.map_or(tool.sensitivity, |raised| tool.sensitivity.max(raised));
        (tool.scope == request.scope).then_some(raised)
    }

    /// The person lets this agent use this tool here unasked, for 1 to [`MAX_REMEMBERED_DAYS`] days.
    /// False for another number, for a `high` tool, and for what is no tool of this device.
    pub fn remember(
        &mut self,
        conversation: Id,
        agent: Principal,
        request: &Request,
        manifest: Option<Sensitivity>,
        (days, now): (u32, u64),
    ) -> bool {
        let sensitivity = self.sensitivity(request, manifest);
        let is_fit = sensitivity.is_some_and(|it| it < Sensitivity::High)
            && (1..=MAX_REMEMBERED_DAYS).contains(&days);
        if is_fit {
            let end = now.saturating_add(u64::from(days) * DAY_MS);
            let tool = (conversation, agent, request.tool.clone());
            self.remembered.insert(tool, end);
        }
        is_fit
    }

    /// The person takes back what is remembered of an agent: of a scope or of all, in a conversation
    /// or in all. True if there was something.
    pub fn withdraw(
        &mut self,
        agent: Principal,
        scope: Option<&str>,
        conversation: Option<Id>,
    ) -> bool {
        let before = self.remembered.len();
        let tools = &self.tools;
        // A tool that has left the table has no scope to tell: it goes as well.
        let scope_of = |tool: &str| tools.get(tool).map(|tool| tool.scope.as_str());
        self.remembered.retain(|(place, of, tool), _| {
            let is_meant = *of == agent
                && conversation.is_none_or(|it| it == *place)
                && (scope.is_none() || scope_of(tool).is_none_or(|it| scope == Some(it)));
            !is_meant
        });
        self.remembered.len() < before
    }

    /// The person's choices, for a store. A store has the requests that began by their names, because
    /// these grow with use. It has no table of tools.
    #[must_use]
    pub fn store(&self) -> Value {
        let remembered = self
            .remembered
            .iter()
            .map(|((conversation, agent, tool), end)| {
                json!([hex(*conversation), hex(agent.to_bytes()), tool, end])
            });
        json!({
            "remembered": remembered.collect::<Vec<_>>(),
        })
    }

    /// Takes up what [`Self::store`] gave. Earlier versions kept `approved`, which silenced all tools of
    /// a scope; nothing reads it.
    ///
    /// # Errors
    ///
    /// `malformed`: the store holds something else.
    pub fn restore(tools: BTreeMap<String, Tool>, stored: &Value) -> Result<Self> {
        Ok(Self {
            remembered: records(stored)?,
            ..Self::new(tools)
        })
    }

    /// Takes over the choices that another process of this device has stored. Requests that began stay
    /// known.
    ///
    /// # Errors
    ///
    /// `malformed`: the store holds something else.
    pub fn take_over(&mut self, stored: &Value) -> Result<()> {
        self.remembered = records(stored)?;
        Ok(())
    }

    /// To be stored durably, by its [`begun_name`], *before* the device executes. False if it began
    /// before.
    pub fn begin(&mut self, agent: Principal, request_id: &str) -> bool {
        self.began_before(begun_name(agent, request_id))
    }

    /// Takes up a request that an earlier run or another process began. False if it was known.
    pub fn began_before(&mut self, name: String) -> bool {
        self.begun.insert(name)
    }

    /// A store did not keep the begin, so nothing was executed.
    pub fn not_begun(&mut self, agent: Principal, request_id: &str) {
        self.begun.remove(&begun_name(agent, request_id));
    }
}

/// The name of a request in a store: the agent, `-` and the id, both in hex.
#[must_use]
pub fn begun_name(agent: Principal, request_id: &str) -> String {
    let id: String = request_id.bytes().map(|it| format!("{it:02x}")).collect();
    format!("{}-{id}", agent.to_hex())
}

fn records(stored: &Value) -> Result<BTreeMap<(Id, Principal, String), u64>> {
    let fields = stored.as_object().ok_or(Error::Malformed)?;
    // Documents of before hold none.
    let remembered = fields.get("remembered").and_then(Value::as_array);
    let records = remembered.into_iter().flatten().map(|entry| {
        let agent = Principal::from_bytes(bytes(&entry[1])?)?;
        let name = entry[2].as_str().ok_or(Error::Malformed)?.to_owned();
        let end = entry[3].as_u64().ok_or(Error::Malformed)?;
        Ok(((bytes(&entry[0])?, agent, name), end))
    });
    records.collect()
}

fn bytes<const N: usize>(value: &Value) -> Result<[u8; N]> {
    value.as_str().and_then(unhex).ok_or(Error::Malformed)
}

/// An agent's request: it believes consent to exactly this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub user: Id,
    pub digest: [u8; 32],
}

impl Asked {
    /// # Errors
    ///
    /// `malformed` if a field is too long.
    pub fn new(conversation: Id, agent: Id, request: &Request, content: &[u8]) -> Result<Self> {
        Ok(Self {
            user: request.asked,
            digest: request.digest(conversation, agent, content)?,
        })
    }

    /// Whether a response proves consent to this request: an envelope by an accepted key of the
    /// user who was asked. The place's digest is ignored; it is this one's.
    ///
    /// # Errors
    ///
    /// Every reason; whatever is refused is `failed`, `unproven`, never consent.
    pub fn prove(
        &self,
        room: &mut Room,
        trust: &mut Trust,
        incoming: &Incoming<'_>,
        now: u64,
    ) -> std::result::Result<Shown, Refusal> {
        let mut place = incoming.place.clone();
        if let Place::Response { digest, .. } = &mut place {
            *digest = self.digest;
        }
        if incoming.sender != Principal::User(self.user) {
            return Err(Error::UnknownSenderKey.into());
        }
        let place = &place;
        room.open(trust, &Incoming { place, ..*incoming }, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restored_records_know_what_was_begun_and_forget_scopes() {
        let (me, agent) = (Principal::User([1; 16]), Principal::Agent([2; 16]));
        let tool = Tool {
            scope: "mail:send".to_owned(),
            sensitivity: Sensitivity::Low,
        };
        let tools = BTreeMap::from([("send".to_owned(), tool)]);
        let mut first = Consents::new(tools.clone());
        assert!(first.begin(agent, "one") && !first.begin(agent, "one"));
        let mut stored = first.store();
        stored["approved"] = json!([[hex([3; 16]), hex(agent.to_bytes()), "mail:send", 5]]);
        let mut second = Consents::restore(tools, &stored).expect("a store");
        assert!(second.began_before(begun_name(agent, "one")));
        let mut request = Request {
            asked: [1; 16],
            request_id: "one".to_owned(),
            tool: "send".to_owned(),
            scope: "mail:send".to_owned(),
            device_id: None,
        };
        let decision = second.decide(me, [3; 16], agent, &request, None, 6);
        assert_eq!(decision, Decision::Repeated);
        request.request_id = "two".to_owned();
        let decision = second.decide(me, [3; 16], agent, &request, None, 6);
        assert_eq!(decision, Decision::Ask, "a scope silences nothing");
        assert!(second.begin(agent, "two"));
        second.not_begun(agent, "two");
        assert!(second.begin(agent, "two"), "it was not kept");
        assert!(Consents::restore(BTreeMap::new(), &json!([])).is_err());
        let mut before = first.store();
        before
            .as_object_mut()
            .expect("an object")
            .remove("remembered");
        assert!(Consents::restore(BTreeMap::new(), &before).is_ok());
    }

    #[test]
    fn a_tool_is_silent_for_the_days_that_the_person_says() {
        const HERE: Id = [3; 16];
        let (me, agent) = (Principal::User([1; 16]), Principal::Agent([2; 16]));
        let tool = |scope: &str, sensitivity| Tool {
            scope: scope.to_owned(),
            sensitivity,
        };
        let tools = BTreeMap::from([
            ("ping".to_owned(), tool("net", Sensitivity::Medium)),
            ("scan".to_owned(), tool("net", Sensitivity::Low)),
            ("wipe".to_owned(), tool("net", Sensitivity::High)),
        ]);
        let request = |tool: &str| Request {
            asked: [1; 16],
            request_id: "one".to_owned(),
            tool: tool.to_owned(),
            scope: "net".to_owned(),
            device_id: None,
        };
        let (ping, scan, wipe) = (request("ping"), request("scan"), request("wipe"));
        let mut consents = Consents::new(tools.clone());
        for (request, days, is_fit) in [
            (&ping, 0, false),
            (&ping, 31, false),
            (&wipe, 30, false),
            (&request("none"), 1, false),
            (&ping, 30, true),
        ] {
            let done = consents.remember(HERE, agent, request, None, (days, 5));
            assert_eq!(done, is_fit, "{} for {days}", request.tool);
        }
        let raised = Some(Sensitivity::High);
        assert!(!consents.remember(HERE, agent, &scan, raised, (1, 5)));

        let stored = consents.store();
        let mut restored = Consents::restore(tools, &stored).expect("a store");
        assert_eq!(restored.store(), stored);
        let end = 5 + 30 * DAY_MS;
        for (request, manifest, now, decision) in [
            (&ping, None, end - 1, Decision::Execute),
            (&ping, None, end, Decision::Ask),
            (&ping, None, 4, Decision::Ask),
            (&ping, raised, 6, Decision::Ask),
            (&scan, None, 6, Decision::Ask),
            (&wipe, None, 6, Decision::Ask),
        ] {
            let decided = restored.decide(me, HERE, agent, request, manifest, now);
            assert_eq!(decided, decision, "{} at {now}", request.tool);
        }
        let elsewhere = restored.decide(me, [4; 16], agent, &ping, None, 6);
        assert_eq!(elsewhere, Decision::Ask);

        assert!(!restored.withdraw(agent, Some("other"), None));
        assert!(!restored.withdraw(agent, None, Some([4; 16])));
        assert!(restored.withdraw(agent, Some("net"), Some(HERE)));
        for request in [&ping, &scan] {
            let decided = restored.decide(me, HERE, agent, request, None, 6);
            assert_eq!(decided, Decision::Ask, "{}", request.tool);
        }
    }
}
