//! `upload`: files in three steps, beside a plain write, SHA-256 and sync of the same bytes to the
//! same disk by this program; then downloads beside a bare file server.
//!
//! A node without TLS keeps its files in a folder of its own, which goes at the end. It has the
//! machine's cores as worker threads, as the threads of the floor have. A stream is a file at a
//! time; streams are of different agents.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use futures_util::future::try_join_all;
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::{net::TcpStream, task::spawn_blocking};

use crate::{
    Options, Result, baseline,
    cluster::{Cluster, Node},
    cpu::{self, Used, Watch},
    delivery::Faults,
    fixtures::Pair,
    http::{Link, post, request},
    plain::{Plain, dial, free_port},
    report::{Goal, Ratio, Report, say},
    stats::median,
};

/// The numbers of streams at once.
const STREAMS: [usize; 2] = [1, 8];
/// Bytes that the floor writes and hashes at once, as a node does.
const CHUNK_BYTES: usize = 128 * 1024;
const MB: f64 = 1_048_576.0;

/// The findings of a phase.
#[derive(Serialize)]
struct Found {
    what: &'static str,
    streams: usize,
    mb_per_second: f64,
    /// Processor milliseconds per MB of the process that does the work.
    cpu_per_mb: f64,
    cpu: Used,
}

struct Stage<'a> {
    node: Node,
    /// The folder of everything that this scenario writes.
    folder: PathBuf,
    agents: Vec<&'a Pair>,
    bytes: Arc<Vec<u8>>,
    sha256: String,
}

/// Runs the scenario.
pub async fn run(cluster: &Cluster, pairs: &mut [Pair], options: &Options) -> Result<Report> {
    let folder = fs::canonicalize(&cluster.folder)?.join("upload");
    fs::remove_dir_all(&folder).ok();
    let objects = format!("file://{}", folder.join("objects").display());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let settings = [
        ("OBJECT_STORE_URL", objects.as_str()),
        ("TOKIO_WORKER_THREADS", &cores.to_string()),
    ];
    fs::create_dir_all(folder.join("floor"))?;
    let plain = Plain::start_with(cluster, 1, &settings).await?;
    let max = STREAMS.into_iter().max().unwrap_or(1);
    if pairs.len() < max {
        return Err(format!("{max} streams need as many --pairs").into());
    }
    let bytes = Arc::new(noise(options.megabytes * 1_048_576));
    let stage = Stage {
        node: plain.cluster.nodes[0].clone(),
        agents: pairs.iter().take(max).collect(),
        sha256: base16ct::lower::encode_string(&Sha256::digest(bytes.as_slice())),
        bytes,
        folder,
    };
    let found = stage.rounds(options).await;
    fs::remove_dir_all(&stage.folder).ok();
    Ok(report(&found?, options))
}

