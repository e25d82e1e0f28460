//! The cluster's Redis, read to the last byte.

use std::{
    fs::File,
    io::{Read, Write},
    net::TcpStream,
    os::unix::fs::FileExt,
};

use serde_json::Value;

use crate::support::folder;

/// A connection that speaks Redis' protocol.
pub struct Redis(TcpStream);

impl Redis {
    pub fn connect() -> Self {
        let file = std::fs::read(folder().join("cluster.json")).expect("a cluster");
        let file: Value = serde_json::from_slice(&file).expect("JSON");
        let url = file["redis_url"].as_str().expect("an address").to_owned();
        let url = reqwest::Url::parse(&url).expect("a URL");
        let address = (url.host_str().expect("a host"), url.port().expect("a port"));
        let mut redis = Self(TcpStream::connect(address).expect("connected"));
        redis.call(&["AUTH", url.password().expect("a password")]);
        redis
    }

    /// Sends a command and reads its answer: the strings in it, in order.
    pub fn call(&mut self, command: &[&str]) -> Vec<Vec<u8>> {
        let command: Vec<_> = command.iter().map(|part| part.as_bytes()).collect();
        self.raw(&command)
    }

    fn raw(&mut self, command: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut text = format!("*{}\r\n", command.len()).into_bytes();
        for part in command {
            text.extend(format!("${}\r\n", part.len()).bytes());
            text.extend(*part);
            text.extend(b"\r\n");
        }
        self.0.write_all(&text).expect("written");
        let mut strings = Vec::new();
        self.read_into(&mut strings);
        strings
    }

    fn line(&mut self) -> String {
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\r\n") {
            self.0.read_exact(&mut byte).expect("an answer");
            line.push(byte[0]);
        }
        String::from_utf8_lossy(&line[..line.len() - 2]).into_owned()
    }

    fn read_into(&mut self, strings: &mut Vec<Vec<u8>>) {
        let line = self.line();
        let (kind, rest) = line.split_at(1);
        match (kind, rest.parse::<i64>()) {
            ("*", Ok(count)) => (0..count).for_each(|_| self.read_into(strings)),
            ("$", Ok(-1)) => {}
            ("$", Ok(len)) => {
                let mut bytes = vec![0; usize::try_from(len).expect("a length") + 2];
                self.0.read_exact(&mut bytes).expect("a string");
                bytes.truncate(bytes.len() - 2);
                strings.push(bytes);
            }
            ("-", _) => panic!("{rest}"),
            _ => strings.push(rest.as_bytes().to_vec()),
        }
    }

    /// Every key with its value, as Redis would write it to a disk.
    pub fn everything(&mut self) -> Vec<u8> {
        self.call(&["CONFIG", "SET", "rdbcompression", "no"]);
        let keys = self.call(&["KEYS", "*"]);
        let mut all = Vec::new();
        for key in keys {
            all.extend(&key);
            for value in self.raw(&[b"DUMP", &key]) {
                all.extend(value);
            }
        }
        all
    }

    fn pid(&mut self) -> u32 {
        let info = self.call(&["INFO", "server"]).concat();
        let info = String::from_utf8_lossy(&info).into_owned();
        let line = info.lines().find_map(|it| it.strip_prefix("process_id:"));
        line.and_then(|pid| pid.trim().parse().ok()).expect("a pid")
    }

    /// The writable memory of the process: values, buffers of connections, and what was freed and
    /// not overwritten. None where the kernel does not let this process look.
    pub fn memory(&mut self) -> Option<Vec<u8>> {
        let pid = self.pid();
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
        let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
        let mut all = Vec::new();
        for map in maps.lines().filter(|map| map.contains(" rw")) {
            let (from, to) = map.split(' ').next()?.split_once('-')?;
            let from = u64::from_str_radix(from, 16).ok()?;
            let to = u64::from_str_radix(to, 16).ok()?;
            let mut bytes = vec![0; usize::try_from(to - from).ok()?];
            // A guard page is no memory.
            if memory.read_exact_at(&mut bytes, from).is_ok() {
                all.extend(bytes);
            }
        }
        (!all.is_empty()).then_some(all)
    }
}

/// Whether bytes hold a text.
pub fn holds(bytes: &[u8], mark: &str) -> bool {
    bytes.windows(mark.len()).any(|at| at == mark.as_bytes())
}
