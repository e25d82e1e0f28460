//! THE JOBS: deferred work, done on any node, once or until it succeeds. A transaction puts jobs
//! into the queue ([`crate::work::Tx::enqueue`]), and workers on all nodes claim them.
//!
//! A committed job runs at least once, whichever nodes die. A job that fails waits longer each time
//! and never delays others. A job that expires is not done any more.
//!
//! Why: ADR 20.

pub mod queue;
pub mod retention;
mod worker;

use std::time::Duration;

use blindpipe_protocol::catalogue;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use self::worker::{Perform, Worker};
use crate::{
    error::{Code, Error, Result},
    ids::{AgentId, ConversationId, PrincipalId, RelationId, UserId},
    limits::quotas::CODE_TTL,
};

catalogue! {
    /// The kinds of jobs: (name, concurrent jobs on a node, longest wait between two tries in
    /// seconds).
    pub enum Kind: (&'static str, i32, u64) {
        Mail         = ("mail",          8, 60);
        LoginNotice  = ("login_notice",  4, 60);
        ReplaceKeys  = ("replace_keys",  2, 600);
        ReplaceAgentKeys  = ("replace_agent_keys",  2, 600);
        SettleAgentTokens = ("settle_agent_tokens", 2, 60);
        SecurityNotice    = ("security_notice",     4, 60);
        AddressNotice     = ("address_notice",      4, 60);
        EraseAccount = ("erase_account", 2, 600);
        EraseAgent   = ("erase_agent",   2, 600);
        EndConsent   = ("end_consent",   4, 60);
        EndUnreadFiles = ("end_unread_files", 2, 600);
        Announce     = ("announce",      2, 60);
        Upkeep       = ("upkeep",        14, 600);
    }
}

catalogue! {
    /// The kinds of upkeep: (name, seconds between two runs). Every node requests them, and a
    /// single node does each run.
    pub enum Upkeep: (&'static str, u64) {
        RetireCredentials = ("retire_agent_credentials", 5);
        SweepObjects      = ("sweep_objects",            30);
        SweepWebhooks     = ("sweep_webhooks",           5);
        SweepPushes       = ("sweep_pushes",             5);
        ForgetPushes      = ("forget_pushes",            60);
        ForgetChallenges  = ("forget_challenges",        60);
        ForgetKeys        = ("forget_idempotency_keys",  300);
        ForgetCodes       = ("forget_codes",             600);
        ForgetJobs        = ("forget_jobs",              600);
        ForgetLog         = ("forget_reconcile_log",     600);
        ExpireUploads     = ("expire_uploads",           300);
        ExpireInboxes     = ("expire_inboxes",           600);
        PurgeRelations    = ("purge_relations",          600);
        ForgetToolCalls   = ("forget_tool_calls",        600);
        RotateDeliveries  = ("rotate_webhook_log",       3600);
        LogPushes         = ("log_pushes",               60);
        MeasureRetention  = ("measure_retention",        60);
        PublishReadMarks         = ("tell_read_marks",          30);
        PublishEndingKeys    = ("tell_ending_agent_keys", 300);
        PublishDigest     = ("publish_access_log_digest", 3600);
    }
}

/// A job, with everything that its worker needs.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    /// Mails a code.
    Mail {
        /// The address to mail to.
        recipient: String,
        /// The purpose of the code.
        scene: String,
        /// The input that the code is derived from.
        nonce: Uuid,
        /// The locale of whoever asked. That of the address's account comes first.
        #[serde(default)]
        locale: Option<String>,
    },
    /// Mails a user about a login on an unknown device.
    LoginNotice {
        /// The user to notify.
        user: UserId,
        /// The name of the device in the login.
        device_name: Option<String>,
        /// The time of the login.
        at: DateTime<Utc>,
    },
    /// Mails a user about a change that a thief might make.
    SecurityNotice {
        /// The user to notify.
        user: UserId,
        /// The name of the change.
        change: String,
        /// The time of the change.
        at: DateTime<Utc>,
    },
    /// Mails an address about a change of the account that it belonged to.
    AddressNotice {
        /// The address to mail to, which may no longer be the account's.
        recipient: String,
        /// The locale of the account.
        locale: String,
        /// The name of the change.
        change: String,
        /// The time of the change.
        at: DateTime<Utc>,
    },
    /// Asks conversations to replace the keys that were not wrapped for an agent's new key.
    ReplaceAgentKeys {
        /// The agent.
        agent: AgentId,
    },
    /// Gives an agent that lost a token with a stolen session its earlier token back, or marks it
    /// `token_revoked`.
    SettleAgentTokens {
        /// The agent.
        agent: AgentId,
    },
    /// Asks conversations to replace the keys that a revoked device still knows.
    ReplaceKeys {
        /// The owner of the device.
        user: UserId,
        /// The revoked device.
        device_id: String,
    },
    /// Removes everything that a deleted account left behind.
    EraseAccount {
        /// The deleted user.
        user: UserId,
    },
    /// Removes everything that a deleted agent left behind.
    EraseAgent {
        /// The deleted agent.
        agent: AgentId,
        /// The agent's former owner.
        owner: UserId,
    },
    /// Ends what users had agreed to before something else ended.
    EndConsent(ConsentEnd),
    /// Ends the files of a conversation that its last user has left.
    EndUnreadFiles {
        /// The conversation, which may have users still.
        conversation: ConversationId,
    },
    /// Tells everybody the announcements about a principal. It has no unique key: an announcement
    /// that commits while such a job ends must not be left without a job.
    Announce {
        /// The user or agent that the announcements are about.
        principal: PrincipalId,
    },
    /// Runs the [`Upkeep`] with this name.
    Upkeep(String),
}

