//! A folder that several processes of a machine share: a log of pins, and one of each conversation.

mod log;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::PathBuf,
};

use blindpipe_e2ee::{Principal, room::MAX_MESSAGE_AGE};
use blindpipe_protocol::ids::ConversationId;
use parking_lot::Mutex;
use serde_json::Map;

pub(crate) use self::log::new_name;
use self::log::{Line, Log, Place};
use crate::{
    Clock,
    session::{hex, unhex},
    shared_store::{News, Saved, SharedStore},
    store::{Entries, Handled},
};

/// A log with so many lines beyond twice those that still say something is written anew.
const SPARE_LINES: usize = 64;
/// A log that grows by so much during a run is written anew.
const MAX_GROWTH_BYTES: u64 = 1 << 20;

/// A folder on a local disk, of mode 0700, for the processes of one machine. The client in Python
/// reads and writes the same files. It must not be on a network file system, whose locks do not hold.
pub struct SharedFolder {
    folder: PathBuf,
    /// This process, among those that share the folder.
    process: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pins: Place,
    conversations: HashMap<ConversationId, Place>,
    /// Those in which a save found what others have saved.
    unread: BTreeSet<ConversationId>,
}

impl SharedFolder {
    /// The folder at `path`, which is made when it is first used.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            folder: path.into(),
            process: new_name(),
            state: Mutex::default(),
        }
    }

    fn pins(&self) -> io::Result<Log> {
        self.make()?;
        Log::open(self.folder.join("pins.log"))
    }

    fn conversation(&self, id: ConversationId) -> io::Result<Log> {
        self.make()?;
        Log::open(self.conversations().join(format!("{id}.log")))
    }

    fn conversations(&self) -> PathBuf {
        self.folder.join("conversations")
    }

    fn make(&self) -> io::Result<()> {
        let folder = self.conversations();
        if folder.is_dir() {
            return Ok(());
        }
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
    }

    fn line(&self) -> Line {
        Line {
            by: self.process.clone(),
            ..Line::default()
        }
    }

    fn is_of_others(&self, line: &Line) -> bool {
        line.by != self.process
    }

    /// Reads what is new in a conversation.
    fn read(&self, id: ConversationId, lines: Vec<Line>, news: &mut News) {
        for line in lines.into_iter().filter(|line| self.is_of_others(line)) {
            let handled = line.handled.iter().flatten();
            news.handled
                .extend(handled.filter_map(|it| handled_of(id, it)));
            if let Some(marks) = line.marks {
                news.entries.marks.insert(id, marks);
            }
        }
    }

    fn read_pins(&self, lines: Vec<Line>, news: &mut News) {
        let lines = lines.into_iter().filter(|line| self.is_of_others(line));
        for pins in lines.filter_map(|line| line.pins) {
            news.entries.pins.extend(pins);
        }
    }

    /// Writes a conversation's log anew, with what still says something, if it has many lines, or
    /// much was added.
    fn shorten(
        &self,
        mut log: Log,
        place: &mut Place,
        since: u64,
        has_grown: bool,
    ) -> io::Result<()> {
        let lines = log.read(&mut Place::default())?;
        let mut kept = self.line();
        let mut handled = Vec::new();
        let (mut owner, count) = (None, lines.len());
        for line in lines {
            handled.extend(line.handled.into_iter().flatten());
            kept.marks = line.marks.or(kept.marks);
            if line.enter {
                owner = Some(line.by);
            }
        }
        handled.retain(|(at, ..)| *at >= since);
        kept.handled = (!handled.is_empty()).then_some(handled);
        let owner = owner.map(|by| Line {
            by,
            enter: true,
            ..Line::default()
        });
        let kept: Vec<_> = Some(kept).into_iter().chain(owner).collect();
        if has_grown || count > 2 * kept.len() + SPARE_LINES {
            // This process has read its part of the new log too.
            *place = log.replace(&kept)?;
        }
        Ok(())
    }

    fn shorten_pins(&self, mut log: Log, place: &mut Place) -> io::Result<()> {
        let lines = log.read(&mut Place::default())?;
        if lines.len() > SPARE_LINES {
            let mut all = Map::new();
            lines
                .into_iter()
                .filter_map(|line| line.pins)
                .for_each(|pins| all.extend(pins));
            let pins = Some(all);
            *place = log.replace(&[Line {
                pins,
                ..self.line()
            }])?;
        }
        Ok(())
    }
}

