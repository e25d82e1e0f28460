//! Sockets, the inbox behind them, and the events that pass through both.

mod gateway;
mod history;
mod resume;
mod streaming;
mod websocket_conformance;
