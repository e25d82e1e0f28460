//! The store in files.

use std::{
    fs, io,
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{Entries, Handled, Part, Store, beside, log, replace};

/// A log grows by so much, and to twice its entries, before it is written anew.
const FREE_BYTES: u64 = 1 << 20;

/// A file of mode 0600: the log of an agent's entries, or the document of a person's client. A second
/// one, with `.handled` behind the name, has a line for each message that an agent has handled within
/// 31 days. An agent's pair of files is for a single process; the clients in Python and TypeScript read
/// it too.
#[derive(Clone, Debug)]
pub struct FileStore {
    path: PathBuf,
    /// A log may grow by so much beyond twice its entries.
    free_bytes: u64,
    /// A log above this size is written anew.
    max_bytes: Arc<AtomicU64>,
}

impl FileStore {
    /// The file at `path`, which is made by the first save.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            free_bytes: FREE_BYTES,
            max_bytes: Arc::new(AtomicU64::new(FREE_BYTES)),
        }
    }

    #[cfg(test)]
    pub(super) fn with_free_bytes(self, free_bytes: u64) -> Self {
        Self {
            free_bytes,
            max_bytes: Arc::new(AtomicU64::new(free_bytes)),
            ..self
        }
    }

    fn handled(&self) -> PathBuf {
        beside(&self.path, ".handled")
    }

    /// Writes the log anew, and lets it grow from there.
    fn compact(&self) -> io::Result<()> {
        let kept = log::compact(&self.path)?;
        let max_bytes = self.free_bytes + 2 * kept;
        self.max_bytes.store(max_bytes, Ordering::Relaxed);
        Ok(())
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

    fn load_entries(&self, take: &mut dyn FnMut(Entries)) -> io::Result<()> {
        let Some(counting) = log::load(&self.path, take)? else {
            return Ok(());
        };
        let max_bytes = self.free_bytes + 2 * counting;
        self.max_bytes.store(max_bytes, Ordering::Relaxed);
        if fs::metadata(&self.path)?.len() > max_bytes {
            self.compact()?;
        }
        Ok(())
    }

    fn save_entries(&self, entries: &Entries) -> io::Result<()> {
        let size = log::add(&self.path, entries)?;
        // The entries are kept, also where the log cannot be written anew.
        if size > self.max_bytes.load(Ordering::Relaxed) && self.compact().is_err() {
            self.max_bytes.store(2 * size, Ordering::Relaxed);
        }
        Ok(())
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
        Ok(found)
    }

    fn add_handled(&self, handled: &[Handled]) -> io::Result<()> {
        let lines: String = handled.iter().map(Handled::line).collect();
        log::append(&self.handled(), lines.as_bytes()).map(drop)
    }
}
