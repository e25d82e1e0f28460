//! The words of conversations, relations and credentials that columns and the wire share. Words of a single feature stand
//! there.

use crate::db::text_enum::text_enum;

text_enum! {
    /// What a conversation is.
    ConversationKind {
        /// Two users.
        Direct = "direct",
        /// A user and an agent.
        Agent = "agent",
        Group = "group",
    }
}

text_enum! {
    /// Which payloads a conversation takes.
    #[derive(Default)]
    Encryption {
        /// Any.
        #[default]
        Optional = "optional",
        /// Encrypted ones only.
        Required = "required",
    }
}

text_enum! {
    /// What a member may do.
    Role {
        Owner = "owner",
        Admin = "admin",
        Member = "member",
        Agent = "agent",
    }
}

impl Role {
    /// Whether it may manage a group.
    pub fn is_admin(self) -> bool {
        matches!(self, Role::Owner | Role::Admin)
    }
}

text_enum! {
    /// Which messages of a group an agent gets.
    #[derive(Default)]
    Visibility {
        All = "all",
        /// Those that name it.
        #[default]
        Addressed = "addressed",
    }
}

text_enum! {
    /// Whether a user and an agent are tied.
    RelationState {
        Active = "active",
        Revoked = "revoked",
    }
}

text_enum! {
    /// Why a session or a token ended, as its sockets are told.
    RevocationReason {
        DeviceRevoked = "device_revoked",
        Logout = "logout",
        PasswordReset = "password_reset",
        RefreshReuse = "refresh_reuse",
        TokenRevoked = "token_revoked",
        TokenRegenerated = "token_regenerated",
        AccountDeleted = "account_deleted",
    }
}
