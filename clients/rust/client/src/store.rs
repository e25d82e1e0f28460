//! Where a client keeps what it must not forget.
//!
//! Why: ADR 74.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use blindpipe_e2ee::{Id, Principal};
use blindpipe_protocol::ids::ConversationId;
use parking_lot::Mutex;

use crate::session::{hex, unhex};

/// Keeps one document of a client, which is replaced as a whole.
///
/// An agent's document holds public keys and numbers only. A person's holds the device's private
/// keys as well.
pub trait Store: Send + Sync + 'static {
    /// The document; none before the first save.
    ///
    /// # Errors
    ///
    /// The document may be there and cannot be read.
    fn load(&self) -> io::Result<Option<Vec<u8>>>;

    /// Replaces the document. It is durable once this returns.
    ///
    /// # Errors
    ///
    /// Nothing was replaced.
    fn save(&self, document: &[u8]) -> io::Result<()>;

    /// Keeps other processes with this store out of `part` until the answer is dropped. A store
    /// that no other process has needs no lock.
    ///
    /// # Errors
    ///
    /// Nobody is kept out.
    fn lock(&self, _part: Part) -> io::Result<Box<dyn Send>> {
        Ok(Box::new(()))
    }

    /// An agent's messages that were handled at `since` (Unix milliseconds) or later, oldest first.
    /// Earlier ones may be forgotten. With a store that keeps none, a message of the last 31 days may
    /// be handled once more after a restart.
    ///
    /// # Errors
    ///
    /// They may be there and cannot be read.
    fn load_handled(&self, _since: u64) -> io::Result<Vec<Handled>> {
        Ok(Vec::new())
    }

    /// Adds handled messages. They are durable once this returns.
    ///
    /// # Errors
    ///
    /// None may have been added.
    fn add_handled(&self, _handled: &[Handled]) -> io::Result<()> {
        Ok(())
    }
}

/// Work that a single process does at a time, where several share a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The document is read and replaced. This takes moments, and no call of the service.
    Document,
    /// The session is renewed: a call of the service.
    Renewal,
}

/// A message that an agent has handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handled {
    /// Unix milliseconds.
    pub at: u64,
    /// Where it stands.
    pub conversation_id: ConversationId,
    /// Who signed it.
    pub sender: Principal,
    /// The sender's own id for it.
    pub client_message_id: Id,
}

impl Handled {
    /// A line of a file. A torn one is not read: each ends with a mark of its own.
    fn line(&self) -> String {
        let Self {
            at,
            conversation_id,
            sender,
            client_message_id,
        } = self;
        let (sender, id) = (sender.to_hex(), hex(client_message_id));
        format!("{at} {conversation_id} {sender} {id} .\n")
    }

    fn of_line(line: &str) -> Option<Self> {
        let parts: Vec<_> = line.split(' ').collect();
        let [at, conversation_id, sender, id, ".\n"] = parts[..] else {
            return None;
        };
        Some(Self {
            at: at.parse().ok()?,
            conversation_id: conversation_id.parse().ok()?,
            sender: Principal::from_hex(sender).ok()?,
            client_message_id: unhex(id)?,
        })
    }
}

/// A file of mode 0600. A second one, with `.handled` behind the name, has a line for each message
/// that an agent has handled within 31 days.
#[derive(Clone, Debug)]
pub struct FileStore(PathBuf);

impl FileStore {
    /// The file at `path`, which is made by the first save.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    fn handled(&self) -> PathBuf {
        beside(&self.0, ".handled")
    }
}

pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(suffix);
    name.into()
}

/// Writes beside the file, and renames.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = beside(path, &format!(".{}.tmp", std::process::id()));
    // A file that somebody else laid there is neither followed nor written to.
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = fs::OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    sync_folder(path)
}

pub(crate) fn sync_folder(of: &Path) -> io::Result<()> {
    let folder = of.parent().filter(|it| !it.as_os_str().is_empty());
    fs::File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
}

