//! Where a client keeps what it must not forget.
//!
//! Why: ADR 74.

mod file;
mod log;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use blindpipe_e2ee::{Id, Principal, consent::begun_name};
use blindpipe_protocol::ids::ConversationId;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

pub use self::file::FileStore;
use crate::session::{hex, unhex};

/// The knowledge of a client, which grows with use: public keys, ids and numbers, no secret and no text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entries {
    /// The known keys of principals, by the name of each.
    pub pins: Map<String, Value>,
    /// Epochs, times and members of conversations.
    pub marks: BTreeMap<ConversationId, Value>,
    /// The tool requests that a person's device has begun, by the name of each.
    pub begun: BTreeSet<String>,
}

impl Entries {
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn len(&self) -> usize {
        self.pins.len() + self.marks.len() + self.begun.len()
    }

    pub(crate) fn extend(&mut self, later: Self) {
        self.pins.extend(later.pins);
        self.marks.extend(later.marks);
        self.begun.extend(later.begun);
    }

    /// Takes the entries out of a document. A person's may have none.
    pub(crate) fn take_from(document: &mut Value) -> io::Result<Self> {
        let fields = document.as_object_mut();
        let fields = fields.ok_or(io::ErrorKind::InvalidData)?;
        let is_persons = fields.contains_key("session");
        let pins = fields.remove("pins");
        let pins = match pins.and_then(|mut pins| Some(pins.get_mut("principals")?.take())) {
            Some(Value::Object(pins)) => pins,
            None if is_persons => Map::new(),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        let mut begun: BTreeSet<_> = names_of(fields.remove("begun")).collect();
        // Before, they stood among the choices.
        let consents = fields.get_mut("consents").and_then(Value::as_object_mut);
        let before = consents.and_then(|consents| consents.remove("begun"));
        let before = before.as_ref().and_then(Value::as_array);
        begun.extend(before.into_iter().flatten().filter_map(|begun| {
            let agent = Principal::from_hex(begun[0].as_str()?).ok()?;
            Some(begun_name(agent, begun[1].as_str()?))
        }));
        let marks = match fields.remove("marks") {
            Some(Value::Object(marks)) => marks,
            _ => Map::new(),
        };
        let marks = marks.into_iter();
        let marks = marks.filter_map(|(id, marks)| Some((id.parse().ok()?, marks)));
        Ok(Self {
            pins,
            marks: marks.collect(),
            begun,
        })
    }

    /// Adds the entries to a document that has none.
    fn put_into(self, document: &mut Value) {
        let marks = self.marks.into_iter();
        let marks: Map<_, _> = marks.map(|(id, marks)| (id.to_string(), marks)).collect();
        document["pins"] = json!({ "principals": self.pins });
        document["marks"] = marks.into();
        if !self.begun.is_empty() {
            document["begun"] = self.begun.into_iter().collect();
        }
    }
}

fn names_of(stored: Option<Value>) -> impl Iterator<Item = String> {
    let names = match stored {
        Some(Value::Array(names)) => names,
        _ => Vec::new(),
    };
    names.into_iter().filter_map(|name| match name {
        Value::String(name) => Some(name),
        _ => None,
    })
}

/// Keeps a small document of a client, which is replaced as a whole, and the entries of what it learns,
/// which are added.
///
/// A person's document holds the device's private keys, the session and the person's choices. An agent
/// keeps entries alone. Entries hold public keys, ids and numbers only.
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

    /// The store of the entries beside a person's document; none if they are a part of it. `owner` is
    /// the person on this device: entries of another one are not given.
    fn learned(&self, _owner: &str) -> Option<Arc<dyn Store>> {
        None
    }

    /// Gives all entries as they were saved last, in one or more parts. Of two with one name, the later
    /// one counts. Without an implementation, they are a part of the document.
    ///
    /// # Errors
    ///
    /// They may be there and cannot be read.
    fn load_entries(&self, take: &mut dyn FnMut(Entries)) -> io::Result<()> {
        if let Some(document) = self.load()? {
            take(Entries::take_from(&mut serde_json::from_slice(&document)?)?);
        }
        Ok(())
    }

    /// Gives the entries that other processes have saved since this value gave some last, and perhaps
    /// known ones. A store that no other process has gives none.
    ///
    /// # Errors
    ///
    /// They may be there and cannot be read.
    fn news(&self, _take: &mut dyn FnMut(Entries)) -> io::Result<()> {
        Ok(())
    }

    /// Keeps entries that have changed. All others stay as they are. They are durable once this
    /// returns. Without an implementation, the whole document is replaced.
    ///
    /// # Errors
    ///
    /// Some may not be kept.
    fn save_entries(&self, entries: &Entries) -> io::Result<()> {
        let (mut document, mut all) = (json!({}), Entries::default());
        if let Some(stored) = self.load()? {
            document = serde_json::from_slice(&stored)?;
            all = Entries::take_from(&mut document)?;
        }
        all.extend(entries.clone());
        all.put_into(&mut document);
        self.save(document.to_string().as_bytes())
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
    /// The document is read and replaced, or entries are added. This takes moments, and no call of the
    /// service.
    Document,
    /// The session is renewed: a call of the service.
    Renewal,
}

/// A message that an agent has handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handled {
    /// When it was handled, or signed if that is later; Unix milliseconds.
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

impl<S: Store> Store for Arc<S> {
    fn load(&self) -> io::Result<Option<Vec<u8>>> {
        (**self).load()
    }

    fn save(&self, document: &[u8]) -> io::Result<()> {
        (**self).save(document)
    }

    fn learned(&self, owner: &str) -> Option<Arc<dyn Store>> {
        (**self).learned(owner)
    }

    fn load_entries(&self, take: &mut dyn FnMut(Entries)) -> io::Result<()> {
        (**self).load_entries(take)
    }

    fn news(&self, take: &mut dyn FnMut(Entries)) -> io::Result<()> {
        (**self).news(take)
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
