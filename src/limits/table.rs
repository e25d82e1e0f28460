//! THE LIMITS: one row per budget: (scope on the wire, count, window in seconds, whose budget it is).
//!
//! All but [`IN_POSTGRES`] are counted in Redis.

use std::{collections::HashMap, str::FromStr, sync::Arc, time::Duration};

use serde::Serialize;

use crate::catalogue;

catalogue! {
    /// A budget. Rows of the interface first, in its order, then those it leaves open.
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
        CodeTries                = ("auth_code_tries",                 10,  3600,  Per::Email);
        ShareOpen                = ("share_open",                      30,  60,    Per::Ip);
        WsConnectIp              = ("ws_connect_ip",                   60,  60,    Per::Ip);
        WsConnect                = ("ws_connect",                      30,  60,    Per::Principal);
        DefaultUser              = ("default_user",                    120, 60,    Per::UserAndRoute);
        DefaultIp                = ("default_ip",                      30,  60,    Per::IpAndRoute);
        AgentTokenWrong          = ("agent_token_wrong",               10,  60,    Per::Agent);
        AgentTier1               = ("agent_tier_1",                    60,  60,    Per::AgentAndRoute);
        AgentTier2               = ("agent_tier_2",                    120, 60,    Per::AgentAndRoute);
        AgentTier3               = ("agent_tier_3",                    240, 60,    Per::AgentAndRoute);
    }
}

/// What Postgres counts, where no flush forgets it. So many failed logins, none longer than the window after the one
/// before, lock the e-mail for as long as the window; wrong codes are counted in a sliding window like any other.
pub const IN_POSTGRES: &[Limit] = &[Limit::LoginFail, Limit::CodeTries];

/// Whose a budget is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    Ip,
    Email,
    Session,
    User,
    Agent,
    /// A user or an agent.
    Principal,
    Group,
    Conversation,
    /// Of each address, one for each route.
    IpAndRoute,
    UserAndRoute,
    AgentAndRoute,
}

impl Limit {
    /// Whose budget it is.
    pub fn per(self) -> Per {
        self.row().3
    }

    /// The stable name on the wire.
    pub fn scope(self) -> &'static str {
        self.row().0
    }
}

/// So many calls in any window of this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Calls.
    pub count: u32,
    /// Length of the window.
    pub window: Duration,
}

impl std::fmt::Display for Budget {
    /// As the interface writes it: `5/s`, `60/min`, `6/h`, `10/10min`, `1/60s`, `5/24h`.
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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

/// The operator's changes of the table.
#[derive(Clone, Debug, Default)]
pub struct Overrides(Arc<HashMap<Limit, Budget>>);

impl Overrides {
    /// Says what is wrong with the operator's text, if anything is.
    pub fn check(text: &str) -> Result<(), String> {
        text.parse::<Overrides>().map(drop)
    }

    /// What holds for `limit`.
    pub fn budget(&self, limit: Limit) -> Budget {
        let (_, count, seconds, _) = limit.row();
        self.0.get(&limit).copied().unwrap_or(Budget {
            count,
            window: Duration::from_secs(seconds),
        })
    }
}

impl FromStr for Overrides {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut rows = HashMap::new();
        for item in text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
        {
            let (scope, budget) = item
                .split_once('=')
                .ok_or(format!("{item:?} is not scope=count/window"))?;
            let limit = Limit::ALL.iter().find(|limit| limit.scope() == scope);
            let limit = limit.ok_or(format!("there is no limit {scope:?}"))?;
            rows.insert(*limit, budget.parse()?);
        }
        Ok(Overrides(Arc::new(rows)))
    }
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
    fn an_override_names_a_row_or_is_a_fault() {
        let overrides: Overrides = "agent_message_send=10/s, default_user=9/min"
            .parse()
            .expect("valid");
        assert_eq!(
            overrides.budget(Limit::AgentMessageSend).to_string(),
            "10/s"
        );
        assert_eq!(overrides.budget(Limit::UserMessageSend).to_string(), "10/s");
        for fault in [
            "agent_massage_send=1/s",
            "auth_login_fail",
            "auth_code_tries=9",
        ] {
            assert!(fault.parse::<Overrides>().is_err(), "{fault}");
        }
    }
}