impl Stage<'_> {
    /// The phases take turns within each round.
    async fn rounds(&self, options: &Options) -> Result<Vec<Found>> {
        let port = free_port()?;
        let server = baseline::Kind::start_files(port, &self.folder)?;
        fs::write(self.folder.join("file"), self.bytes.as_slice())?;
        dial(port).await?;
        let us = || Watch::alone(Vec::new());
        let (node, bare) = (
            || Watch::alone(vec![self.node.pid]),
            || Watch::alone(vec![server.id()]),
        );
        // The first file warms connections, caches and the token's proof up.
        let mut keys = vec![self.upload(0).await?];
        let mut found = Vec::new();
        for n in 1..=options.rounds {
            say(format!("upload: round {n} of {}", options.rounds));
            for streams in STREAMS {
                let agents = 0..streams;
                let floor = agents.clone().map(|agent| self.floor(agent));
                found.push(self.phase("floor", streams, &us(), floor).await?.0);
                let uploads = agents.clone().map(|agent| self.upload(agent));
                let (phase, new) = self.phase("upload", streams, &node(), uploads).await?;
                found.push(phase);
                keys = new;
                let reads = agents.clone().map(|_| self.bare(port));
                found.push(
                    self.phase("bare file server", streams, &bare(), reads)
                        .await?
                        .0,
                );
                let reads = agents.map(|agent| self.download(agent, &keys[agent]));
                found.push(self.phase("download", streams, &node(), reads).await?.0);
            }
        }
        Ok(found)
    }

    /// Measures streams that run at once.
    async fn phase<T>(
        &self,
        what: &'static str,
        streams: usize,
        watch: &Watch,
        work: impl Iterator<Item = impl Future<Output = Result<T>>>,
    ) -> Result<(Found, Vec<T>)> {
        watch.quiet().await;
        let (before, began) = (watch.now(), Instant::now());
        let done = try_join_all(work).await?;
        let seconds = began.elapsed().as_secs_f64();
        let cpu = watch.now().since(&before);
        let mb = (streams * self.bytes.len()) as f64 / MB;
        // The floor runs in this program.
        let own = cpu.nodes.first().copied().unwrap_or(cpu.client);
        let found = Found {
            what,
            streams,
            mb_per_second: mb / seconds,
            cpu_per_mb: own * 1000.0 / mb,
            cpu,
        };
        Ok((found, done))
    }

    /// Writes, hashes and syncs a file as durably as a node does.
    async fn floor(&self, n: usize) -> Result<()> {
        let (bytes, folder) = (self.bytes.clone(), self.folder.join("floor"));
        let hash = spawn_blocking(move || write_synced(&bytes, &folder, n)).await??;
        match hash == self.sha256 {
            true => Ok(()),
            false => Err("the floor hashes wrongly".into()),
        }
    }

    /// Requests, writes and confirms a file of an agent; returns its key.
    async fn upload(&self, n: usize) -> Result<String> {
        let agent = self.agents[n];
        let bearer = format!("Bearer {}", agent.agent_token);
        let headers = [("authorization", bearer.as_str())];
        let mut link = self.node.link().await?;
        let body = json!({
            "filename": "load", "content_type": "application/octet-stream", "size": self.bytes.len(),
            "conversation_id": agent.conversation_id,
        });
        let path = format!("/agents/{}/files", agent.agent_id);
        let (host, from) = (&self.node.address, &agent.address);
        let asked = post(host, &path, from, &headers, &body.to_string());
        let upload = data(link.ask(&asked).await?, 201)?;
        let id = upload["upload_id"].as_str().ok_or("no upload")?;
        let length = self.bytes.len().to_string();
        let headers_of_put = [headers[0], ("content-length", length.as_str())];
        let path = format!("{path}/{id}/upload");
        let head = request("PUT", host, &path, from, &headers_of_put, None);
        data(link.send(&head, &self.bytes).await?, 200)?;
        let body = json!({ "upload_id": id, "sha256": self.sha256 });
        let confirm = post(host, "/files/confirm", from, &headers, &body.to_string());
        let file = data(link.ask(&confirm).await?, 200)?;
        Ok(file["object_key"].as_str().ok_or("no key")?.to_owned())
    }

    async fn download(&self, n: usize, key: &str) -> Result<()> {
        let agent = self.agents[n];
        let bearer = format!("Bearer {}", agent.agent_token);
        let headers = [("authorization", bearer.as_str())];
        let path = format!("/objects/{key}");
        let get = request(
            "GET",
            &self.node.address,
            &path,
            &agent.address,
            &headers,
            None,
        );
        let mut link = self.node.link().await?;
        self.must_be_whole(link.drain(&get).await?)
    }

    async fn bare(&self, port: u16) -> Result<()> {
        let mut link = Link::over(TcpStream::connect(("127.0.0.1", port)).await?);
        let get = b"GET /file HTTP/1.1\r\nhost: x\r\n\r\n";
        self.must_be_whole(link.drain(get).await?)
    }

    fn must_be_whole(&self, answer: (u16, usize)) -> Result<()> {
        match answer == (200, self.bytes.len()) {
            true => Ok(()),
            false => Err(format!("{answer:?} where the whole file was due").into()),
        }
    }
}

