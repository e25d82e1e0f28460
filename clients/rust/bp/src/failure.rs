//! Failures of commands: what happened, what to do, and the exit code.

use std::{io, process::ExitCode};

use blindpipe_client::{ApiError, Error, protocol::errors::Code};
use serde_json::{Value, json};

use crate::output::{Output, plain};

/// How a command ended, for scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It did not work.
    Failed = 1,
    /// The arguments do not fit.
    Usage = 2,
    /// Nobody is logged in, or the session has ended.
    NotLoggedIn = 3,
    /// The service refused; its code is on standard error.
    Refused = 4,
    /// The service did not answer.
    Unreachable = 5,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

pub type Result<T> = std::result::Result<T, Failure>;

/// A failure of a command.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    message: String,
    code: Option<String>,
    request_id: Option<String>,
    remedy: Option<String>,
    /// The reader of standard output has left, which is no fault.
    is_closed_pipe: bool,
}

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            code: None,
            request_id: None,
            remedy: None,
            is_closed_pipe: false,
        }
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, message)
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    pub fn not_logged_in() -> Self {
        Self::new(
            Exit::NotLoggedIn,
            "nobody is logged in, or the session has ended",
        )
        .remedy("`bp login` or `bp register`")
    }

    /// The remedy.
    pub fn remedy(mut self, text: impl Into<String>) -> Self {
        self.remedy = Some(text.into());
        self
    }

    pub const fn exit(&self) -> Exit {
        self.exit
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    pub fn what_to_do(&self) -> Option<&str> {
        self.remedy.as_deref()
    }

    fn refused(error: &ApiError) -> Self {
        let exit = match error.status {
            401 if error.code == Some(Code::Unauthorized) => Exit::NotLoggedIn,
            502..=504 => Exit::Unreachable,
            500 => Exit::Failed,
            _ => Exit::Refused,
        };
        Self {
            code: Some(error.name.clone()),
            request_id: error.request_id.clone(),
            remedy: remedy_of(error),
            ..Self::new(exit, plain(&(error.message.clone() + &faults_of(error))))
        }
    }

    /// Tells it on standard error.
    pub fn tell(&self, output: &Output) -> ExitCode {
        if self.is_closed_pipe {
            return ExitCode::SUCCESS;
        }
        if output.is_json() {
            let error = json!({
                "exit": self.exit as u8,
                "message": self.message,
                "code": self.code,
                "request_id": self.request_id,
                "remedy": self.remedy,
            });
            output.error(&json!({ "error": error }).to_string());
        } else {
            output.error(&self.text(output.for_stderr()));
        }
        self.exit.into()
    }

    fn text(&self, output: Output) -> String {
        let mut text = format!("{} {}", output.red("error:"), self.message);
        if let Some(code) = &self.code {
            text.push_str(&format!(" ({code})"));
        }
        if let Some(remedy) = &self.remedy {
            text.push_str(&format!("\n  try: {remedy}"));
        }
        if let Some(id) = &self.request_id {
            text.push_str(&format!("\n  request: {}", plain(id)));
        }
        text
    }
}

/// The fields that the service did not take, and why.
fn faults_of(error: &ApiError) -> String {
    let fields = error.params.get("fields").and_then(Value::as_array);
    let fault = |field: &Value| {
        let (path, why) = (field["path"].as_str()?, field["message"].as_str()?);
        Some(format!(" {path} {why}."))
    };
    fields.into_iter().flatten().filter_map(fault).collect()
}

/// The remedy of a refusal, where there is one.
fn remedy_of(error: &ApiError) -> Option<String> {
    if let Some(wait) = error.retry_after() {
        return Some(format!("again in {} s", wait.as_secs().max(1)));
    }
    let text = match error.code? {
        Code::InvalidCredentials => {
            "the address or the password is wrong; `bp login --code` mails a code"
        }
        Code::CodeInvalid => "the newest code of the newest mail, within 10 minutes",
        Code::TurnstileFailed => "the human check again; its token serves once",
        Code::Unauthorized | Code::EmailTaken => "`bp login`",
        Code::AgentTokenInvalid => "`bp agent rotate AGENT` makes a new token",
        Code::AgentKeysMismatch => {
            "the key that the agent was first started with, or `bp agent keys AGENT`"
        }
        Code::NotFound => "check the id; what others own is not found either",
        Code::ReauthRequired => "`bp login` again; this needs a sign-in of the last 10 minutes",
        _ => return None,
    };
    Some(text.to_owned())
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match &error {
            Error::Api(refusal) => Self::refused(refusal),
            Error::ConnectionLost { .. } => Self::new(Exit::Unreachable, plain(&error.to_string()))
                .remedy("`bp doctor` looks for the reason"),
            Error::Closed { .. } => Self::not_logged_in(),
            Error::Usage(text) => Self::usage(*text),
            Error::KeyUnavailable(_) => Self::failed(error.to_string())
                .remedy("`bp keys restore` gives this device its keys; `bp keys show` tells more"),
            Error::Decrypt(blindpipe_client::e2ee::Error::WrongKey) => {
                Self::failed("the protection password is wrong")
            }
            Error::Store(cause) => Self::failed(format!("the store failed: {cause}")),
            _ => Self::failed(plain(&error.to_string())),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self {
            is_closed_pipe: error.kind() == io::ErrorKind::BrokenPipe,
            ..Self::failed(error.to_string())
        }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::failed(format!("no JSON as expected: {error}"))
    }
}
