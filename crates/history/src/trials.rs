//! The records of trials: few calls each, beside the conversations.
//!
//! An ending, a watch, a hold, an admission, an answer and a wait each name their trial by a number
//! that the recorder gives.

use crate::{Moment, Span};

/// A thing that can end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Thing {
    /// A session, by its revocation.
    Session,
    /// An agent's token, by its replacement.
    Token,
    /// The payload of a message, by its deletion.
    Payload,
    /// An epoch of the inboxes: its cursors name other events now.
    Epoch,
    /// The time in which a call of a tool is answered.
    Deadline,
}

/// The end of a thing.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    pub thing: Thing,
    pub id: usize,
    /// The call that ended it. Without an answer, nothing is claimed.
    pub span: Span,
}

/// A try to use a thing that may have ended.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    pub id: usize,
    pub span: Span,
    /// Whether it was taken.
    pub taken: bool,
}

/// A socket of a credential that ends.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    pub id: usize,
    /// When it was closed, or when the recorder stopped to look.
    pub until: Moment,
    /// The longest time from the end's answer to the close.
    pub bound: Moment,
}

/// A socket that counts against a bound, while it was surely open.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    pub id: usize,
    pub from: Moment,
    pub until: Moment,
    /// The most sockets that may be held together for longer than `grace`.
    pub bound: usize,
    pub grace: Moment,
}

/// A call that a limit admitted.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    pub id: usize,
    pub began: Moment,
    pub ended: Moment,
    /// The most calls in any window.
    pub bound: usize,
    pub window: Moment,
}

/// An answer that was taken. A question has a single one.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    pub id: usize,
    pub choice: u64,
}

/// A listener's wait for a message that was acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    pub id: usize,
    /// From the acknowledgement to the arrival, or to the moment when the recorder gave up.
    pub span: Span,
    pub bound: Moment,
}

/// All trials of a run.
#[derive(Clone, Debug, Default)]
pub struct Trials {
    pub endings: Vec<Ending>,
    pub attempts: Vec<Attempt>,
    pub watches: Vec<Watch>,
    pub holds: Vec<Hold>,
    pub admissions: Vec<Admission>,
    pub answers: Vec<Answer>,
    pub waits: Vec<Wait>,
}
