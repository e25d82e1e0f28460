//! The close codes of `/ws`: the server's reason for ending a socket, and its advice on
//! reconnecting.

catalogue! {
    /// The server's reasons for closing a socket: (code, reason on the wire, advice on
    /// reconnecting).
    pub enum Close: (u16, &'static str, Reconnect) {
        Unsupported     = (1003, "binary frames are not spoken here", Reconnect::No);
        Protocol        = (1002, "websocket protocol error",          Reconnect::No);
        Encoding        = (1007, "text is not UTF-8",                 Reconnect::No);
        TooBig          = (1009, "frame too large",                   Reconnect::No);
        Broken          = (1011, "internal error",                    Reconnect::WithBackoff);
        Restart         = (1012, "node restarts",                     Reconnect::AfterHintedWait);
        Overload        = (1013, "overloaded",                        Reconnect::WithBackoff);
        BadFrame        = (4400, "bad frame",                         Reconnect::No);
        AuthFailed      = (4401, "authentication failed or expired",  Reconnect::AfterTokenRefresh);
        Revoked         = (4403, "session or token revoked",          Reconnect::No);
        AuthDeadline    = (4408, "no auth frame in 5 s",              Reconnect::WithBackoff);
        ConnectionLimit = (4409, "too many connections",              Reconnect::WhenAnotherEnds);
        SlowConsumer    = (4410, "slow consumer",                     Reconnect::WithBackoffAndResume);
        Flood           = (4429, "too many frames",                   Reconnect::WithBackoff);
    }
}

impl Close {
    /// The code on the wire.
    pub const fn code(self) -> u16 {
        self.row().0
    }

    /// The reason on the wire.
    pub const fn reason(self) -> &'static str {
        self.row().1
    }

    /// The advice on reconnecting.
    pub const fn reconnect(self) -> Reconnect {
        self.row().2
    }

    /// The meaning of a code; `None` for a code that the server does not use.
    pub fn from_code(code: u16) -> Option<Self> {
        Close::ALL
            .iter()
            .copied()
            .find(|close| close.code() == code)
    }
}

words! {
    /// Advice to a client whose socket was closed.
    pub enum Reconnect {
        /// The client or its credential is at fault. A retry fails again.
        No = "no",
        /// Reconnect later, with a longer wait each time.
        WithBackoff = "with backoff",
        /// Reconnect after the wait from the `reconnect` frame.
        AfterHintedWait = "after the hinted wait",
        /// Reconnect with a fresh access token.
        AfterTokenRefresh = "after refreshing the token",
        /// Reconnect after the principal has closed one of its other connections.
        WhenAnotherEnds = "when another one has ended",
        /// Reconnect later, from the last cursor that the client processed.
        WithBackoffAndResume = "with backoff, and resume",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_finds_its_row() {
        for close in Close::ALL {
            assert_eq!(Close::from_code(close.code()), Some(*close));
        }
        assert_eq!(Close::from_code(1000), None);
    }
}
