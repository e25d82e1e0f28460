//! Sockets, the inbox behind them, and the events that pass through both.

mod gateway;
mod heartbeats;
mod history;
mod huge_frames;
mod notices;
mod resume;
mod shared;
mod streaming;
mod websocket_conformance;
