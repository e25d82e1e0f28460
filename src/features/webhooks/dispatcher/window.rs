//! The finished numbers of an inbox. Conversations are delivered side by side, so events finish out
//! of order. The cursor moves over a gapless prefix only; the numbers beyond it are kept.

use std::{collections::BTreeSet, fmt::Write};

/// A cursor and the finished numbers beyond it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    acked: i64,
    done: BTreeSet<i64>,
}

impl Window {
    /// Reads finished numbers in the form of a Postgres multirange, such as `{[5,7),[9,10)}`.
    pub fn parse(acked: i64, done: &str) -> Self {
        let ranges = done.trim_matches(['{', '}']).split("),");
        let bounds = ranges.filter_map(|range| {
            let (from, to) = range
                .trim_start_matches('[')
                .trim_end_matches(')')
                .split_once(',')?;
            Some((from.parse().ok()?, to.parse().ok()?))
        });
        let done = bounds.flat_map(|(from, to): (i64, i64)| from..to).collect();
        let mut window = Window { acked: 0, done };
        window.ack(acked);
        window
    }

    /// All events up to this number are finished.
    pub fn acked(&self) -> i64 {
        self.acked
    }

    /// Whether an event needs no delivery.
    pub fn is_done(&self, seq: i64) -> bool {
        seq <= self.acked || self.done.contains(&seq)
    }

    /// Records that an event is finished.
    pub fn finish(&mut self, seq: i64) {
        if seq > self.acked {
            self.done.insert(seq);
            self.advance();
        }
    }

    /// Records that the agent has acked everything up to a number, perhaps in another way.
    pub fn ack(&mut self, acked: i64) {
        if acked > self.acked {
            self.acked = acked;
            self.done = self.done.split_off(&(acked + 1));
        }
        self.advance();
    }

    fn advance(&mut self) {
        while self.done.remove(&(self.acked + 1)) {
            self.acked += 1;
        }
    }

    /// The finished numbers beyond the cursor, as a Postgres multirange.
    pub fn as_multirange(&self) -> String {
        let mut text = String::from("{");
        let mut numbers = self.done.iter().copied().peekable();
        while let Some(from) = numbers.next() {
            let mut to = from + 1;
            while numbers.next_if_eq(&to).is_some() {
                to += 1;
            }
            let separator = if text.len() > 1 { "," } else { "" };
            // Writing into memory cannot fail.
            write!(text, "{separator}[{from},{to})").ok();
        }
        text.push('}');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cursor_moves_over_a_gapless_prefix_only() {
        let mut window = Window::parse(4, "{}");
        for (finished, acked, done) in [
            (6, 4, "{[6,7)}"),
            (7, 4, "{[6,8)}"),
            (9, 4, "{[6,8),[9,10)}"),
            (5, 7, "{[9,10)}"),
            (3, 7, "{[9,10)}"),
            (8, 9, "{}"),
        ] {
            window.finish(finished);
            assert_eq!(
                (window.acked(), window.as_multirange()),
                (acked, done.to_owned())
            );
        }
    }

    #[test]
    fn a_window_is_read_as_it_was_written() {
        for (acked, done) in [(0, "{}"), (4, "{[6,8),[9,10)}"), (1, "{[3,200)}")] {
            assert_eq!(Window::parse(acked, done).as_multirange(), done);
        }
        // The agent has acked more meanwhile.
        let window = Window::parse(6, "{[6,8),[9,10)}");
        assert_eq!(
            (window.acked(), window.as_multirange()),
            (7, "{[9,10)}".to_owned())
        );
        assert!(window.is_done(7) && window.is_done(9) && !window.is_done(8));
    }
}
