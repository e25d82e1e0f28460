//! A store in Postgres, for the processes of an agent on any number of machines.
//!
//! Each step is a single statement, so a pooler may stand in between. A row has the number of its
//! changes: a save names the one that it knows, and changes nothing else. Rows also have the
//! transaction that changed them. News are all rows of transactions that had not ended when this
//! process read last, so a commit that comes late is not missed.

mod connection;
mod statements;

use std::{
    collections::{BTreeSet, HashMap},
    fmt, io,
};

use blindpipe_e2ee::Principal;
use blindpipe_protocol::ids::ConversationId;
use parking_lot::Mutex;
use serde_json::Value;
use tokio_postgres::{
    Config, Row, Socket,
    error::SqlState,
    tls::{MakeTlsConnect, TlsConnect},
};

pub use self::statements::POSTGRES_TABLES;
use self::{
    connection::{Connection, Failure, Parameter},
    statements::{ADD_HANDLED, ENTER, FORGET, HANDLED, LOAD, NEWS, SAVE},
};
use crate::{
    session::{hex, unhex},
    shared_folder::new_name,
    shared_store::{News, Saved, SharedStore},
    store::{Entries, Handled},
};

/// A [`SharedStore`] in a Postgres of yours, version 13 or newer. Each process makes a value of its
/// own. The clients in Python and TypeScript read and write the same rows.
pub struct PostgresStore {
    connection: Connection,
    name: String,
    /// This process, among those that share the store.
    process: String,
    state: Mutex<State>,
}

/// An entry's section and name.
type EntryKey = (String, String);

#[derive(Default)]
struct State {
    /// The changes of each entry that this process knows.
    changes: HashMap<EntryKey, i64>,
    /// The first transaction that may be unread in all entries, as of the load.
    loaded_to: Option<String>,
    /// The same of pins, and of each conversation that was read since.
    pins_to: Option<String>,
    conversations_to: HashMap<ConversationId, String>,
    /// Conversations whose saving met a change of another process.
    unread: BTreeSet<ConversationId>,
    /// Conversations that came from another process, which no news have told yet.
    entered: BTreeSet<ConversationId>,
    /// A save failed, and perhaps Postgres has kept it. Own rows are read like those of others then.
    is_in_doubt: bool,
}

/// The rows of one reading, with the conversation that it was for.
type Reading = (Option<ConversationId>, Vec<Row>);

impl PostgresStore {
    /// The store of this name in the database of `config`. Each group of an agent has a store of its
    /// own. A thread of its own keeps a single connection, which it makes at the first step and again
    /// after a failure.
    ///
    /// # Errors
    ///
    /// The thread could not be started.
    pub fn new<T>(config: Config, tls: T, name: impl Into<String>) -> io::Result<Self>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + 'static,
        T::Stream: Send + 'static,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        Ok(Self {
            connection: Connection::new(config, tls)?,
            name: name.into(),
            process: new_name(),
            state: Mutex::default(),
        })
    }

    fn ask(&self, statement: &'static str, others: Vec<Parameter>) -> Result<Vec<Row>, Failure> {
        let mut parameters = vec![Parameter::Text(Some(self.name.clone()))];
        parameters.extend(others);
        self.connection.ask(statement, parameters)
    }

    /// Reads the news of pins, and of a conversation.
    fn read(&self, state: &State, id: Option<ConversationId>) -> Result<Vec<Row>, Failure> {
        let by = if state.is_in_doubt { "" } else { &self.process };
        let conversation_to = id.and_then(|id| state.conversations_to.get(&id));
        let since = |to: Option<&String>| {
            let to = to.or(state.loaded_to.as_ref()).cloned();
            Parameter::Text(Some(to.unwrap_or_else(|| "0".to_owned())))
        };
        let parameters = vec![
            Parameter::text(by),
            Parameter::Text(id.map(|id| id.to_string())),
            since(state.pins_to.as_ref()),
            since(conversation_to),
        ];
        self.ask(NEWS, parameters)
    }
}

impl State {
    /// Takes the rows of a reading over.
    fn take_all(&mut self, (id, rows): Reading, news: &mut News) -> io::Result<()> {
        for row in rows {
            match row
                .try_get::<_, &str>("section")
                .map_err(io::Error::other)?
            {
                "read_to" => {
                    let to: String = row.try_get("text").map_err(io::Error::other)?;
                    if let Some(id) = id {
                        self.conversations_to.insert(id, to.clone());
                    }
                    self.pins_to = Some(to);
                }
                "handled" => {
                    let [sender, message] = ["name", "text"].map(|column| row.try_get(column));
                    let (sender, message) = (
                        sender.map_err(io::Error::other)?,
                        message.map_err(io::Error::other)?,
                    );
                    let at = row.try_get("changes").map_err(io::Error::other)?;
                    news.handled
                        .extend(id.and_then(|id| handled_of(id, at, sender, message)));
                }
                _ => self.take(&row, &mut news.entries)?,
            }
        }
        if let Some(id) = id {
            self.unread.remove(&id);
        }
        Ok(())
    }

