//! Judges a history: the operations of many concurrent clients, with their begin, their answer and
//! their result.
//!
//! A conversation promises to be an append-only list. Each operation takes effect at a moment
//! between its begin and its answer (linearizability). Such a list needs no search as by Wing, Gong
//! and Lowe. A send's answer gives its place and a read's gives the length of the list, so the
//! order is known. The judge only checks that the order agrees with the clock: no operation has a
//! place behind anything that was answered before it began.
//!
//! Inboxes promise four rules. Numbers rise by 1. Every member receives every message once. The
//! messages keep the conversation's order. A removed member receives no message that was sent after
//! the removal.
//!
//! [`Trials`] stand beside the conversations. They show things that a node took after their end, bounds
//! that were exceeded, and questions that were decided twice.
//!
//! Names (conversations, principals, messages) are numbers that the recorder gives. Times are of a
//! single monotonic clock.

mod drive;
mod judge;
mod trials;

pub use drive::{Actor, Chance, Plan, Subscriber, drive};
pub use judge::{judge, judge_trials};
pub use trials::{Admission, Answer, Attempt, Ending, Hold, Thing, Trials, Wait, Watch};

/// A moment in the recorder's unit.
pub type Moment = u64;

/// A sender's unique mark on a message, which readers find in its payload.
pub type Tag = u64;

/// From the begin of an operation to its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub began: Moment,
    /// None if there was no answer. The operation may then have happened at any time since, or
    /// never.
    pub ended: Option<Moment>,
}

/// A client's send of a message.
#[derive(Clone, Debug)]
pub struct Send {
    pub conversation: usize,
    pub tag: Tag,
    pub span: Span,
    /// The message's number in the answer; none for any other answer.
    pub seq: Option<u64>,
    /// Whether the answer was a refusal, so that no principal may see the message.
    pub refused: bool,
    /// A member that does not receive the message: an agent gets no event of its own messages.
    pub not_for: Option<usize>,
}

/// A read of the newest messages: numbers and tags, newest first.
#[derive(Clone, Debug)]
pub struct Read {
    pub conversation: usize,
    pub reader: usize,
    pub span: Span,
    pub seen: Vec<(u64, Tag)>,
}

/// An event that reached a principal: its number in the inbox, and its message if it announces any.
#[derive(Clone, Copy, Debug)]
pub struct Heard {
    pub number: u64,
    pub message: Option<Said>,
}

/// A message in an event.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    pub conversation: usize,
    pub seq: u64,
    pub tag: Tag,
}

/// A principal's stay in a conversation, from its addition to its removal.
#[derive(Clone, Copy, Debug)]
pub struct Stay {
    pub conversation: usize,
    pub principal: usize,
    pub came: Span,
    pub left: Option<Span>,
}

/// All records of a run.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub sends: Vec<Send>,
    pub reads: Vec<Read>,
    /// Events by principal, in the order of arrival. They begin with the first number after the
    /// recorder began to listen.
    pub heard: Vec<Vec<Heard>>,
    pub stays: Vec<Stay>,
    /// All messages of each conversation at the end, oldest first.
    pub ends: Vec<Vec<(u64, Tag)>>,
}

/// A broken promise, with its place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The numbers of a conversation are not 1, 2, 3.
    Gap { conversation: usize, after: u64 },
    /// A message has two numbers, or is listed twice.
    Doubled { conversation: usize, tag: Tag },
    /// Two messages have the same number.
    Ambiguous { conversation: usize, seq: u64 },
    /// A send or read contradicts an answer from before it began.
    Order {
        conversation: usize,
        seq: u64,
        before: u64,
    },
    /// A message was acknowledged or read, but is missing at the end.
    Lost { conversation: usize, tag: Tag },
    /// A message is there that was never sent or was refused.
    Phantom { conversation: usize, tag: Tag },
    /// A principal's inbox did not rise by 1.
    Inbox {
        principal: usize,
        number: u64,
        after: u64,
    },
    /// A principal received a conversation out of order.
    Reordered {
        principal: usize,
        conversation: usize,
        seq: u64,
        after: u64,
    },
    /// A member did not receive a message.
    Unheard { principal: usize, tag: Tag },
    /// A principal received or read a message that was sent while it was no member.
    Outsider { principal: usize, tag: Tag },
    /// A node took a thing after its end.
    Revived { thing: Thing, id: usize },
    /// A socket outlived its credential for too long.
    Unclosed { thing: Thing, id: usize },
    /// More sockets were held together than the bound allows.
    Crowded { id: usize, held: usize },
    /// More calls were admitted in a window than its limit allows.
    Flooded { id: usize, admitted: usize },
    /// A question was answered twice.
    Redecided { id: usize },
    /// A quiet listener received a message too late, or never.
    Late { id: usize },
}

impl Fault {
    /// The kind of the fault, for counting.
    pub fn kind(&self) -> &'static str {
        match self {
            Fault::Gap { .. } => "gap",
            Fault::Doubled { .. } => "doubled",
            Fault::Ambiguous { .. } => "ambiguous",
            Fault::Order { .. } => "order",
            Fault::Lost { .. } => "lost",
            Fault::Phantom { .. } => "phantom",
            Fault::Inbox { .. } => "inbox",
            Fault::Reordered { .. } => "reordered",
            Fault::Unheard { .. } => "unheard",
            Fault::Outsider { .. } => "outsider",
            Fault::Revived { .. } => "revived",
            Fault::Unclosed { .. } => "unclosed",
            Fault::Crowded { .. } => "crowded",
            Fault::Flooded { .. } => "flooded",
            Fault::Redecided { .. } => "redecided",
            Fault::Late { .. } => "late",
        }
    }
}