fn data(answer: crate::http::Answer, status: u16) -> Result<Value> {
    let mut body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    if answer.status != status {
        return Err(format!("{} where {status} was due: {body}", answer.status).into());
    }
    Ok(body["data"].take())
}

/// Writes and hashes in chunks, syncs the file, renames it and syncs its folder. Returns the hash.
fn write_synced(bytes: &[u8], folder: &Path, n: usize) -> Result<String> {
    let (staged, whole) = (folder.join(format!("{n}.new")), folder.join(n.to_string()));
    let (mut file, mut hash) = (File::create(&staged)?, Sha256::new());
    for chunk in bytes.chunks(CHUNK_BYTES) {
        file.write_all(chunk)?;
        hash.update(chunk);
    }
    file.sync_all()?;
    fs::rename(&staged, &whole)?;
    File::open(folder)?.sync_all()?;
    Ok(base16ct::lower::encode_string(&hash.finalize()))
}

/// Bytes that no file system compresses.
fn noise(n: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(n + 8);
    while bytes.len() < n {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(n);
    bytes
}

fn report(found: &[Found], options: &Options) -> Report {
    let of = |what: &str, streams: usize, number: &dyn Fn(&Found) -> f64| {
        let phases = found.iter();
        let phases = phases.filter(|found| found.what == what && found.streams == streams);
        median(phases.map(number))
    };
    let speed = |what, streams| of(what, streams, &|found| found.mb_per_second);
    let cpu = |what, streams| of(what, streams, &|found| found.cpu_per_mb);
    let heading = ["", "streams", "MB/s", "CPU ms per MB"].map(str::to_owned);
    let mut table = vec![heading.into()];
    for what in ["floor", "upload", "bare file server", "download"] {
        for streams in STREAMS {
            table.push(vec![
                what.to_owned(),
                streams.to_string(),
                format!("{:.0}", speed(what, streams)),
                format!("{:.2}", cpu(what, streams)),
            ]);
        }
    }
    let [one, many] = STREAMS;
    let ratio = |what, value, goal| Ratio { what, value, goal };
    let bar = Goal::AtLeast(0.7, 0.9);
    let ratios = vec![
        ratio(
            "upload, a stream / write, hash and sync",
            speed("upload", one) / speed("floor", one),
            bar,
        ),
        ratio(
            "upload, 8 streams / write, hash and sync",
            speed("upload", many) / speed("floor", many),
            bar,
        ),
        ratio(
            "upload, a stream: CPU per MB / write, hash and sync",
            cpu("upload", one) / cpu("floor", one),
            Goal::None,
        ),
        ratio(
            "download, a stream / bare file server",
            speed("download", one) / speed("bare file server", one),
            Goal::None,
        ),
        ratio(
            "download, 8 streams / bare file server",
            speed("download", many) / speed("bare file server", many),
            Goal::None,
        ),
        ratio(
            "download, a stream: CPU per MB / bare file server",
            cpu("download", one) / cpu("bare file server", one),
            Goal::None,
        ),
    ];
    let mut notes = vec![format!(
        "Medians of the rounds, files of {} MB. CPU is that of the node, of the bare file server, or of the threads of the \
         floor. An upload is request, PUT and confirmation.",
        options.megabytes
    )];
    let disturbance = found.iter().map(|found| found.cpu.others_percent());
    notes.extend(cpu::remark(disturbance.fold(0.0, f64::max)));
    Report {
        scenario: "upload",
        tables: vec![table],
        ratios,
        notes,
        details: json!({ "megabytes": options.megabytes, "phases": found }),
        faults: Faults::default(),
        checked: 0,
        p99_ms: None,
    }
}
