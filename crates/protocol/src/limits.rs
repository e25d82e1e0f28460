//! The limits: one row per limit.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

catalogue! {
    /// A limit: (scope on the wire, calls, window in seconds, owner of the limit). The interface's
    /// rows come first, in its order. An operator may change the numbers; `GET /limits` shows the
    /// current ones.
    pub enum Limit: (&'static str, u32, u64, Per) {
        LoginFail                = ("auth_login_fail",                 5,   900,   Per::Email);
        RegisterIp               = ("auth_register_ip",                10,  600,   Per::Ip);
        RegisterEmail            = ("auth_register_email",             5,   600,   Per::Email);
        SendCode                 = ("auth_send_code",                  1,   60,    Per::Email);
        Refresh                  = ("auth_refresh",                    60,  60,    Per::Session);
        PasskeyBegin             = ("auth_passkey_begin",              30,  60,    Per::Ip);
        KeysLookup               = ("keys_lookup",                     60,  60,    Per::Principal);
        KeysGroupRotate          = ("keys_group_rotate",               6,   3600,  Per::Conversation);
        KeysRotationRequest      = ("keys_rotation_request",           6,   3600,  Per::Conversation);
        AgentMessageSend         = ("agent_message_send",              5,   1,     Per::Agent);
        AgentConversationSend    = ("agent_conversation_message_send", 5,   1,     Per::Agent);
        AgentTyping              = ("agent_typing",                    10,  1,     Per::Agent);
        AgentFileUpload          = ("agent_file_upload",               5,   1,     Per::Agent);
        AgentManifestUpdate      = ("agent_manifest_update",           1,   60,    Per::Agent);
        AgentTokenRegenerate     = ("agent_token_regenerate",          5,   86400, Per::Agent);
        AgentConversations       = ("agent_conversations",             30,  60,    Per::Agent);
        AgentPoll                = ("agent_poll",                      60,  60,    Per::Agent);
        AgentGrantRequest        = ("agent_grant_request",             10,  60,    Per::Agent);
        AgentObjectGet           = ("agent_object_get",                5,   1,     Per::Agent);
        UserMessagesList         = ("user_messages_list",              60,  60,    Per::User);
        UserConversationsList    = ("user_conversations_list",         30,  60,    Per::User);
        UserSearch               = ("user_search",                     10,  60,    Per::User);
        GroupMemberAdd           = ("group_member_add",                5,   60,    Per::Group);
        GroupAgentInstance       = ("group_agent_instance",            1,   60,    Per::Group);
        UserMessageSend          = ("user_message_send",               10,  1,     Per::User);
        UserFileUpload           = ("user_file_upload",                5,   1,     Per::User);
        UserObjectGet            = ("user_object_get",                 5,   1,     Per::User);
        KeysBackupRead           = ("keys_backup_read",                10,  3600,  Per::User);
        LoginIp                  = ("auth_login_ip",                   30,  600,   Per::Ip);
        HumanIp                  = ("auth_human_ip",                   30,  600,   Per::Ip);
        CodeTries                = ("auth_code_tries",                 10,  3600,  Per::Email);
        ShareOpen                = ("share_open",                      30,  60,    Per::Ip);
        WsConnectIp              = ("ws_connect_ip",                   60,  60,    Per::Ip);
        WsConnect                = ("ws_connect",                      30,  60,    Per::Principal);
        ConversationOpen         = ("conversation_open",               20,  3600,  Per::User);
        AuthRenew                = ("auth_renew",                      30,  60,    Per::Session);
        StreamBegin              = ("stream_begin",                    60,  60,    Per::Agent);
        SendCodeDay              = ("auth_send_code_day",              20,  86400, Per::Email);
        AgentTokenRevoke         = ("agent_token_revoke",              300, 60,    Per::Session);
        WebhookCall              = ("webhook_call",                    10,  60,    Per::User);
        WebhookOrigin            = ("webhook_origin",                  120, 60,    Per::Origin);
        ApprovalRequest          = ("approval_request",                30,  60,    Per::Agent);
        TurnStop                 = ("turn_stop",                       30,  60,    Per::User);
        PushRegister             = ("push_register",                   30,  3600,  Per::User);
        DefaultUser              = ("default_user",                    120, 60,    Per::UserAndRoute);
        DefaultIp                = ("default_ip",                      30,  60,    Per::IpAndRoute);
        AgentTokenWrong          = ("agent_token_wrong",               10,  60,    Per::Agent);
        AgentTokenUnknown        = ("agent_token_unknown",             60,  60,    Per::Ip);
        AgentTier1               = ("agent_tier_1",                    60,  60,    Per::AgentAndRoute);
        AgentTier2               = ("agent_tier_2",                    120, 60,    Per::AgentAndRoute);
        AgentTier3               = ("agent_tier_3",                    240, 60,    Per::AgentAndRoute);
    }
}

