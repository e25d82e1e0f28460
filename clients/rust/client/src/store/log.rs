//! Entries as a log, to which each change is added. The clients in Python and TypeScript read an agent's.
//!
//! A line is the CRC-32 of its rest in hex, a section, a name, and an entry as JSON. The last line of a
//! name counts.

use std::{
    collections::HashMap,
    fs::{self, File, Metadata, OpenOptions},
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use crc32fast::Hasher;
use serde_json::Value;

use super::{Entries, replace, sync_folder};

/// A log grows by so much, and to twice its entries, before it is written anew.
const FREE_BYTES: u64 = 1 << 20;
/// Entries that are handed on at once, so that a large log is not in memory as a whole.
const PART_ENTRIES: usize = 1_024;
const TAIL_BYTES: u64 = 65_536;

const PINS: &str = "pins";
const MARKS: &str = "marks";
const BEGUN: &str = "begun";

/// A log, as far as this process has read it.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    /// Checksums begin with the owner's. The lines of another owner are damaged ones.
    owner: u32,
    /// It may grow by so much beyond twice its entries.
    free_bytes: u64,
    /// Above this size it is written anew.
    max_bytes: u64,
    read: Option<Place>,
}

/// How far a log was read. While the file is open, no later log gets its number on the disk.
#[derive(Debug)]
struct Place {
    file: File,
    end: u64,
}

impl Place {
    fn is_in(&self, found: &Metadata) -> io::Result<bool> {
        let own = self.file.metadata()?;
        Ok((own.dev(), own.ino()) == (found.dev(), found.ino()))
    }
}

impl Log {
    /// An agent's log has no owner: no other agent has it.
    pub(super) fn new(path: PathBuf, owner: &str) -> Self {
        Self {
            path,
            owner: crc32fast::hash(owner.as_bytes()),
            free_bytes: FREE_BYTES,
            max_bytes: FREE_BYTES,
            read: None,
        }
    }

    #[cfg(test)]
    pub(super) const fn set_free_bytes(&mut self, free_bytes: u64) {
        (self.free_bytes, self.max_bytes) = (free_bytes, free_bytes);
    }

    /// Hands on all entries. A log that is too large is written anew.
    pub(super) fn load(&mut self, take: &mut dyn FnMut(Entries)) -> io::Result<()> {
        self.read = None;
        if is_document(&self.path)? {
            let mut document = serde_json::from_slice::<Value>(&fs::read(&self.path)?)?;
            if document.get("session").is_some() {
                // A person's document has private keys, and stays.
                return Err(io::ErrorKind::InvalidData.into());
            }
            let entries = Entries::take_from(&mut document)?;
            replace(&self.path, self.lines_of(&entries)?.as_bytes())?;
        }
        self.news(take)?;
        match &self.read {
            Some(place) if place.end > self.max_bytes => self.compact(),
            _ => Ok(()),
        }
    }

