//! A log of lines, which processes append to one at a time.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rand::RngExt;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    session::hex,
    store::{beside, sync_folder},
    transport::rng,
};

const FORMAT: u32 = 1;
const MAX_HEADER_BYTES: u64 = 256;
/// The longest wait for another process that writes.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two looks at a lock that another process has for moments.
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// The first line. A log that is written anew has another id.
#[derive(Serialize, Deserialize)]
struct Header {
    format: u32,
    id: String,
}

/// Whatever a process has added.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Line {
    /// The process.
    pub(super) by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pins: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) marks: Option<Value>,
    /// When, by whom, and under which id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) handled: Option<Vec<(u64, String, String)>>,
    /// The process has the conversation from now on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) enter: bool,
}

/// How far a log was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    /// The log's id at that time.
    id: String,
    offset: u64,
    /// The process that has the conversation.
    pub(super) owner: Option<String>,
    /// The length that the log had when it was last written anew, or first seen.
    pub(super) first_length: Option<u64>,
}

/// A log that no other process has until it is dropped.
pub(super) struct Log {
    path: PathBuf,
    file: File,
    id: String,
    /// The bytes of the first line.
    begin: u64,
}

impl Log {
    /// Opens and locks the log; makes it if it is not there.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        let mut file = open(&path)?;
        loop {
            match file.try_lock() {
                // Another process may have replaced it meanwhile.
                Ok(()) if is_at(&file, &path)? => break,
                Ok(()) => file = open(&path)?,
                Err(TryLockError::Error(error)) => return Err(error),
                Err(TryLockError::WouldBlock) if Instant::now() > deadline => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            }
        }
        mend(&mut file)?;
        if file.metadata()?.len() == 0 {
            file.write_all(&first_line()?)?;
            file.sync_all()?;
            sync_folder(&path)?;
        }
        let (id, begin) = header(&mut file)?;
        Ok(Self {
            path,
            file,
            id,
            begin,
        })
    }

    pub(super) fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// The lines since `place`, which moves to the end. Of a log that was written anew, these are all.
    pub(super) fn read(&mut self, place: &mut Place) -> io::Result<Vec<Line>> {
        if place.id != self.id {
            place.id.clone_from(&self.id);
            place.offset = self.begin;
            place.first_length = Some(self.length()?);
        }
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(place.offset))?;
        self.file.read_to_end(&mut bytes)?;
        place.offset += bytes.len() as u64;
        let lines = bytes.split(|byte| *byte == b'\n');
        let lines = lines.filter(|line| !line.is_empty());
        let lines: Vec<Line> = lines
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect();
        for line in lines.iter().filter(|line| line.enter) {
            place.owner = Some(line.by.clone());
        }
        Ok(lines)
    }

    pub(super) fn append(&mut self, line: &Line) -> io::Result<()> {
        let before = self.length()?;
        let written = self.file.write_all(&bytes_of(line)?);
        if written.is_err() {
            self.file.set_len(before).ok();
        }
        written
    }

    /// The line is there after a power cut, too.
    pub(super) fn append_durably(&mut self, line: &Line) -> io::Result<()> {
        self.append(line)?;
        self.file.sync_data()
    }

    /// Writes the log anew; answers the place at its end.
    pub(super) fn replace(self, lines: &[Line]) -> io::Result<Place> {
        let mut bytes = first_line()?;
        for line in lines {
            bytes.extend(bytes_of(line)?);
        }
        let new = beside(&self.path, ".new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = fs::OpenOptions::new();
        let options = options.read(true).append(true).create_new(true).mode(0o600);
        let mut file = options.open(&new)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        let (id, _) = header(&mut file)?;
        fs::rename(&new, &self.path)?;
        sync_folder(&self.path)?;
        let owner = lines.iter().rev().find(|line| line.enter);
        Ok(Place {
            id,
            offset: bytes.len() as u64,
            owner: owner.map(|line| line.by.clone()),
            first_length: Some(bytes.len() as u64),
        })
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = fs::OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    options.open(path)
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let of = file.metadata()?;
    match fs::metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (of.dev(), of.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// A process that was killed may have left a torn line.
fn mend(file: &mut File) -> io::Result<()> {
    let length = file.metadata()?.len();
    let mut last = [b'\n'];
    if length > 0 {
        file.seek(SeekFrom::Start(length - 1))?;
        file.read_exact(&mut last)?;
    }
    if last == [b'\n'] {
        return Ok(());
    }
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    let whole = bytes.iter().rposition(|byte| *byte == b'\n');
    file.set_len(whole.map_or(0, |at| at as u64 + 1))
}

fn header(file: &mut File) -> io::Result<(String, u64)> {
    let mut line = Vec::new();
    file.rewind()?;
    file.take(MAX_HEADER_BYTES).read_to_end(&mut line)?;
    let end = line.iter().position(|byte| *byte == b'\n');
    let end = end.ok_or(io::ErrorKind::InvalidData)?;
    let header: Header = serde_json::from_slice(&line[..end])?;
    if header.format != FORMAT {
        return Err(io::Error::other("a log of another format"));
    }
    Ok((header.id, end as u64 + 1))
}

/// Another one for each process and for each log.
pub(crate) fn new_name() -> String {
    let name: [u8; 16] = rng().random();
    hex(&name)
}

fn first_line() -> io::Result<Vec<u8>> {
    bytes_of(&Header {
        format: FORMAT,
        id: new_name(),
    })
}

fn bytes_of(line: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    Ok(bytes)
}
