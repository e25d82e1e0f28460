//! Judges a history: what many clients did at once, when they began and when they were answered, and what they saw.
//!
//! A conversation promises to be an append-only list whose operations take effect at one moment between their begin and
//! their answer (linearizability). For such a list the search of Wing, Gong and Lowe needs no search: a send says its
//! place and a read says how long the list was, so the order is known, and what is left to ask is whether it contradicts
//! the clock. It does not if no operation, when it begins, has a place that is behind what was answered before.
//!
//! Inboxes promise that numbers rise by one, that every member hears every message, once, in the conversation's order,
//! and that nobody hears one that was sent after they had been removed.
//!
//! Names (conversations, principals, messages) are numbers that the recorder gives; times are of one monotonic clock.

mod drive;
mod judge;

pub use drive::{Actor, Plan, Subscriber, drive};
pub use judge::judge;

/// A moment, in whatever unit the recorder counts.
pub type Moment = u64;

/// A message as its sender named it: unique, and found again in what is read.
pub type Tag = u64;

/// From the begin of an operation to its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub began: Moment,
    /// None if there was no answer: it may have happened at any time since, or never.
    pub ended: Option<Moment>,
}

/// A send.
#[derive(Clone, Debug)]
pub struct Send {
    pub conversation: usize,
    pub tag: Tag,
    pub span: Span,
    /// The number in the answer, if it was one.
    pub seq: Option<u64>,
    /// It was answered with a refusal, so nobody may see it.
    pub refused: bool,
    /// Who is not told of it, though there: an agent does not hear itself.
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

/// An event that reached a principal: its number in the inbox and, if it announces a message, which.
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

/// A principal's stay in a conversation: when it was let in, and when it was put out.
#[derive(Clone, Copy, Debug)]
pub struct Stay {
    pub conversation: usize,
    pub principal: usize,
    pub came: Span,
    pub left: Option<Span>,
}

/// Everything that was recorded.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub sends: Vec<Send>,
    pub reads: Vec<Read>,
    /// By principal, in the order in which it arrived; from the first number after the recorder began to listen.
    pub heard: Vec<Vec<Heard>>,
    pub stays: Vec<Stay>,
    /// Per conversation all that there is at the end, oldest first.
    pub ends: Vec<Vec<(u64, Tag)>>,
}

/// What must not be, with the place where it was seen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The numbers of a conversation are not 1, 2, 3.
    Gap { conversation: usize, after: u64 },
    /// One message has two numbers, or stands there twice.
    Doubled { conversation: usize, tag: Tag },
    /// One number has two messages.
    Ambiguous { conversation: usize, seq: u64 },
    /// A send or read contradicts what had been answered before it began.
    Order {
        conversation: usize,
        seq: u64,
        before: u64,
    },
    /// Acknowledged or read, and not there at the end.
    Lost { conversation: usize, tag: Tag },
    /// There, and never sent, or refused.
    Phantom { conversation: usize, tag: Tag },
    /// A principal's inbox did not rise by one.
    Inbox {
        principal: usize,
        number: u64,
        after: u64,
    },
    /// A principal heard a conversation out of order.
    Reordered {
        principal: usize,
        conversation: usize,
        seq: u64,
        after: u64,
    },
    /// A member did not hear a message.
    Unheard { principal: usize, tag: Tag },
    /// Somebody heard or read a message that was sent when they were not there.
    Outsider { principal: usize, tag: Tag },
}

impl Fault {
    /// The kind of it, for counting.
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
        }
    }
}
