//! The reasons of revoked credentials.

words! {
    /// The reason of a revoked session or agent token: the `reason` of `session.invalidated`.
    pub enum RevocationReason {
        /// The user has revoked the device.
        DeviceRevoked = "device_revoked",
        /// The session was logged out, or replaced by a later sign-in of its device.
        Logout = "logout",
        /// The user's password was changed or reset.
        PasswordReset = "password_reset",
        /// A refresh token was used twice: it was stolen.
        RefreshReuse = "refresh_reuse",
        /// The agent's token was revoked, or the agent deleted.
        TokenRevoked = "token_revoked",
        /// The agent's token was replaced in an emergency, or its grace ended.
        TokenRegenerated = "token_regenerated",
        /// The account was deleted.
        AccountDeleted = "account_deleted",
    }
}