    /// Takes an entry over. One that is known already is read twice at times.
    fn take(&mut self, row: &Row, entries: &mut Entries) -> io::Result<()> {
        let text = |column| row.try_get::<_, String>(column).map_err(io::Error::other);
        let (section, name, entry) = (text("section")?, text("name")?, text("text")?);
        let changes = row.try_get("changes").map_err(io::Error::other)?;
        let known = self.changes.entry((section.clone(), name.clone()));
        let known = known.or_default();
        if changes <= *known {
            return Ok(());
        }
        *known = changes;
        let entry: Value = serde_json::from_str(&entry)?;
        match (&*section, name.parse()) {
            ("pins", _) => {
                entries.pins.insert(name, entry);
            }
            ("marks", Ok(id)) => {
                entries.marks.insert(id, entry);
            }
            // Another version of a client has kept something else.
            _ => {}
        }
        Ok(())
    }
}

impl SharedStore for PostgresStore {
    fn load(&self, since: u64) -> io::Result<News> {
        let since = Parameter::number(since);
        self.ask(FORGET, vec![since.clone()])?;
        let rows = self.ask(LOAD, Vec::new())?;
        let handled = self.ask(HANDLED, vec![since])?;
        let (mut state, mut news) = (State::default(), News::default());
        if let Some(row) = rows.first() {
            state.loaded_to = Some(row.try_get("read_to").map_err(io::Error::other)?);
        }
        for row in &rows {
            state.take(row, &mut news.entries)?;
        }
        for row in handled {
            let text = |column| row.try_get::<_, &str>(column).map_err(io::Error::other);
            let at = row.try_get("at").map_err(io::Error::other)?;
            let id = text("conversation")?.parse().ok();
            let (sender, message) = (text("sender")?, text("message")?);
            news.handled
                .extend(id.and_then(|id| handled_of(id, at, sender, message)));
        }
        *self.state.lock() = state;
        Ok(news)
    }

    fn news(&self, conversation_id: Option<ConversationId>) -> io::Result<News> {
        let mut state = self.state.lock();
        if let Some(id) = conversation_id {
            let parameters = vec![Parameter::text(&self.process), Parameter::text(id)];
            if !self.ask(ENTER, parameters)?.is_empty() {
                state.entered.insert(id);
            }
        }
        // What others have saved before this process entered is read after it.
        let mut ids: BTreeSet<_> = state.unread.iter().copied().map(Some).collect();
        ids.insert(conversation_id);
        let mut readings = Vec::new();
        for id in ids {
            readings.push((id, self.read(&state, id)?));
        }
        let mut news = News::default();
        for reading in readings {
            state.take_all(reading, &mut news)?;
        }
        state.is_in_doubt = false;
        news.came_back = conversation_id.is_some_and(|id| state.entered.remove(&id));
        Ok(news)
    }

    fn save(&self, entries: &Entries) -> io::Result<Saved> {
        let pins = entries.pins.iter();
        let pins = pins.map(|(name, entry)| (("pins".to_owned(), name.clone()), entry));
        let marks = entries.marks.iter();
        let marks = marks.map(|(id, entry)| (("marks".to_owned(), id.to_string()), entry));
        let all: Vec<_> = pins.chain(marks).collect();
        if all.is_empty() {
            return Ok(Saved::Kept);
        }
        let mut state = self.state.lock();
        let known = |key| state.changes.get(key).copied().unwrap_or_default();
        let parameters = vec![
            Parameter::text(&self.process),
            Parameter::Texts(
                all.iter()
                    .map(|((section, _), _)| section.clone())
                    .collect(),
            ),
            Parameter::Texts(all.iter().map(|((_, name), _)| name.clone()).collect()),
            Parameter::Texts(all.iter().map(|(_, entry)| entry.to_string()).collect()),
            Parameter::Numbers(all.iter().map(|(key, _)| known(key)).collect()),
        ];
        match self.ask(SAVE, parameters) {
            Ok(_) => {
                for (key, _) in all {
                    *state.changes.entry(key).or_default() += 1;
                }
                Ok(Saved::Kept)
            }
            Err(failure) => {
                state.unread.extend(entries.marks.keys());
                if failure.code() == Some(&SqlState::DIVISION_BY_ZERO) {
                    return Ok(Saved::Changed);
                }
                state.is_in_doubt = true;
                Err(failure.into())
            }
        }
    }

    fn add_handled(&self, handled: &[Handled]) -> io::Result<()> {
        let texts =
            |text: fn(&Handled) -> String| Parameter::Texts(handled.iter().map(text).collect());
        let times = handled.iter().map(|one| one.at.cast_signed()).collect();
        let parameters = vec![
            Parameter::text(&self.process),
            texts(|one| one.conversation_id.to_string()),
            texts(|one| one.sender.to_hex()),
            texts(|one| hex(&one.client_message_id)),
            Parameter::Numbers(times),
        ];
        self.ask(ADD_HANDLED, parameters)?;
        Ok(())
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PostgresStore")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

fn handled_of(
    conversation_id: ConversationId,
    at: i64,
    sender: &str,
    message: &str,
) -> Option<Handled> {
    Some(Handled {
        at: at.cast_unsigned(),
        conversation_id,
        sender: Principal::from_hex(sender).ok()?,
        client_message_id: unhex(message)?,
    })
}
