//! A name server on loopback that answers whatever a test wants.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
};

use hickory_proto::{
    op::{Message, ResponseCode},
    rr::{
        Name, RData, Record, RecordType,
        rdata::{A, AAAA, CNAME},
    },
};
use tokio::net::UdpSocket;

use super::services::spawn;

/// The addresses of a name, or the name that it stands for.
#[derive(Clone)]
pub enum Records {
    Addresses(Vec<IpAddr>),
    Alias(String),
}

/// The answers to a name: each question for an IPv4 address takes the next, from the start again
/// after the last.
struct Script {
    answers: Vec<Records>,
    asked: usize,
}

/// The server; ends with the test. No answer may be cached.
#[derive(Clone)]
pub struct NameServer {
    pub address: SocketAddr,
    names: Arc<Mutex<HashMap<String, Script>>>,
}

impl NameServer {
    pub async fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        let server = NameServer {
            address: socket.local_addr().expect("an address"),
            names: Arc::default(),
        };
        let names = server.names.clone();
        spawn(async move {
            let mut buffer = [0; 1500];
            while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                let question = Message::from_vec(&buffer[..length]).expect("a question");
                let answer = answer(&question, &names).to_vec().expect("an answer");
                socket.send_to(&answer, from).await.ok();
            }
        });
        server
    }

    /// The addresses of `name` from now on.
    pub fn set(&self, name: &str, addresses: &[&str]) {
        self.script(name, vec![addresses_of(addresses)]);
    }

    /// The name that `name` stands for from now on.
    pub fn alias(&self, name: &str, target: &str) {
        self.script(name, vec![Records::Alias(target.to_owned())]);
    }

    /// Answers that take turns.
    pub fn flip(&self, name: &str, answers: &[&[&str]]) {
        self.script(name, answers.iter().map(|set| addresses_of(set)).collect());
    }

    fn script(&self, name: &str, answers: Vec<Records>) {
        let script = Script { answers, asked: 0 };
        let mut names = self.names.lock().expect("no panic");
        names.insert(format!("{name}."), script);
    }

    /// The number of questions for an IPv4 address of `name`.
    pub fn asked(&self, name: &str) -> usize {
        let names = self.names.lock().expect("no panic");
        names
            .get(&format!("{name}."))
            .map_or(0, |script| script.asked)
    }
}

fn addresses_of(addresses: &[&str]) -> Records {
    Records::Addresses(
        addresses
            .iter()
            .map(|ip| ip.parse().expect("an address"))
            .collect(),
    )
}

fn answer(question: &Message, names: &Mutex<HashMap<String, Script>>) -> Message {
    let query = question.queries[0].clone();
    let mut answer = question.clone().into_response();
    answer.metadata.recursion_available = true;
    let mut names = names.lock().expect("no panic");
    // Capital letters are the resolver's guard against forged answers.
    let name = query.name().to_string().to_lowercase();
    let Some(script) = names.get_mut(&name) else {
        answer.metadata.response_code = ResponseCode::NXDomain;
        return answer;
    };
    let ipv4 = query.query_type() == RecordType::A;
    let records = script.answers[script.asked % script.answers.len()].clone();
    script.asked += usize::from(ipv4);
    match records {
        Records::Alias(target) => {
            let target = Name::from_ascii(format!("{target}.")).expect("a name");
            let data = RData::CNAME(CNAME(target));
            answer.add_answer(Record::from_rdata(query.name().clone(), 0, data));
        }
        Records::Addresses(addresses) => {
            for ip in addresses {
                let data = match ip {
                    IpAddr::V4(ip) if ipv4 => RData::A(A(ip)),
                    IpAddr::V6(ip) if !ipv4 => RData::AAAA(AAAA(ip)),
                    _ => continue,
                };
                answer.add_answer(Record::from_rdata(query.name().clone(), 0, data));
            }
        }
    }
    answer
}
