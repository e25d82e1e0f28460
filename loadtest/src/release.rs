//! A release elsewhere: base URLs and a file of ready accounts. Neither its processes nor its
//! databases are in reach, so only times and the messages themselves are measured.

use std::{fs, os::unix::fs::OpenOptionsExt, path::Path, sync::Arc};

use futures_util::{StreamExt, TryStreamExt, stream};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use rustls_platform_verifier::ConfigVerifierExt;
use serde::{Deserialize, Serialize};

use crate::{
    Options, Result,
    cluster::Node,
    delivery::Reader,
    fixtures::{self, Pair},
    report::{warn, with_progress},
    scenarios::{Scenario, sender::Sender},
    socket::Socket,
};

/// Accounts that begin at once.
const AT_ONCE: usize = 8;

/// A user and an agent of a release, with a conversation between them.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Account {
    /// `name=value` of the refresh cookie. Each run changes it, so a file serves a single run at a
    /// time.
    refresh_cookie: String,
    agent_id: String,
    agent_token: String,
    conversation_id: String,
}

/// Writes the accounts of these pairs, for the eyes of this user alone.
pub fn write_accounts(file: &Path, pairs: &[Pair]) -> Result<()> {
    let accounts: Vec<Account> = pairs.iter().map(Account::of).collect();
    let text = serde_json::to_string_pretty(&accounts)?;
    let beside = file.with_extension("new");
    let mut options = fs::OpenOptions::new();
    let options = options.create(true).truncate(true).write(true).mode(0o600);
    std::io::Write::write_all(&mut options.open(&beside)?, text.as_bytes())?;
    Ok(fs::rename(beside, file)?)
}

/// Measures the release of `options`, and keeps the renewed cookies in the file of accounts. True if
/// all scenarios are sound.
pub async fn run(file: &Path, options: &Options) -> Result<bool> {
    let wanted = match options.scenarios.as_slice() {
        [] => &[Scenario::Hop],
        wanted => wanted,
    };
    if let Some(other) = wanted.iter().find(|one| !one.works_outside()) {
        return Err(format!("{other:?} needs a cluster of its own").into());
    }
    let nodes = nodes(options)?;
    let mut pairs = read_accounts(file)?;
    let outcome = measured(&nodes, file, &mut pairs, wanted, options).await;
    keep_accounts(file, &pairs);
    outcome
}

/// A file that cannot be written, such as a mounted secret, holds spent cookies from now on. The
/// measurement is as good as any.
fn keep_accounts(file: &Path, pairs: &[Pair]) {
    if let Err(failure) = write_accounts(file, pairs) {
        warn(format!(
            "the renewed cookies are lost, {} is spent: {failure}",
            file.display()
        ));
    }
}

async fn measured(
    nodes: &[Node],
    file: &Path,
    pairs: &mut [Pair],
    wanted: &[Scenario],
    options: &Options,
) -> Result<bool> {
    fixtures::renew(&nodes[0], pairs).await?;
    keep_accounts(file, pairs);
    let pairs_begun = stream::iter(pairs.iter_mut()).map(|pair| begin(&nodes[0], pair));
    pairs_begun
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    let mut sound = true;
    for scenario in wanted {
        let running = scenario.run_outside(nodes, pairs, options);
        let report = with_progress(*scenario, running).await?;
        keep_accounts(file, pairs);
        sound &= report.is_sound(options)?;
        report.publish_release(options)?;
    }
    Ok(sound)
}

/// Reads what earlier runs left in the agent's inbox. A first message tells the number from which
/// this run counts.
async fn begin(node: &Node, pair: &mut Pair) -> Result<()> {
    let mut sender = Sender::open(node, pair, 0).await?;
    let first = sender.send(ulid::Ulid::generate()).await?;
    let mut socket = Socket::open(node, pair).await?;
    socket.catch_up(pair).await?;
    socket.close().await;
    pair.reader = Reader::after(pair.reader.cursor.take(), first.seq);
    Ok(())
}

fn nodes(options: &Options) -> Result<Vec<Node>> {
    let mut config = match &options.ca {
        None => ClientConfig::with_platform_verifier()?,
        Some(file) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_file(file)?)?;
            ClientConfig::builder()
                .with_root_certificates(roots)
                .with_no_client_auth()
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let config = Arc::new(config);
    let urls = options.base_url.iter();
    urls.map(|url| Node::remote(url, config.clone())).collect()
}

fn read_accounts(file: &Path) -> Result<Vec<Pair>> {
    let text = fs::read_to_string(file)
        .map_err(|error| format!("no accounts in {} ({error})", file.display()))?;
    let accounts: Vec<Account> = serde_json::from_str(&text)
        .map_err(|error| format!("the accounts of {} are malformed: {error}", file.display()))?;
    if accounts.is_empty() {
        return Err(format!("no accounts in {}", file.display()).into());
    }
    Ok(accounts.into_iter().map(Account::pair).collect())
}

impl Account {
    fn of(pair: &Pair) -> Self {
        Account {
            refresh_cookie: pair.cookie.clone(),
            agent_id: pair.agent_id.clone(),
            agent_token: pair.agent_token.clone(),
            conversation_id: pair.conversation_id.clone(),
        }
    }

    fn pair(self) -> Pair {
        Pair::ready(
            self.refresh_cookie,
            self.agent_id,
            self.agent_token,
            self.conversation_id,
        )
    }
}