/// The reason why a user's consent ends.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConsentEnd {
    /// The relation has ended.
    Relation(RelationId),
    /// A principal was removed from a conversation.
    Member(ConversationId, PrincipalId),
    /// The device was revoked.
    Device(UserId, String),
}

/// The reason that a job was not done.
pub enum JobError {
    /// The job is tried again after a wait.
    Retry(Error),
    /// The job is given up.
    Fail(Error),
}

impl From<Error> for JobError {
    fn from(error: Error) -> Self {
        JobError::Retry(error)
    }
}

impl Kind {
    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.row().0 == name)
    }

    /// The time after which a job of this kind is no longer worth doing; none if it always is.
    fn life(self) -> Option<Duration> {
        match self {
            Kind::Mail => Some(CODE_TTL),
            Kind::LoginNotice | Kind::SecurityNotice | Kind::AddressNotice => {
                Some(Duration::from_secs(86_400))
            }
            _ => None,
        }
    }

    /// The wait after a number of attempts: 2, 4, 8 ... seconds.
    fn backoff(self, attempts: i32) -> Duration {
        let doubled = 2_u64.saturating_pow(attempts.unsigned_abs());
        Duration::from_secs(doubled.min(self.row().2))
    }
}

impl Upkeep {
    /// The upkeep with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| one.row().0 == name)
    }

    /// The upkeep as a job.
    pub fn job(self) -> Job {
        Job::Upkeep(self.row().0.to_owned())
    }
}

impl Job {
    fn kind(&self) -> Kind {
        match self {
            Job::Mail { .. } => Kind::Mail,
            Job::LoginNotice { .. } => Kind::LoginNotice,
            Job::SecurityNotice { .. } => Kind::SecurityNotice,
            Job::AddressNotice { .. } => Kind::AddressNotice,
            Job::ReplaceKeys { .. } => Kind::ReplaceKeys,
            Job::ReplaceAgentKeys { .. } => Kind::ReplaceAgentKeys,
            Job::SettleAgentTokens { .. } => Kind::SettleAgentTokens,
            Job::EraseAccount { .. } => Kind::EraseAccount,
            Job::EraseAgent { .. } => Kind::EraseAgent,
            Job::EndConsent(_) => Kind::EndConsent,
            Job::EndUnreadFiles { .. } => Kind::EndUnreadFiles,
            Job::Announce { .. } => Kind::Announce,
            Job::Upkeep(_) => Kind::Upkeep,
        }
    }

    /// The job's name in the metrics and the log.
    fn name(&self) -> &'static str {
        match self {
            Job::Upkeep(name) => Upkeep::from_name(name).map_or("upkeep", |one| one.row().0),
            _ => self.kind().row().0,
        }
    }

    /// The key that makes a job unique: among the waiting and running jobs of a kind, each key
    /// occurs once.
    fn unique_key(&self) -> Option<String> {
        match self {
            Job::EraseAccount { user } => Some(user.to_string()),
            Job::EraseAgent { agent, .. } => Some(agent.to_string()),
            Job::Upkeep(name) => Some(name.clone()),
            _ => None,
        }
    }

    fn payload(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| Error::internal(Code::InternalError, error))
    }

    fn from_payload(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_try_waits_twice_as_long_up_to_a_bound() {
        let waits = |kind: Kind| [1, 2, 5, 6, 90].map(|n| kind.backoff(n).as_secs());
        assert_eq!(waits(Kind::Mail), [2, 4, 32, 60, 60]);
        assert_eq!(waits(Kind::EraseAccount), [2, 4, 32, 64, 600]);
    }

    #[test]
    fn a_job_is_read_as_it_was_written() {
        let job = Job::ReplaceKeys {
            user: UserId::NIL,
            device_id: "phone".to_owned(),
        };
        let text = job.payload().expect("JSON");
        assert!(matches!(
            Job::from_payload(&text),
            Some(Job::ReplaceKeys { device_id, .. }) if device_id == "phone"
        ));
        assert!(Job::from_payload(r#"{"of_a_newer_build":{}}"#).is_none());
        for upkeep in Upkeep::ALL {
            assert_eq!(Upkeep::from_name(upkeep.row().0), Some(*upkeep));
        }
    }
}