    /// Hands on the entries that were added by others since this log was read; all, if it was written
    /// anew.
    pub(super) fn news(&mut self, take: &mut dyn FnMut(Entries)) -> io::Result<()> {
        let found = match fs::metadata(&self.path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.read = None;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let is_known = match &self.read {
            Some(place) => place.end <= found.len() && place.is_in(&found)?,
            None => false,
        };
        let place = match self.read.take().filter(|_| is_known) {
            Some(place) => self.read.insert(place),
            None => self.read.insert(Place {
                file: File::open(&self.path)?,
                end: 0,
            }),
        };
        let start = place.end;
        if start == found.len() {
            return Ok(());
        }
        let (mut part, mut lengths) = (Entries::default(), HashMap::<String, u64>::new());
        place.end = each_line(&place.file, start, self.owner, |_, line, entry| {
            if start == 0 {
                lengths.insert(entry.key.to_owned(), line.len() as u64);
            }
            entry.add_to(&mut part);
            if part.len() >= PART_ENTRIES {
                take(std::mem::take(&mut part));
            }
        })?;
        take(part);
        if start == 0 {
            self.max_bytes = self.free_bytes + 2 * lengths.values().sum::<u64>();
        }
        Ok(())
    }

    /// Adds entries with one write and one sync. A log that is too large is written anew.
    pub(super) fn add(&mut self, entries: &Entries) -> io::Result<()> {
        let lines = self.lines_of(entries)?;
        let size = append(&self.path, lines.as_bytes())?;
        let found = fs::metadata(&self.path)?;
        if let Some(place) = &mut self.read
            && place.is_in(&found)?
            && place.end + lines.len() as u64 == size
        {
            place.end = size;
        }
        // The entries are kept, also where the log cannot be written anew.
        if size > self.max_bytes && self.compact().is_err() {
            self.max_bytes = 2 * size;
        }
        Ok(())
    }

    /// Writes the log anew: the last line of each name. It may grow from there.
    fn compact(&mut self) -> io::Result<()> {
        let file = File::open(&self.path)?;
        let mut last = HashMap::<String, u64>::new();
        let end = each_line(&file, 0, self.owner, |at, _, entry| {
            last.insert(entry.key.to_owned(), at);
        })?;
        let mut kept = Vec::new();
        each_line(&file, 0, self.owner, |at, line, entry| {
            if last.get(entry.key) == Some(&at) {
                kept.extend_from_slice(line);
            }
        })?;
        let was_read = match self.read.take() {
            Some(place) => place.end == end && place.is_in(&file.metadata()?)?,
            None => false,
        };
        replace(&self.path, &kept)?;
        let kept = kept.len() as u64;
        self.max_bytes = self.free_bytes + 2 * kept;
        // Otherwise the lines of others are still to be handed on.
        if was_read {
            let file = File::open(&self.path)?;
            self.read = Some(Place { file, end: kept });
        }
        Ok(())
    }

    fn lines_of(&self, entries: &Entries) -> io::Result<String> {
        let mut lines = String::new();
        let mut add = |section: &str, name: &str, entry: &Value| -> io::Result<()> {
            let rest = format!("{section} {name} {}", serde_json::to_string(entry)?);
            lines.push_str(&format!("{:08x} {rest}\n", checksum(self.owner, &rest)));
            Ok(())
        };
        for (name, entry) in &entries.pins {
            add(PINS, name, entry)?;
        }
        for (id, entry) in &entries.marks {
            add(MARKS, &id.to_string(), entry)?;
        }
        for name in &entries.begun {
            add(BEGUN, name, &Value::Bool(true))?;
        }
        Ok(lines)
    }
}

/// Runs over the owner's whole lines from `start`; answers the end of the last. Behind it may be one that a
/// crash has cut, or that another process is writing.
fn each_line(
    mut file: &File,
    start: u64,
    owner: u32,
    mut run: impl FnMut(u64, &[u8], &Line<'_>),
) -> io::Result<u64> {
    file.seek(SeekFrom::Start(start))?;
    let (mut reader, mut line, mut at) = (BufReader::new(file), Vec::new(), start);
    while reader.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
        if let Some(entry) = Line::parse(&line, owner) {
            run(at, &line, &entry);
        }
        at += line.len() as u64;
        line.clear();
    }
    Ok(at)
}

fn checksum(owner: u32, rest: &str) -> u32 {
    let mut hasher = Hasher::new_with_initial(owner);
    hasher.update(rest.as_bytes());
    hasher.finalize()
}

/// Adds bytes, durably; answers the size since. A write that fails leaves none of them, and one that a
/// crash has cut before is removed.
pub(super) fn append(path: &Path, bytes: &[u8]) -> io::Result<u64> {
    let is_new = match fs::symlink_metadata(path) {
        // A link that somebody else laid there is not followed.
        Ok(found) if found.is_symlink() => return Err(io::ErrorKind::AlreadyExists.into()),
        Ok(_) => false,
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(error),
    };
    let mut options = OpenOptions::new();
    let options = options.read(true).append(true).create(true).mode(0o600);
    let mut file = options.open(path)?;
    let before = cut_torn_line(&mut file)?;
    let written = file.write_all(bytes);
    if let Err(error) = written.and_then(|()| file.sync_data()) {
        // The next line does not stand behind a torn one.
        file.set_len(before).ok();
        return Err(error);
    }
    if is_new {
        sync_folder(path)?;
    }
    Ok(before + bytes.len() as u64)
}

/// A whole line, as it was written.
struct Line<'a> {
    /// The section, a space and the name.
    key: &'a str,
    section: &'a str,
    entry: &'a str,
}

impl<'a> Line<'a> {
    /// None for a line that is not as this owner wrote it.
    fn parse(line: &'a [u8], owner: u32) -> Option<Self> {
        let line = str::from_utf8(line).ok()?.strip_suffix('\n')?;
        let (crc, rest) = line.split_once(' ')?;
        if crc != format!("{:08x}", checksum(owner, rest)) {
            return None;
        }
        let (section, named) = rest.split_once(' ')?;
        let (name, entry) = named.split_once(' ')?;
        Some(Self {
            key: &rest[..section.len() + 1 + name.len()],
            section,
            entry,
        })
    }

    /// An entry of a later version says nothing here, and stays in the log.
    fn add_to(&self, entries: &mut Entries) {
        let name = &self.key[self.section.len() + 1..];
        let Ok(entry) = serde_json::from_str::<Value>(self.entry) else {
            return;
        };
        match self.section {
            PINS => _ = entries.pins.insert(name.to_owned(), entry),
            MARKS => {
                let id = name.parse().ok();
                entries.marks.extend(id.map(|id| (id, entry)));
            }
            BEGUN => _ = entries.begun.insert(name.to_owned()),
            _ => {}
        }
    }
}

/// An earlier version wrote a single document.
fn is_document(path: &Path) -> io::Result<bool> {
    let mut first = [0];
    match File::open(path) {
        Ok(mut file) => Ok(file.read(&mut first)? == 1 && first == *b"{"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// A crash may have cut the last line, which nobody has acknowledged. Answers the size without it.
fn cut_torn_line(file: &mut File) -> io::Result<u64> {
    let size = file.seek(SeekFrom::End(0))?;
    // Most logs end with a whole line.
    let (mut end, mut part) = (size, 1);
    while end > 0 {
        let start = end.saturating_sub(part);
        let mut tail = Vec::new();
        file.seek(SeekFrom::Start(start))?;
        Read::by_ref(file)
            .take(end - start)
            .read_to_end(&mut tail)?;
        if let Some(at) = tail.iter().rposition(|byte| *byte == b'\n') {
            end = start + at as u64 + 1;
            break;
        }
        (end, part) = (start, TAIL_BYTES);
    }
    if end < size {
        file.set_len(end)?;
    }
    Ok(end)
}
