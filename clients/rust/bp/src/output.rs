//! The output of commands: text for people, or a line of JSON for each item.

use std::{
    env,
    io::{self, IsTerminal, Write, stderr, stdout},
    time::Duration,
};

use serde::Serialize;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::failure::Result;

/// Where and how a command prints.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    json: bool,
    /// Whether what is printed next has colours, and whether standard error has them.
    colour: bool,
    colour_beside: bool,
}

impl Output {
    pub fn new(json: bool) -> Self {
        let is_unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || env::var_os("TERM").is_some_and(|term| term == "dumb");
        let is_wanted = !json && !is_unwanted;
        Self {
            json,
            colour: is_wanted && stdout().is_terminal(),
            colour_beside: is_wanted && stderr().is_terminal(),
        }
    }

    /// The same for text on standard error: either output may be a file.
    pub const fn for_stderr(self) -> Self {
        Self {
            colour: self.colour_beside,
            ..self
        }
    }

    pub const fn is_json(&self) -> bool {
        self.json
    }

    /// An item: a line of JSON, or the text. The text of others goes through [`plain`] first.
    pub fn item(&self, item: &impl Serialize, text: &str) -> Result<()> {
        if self.json {
            self.raw(&serde_json::to_string(item)?)
        } else {
            self.raw(text)
        }
    }

    /// A line on standard output, as it is.
    #[expect(clippy::unused_self, reason = "all that is printed goes by here")]
    pub fn raw(&self, line: &str) -> Result<()> {
        let mut out = stdout().lock();
        writeln!(out, "{line}")?;
        out.flush()?;
        Ok(())
    }

    /// Text on standard output without the end of a line, for what grows.
    #[expect(clippy::unused_self, reason = "all that is printed goes by here")]
    pub fn piece(&self, text: &str) -> Result<()> {
        let mut out = stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        Ok(())
    }

    /// A remark for people, on standard error. Programs do not see it.
    pub fn note(&self, text: &str) {
        if !self.json {
            self.error(text);
        }
    }

    /// Prints a remark beside the items: a line of JSON on standard error, or the text.
    pub fn beside(&self, item: &impl Serialize, text: &str) -> Result<()> {
        if self.json {
            self.error(&serde_json::to_string(item)?);
        } else {
            self.error(text);
        }
        Ok(())
    }

    /// A line on standard error.
    #[expect(clippy::unused_self, reason = "all that is printed goes by here")]
    pub fn error(&self, text: &str) {
        writeln!(stderr(), "{text}").ok();
    }

    /// A share of bytes that are under way, in one line of a terminal.
    pub fn progress(&self, name: &str, done: u64, all: u64) {
        if self.json || !stderr().is_terminal() {
            return;
        }
        let percent = done.saturating_mul(100).checked_div(all).unwrap_or(100);
        let end = if done >= all { "\n" } else { "" };
        write!(stderr(), "\r{name}: {percent} % of {all} bytes{end}").ok();
        io::Write::flush(&mut stderr()).ok();
    }

    /// Waits for `work`, and shows on a terminal for how long, in a line that goes at the end.
    pub async fn waiting<T>(
        &self,
        what: &str,
        all: Option<Duration>,
        work: impl Future<Output = T>,
    ) -> T {
        if self.json || !stderr().is_terminal() {
            return work.await;
        }
        let began = Instant::now();
        let mut second = interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut work = std::pin::pin!(work);
        let show = |text: &str| {
            write!(stderr(), "\r\x1b[K{text}").ok();
            io::Write::flush(&mut stderr()).ok();
        };
        loop {
            tokio::select! {
                biased;
                done = &mut work => {
                    show("");
                    return done;
                }
                _ = second.tick() => show(&waited(what, began.elapsed(), all)),
            }
        }
    }

    fn styled(&self, code: &str, text: &str) -> String {
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    pub fn bold(&self, text: &str) -> String {
        self.styled("1", text)
    }

    pub fn dim(&self, text: &str) -> String {
        self.styled("2", text)
    }

    pub fn red(&self, text: &str) -> String {
        self.styled("31", text)
    }

    pub fn green(&self, text: &str) -> String {
        self.styled("32", text)
    }

    pub fn yellow(&self, text: &str) -> String {
        self.styled("33", text)
    }
}

/// The line of a wait: what for, how long already, and how long yet.
fn waited(what: &str, already: Duration, all: Option<Duration>) -> String {
    let time = |seconds: u64| match seconds / 3600 {
        0 => format!("{}:{:02}", seconds / 60, seconds % 60),
        hours => format!("{hours}:{:02}:{:02}", seconds / 60 % 60, seconds % 60),
    };
    // Whole seconds, so that both together are always the whole.
    let already = already.as_secs();
    match all {
        Some(all) => {
            let left = all.as_secs().saturating_sub(already);
            format!("{what}: {}, {} left", time(already), time(left))
        }
        None => format!("{what}: {}", time(already)),
    }
}

/// The text of others without what commands a terminal or turns its letters around.
pub fn plain(text: &str) -> String {
    let is_plain = |letter: &char| {
        let turns = matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        !turns && (!letter.is_control() || matches!(letter, '\n' | '\t'))
    };
    text.chars().filter(is_plain).collect()
}

/// [`plain`], in one line.
pub fn line(text: &str) -> String {
    plain(text).replace(['\n', '\t'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_tells_its_time() {
        let waited = |already, all: Option<u64>| {
            let all = all.map(Duration::from_secs);
            waited("waiting", Duration::from_secs(already), all)
        };
        assert_eq!(waited(9, Some(600)), "waiting: 0:09, 9:51 left");
        assert_eq!(waited(601, Some(600)), "waiting: 10:01, 0:00 left");
        assert_eq!(waited(3_725, None), "waiting: 1:02:05");
    }

    #[test]
    fn others_do_not_command_the_terminal() {
        assert_eq!(plain("a\x1b[31mb\u{9b}c\rd\x07"), "a[31mbcd");
        assert_eq!(plain("x\u{202e}y\u{2066}z\n\tü"), "xyz\n\tü");
        assert_eq!(line("two\nlines"), "two lines");
    }
}
