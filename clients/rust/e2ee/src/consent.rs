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

/// How long an approval of a medium tool lasts after its last use, milliseconds.
const MEDIUM_WINDOW: u64 = 24 * 60 * 60_000;

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
    begun: BTreeSet<(Principal, String)>,
    /// When an agent was last approved, or used it, by conversation and scope.
    approved: BTreeMap<(Id, Principal, String), u64>,
}

impl Consents {
    #[must_use]
    pub fn new(tools: BTreeMap<String, Tool>) -> Self {
        Self {
            tools,
            ..Self::default()
        }
    }

    /// Decides about a request that opened. `manifest` may raise the sensitivity, never lower it.
    pub fn decide(
        &mut self,
        me: Principal,
        conversation: Id,
        agent: Principal,
        request: &Request,
        manifest: Option<Sensitivity>,
        now: u64,
    ) -> Decision {
        if self.begun.contains(&(agent, request.request_id.clone())) {
            return Decision::Repeated;
        }
        let tool = self.tools.get(&request.tool);
        let tool = tool.filter(|tool| tool.scope == request.scope);
        let Some(tool) = tool.filter(|_| me == Principal::User(request.asked)) else {
            return Decision::Unable;
        };
        let approval = (conversation, agent, request.scope.clone());
        let Some(last) = self.approved.get_mut(&approval) else {
            return Decision::Ask;
        };
        let unasked = match manifest.map_or(tool.sensitivity, |raised| tool.sensitivity.max(raised))
        {
            Sensitivity::Low => true,
            Sensitivity::Medium => now.saturating_sub(*last) < MEDIUM_WINDOW,
            Sensitivity::High => false,
        };
        if unasked {
            *last = now.max(*last);
            return Decision::Execute;
        }
        Decision::Ask
    }

    /// The person approved an agent here, by a prompt or a grant.
    pub fn approve(&mut self, conversation: Id, agent: Principal, scope: &str, now: u64) {
        self.approved
            .insert((conversation, agent, scope.to_owned()), now);
    }

    /// The person took an approval back.
    pub fn withdraw(&mut self, conversation: Id, agent: Principal, scope: &str) {
        self.approved
            .remove(&(conversation, agent, scope.to_owned()));
    }

    /// The records, for a store. The table of tools is not among them.
    #[must_use]
    pub fn store(&self) -> Value {
        let begun = self.begun.iter();
        let begun = begun.map(|(agent, id)| json!([hex(agent.to_bytes()), id]));
        let approved = self
            .approved
            .iter()
            .map(|((conversation, agent, scope), at)| {
                json!([hex(*conversation), hex(agent.to_bytes()), scope, at])
            });
        json!({
            "begun": begun.collect::<Vec<_>>(),
            "approved": approved.collect::<Vec<_>>(),
        })
    }

    /// Takes up what [`Self::store`] gave.
    ///
    /// # Errors
    ///
    /// `malformed`: the store holds something else.
    pub fn restore(tools: BTreeMap<String, Tool>, stored: &Value) -> Result<Self> {
        let list = |name: &str| stored[name].as_array().ok_or(Error::Malformed);
        let agent = |value: &Value| Principal::from_bytes(bytes(value)?);
        let mut consents = Self::new(tools);
        for entry in list("begun")? {
            let id = entry[1].as_str().ok_or(Error::Malformed)?.to_owned();
            consents.begun.insert((agent(&entry[0])?, id));
        }
        for entry in list("approved")? {
            let scope = entry[2].as_str().ok_or(Error::Malformed)?.to_owned();
            let at = entry[3].as_u64().ok_or(Error::Malformed)?;
            let approval = (bytes(&entry[0])?, agent(&entry[1])?, scope);
            consents.approved.insert(approval, at);
        }
        Ok(consents)
    }

    /// To be stored durably *before* the device executes. False if it began before.
    pub fn begin(&mut self, agent: Principal, request_id: &str) -> bool {
        self.begun.insert((agent, request_id.to_owned()))
    }
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
    fn restored_records_know_what_was_begun_and_approved() {
        let (me, agent) = (Principal::User([1; 16]), Principal::Agent([2; 16]));
        let tool = Tool {
            scope: "mail:send".to_owned(),
            sensitivity: Sensitivity::Low,
        };
        let tools = BTreeMap::from([("send".to_owned(), tool)]);
        let mut first = Consents::new(tools.clone());
        first.approve([3; 16], agent, "mail:send", 5);
        assert!(first.begin(agent, "one"));
        let mut second = Consents::restore(tools, &first.store()).expect("a store");
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
        assert_eq!(decision, Decision::Execute);
        let other = second.decide(me, [4; 16], agent, &request, None, 6);
        assert_eq!(other, Decision::Ask, "another conversation");
        assert!(Consents::restore(BTreeMap::new(), &json!([])).is_err());
    }
}
