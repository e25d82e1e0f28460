//! A connection to Postgres for callers that block: a thread has it, with a runtime of its own.

use std::{error::Error, io, sync::mpsc as blocking, thread, time::Duration};

use tokio::{runtime, sync::mpsc, task::JoinSet, time::timeout};
use tokio_postgres::{
    Client, Config, Row, Socket,
    error::SqlState,
    tls::MakeTlsConnect,
    types::{ToSql, Type},
};

/// Longest time of a step, with the making of a connection.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// A parameter of a statement.
#[derive(Clone, Debug)]
pub(super) enum Parameter {
    Text(Option<String>),
    Texts(Vec<String>),
    Number(i64),
    Numbers(Vec<i64>),
}

impl Parameter {
    pub(super) fn text(text: impl ToString) -> Self {
        Self::Text(Some(text.to_string()))
    }

    pub(super) fn number(number: u64) -> Self {
        Self::Number(number.cast_signed())
    }

    /// Its type is given, so that no statement is prepared, which a pooler would lose.
    fn typed(&self) -> (&(dyn ToSql + Sync), Type) {
        match self {
            Self::Text(text) => (text, Type::TEXT),
            Self::Texts(texts) => (texts, Type::TEXT_ARRAY),
            Self::Number(number) => (number, Type::INT8),
            Self::Numbers(numbers) => (numbers, Type::INT8_ARRAY),
        }
    }
}

/// Why a step has no answer.
#[derive(Debug)]
pub(super) enum Failure {
    Postgres(tokio_postgres::Error),
    /// No answer came in time, or the thread has gone.
    NoAnswer,
}

impl Failure {
    /// The code of Postgres's own refusal.
    pub(super) fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Postgres(error) => error.code(),
            Self::NoAnswer => None,
        }
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Postgres(error) => io::Error::other(error),
            Failure::NoAnswer => io::ErrorKind::TimedOut.into(),
        }
    }
}

struct Step {
    statement: &'static str,
    parameters: Vec<Parameter>,
    answer: blocking::SyncSender<Result<Vec<Row>, Failure>>,
}

/// Asks the thread. The thread ends with this value.
pub(super) struct Connection(mpsc::UnboundedSender<Step>);

impl Connection {
    pub(super) fn new<T>(config: Config, tls: T) -> io::Result<Self>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + 'static,
        T::Stream: Send + 'static,
    {
        let (sender, steps) = mpsc::unbounded_channel();
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        thread::Builder::new()
            .name("blindpipe-store".to_owned())
            .spawn(move || runtime.block_on(serve(&config, &tls, steps)))?;
        Ok(Self(sender))
    }

    pub(super) fn ask(
        &self,
        statement: &'static str,
        parameters: Vec<Parameter>,
    ) -> Result<Vec<Row>, Failure> {
        let (answer, answered) = blocking::sync_channel(1);
        let step = Step {
            statement,
            parameters,
            answer,
        };
        self.0.send(step).map_err(|_| Failure::NoAnswer)?;
        answered.recv().unwrap_or(Err(Failure::NoAnswer))
    }
}

async fn serve<T>(config: &Config, tls: &T, mut steps: mpsc::UnboundedReceiver<Step>)
where
    T: MakeTlsConnect<Socket> + Clone + Send + 'static,
    T::Stream: Send + 'static,
{
    let mut link = Link {
        config,
        tls,
        client: None,
        connections: JoinSet::new(),
    };
    while let Some(step) = steps.recv().await {
        let made = timeout(STEP_TIMEOUT, link.take(&step)).await;
        let made = made.unwrap_or(Err(Failure::NoAnswer));
        // Refusals of Postgres leave the connection as it was.
        if made.as_ref().is_err_and(|failure| failure.code().is_none()) {
            link.client = None;
        }
        step.answer.send(made).ok();
    }
}

/// The present connection, and the tasks that drive it and those before.
struct Link<'a, T> {
    config: &'a Config,
    tls: &'a T,
    client: Option<Client>,
    connections: JoinSet<()>,
}

impl<T> Link<'_, T>
where
    T: MakeTlsConnect<Socket> + Clone + Send + 'static,
    T::Stream: Send + 'static,
{
    /// Takes a step, over a new connection if there is none.
    async fn take(&mut self, step: &Step) -> Result<Vec<Row>, Failure> {
        let live = self.client.take().filter(|client| !client.is_closed());
        let live = match live {
            Some(live) => live,
            None => self.connect().await?,
        };
        let live = self.client.insert(live);
        let parameters: Vec<_> = step.parameters.iter().map(Parameter::typed).collect();
        let rows = live.query_typed(step.statement, &parameters).await;
        rows.map_err(Failure::Postgres)
    }

    async fn connect(&mut self) -> Result<Client, Failure> {
        let connected = self.config.connect(self.tls.clone()).await;
        let (client, connection) = connected.map_err(Failure::Postgres)?;
        while self.connections.try_join_next().is_some() {}
        self.connections.spawn(async move {
            if let Err(error) = connection.await {
                tracing::warn!(
                    error = &error as &dyn Error,
                    "the store's connection has ended"
                );
            }
        });
        Ok(client)
    }
}
