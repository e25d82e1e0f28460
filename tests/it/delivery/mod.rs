//! Sockets, the inbox behind them, and what passes through both.

mod gateway;
mod history;
mod resume;
mod streaming;
mod websocket_conformance;