impl Limit {
    /// The stable name on the wire.
    pub const fn scope(self) -> &'static str {
        self.row().0
    }

    /// The owner of the limit.
    pub const fn per(self) -> Per {
        self.row().3
    }

    /// The default limit, which the operator may change.
    pub const fn default_budget(self) -> Budget {
        let (_, count, seconds, _) = self.row();
        Budget {
            count,
            window: Duration::from_secs(seconds),
        }
    }

    /// The limit of a scope.
    pub fn from_scope(scope: &str) -> Option<Self> {
        Limit::ALL
            .iter()
            .copied()
            .find(|limit| limit.scope() == scope)
    }
}

words! {
    /// The owner of a limit.
    pub enum Per {
        /// An IP address; for IPv6, a /64.
        Ip = "ip",
        /// An e-mail address.
        Email = "email",
        /// A session of a user.
        Session = "session",
        /// A user.
        User = "user",
        /// An agent.
        Agent = "agent",
        /// A user or an agent.
        Principal = "principal",
        /// A group.
        Group = "group",
        /// A conversation.
        Conversation = "conversation",
        /// The scheme, host and port that a webhook leads to.
        Origin = "origin",
        /// An IP address, separately for each route.
        IpAndRoute = "ip_and_route",
        /// A user, separately for each route.
        UserAndRoute = "user_and_route",
        /// An agent, separately for each route.
        AgentAndRoute = "agent_and_route",
    }
}

/// A number of calls in any window of a given length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The number of calls.
    pub count: u32,
    /// The length of the window.
    pub window: Duration,
}

impl fmt::Display for Budget {
    /// The form on the wire: `5/s`, `60/min`, `6/h`, `10/10min`, `1/60s`, `5/24h`.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Budget { count, window } = self;
        match window.as_secs() {
            1 => write!(to, "{count}/s"),
            60 if *count == 1 => write!(to, "1/60s"),
            60 => write!(to, "{count}/min"),
            3600 => write!(to, "{count}/h"),
            s if s % 3600 == 0 => write!(to, "{count}/{}h", s / 3600),
            s if s % 60 == 0 => write!(to, "{count}/{}min", s / 60),
            s => write!(to, "{count}/{s}s"),
        }
    }
}

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fault = || format!("{text:?} is no count/window such as 5/s, 60/min, 10/10min, 5/24h");
        let (count, window) = text.split_once('/').ok_or_else(fault)?;
        let digits = window.bytes().take_while(u8::is_ascii_digit).count();
        let (times, unit) = window.split_at(digits);
        let times: u64 = if times.is_empty() {
            1
        } else {
            times.parse().map_err(|_| fault())?
        };
        let unit = match unit {
            "s" => 1,
            "min" => 60,
            "h" => 3600,
            _ => return Err(fault()),
        };
        let count = count
            .parse()
            .ok()
            .filter(|count| (1..=1_000_000).contains(count))
            .ok_or_else(fault)?;
        let window = Duration::from_secs(times.saturating_mul(unit));
        if window.is_zero() || window > Duration::from_secs(7 * 86_400) {
            return Err(format!("{text:?}: a window is 1 s to 7 d"));
        }
        Ok(Budget { count, window })
    }
}

/// A row of `GET /limits`: a limit, with its remaining calls if the caller has only one of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Bucket {
    /// The stable name of the limit, such as `agent_message_send`.
    pub scope: String,
    /// The limit, such as `5/s`.
    pub limit: String,
    /// The number of calls in any window.
    pub count: u32,
    /// The length of the window, in seconds.
    pub window_seconds: u64,
    /// The owner of the limit.
    pub per: Per,
    /// The remaining calls; null if each route, group or conversation has its own limit.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub remaining: Option<u32>,
    /// Milliseconds until the oldest call leaves the window; null if `remaining` is null.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub resets_in_ms: Option<u64>,
}

/// The answer to `GET /limits`: every limit of the caller, on one page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Buckets {
    /// The limits of calls.
    pub data: Vec<Bucket>,
    /// Always null.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub next_cursor: Option<String>,
    /// The bytes of the caller's account.
    pub storage: Storage,
}

/// The bytes of an account's files. Those of an agent are its owner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Storage {
    /// The bytes that the account may have.
    pub limit_bytes: u64,
    /// The bytes that it has: its files, and its open uploads as they were declared.
    pub used_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_written_as_the_interface_writes_them() {
        for text in ["5/s", "60/min", "6/h", "10/10min", "1/60s", "5/24h"] {
            assert_eq!(text.parse::<Budget>().expect(text).to_string(), text);
        }
        for text in [
            "", "5", "5/", "/s", "0/s", "-1/s", "5/day", "5/0s", "5/999h", "1e3/s",
        ] {
            assert!(text.parse::<Budget>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_scope_finds_its_limit() {
        for limit in Limit::ALL {
            assert_eq!(Limit::from_scope(limit.scope()), Some(*limit));
        }
        assert_eq!(Limit::AgentMessageSend.default_budget().to_string(), "5/s");
    }
}
