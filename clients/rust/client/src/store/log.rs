//! An agent's entries as a log, to which each change is added. The clients in Python and TypeScript
//! read the same.
//!
//! A line is the CRC-32 of its rest in hex, a section, a name, and an entry as JSON. The last line of a
//! name counts.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use serde_json::Value;

use super::{Entries, replace, sync_folder};

/// Entries that are handed on at once, so that a large log is not in memory as a whole.
const PART_ENTRIES: usize = 1_024;
const TAIL_BYTES: u64 = 65_536;

const PINS: &str = "pins";
const MARKS: &str = "marks";

/// Hands on all entries; answers the bytes of those that count, none if there is no log.
pub(super) fn load(path: &Path, take: &mut dyn FnMut(Entries)) -> io::Result<Option<u64>> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    let mut file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if is_document(&mut file)? {
        let entries = Entries::of_document(&fs::read(path)?)?;
        replace(path, lines_of(&entries)?.as_bytes())?;
        take(entries);
        return fs::metadata(path).map(|it| Some(it.len()));
    }
    cut_torn_line(&mut file)?;
    let (mut part, mut lengths) = (Entries::default(), HashMap::<String, u64>::new());
    each_line(file, |_, line, entry| {
        lengths.insert(entry.key.to_owned(), line.len() as u64);
        entry.add_to(&mut part);
        if part.pins.len() + part.marks.len() >= PART_ENTRIES {
            take(std::mem::take(&mut part));
        }
    })?;
    take(part);
    Ok(Some(lengths.values().sum()))
}

/// Adds entries with one write and one sync; answers the bytes of the log since.
pub(super) fn add(path: &Path, entries: &Entries) -> io::Result<u64> {
    append(path, lines_of(entries)?.as_bytes())
}

/// Writes a log anew: the last line of each name. Answers its bytes.
pub(super) fn compact(path: &Path) -> io::Result<u64> {
    let mut last = HashMap::<String, u64>::new();
    each_line(File::open(path)?, |at, _, entry| {
        last.insert(entry.key.to_owned(), at);
    })?;
    let mut kept = Vec::new();
    each_line(File::open(path)?, |at, line, entry| {
        if last.get(entry.key) == Some(&at) {
            kept.extend_from_slice(line);
        }
    })?;
    replace(path, &kept)?;
    Ok(kept.len() as u64)
}

/// Adds bytes, durably; answers the size since. A write that fails leaves none of them.
pub(super) fn append(path: &Path, bytes: &[u8]) -> io::Result<u64> {
    let is_new = match fs::symlink_metadata(path) {
        // A link that somebody else laid there is not followed.
        Ok(found) if found.is_symlink() => return Err(io::ErrorKind::AlreadyExists.into()),
        Ok(_) => false,
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(error),
    };
    let mut options = OpenOptions::new();
    let mut file = options.append(true).create(true).mode(0o600).open(path)?;
    let before = file.metadata()?.len();
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
    /// None for a line that is not as it was written.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let line = str::from_utf8(line).ok()?.strip_suffix('\n')?;
        let (crc, rest) = line.split_once(' ')?;
        if crc != format!("{:08x}", crc32fast::hash(rest.as_bytes())) {
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
            _ => {}
        }
    }
}

fn each_line(file: File, mut run: impl FnMut(u64, &[u8], &Line<'_>)) -> io::Result<()> {
    let (mut reader, mut line, mut at) = (BufReader::new(file), Vec::new(), 0);
    reader.rewind()?;
    while reader.read_until(b'\n', &mut line)? > 0 {
        if let Some(entry) = Line::parse(&line) {
            run(at, &line, &entry);
        }
        at += line.len() as u64;
        line.clear();
    }
    Ok(())
}

fn lines_of(entries: &Entries) -> io::Result<String> {
    let mut lines = String::new();
    let mut add = |section: &str, name: &str, entry: &Value| -> io::Result<()> {
        let rest = format!("{section} {name} {}", serde_json::to_string(entry)?);
        let crc = crc32fast::hash(rest.as_bytes());
        lines.push_str(&format!("{crc:08x} {rest}\n"));
        Ok(())
    };
    for (name, entry) in &entries.pins {
        add(PINS, name, entry)?;
    }
    for (id, entry) in &entries.marks {
        add(MARKS, &id.to_string(), entry)?;
    }
    Ok(lines)
}

/// An earlier version wrote a single document.
fn is_document(file: &mut File) -> io::Result<bool> {
    let mut first = [0];
    file.rewind()?;
    Ok(file.read(&mut first)? == 1 && first == *b"{")
}

/// A crash may have cut the last line, which nobody has acknowledged.
fn cut_torn_line(file: &mut File) -> io::Result<()> {
    let size = file.seek(SeekFrom::End(0))?;
    let mut end = size;
    while end > 0 {
        let start = end.saturating_sub(TAIL_BYTES);
        let mut tail = Vec::new();
        file.seek(SeekFrom::Start(start))?;
        Read::by_ref(file)
            .take(end - start)
            .read_to_end(&mut tail)?;
        if let Some(at) = tail.iter().rposition(|byte| *byte == b'\n') {
            end = start + at as u64 + 1;
            break;
        }
        end = start;
    }
    if end < size {
        file.set_len(end)
    } else {
        Ok(())
    }
}
