//! THE CLOSE CODES of `/ws`: (code, reason on the wire, whether a client should come back).

use crate::catalogue;

catalogue! {
    /// Why a socket was closed by the server.
    pub enum Close: (u16, &'static str, &'static str) {
        Unsupported     = (1003, "binary frames are not spoken here", "no");
        Protocol        = (1002, "websocket protocol error",          "no");
        Encoding        = (1007, "text is not UTF-8",                 "no");
        TooBig          = (1009, "frame too large",                   "no");
        Broken          = (1011, "internal error",                    "with backoff");
        Restart         = (1012, "node restarts",                     "after the hinted wait");
        Overload        = (1013, "overloaded",                        "with backoff");
        BadFrame        = (4400, "bad frame",                         "no");
        AuthFailed      = (4401, "authentication failed or expired",  "after refreshing the token");
        Revoked         = (4403, "session or token revoked",          "no");
        AuthDeadline    = (4408, "no auth frame in 5 s",              "with backoff");
        ConnectionLimit = (4409, "too many connections",              "when another one has ended");
        SlowConsumer    = (4410, "slow consumer",                     "with backoff, and resume");
        Flood           = (4429, "too many frames",                   "with backoff");
    }
}

impl Close {
    /// The code on the wire.
    pub fn code(self) -> u16 {
        self.row().0
    }
}
