//! Push notifications: each change of a task goes to the addresses that clients configured.
//!
//! A client of A2A chooses the address, so a call keeps the rules of `blindpipe-egress`: public
//! addresses by https only, no redirects, bounded answers. A notification has the whole task, so a
//! repeat does no harm, and one that is late carries what has happened meanwhile.

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use blindpipe_egress::{AddressRules, Egress, EgressError, EgressSettings, UrlRules};
use reqwest::{
    Url,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
};
use serde_json::{Value, json};
use tokio::{
    sync::{Mutex, broadcast::error::RecvError},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::{
    served::{Fault, Tasks},
    wire::is_final,
};
use crate::output::Output;

/// The header with the token of a configuration.
const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-a2a-notification-token");
/// Configurations of a task.
const MAX_CONFIGS: usize = 10;
/// Bytes of an id, a token or credentials.
const MAX_TEXT_BYTES: usize = 4096;
/// The deadline of a call, from the name to the end of the answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_CALLS: usize = 64;
const MAX_CALLS_PER_RECEIVER: usize = 8;
/// The time that a call waits for others to end.
const MAX_TURN_WAIT: Duration = Duration::from_secs(60);
/// Repeats of a notification that fails: after 1 s, 2 s, and so on up to a minute.
const MAX_REPEATS: u32 = 10;
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The addresses that hear of each task.
pub struct Pushes {
    tasks: Arc<Tasks>,
    public: Egress,
    /// Calls this machine, in development only.
    here: Option<Egress>,
    output: Output,
    /// By the id of the task. A configuration that goes ends its work.
    configs: Mutex<HashMap<String, Vec<Config>>>,
}

struct Config {
    id: String,
    /// As it is shown: without its secrets.
    shown: Value,
    _work: JoinSet<()>,
}

/// Where the notifications of a configuration go, and with which headers.
#[derive(Clone)]
pub struct Receiver {
    id: Option<String>,
    url: String,
    scheme: Option<String>,
    headers: HeaderMap,
}

/// The outcome of a notification.
enum Outcome {
    Taken,
    /// A repeat would be refused again.
    Refused(String),
    /// A repeat may help, after this time at the earliest.
    Failed(String, Option<Duration>),
}

fn egress(rules: UrlRules) -> Egress {
    let settings = EgressSettings {
        rules,
        name_servers: Vec::new(),
        max_in_flight: MAX_CALLS,
        max_in_flight_per_origin: MAX_CALLS_PER_RECEIVER,
        timeout: CALL_TIMEOUT,
        roots: None,
    };
    Egress::new(settings, ())
}

impl Receiver {
    /// Reads a client's configuration. A value that no header can hold is refused.
    pub fn read(config: &Value) -> Result<Self, Fault> {
        let text = |of: &Value, name: &str| -> Result<Option<String>, Fault> {
            match of[name].as_str() {
                Some(text) if text.len() > MAX_TEXT_BYTES => {
                    Err(Fault::unfit(&format!("{name} is too long")))
                }
                text => Ok(text.filter(|it| !it.is_empty()).map(str::to_owned)),
            }
        };
        let secret = |name: &str, text: &str| -> Result<HeaderValue, Fault> {
            let value = HeaderValue::from_str(text);
            let mut value = value.map_err(|_| Fault::unfit(&format!("{name} fits no header")))?;
            value.set_sensitive(true);
            Ok(value)
        };
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(token) = text(config, "token")? {
            headers.insert(TOKEN_HEADER, secret("token", &token)?);
        }
        let authentication = &config["authentication"];
        let scheme = text(authentication, "scheme")?;
        let credentials = text(authentication, "credentials")?;
        if let (Some(scheme), Some(credentials)) = (&scheme, credentials) {
            let value = secret("authentication", &format!("{scheme} {credentials}"))?;
            headers.insert(AUTHORIZATION, value);
        }
        let url = text(config, "url")?.ok_or_else(|| Fault::unfit("url is missing"))?;
        Ok(Self {
            id: text(config, "id")?,
            url,
            scheme,
            headers,
        })
    }
}

/// Whether an address names this machine.
fn is_here(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else {
        return false;
    };
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

impl Pushes {
    /// `own` are the addresses of the bridge and the service, which are not called.
    pub fn new(tasks: Arc<Tasks>, own: &[&str], allows_loopback: bool, output: &Output) -> Self {
        let own: Vec<_> = own.iter().filter_map(|it| Url::parse(it).ok()).collect();
        let here = allows_loopback.then(|| {
            egress(UrlRules {
                dev: true,
                own: own.clone(),
                addresses: AddressRules {
                    allow_loopback: true,
                    ..AddressRules::default()
                },
                ..UrlRules::default()
            })
        });
        let public = egress(UrlRules {
            ports: vec![443, 8443],
            own,
            ..UrlRules::default()
        });
        Self {
            tasks,
            public,
            here,
            output: *output,
            configs: Mutex::default(),
        }
    }

    /// Closes connections that nobody needs, for ever.
    pub async fn upkeep(&self) {
        let never = CancellationToken::new();
        let here = async {
            match &self.here {
                Some(egress) => egress.clone().upkeep(never.clone()).await,
                None => std::future::pending().await,
            }
        };
        tokio::join!(self.public.clone().upkeep(never.clone()), here);
    }

    fn egress(&self, url: &str) -> &Egress {
        self.here
            .as_ref()
            .filter(|_| is_here(url))
            .unwrap_or(&self.public)
    }

    /// Refuses an address that is not called.
    pub async fn check(&self, receiver: &Receiver) -> Result<(), Fault> {
        let judged = Box::pin(self.egress(&receiver.url).check(&receiver.url)).await;
        judged.map(drop).map_err(|error| {
            let words = match error {
                EgressError::InvalidUrl(why) => format!("the URL {why}"),
                EgressError::ForbiddenAddress => "the URL leads to no public address".to_owned(),
                error => format!("the URL leads nowhere: {error}"),
            };
            Fault::unfit(&words)
        })
    }

    /// Tells a receiver of a task from now on: first the task as it is.
    pub async fn add(self: &Arc<Self>, task: &str, receiver: Receiver) -> Result<Value, Fault> {
        self.check(&receiver).await?;
        self.tasks.watch(task).await?;
        let id = receiver.id.clone().unwrap_or_else(|| task.to_owned());
        let mut shown = json!({ "id": id, "taskId": task, "url": receiver.url });
        if let Some(scheme) = &receiver.scheme {
            shown["authentication"] = json!({ "scheme": scheme });
        }
        let remembered = self.tasks.ids().await;
        let mut configs = self.configs.lock().await;
        configs.retain(|task, _| remembered.contains(task));
        let of_task = configs.entry(task.to_owned()).or_default();
        // It takes the place of the one with its id.
        of_task.retain(|it| it.id != id);
        if of_task.len() >= MAX_CONFIGS {
            return Err(Fault::unfit("the task has ten configurations"));
        }
        let mut work = JoinSet::new();
        work.spawn(self.clone().tell(task.to_owned(), receiver));
        of_task.push(Config {
            id,
            shown: shown.clone(),
            _work: work,
        });
        Ok(shown)
    }

    /// The configurations of a task, without their secrets.
    pub async fn list(&self, task: &str) -> Result<Value, Fault> {
        self.tasks.watch(task).await?;
        let configs = self.configs.lock().await;
        let of_task = configs.get(task).into_iter().flatten();
        let shown: Vec<_> = of_task.map(|it| it.shown.clone()).collect();
        Ok(json!({ "configs": shown, "nextPageToken": "" }))
    }

    pub async fn get(&self, task: &str, id: &str) -> Result<Value, Fault> {
        let configs = self.configs.lock().await;
        let mut of_task = configs.get(task).into_iter().flatten();
        let found = of_task.find(|it| it.id == id).map(|it| it.shown.clone());
        found.ok_or_else(Fault::no_task)
    }

    /// Ends a configuration. It is no fault if there is none.
    pub async fn delete(&self, task: &str, id: &str) -> Result<Value, Fault> {
        self.tasks.watch(task).await?;
        if let Some(of_task) = self.configs.lock().await.get_mut(task) {
            of_task.retain(|it| it.id != id);
        }
        Ok(json!({}))
    }

    /// Tells of each change until the task has ended.
    async fn tell(self: Arc<Self>, task: String, receiver: Receiver) {
        let mut repeats = 0;
        loop {
            let Ok(mut watched) = self.tasks.watch(&task).await else {
                return;
            };
            match Box::pin(self.post(&receiver, &watched.task)).await {
                Outcome::Taken => {}
                Outcome::Failed(_, after) if repeats < MAX_REPEATS => {
                    let wait = Duration::from_secs(1 << repeats).max(after.unwrap_or_default());
                    tokio::time::sleep(wait.min(MAX_WAIT)).await;
                    repeats += 1;
                    continue;
                }
                Outcome::Refused(why) | Outcome::Failed(why, _) => {
                    let words = format!("a push notification of {task} is lost: {why}");
                    self.output.note(&words);
                }
            }
            repeats = 0;
            if is_final(watched.task["status"]["state"].as_str().unwrap_or_default()) {
                return;
            }
            // Pieces of a text are not told one by one.
            loop {
                match watched.changes.recv().await {
                    Ok(change) if change["artifactUpdate"]["lastChunk"] == false => {}
                    Ok(_) | Err(RecvError::Lagged(_)) => break,
                    Err(RecvError::Closed) => return,
                }
            }
        }
    }

    async fn post(&self, receiver: &Receiver, task: &Value) -> Outcome {
        let egress = self.egress(&receiver.url);
        let body = json!({ "task": task }).to_string();
        let exchange = async {
            let place = egress.reserve(&receiver.url, None, MAX_TURN_WAIT).await?;
            place.post(receiver.headers.clone(), body.into()).await
        };
        let reply = match exchange.await {
            Ok(reply) => reply,
            Err(error @ (EgressError::InvalidUrl(_) | EgressError::ForbiddenAddress)) => {
                return Outcome::Refused(error.to_string());
            }
            Err(error) => return Outcome::Failed(error.to_string(), None),
        };
        let status = reply.status;
        match status.as_u16() {
            200..300 => Outcome::Taken,
            408 | 425 | 429 | 500.. => Outcome::Failed(status.to_string(), reply.retry_after),
            _ => Outcome::Refused(status.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_becomes_headers() {
        let receiver = Receiver::read(&json!({
            "url": "https://example.com/a2a",
            "token": "t0ken",
            "authentication": { "scheme": "Bearer", "credentials": "s3cret" },
        }));
        let headers = receiver.expect("fit").headers;
        assert_eq!(headers[TOKEN_HEADER], "t0ken");
        assert_eq!(headers[AUTHORIZATION], "Bearer s3cret");
        for unfit in [
            json!({}),
            json!({ "url": "https://example.com", "token": "a\r\nb: c" }),
            json!({ "url": "https://example.com", "token": "x".repeat(MAX_TEXT_BYTES + 1) }),
            json!({ "url": "https://example.com",
                "authentication": { "scheme": "Bearer", "credentials": "a\nb" } }),
        ] {
            assert!(Receiver::read(&unfit).is_err(), "{unfit}");
        }
    }

    #[test]
    fn this_machine_has_few_names() {
        for (url, is_it) in [
            ("http://127.0.0.1:9/x", true),
            ("http://[::1]/", true),
            ("http://localhost:9", true),
            ("http://localhost.example.com", false),
            ("http://10.0.0.1/", false),
            ("nothing", false),
        ] {
            assert_eq!(is_here(url), is_it, "{url}");
        }
    }
}
