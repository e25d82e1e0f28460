//! The store in files.

use std::{
    fs, io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use blindpipe_e2ee::room::MAX_MESSAGE_AGE;
use parking_lot::Mutex;

use super::{
    Entries, Handled, Part, Store, beside,
    log::{self, Log},
    replace,
};
use crate::Clock;

/// Lines are added before those that are too old are looked for, at least.
const MIN_ADDED_LINES: usize = 10_000;

/// The lines of a `.handled` file.
#[derive(Debug, Default)]
struct Lines {
    /// Those of the last reading.
    kept: usize,
    added: usize,
}

/// A file of mode 0600: the log of an agent's entries, or the document of a person's client.
///
/// Beside an agent's log, a file with `.handled` behind the name has a line for each message that was
/// handled within 31 days. This pair of files is for a single process; the clients in Python and
/// TypeScript read it too. Beside a person's document, one with `.learned` behind the name is the log
/// of what grows with use. Processes of one machine share both.
#[derive(Clone, Debug)]
pub struct FileStore {
    path: PathBuf,
    log: Arc<Mutex<Log>>,
    handled_lines: Arc<Mutex<Lines>>,
}

impl FileStore {
    /// The file at `path`, which is made by the first save.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self::of(path.into(), "")
    }

    pub(super) fn of(path: PathBuf, owner: &str) -> Self {
        let log = Arc::new(Mutex::new(Log::new(path.clone(), owner)));
        let handled_lines = Arc::default();
        Self {
            path,
            log,
            handled_lines,
        }
    }

    #[cfg(test)]
    pub(super) fn with_free_bytes(self, free_bytes: u64) -> Self {
        self.log.lock().set_free_bytes(free_bytes);
        self
    }

    /// Removes a person's document, and the log beside it.
    ///
    /// # Errors
    ///
    /// Either may be left.
    pub fn remove(&self) -> io::Result<()> {
        remove(&self.path)?;
        remove(&self.learned_path())
    }

    fn handled(&self) -> PathBuf {
        beside(&self.path, ".handled")
    }

    fn learned_path(&self) -> PathBuf {
        beside(&self.path, ".learned")
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Store for FileStore {
    fn load(&self) -> io::Result<Option<Vec<u8>>> {
        match fs::read(&self.path) {
            Ok(document) => Ok(Some(document)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn save(&self, document: &[u8]) -> io::Result<()> {
        replace(&self.path, document)
    }

    fn learned(&self, owner: &str) -> Option<Arc<dyn Store>> {
        Some(Arc::new(Self::of(self.learned_path(), owner)))
    }

    fn load_entries(&self, take: &mut dyn FnMut(Entries)) -> io::Result<()> {
        self.log.lock().load(take)
    }

    fn news(&self, take: &mut dyn FnMut(Entries)) -> io::Result<()> {
        self.log.lock().news(take)
    }

    fn save_entries(&self, entries: &Entries) -> io::Result<()> {
        self.log.lock().add(entries)
    }

    fn lock(&self, part: Part) -> io::Result<Box<dyn Send>> {
        let suffix = match part {
            Part::Document => ".lock",
            Part::Renewal => ".renewal.lock",
        };
        let mut options = fs::OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(beside(&self.path, suffix))?;
        file.lock()?;
        Ok(Box::new(file))
    }

    fn load_handled(&self, since: u64) -> io::Result<Vec<Handled>> {
        let path = self.handled();
        let text = match fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let lines = text.split_inclusive('\n').map(Handled::of_line);
        let found: Vec<_> = lines.flatten().filter(|it| it.at >= since).collect();
        let kept: String = found.iter().map(Handled::line).collect();
        if kept != text {
            replace(&path, kept.as_bytes())?;
        }
        let kept = found.len();
        *self.handled_lines.lock() = Lines { kept, added: 0 };
        Ok(found)
    }

    fn add_handled(&self, handled: &[Handled]) -> io::Result<()> {
        let lines: String = handled.iter().map(Handled::line).collect();
        log::append(&self.handled(), lines.as_bytes())?;
        let mut lines = self.handled_lines.lock();
        lines.added += handled.len();
        let is_full = lines.added > lines.kept.max(MIN_ADDED_LINES);
        drop(lines);
        // The file grows to about twice of what 31 days need.
        if is_full {
            self.load_handled(Clock::default().now_ms().saturating_sub(MAX_MESSAGE_AGE))?;
        }
        Ok(())
    }
}
