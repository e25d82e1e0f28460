//! A mail server: the mailin library speaks the protocol; this module has the connections and the
//! faults.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use blindpipe::http::listener;
use devcluster::certs::Certificates;
use mailin::{
    Action, AuthMechanism, Handler, Response, Session, SessionBuilder,
    response::{AUTH_OK, INVALID_CREDENTIALS, NO_MAILBOX, OK},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};
use tokio_rustls::TlsAcceptor;

use super::services::spawn;

pub const USER: &str = "blindpipe";
pub const PASSWORD: &str = "s3cret/of the+mail";

/// The way to TLS of a client's connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Secrecy {
    /// TLS from the first byte.
    Tls,
    /// STARTTLS. Before it, the server accepts only `EHLO`.
    StartTls,
}

/// An accepted mail.
#[derive(Clone, Debug)]
pub struct Taken {
    pub to: Vec<String>,
    pub text: String,
}

/// The state that all connections share.
#[derive(Default)]
struct Ledger {
    taken: Vec<Taken>,
    connections: usize,
    /// Connections are accepted but get no answer.
    silent: bool,
}

/// A mail server on loopback, at a fixed port. Stops when dropped.
pub struct SmtpServer {
    pub port: u16,
    secrecy: Secrecy,
    certificates: Certificates,
    ledger: Arc<Mutex<Ledger>>,
    listening: Option<AbortHandle>,
}

impl SmtpServer {
    /// A server that does not listen yet. Its certificate goes to `folder`.
    pub fn new(folder: &Path, port: u16, secrecy: Secrecy) -> Self {
        let certificates = Certificates::prepare(folder).expect("a certificate");
        SmtpServer {
            port,
            secrecy,
            certificates,
            ledger: Arc::default(),
            listening: None,
        }
    }

    /// The `MAIL_URL` of this server.
    pub fn url(&self, password: &str) -> String {
        let (scheme, query) = match self.secrecy {
            Secrecy::Tls => ("smtps", ""),
            Secrecy::StartTls => ("smtp", "?tls=required"),
        };
        let mut url = reqwest::Url::parse(&format!("{scheme}://localhost:{}{query}", self.port))
            .expect("a URL");
        url.set_username(USER).expect("a user");
        url.set_password(Some(password)).expect("a password");
        url.into()
    }

    /// The certificate authority that a client must trust.
    pub fn ca(&self) -> &Path {
        &self.certificates.ca
    }

    pub async fn start(&mut self) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port))
            .await
            .expect("the port");
        let config = listener::tls_from(&self.certificates.cert, &self.certificates.key)
            .expect("a certificate");
        let acceptor = TlsAcceptor::from(config);
        let (secrecy, ledger) = (self.secrecy, self.ledger.clone());
        let accepting = spawn(async move {
            // Dropped with the listener, so a stopped server has no connections left.
            let mut open = tokio::task::JoinSet::new();
            while let Ok((stream, peer)) = listener.accept().await {
                ledger.lock().expect("no panic").connections += 1;
                open.spawn(serve(
                    stream,
                    peer,
                    secrecy,
                    acceptor.clone(),
                    ledger.clone(),
                ));
            }
        });
        self.listening = Some(accepting.abort_handle());
    }

    pub fn stop(&mut self) {
        if let Some(listening) = self.listening.take() {
            listening.abort();
        }
    }

    /// Sets whether connections are accepted without an answer.
    pub fn silence(&self, silent: bool) {
        self.ledger.lock().expect("no panic").silent = silent;
    }

    pub fn connections(&self) -> usize {
        self.ledger.lock().expect("no panic").connections
    }

    pub fn taken(&self) -> Vec<Taken> {
        self.ledger.lock().expect("no panic").taken.clone()
    }

    /// The code in the first mail to `email`, once it has arrived.
    pub async fn code(&self, email: &str) -> String {
        for _ in 0..400 {
            let mine = self.taken().into_iter().find(|mail| mail.to == [email]);
            if let Some(mail) = mine {
                let is_code =
                    |line: &&str| line.len() == 8 && line.bytes().all(|byte| byte.is_ascii_digit());
                return mail
                    .text
                    .lines()
                    .map(str::trim)
                    .find(is_code)
                    .expect("a code")
                    .to_owned();
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("no mail for {email}");
    }
}

impl Drop for SmtpServer {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    secrecy: Secrecy,
    acceptor: TlsAcceptor,
    ledger: Arc<Mutex<Ledger>>,
) -> Option<()> {
    if ledger.lock().expect("no panic").silent {
        tokio::time::sleep(Duration::from_secs(60)).await;
        return None;
    }
    let mut builder = SessionBuilder::new("mail.example.org");
    builder.enable_auth(AuthMechanism::Plain);
    if secrecy == Secrecy::StartTls {
        builder.enable_start_tls();
    }
    let clerk = Clerk {
        known: false,
        mail: None,
        ledger,
    };
    let mut session = builder.build(peer.ip(), clerk);
    let greeting = session.greeting();
    if secrecy == Secrecy::Tls {
        session.tls_active();
        let mut stream = BufReader::new(acceptor.accept(stream).await.ok()?);
        answer(&mut stream, &greeting).await?;
        return talk(&mut stream, &mut session).await.map(drop);
    }
    let mut stream = BufReader::new(stream);
    answer(&mut stream, &greeting).await?;
    if talk(&mut stream, &mut session).await? == Then::Encrypt {
        let mut stream = BufReader::new(acceptor.accept(stream.into_inner()).await.ok()?);
        session.tls_active();
        talk(&mut stream, &mut session).await?;
    }
    Some(())
}

#[derive(PartialEq, Eq)]
enum Then {
    Encrypt,
    Close,
}

/// Reads line by line, until the client starts TLS or quits.
async fn talk<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut BufReader<S>,
    session: &mut Session<Clerk>,
) -> Option<Then> {
    loop {
        let mut line = Vec::new();
        stream
            .read_until(b'\n', &mut line)
            .await
            .ok()
            .filter(|n| *n > 0)?;
        let response = session.process(&line);
        match response.action {
            Action::NoReply => {}
            Action::Reply => answer(stream, &response).await?,
            Action::UpgradeTls => {
                answer(stream, &response).await?;
                return Some(Then::Encrypt);
            }
            Action::Close => {
                answer(stream, &response).await?;
                return Some(Then::Close);
            }
        }
    }
}

async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut BufReader<S>,
    response: &Response,
) -> Option<()> {
    stream.write_all(&response.buffer().ok()?).await.ok()?;
    stream.flush().await.ok()
}

/// Handles one connection's commands.
struct Clerk {
    known: bool,
    mail: Option<Taken>,
    ledger: Arc<Mutex<Ledger>>,
}

impl Handler for Clerk {
    fn auth_plain(&mut self, _: &str, user: &str, password: &str) -> Response {
        self.known = user == USER && password == PASSWORD;
        if self.known {
            AUTH_OK
        } else {
            INVALID_CREDENTIALS
        }
    }

    fn data_start(&mut self, _: &str, _: &str, _: bool, to: &[String]) -> Response {
        if !self.known {
            return NO_MAILBOX;
        }
        self.mail = Some(Taken {
            to: to.to_vec(),
            text: String::new(),
        });
        OK
    }

    fn data(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        if let Some(mail) = &mut self.mail {
            mail.text.push_str(&String::from_utf8_lossy(bytes));
        }
        Ok(())
    }

    fn data_end(&mut self) -> Response {
        let mail = self.mail.take().into_iter();
        self.ledger.lock().expect("no panic").taken.extend(mail);
        OK
    }
}
