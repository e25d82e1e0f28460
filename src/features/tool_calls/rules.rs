//! The shape of requests and responses, and the decision whether a person must be asked.

use blindpipe_protocol::{
    agents::Sensitivity,
    conversations::Encryption,
    raw::RawJson,
    tool_calls::{RequestArtifact, RespondArtifact},
};
use serde::Deserialize;

use crate::{
    error::{Code, Error, Result},
    features::agents::Declarations,
    http::json,
    limits::quotas::MAX_MESSAGE_BYTES,
};

/// Reads a request of an agent from a body or a frame.
pub fn read_request(bytes: &[u8]) -> Result<RequestArtifact> {
    // The shape is checked before the payload is read, which keeps its bytes.
    json::check(bytes)?;
    let request: RequestArtifact = json::parse(bytes)?;
    check(&request.payload, Code::WebhookPayloadTooLarge)?;
    Ok(request)
}

/// Reads a response of a device from a body or a frame.
pub fn read_response(bytes: &[u8]) -> Result<RespondArtifact> {
    json::check(bytes)?;
    let response: RespondArtifact = json::parse(bytes)?;
    if let Some(payload) = &response.payload {
        check(payload, Code::MessageTooLarge)?;
    }
    Ok(response)
}

fn check(payload: &RawJson, too_large: Code) -> Result<()> {
    if payload.as_str().len() > MAX_MESSAGE_BYTES {
        return Err(too_large.into());
    }
    if payload.as_str().starts_with('{') {
        Ok(())
    } else {
        Err(Error::field("payload", "type", "must be an object"))
    }
}

/// Refuses a plaintext payload in a conversation that requires encryption.
pub fn must_fit(encryption: Encryption, payload: Option<&RawJson>) -> Result<()> {
    #[derive(Deserialize)]
    struct Kind {
        r#type: Option<String>,
    }
    let Some(payload) = payload.filter(|_| encryption == Encryption::Required) else {
        return Ok(());
    };
    let kind = serde_json::from_str::<Kind>(payload.as_str()).ok();
    if kind.and_then(|kind| kind.r#type).as_deref() == Some("encrypted") {
        return Ok(());
    }
    Err(Error::field(
        "payload",
        "encryption",
        "must be encrypted in this conversation",
    ))
}

/// The sensitivity that the manifest gives to a tool under a scope; none if it does not declare the
/// scope. Where the manifest lists tools, any other tool is `high`. Errors: `SCOPE_NOT_DECLARED` for
/// a tool whose entry names another scope.
pub fn declared_sensitivity(
    declared: &Declarations,
    tool: &str,
    scope: &str,
) -> Result<Option<Sensitivity>> {
    let entry = declared.tools.get(tool);
    if let Some(Some(named)) = entry
        && named != scope
    {
        return Err(Error::from(Code::ScopeNotDeclared).with("scope", scope));
    }
    let is_unlisted = entry.is_none() && !declared.tools.is_empty();
    let sensitivity = declared.scopes.get(scope).copied();
    Ok(sensitivity.map(|it| if is_unlisted { Sensitivity::High } else { it }))
}

/// The devices that may answer a call: all, and those where a person has agreed within a day.
#[derive(Debug, Default)]
pub struct Devices {
    pub all: usize,
    pub consented: Vec<String>,
}

/// Whether a person has to be asked on any device. A call without a device waits for one, which
/// will have to ask.
pub fn prompt_required(sensitivity: Sensitivity, devices: &Devices) -> bool {
    match sensitivity {
        Sensitivity::Low => false,
        Sensitivity::Medium => devices.all == 0 || devices.consented.len() < devices.all,
        Sensitivity::High => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medium_prompts_until_every_device_has_agreed_and_high_always() {
        let devices = |all: usize, consented: usize| Devices {
            all,
            consented: vec![String::new(); consented],
        };
        for (sensitivity, all, consented, prompts) in [
            (Sensitivity::Low, 1, 0, false),
            (Sensitivity::Medium, 0, 0, true),
            (Sensitivity::Medium, 1, 0, true),
            (Sensitivity::Medium, 2, 1, true),
            (Sensitivity::Medium, 2, 2, false),
            (Sensitivity::High, 2, 2, true),
        ] {
            assert_eq!(
                prompt_required(sensitivity, &devices(all, consented)),
                prompts,
                "{sensitivity} {consented} of {all}"
            );
        }
    }

    #[test]
    fn a_tool_has_the_scope_of_its_entry_and_is_high_without_one() {
        let text = |text: &str| text.to_owned();
        let scopes = [("pay", Sensitivity::High), ("ping", Sensitivity::Low)];
        let mut declared = Declarations {
            scopes: scopes.map(|(scope, it)| (text(scope), it)).into(),
            tools: [(text("pay"), Some(text("pay"))), (text("any"), None)].into(),
        };
        let of =
            |declared: &Declarations, tool, scope| declared_sensitivity(declared, tool, scope).ok();
        assert_eq!(of(&declared, "pay", "ping"), None);
        assert_eq!(of(&declared, "pay", "pay"), Some(Some(Sensitivity::High)));
        assert_eq!(of(&declared, "any", "ping"), Some(Some(Sensitivity::Low)));
        assert_eq!(
            of(&declared, "other", "ping"),
            Some(Some(Sensitivity::High))
        );
        assert_eq!(of(&declared, "any", "none"), Some(None));
        declared.tools.clear();
        assert_eq!(of(&declared, "other", "ping"), Some(Some(Sensitivity::Low)));
    }

    #[test]
    fn an_encrypted_conversation_takes_ciphertext_only() {
        let payload = |text: &str| RawJson::parse(text.to_owned()).expect("JSON");
        let fits = |text: &str| must_fit(Encryption::Required, Some(&payload(text))).is_ok();
        assert!(fits(r#"{"type":"encrypted","c":"x"}"#));
        assert!(!fits(r#"{"type":"text"}"#) && !fits(r#"{"type":1}"#) && !fits("{}"));
        assert!(must_fit(Encryption::Required, None).is_ok());
        assert!(must_fit(Encryption::Optional, Some(&payload("{}"))).is_ok());
    }
}
