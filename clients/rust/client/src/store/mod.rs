//! Where a client keeps what it must not forget.
//!
//! Why: ADR 74.

mod file;
mod log;

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use blindpipe_e2ee::{Id, Principal};
use blindpipe_protocol::ids::ConversationId;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

pub use self::file::FileStore;
use crate::session::{hex, unhex};

/// Entries of an agent's store: public keys and numbers, no secret and no text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entries {
    /// The known keys of principals, by the name of each.
    pub pins: Map<String, Value>,
    /// Epochs, times and members of conversations.
    pub marks: BTreeMap<ConversationId, Value>,
}

impl Entries {
    pub(crate) fn is_empty(&self) -> bool {
        self.pins.is_empty() && self.marks.is_empty()
    }

    fn extend(&mut self, later: Self) {
        self.pins.extend(later.pins);
        self.marks.extend(later.marks);
    }

    /// All entries of a store that keeps a document.
    fn of_document(document: &[u8]) -> io::Result<Self> {
        let mut document = serde_json::from_slice::<Value>(document)?;
        let pins = document.pointer_mut("/pins/principals").map(Value::take);
        let Some(Value::Object(pins)) = pins else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let marks = document.get_mut("marks").and_then(Value::as_object_mut);
        let marks = marks.map(std::mem::take).unwrap_or_default().into_iter();
        let marks = marks.filter_map(|(id, marks)| Some((id.parse().ok()?, marks)));
        Ok(Self {
            pins,
            marks: marks.collect(),
        })
    }

    fn document(self) -> String {
        let marks = self.marks.into_iter();
        let marks: Map<_, _> = marks.map(|(id, marks)| (id.to_string(), marks)).collect();
        json!({ "pins": { "principals": self.pins }, "marks": marks }).to_string()
    }
}

/// Keeps one document of a client, which is replaced as a whole, or an agent's entries.
///
/// An agent's entries hold public keys and numbers only. A person's document holds the device's
/// private keys as well.
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

    /// Gives an agent's entries as they were saved last, in one or more parts. Of two with one name,
    /// the later one counts. Without an implementation, they are a document.
    ///
    /// # Errors
    ///
    /// They may be there and cannot be read.
    fn load_entries(&self, take: &mut dyn FnMut(Entries)) -> io::Result<()> {
        if let Some(document) = self.load()? {
            take(Entries::of_document(&document)?);
        }
        Ok(())
    }

    /// Keeps an agent's entries that have changed. All others stay as they are. They are durable once
    /// this returns. Without an implementation, the whole document is replaced.
    ///
    /// # Errors
    ///
    /// Some may not be kept.
    fn save_entries(&self, entries: &Entries) -> io::Result<()> {
        let mut all = Entries::default();
        self.load_entries(&mut |found| all.extend(found))?;
        all.extend(entries.clone());
        self.save(all.document().as_bytes())
    }

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

    fn load_entries(&self, take: &mut dyn FnMut(Entries)) -> io::Result<()> {
        (**self).load_entries(take)
    }

    fn save_entries(&self, entries: &Entries) -> io::Result<()> {
        (**self).save_entries(entries)
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
mod tests;