impl SharedStore for SharedFolder {
    fn load(&self, since: u64) -> io::Result<News> {
        let mut state = self.state.lock();
        *state = State::default();
        let mut news = News::default();
        let mut log = self.pins()?;
        let lines = log.read(&mut state.pins)?;
        self.read_pins(lines, &mut news);
        self.shorten_pins(log, &mut state.pins)?;
        for entry in fs::read_dir(self.conversations())? {
            let name = entry?.file_name();
            let id = name
                .to_str()
                .and_then(|name| name.strip_suffix(".log")?.parse().ok());
            let Some(id) = id else { continue };
            let mut log = self.conversation(id)?;
            let place = state.conversations.entry(id).or_default();
            let lines = log.read(place)?;
            self.read(id, lines, &mut news);
            self.shorten(log, place, since, false)?;
        }
        news.handled.retain(|it| it.at >= since);
        news.handled.sort_by_key(|it| it.at);
        Ok(news)
    }

    fn news(&self, conversation_id: Option<ConversationId>) -> io::Result<News> {
        let mut state = self.state.lock();
        let mut news = News::default();
        // Lines count as read once all of them can be told.
        let mut pins = state.pins.clone();
        let lines = self.pins()?.read(&mut pins)?;
        self.read_pins(lines, &mut news);
        let mut places = BTreeMap::new();
        let mut ids = state.unread.clone();
        ids.extend(conversation_id);
        for id in ids {
            let mut place = state.conversations.get(&id).cloned().unwrap_or_default();
            let mut log = self.conversation(id)?;
            let lines = log.read(&mut place)?;
            self.read(id, lines, &mut news);
            if conversation_id == Some(id) && place.owner.as_ref() != Some(&self.process) {
                news.came_back = true;
                log.append(&Line {
                    enter: true,
                    ..self.line()
                })?;
                place.owner = Some(self.process.clone());
            }
            places.insert(id, place);
        }
        state.pins = pins;
        state.unread.clear();
        state.conversations.extend(places);
        Ok(news)
    }

    fn save(&self, entries: &Entries) -> io::Result<Saved> {
        let mut state = self.state.lock();
        if !entries.pins.is_empty() {
            let mut log = self.pins()?;
            let unread = log.read(&mut state.pins.clone())?;
            let unread = unread.iter().filter(|line| self.is_of_others(line));
            let mut unread = unread.flat_map(|line| line.pins.iter().flatten());
            if unread.any(|(name, _)| entries.pins.contains_key(name)) {
                return Ok(Saved::Changed);
            }
            let pins = Some(entries.pins.clone());
            log.append_durably(&Line {
                pins,
                ..self.line()
            })?;
        }
        for (id, marks) in &entries.marks {
            let mut log = self.conversation(*id)?;
            let place = state.conversations.entry(*id).or_default();
            let unread = log.read(&mut place.clone())?;
            if unread
                .iter()
                .any(|line| self.is_of_others(line) && line.marks.is_some())
            {
                state.unread.insert(*id);
                return Ok(Saved::Changed);
            }
            let marks = Some(marks.clone());
            log.append_durably(&Line {
                marks,
                ..self.line()
            })?;
        }
        Ok(Saved::Kept)
    }

    fn add_handled(&self, handled: &[Handled]) -> io::Result<()> {
        let mut by_conversation = BTreeMap::<_, Vec<_>>::new();
        for each in handled {
            let Handled {
                at,
                sender,
                client_message_id,
                ..
            } = each;
            let stored = (*at, sender.to_hex(), hex(client_message_id));
            by_conversation
                .entry(each.conversation_id)
                .or_default()
                .push(stored);
        }
        let mut state = self.state.lock();
        for (id, handled) in by_conversation {
            let mut log = self.conversation(id)?;
            let handled = Some(handled);
            log.append_durably(&Line {
                handled,
                ..self.line()
            })?;
            let place = state.conversations.entry(id).or_default();
            let length = log.length()?;
            let first = *place.first_length.get_or_insert(length);
            if length > 2 * first + MAX_GROWTH_BYTES {
                let unread = log.read(&mut place.clone())?;
                // Lines of others must be read as news.
                if unread.iter().all(|line| line.by == self.process) {
                    let since = Clock::default().now_ms().saturating_sub(MAX_MESSAGE_AGE);
                    self.shorten(log, place, since, true)?;
                }
            }
        }
        Ok(())
    }
}

fn handled_of(conversation_id: ConversationId, stored: &(u64, String, String)) -> Option<Handled> {
    let (at, sender, id) = stored;
    Some(Handled {
        at: *at,
        conversation_id,
        sender: Principal::from_hex(sender).ok()?,
        client_message_id: unhex(id)?,
    })
}