impl Store for FileStore {
    fn load(&self) -> io::Result<Option<Vec<u8>>> {
        match fs::read(&self.0) {
            Ok(document) => Ok(Some(document)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn save(&self, document: &[u8]) -> io::Result<()> {
        replace(&self.0, document)
    }

    fn lock(&self, part: Part) -> io::Result<Box<dyn Send>> {
        let suffix = match part {
            Part::Document => ".lock",
            Part::Renewal => ".renewal.lock",
        };
        let mut options = fs::OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(beside(&self.0, suffix))?;
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
        let path = self.handled();
        let is_new = !path.exists();
        let mut options = fs::OpenOptions::new();
        let mut file = options.append(true).create(true).mode(0o600).open(&path)?;
        let before = file.metadata()?.len();
        let lines: String = handled.iter().map(Handled::line).collect();
        let written = file.write_all(lines.as_bytes());
        if let Err(error) = written.and_then(|()| file.sync_all()) {
            // The next line does not stand behind a torn one.
            file.set_len(before).ok();
            return Err(error);
        }
        if is_new { sync_folder(&path) } else { Ok(()) }
    }
}

/// For tests, and for clients that end with their process.
#[derive(Debug, Default)]
pub struct MemoryStore {
    document: Mutex<Option<Vec<u8>>>,
    handled: Mutex<Vec<Handled>>,
}

impl Store for MemoryStore {
    fn load(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.document.lock().clone())
    }

    fn save(&self, document: &[u8]) -> io::Result<()> {
        *self.document.lock() = Some(document.to_owned());
        Ok(())
    }

    fn load_handled(&self, since: u64) -> io::Result<Vec<Handled>> {
        let mut handled = self.handled.lock();
        handled.retain(|it| it.at >= since);
        Ok(handled.clone())
    }

    fn add_handled(&self, handled: &[Handled]) -> io::Result<()> {
        self.handled.lock().extend_from_slice(handled);
        Ok(())
    }
}

impl<S: Store> Store for std::sync::Arc<S> {
    fn load(&self) -> io::Result<Option<Vec<u8>>> {
        (**self).load()
    }

    fn save(&self, document: &[u8]) -> io::Result<()> {
        (**self).save(document)
    }

    fn lock(&self, part: Part) -> io::Result<Box<dyn Send>> {
        (**self).lock(part)
    }

    fn load_handled(&self, since: u64) -> io::Result<Vec<Handled>> {
        (**self).load_handled(since)
    }

    fn add_handled(&self, handled: &[Handled]) -> io::Result<()> {
        (**self).add_handled(handled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_beside_the_file_is_not_followed() {
        let name = format!("blindpipe-store-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a folder");
        let (path, others) = (folder.join("pins"), folder.join("others"));
        fs::write(&others, "theirs").expect("written");
        let beside = folder.join(format!("pins.{}.tmp", std::process::id()));
        std::os::unix::fs::symlink(&others, beside).expect("a link");
        let store = FileStore::new(&path);
        assert!(store.load().expect("a store").is_none());
        for document in ["first", "second"] {
            store.save(document.as_bytes()).expect("stored");
            let loaded = store.load().expect("a store");
            assert_eq!(loaded.as_deref(), Some(document.as_bytes()));
        }
        assert_eq!(fs::read_to_string(&others).expect("read"), "theirs");
        fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn torn_and_old_lines_are_left_out() {
        let name = format!("blindpipe-handled-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a folder");
        let store = FileStore::new(folder.join("pins"));
        assert!(store.load_handled(0).expect("none").is_empty());
        let handled = [5, 7, 8].map(|at| Handled {
            at,
            conversation_id: ConversationId(uuid::Uuid::from_u128(at.into())),
            sender: Principal::User([1; 16]),
            client_message_id: [2; 16],
        });
        store.add_handled(&handled).expect("added");
        let path = folder.join("pins.handled");
        let torn = &handled[0].line()[..40];
        let text = fs::read_to_string(&path).expect("a file") + torn;
        fs::write(&path, text).expect("written");
        assert_eq!(store.load_handled(7).expect("two"), handled[1..]);
        store.add_handled(&handled[..1]).expect("added");
        assert_eq!(store.load_handled(0).expect("three").len(), 3);
        fs::remove_dir_all(folder).expect("removed");
    }
}
