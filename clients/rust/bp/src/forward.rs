//! `bp webhook listen`: an agent's events, posted to a receiver of this machine as the service
//! would post them.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use blindpipe_client::{
    Agent,
    agent::{RawEvent, RawEvents},
    protocol::raw::RawJson,
};
use hmac::{Hmac, KeyInit, Mac};
use reqwest::{
    Client, Url,
    header::{HeaderMap, HeaderName, HeaderValue},
    redirect::Policy,
};
use serde_json::json;
use sha2::Sha256;

use crate::{
    commands::webhook::Listen,
    context::Context,
    credentials,
    failure::{Exit, Failure, Result},
    output::Output,
    prompt,
    stop::Stop,
};

/// A receiver has this long, as it has from the service.
const DEADLINE: Duration = Duration::from_secs(10);
const FIRST_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(30);

struct Forwarder {
    agent: Agent,
    http: Client,
    to: Url,
    secret: Secret,
}

/// The secret of a webhook: its text, and the key behind it.
struct Secret {
    text: String,
    key: Vec<u8>,
}

impl Secret {
    fn random() -> Self {
        let key: [u8; 32] = rand::random();
        let text = format!("whsec_{}", STANDARD.encode(key));
        Self {
            text,
            key: key.into(),
        }
    }

    fn read(text: String) -> Result<Self> {
        let key = match text.strip_prefix("whsec_") {
            Some(coded) => STANDARD.decode(coded).unwrap_or_default(),
            None => text.as_bytes().to_owned(),
        };
        if key.len() < 24 {
            return Err(Failure::usage("a webhook's secret has 24 bytes or more"));
        }
        Ok(Self { text, key })
    }

    fn mac(key: &[u8], parts: [&[u8]; 3]) -> Vec<u8> {
        let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length");
        mac.update(&parts.join(&b'.'));
        mac.finalize().into_bytes().to_vec()
    }

    /// Both sets of headers by which receivers verify a delivery.
    fn headers(&self, id: &str, at: &str, body: &[u8]) -> HeaderMap {
        let own = Self::mac(self.text.as_bytes(), [at.as_bytes(), id.as_bytes(), body]);
        let own: String = own.iter().map(|byte| format!("{byte:02x}")).collect();
        let standard = Self::mac(&self.key, [id.as_bytes(), at.as_bytes(), body]);
        let standard = format!("v1,{}", STANDARD.encode(standard));
        let rows = [
            ("content-type", "application/json"),
            ("x-service-signature", own.as_str()),
            ("x-service-timestamp", at),
            ("x-service-delivery-id", id),
            ("webhook-id", id),
            ("webhook-timestamp", at),
            ("webhook-signature", standard.as_str()),
        ];
        let header = |(name, value): (&'static str, &str)| {
            let value: HeaderValue = value.parse().expect("a header's characters");
            (HeaderName::from_static(name), value)
        };
        rows.map(header).into_iter().collect()
    }
}

pub async fn listen(listen: &Listen, at: &Context, output: &Output) -> Result<()> {
    let to = Url::parse(&listen.forward_to).ok();
    let to = to.filter(|url| matches!(url.scheme(), "http" | "https"));
    let to = to.ok_or_else(|| Failure::usage("--forward-to is no address"))?;
    let secret = match &listen.secret_file {
        Some(file) => Secret::read(prompt::secret_from(file)?)?,
        None => Secret::random(),
    };
    let agent = credentials::acting(at, listen.agent.as_deref())?.build();
    // The socket comes back after any outage, but a wrong address is told at once.
    agent.conversations(None).await?;
    let events = agent.raw_events()?;
    let http = Client::builder()
        .redirect(Policy::none())
        .timeout(DEADLINE)
        .build();
    let http = http.map_err(|error| Failure::failed(error.to_string()))?;
    let stop = Stop::hear()?;
    if listen.secret_file.is_none() {
        let item = json!({ "secret": secret.text, "forward_to": to.as_str() });
        output.item(
            &item,
            &format!("The secret of the deliveries: {}", secret.text),
        )?;
    }
    let forwarder = Forwarder {
        agent,
        http,
        to,
        secret,
    };
    forwarder.run(events, stop, output).await
}

impl Forwarder {
    async fn run(&self, mut events: RawEvents, mut stop: Stop, output: &Output) -> Result<()> {
        loop {
            let event = tokio::select! {
                event = events.next() => event.map_err(ended)?,
                () = stop.came() => break,
            };
            tokio::select! {
                posted = self.post(&event, output) => posted?,
                () = stop.came() => break,
            }
            events.acknowledge(&event);
        }
        events.close().await;
        Ok(())
    }

    /// Posts an event until the receiver takes it.
    async fn post(&self, event: &RawEvent, output: &Output) -> Result<()> {
        let delivery_id = delivery_id(event);
        let mut wait = FIRST_RETRY;
        for attempt in 1_u32.. {
            let body = self.body(event, &delivery_id, attempt)?;
            let at = unix_seconds().to_string();
            let headers = self.secret.headers(&delivery_id, &at, &body);
            let posted = self
                .http
                .post(self.to.clone())
                .headers(headers)
                .body(body)
                .send()
                .await;
            let (status, answer) = match posted {
                Ok(answer) => (Some(answer.status()), answer.status().to_string()),
                Err(error) => (None, error.without_url().to_string()),
            };
            let taken = status.is_some_and(|it| it.is_success());
            let item = json!({
                "delivery_id": delivery_id,
                "event": event.event.event,
                "seq": event.event.seq,
                "attempt": attempt,
                "status": status.map(|it| it.as_u16()),
                "acked": taken,
            });
            output.item(
                &item,
                &format!("{} {} -> {answer}", event.event.seq, event.event.event),
            )?;
            if taken {
                return Ok(());
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(MAX_RETRY);
        }
        Ok(())
    }

    fn body(&self, event: &RawEvent, delivery_id: &str, attempt: u32) -> Result<Vec<u8>> {
        let mut body: BTreeMap<String, RawJson> = event.object.clone();
        body.insert("delivery_id".to_owned(), RawJson::of(delivery_id)?);
        body.insert("attempt".to_owned(), RawJson::of(&attempt)?);
        body.insert("agent_id".to_owned(), RawJson::of(&self.agent.id())?);
        Ok(serde_json::to_vec(&body)?)
    }
}

/// The same for the same event after a restart, so that a receiver knows it again.
fn delivery_id(event: &RawEvent) -> String {
    uuid::Uuid::from_u128(event.event.event_id.0.as_u128() ^ 1).to_string()
}

/// A forwarder has no session that a login would renew.
fn ended(error: blindpipe_client::Error) -> Failure {
    let failure = Failure::from(error);
    if failure.exit() == Exit::NotLoggedIn {
        let text = "the service ended the agent's connection";
        return Failure::new(Exit::Refused, text).remedy("`bp agent show AGENT`");
    }
    failure
}

#[allow(
    clippy::disallowed_methods,
    reason = "receivers compare it with their clock"
)]
fn unix_seconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}
