//! Ports for private servers.
//!
//! They lie below 32768, where Linux's ephemeral range begins. Above it an outgoing connection of
//! any program may take a port while its server restarts.

use std::{
    collections::BTreeMap,
    env,
    fs::{self, File},
    io,
    net::{Ipv4Addr, Ipv6Addr, TcpListener},
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use crate::error::{DevError, Result};

/// The ports of this process, each with the lock that keeps other clusters away from it.
static RESERVED: Mutex<BTreeMap<u16, File>> = Mutex::new(BTreeMap::new());

/// The first port of the kernel's ephemeral range.
const FIRST_EPHEMERAL_PORT: u16 = 32768;

/// The first port from `from` on that is free and not in `taken`. No other cluster of this machine gets
/// it before this process ends: a server that restarts finds it free.
///
/// Another program may take the port before the caller does. The caller asks again after "address
/// in use".
pub fn free_port(from: u16, taken: &[u16]) -> Result<u16> {
    pick(from, |port| {
        !taken.contains(&port) && is_free(port) && reserve(port)
    })
    .ok_or_else(|| {
        DevError::new(format!(
            "no free TCP port from {from} to {}",
            FIRST_EPHEMERAL_PORT - 1
        ))
    })
}

/// Whether a server could listen on `port` now. Clients may resolve `localhost` to IPv6, so the
/// IPv6 address must be free too, where the machine has IPv6.
pub fn is_free(port: u16) -> bool {
    let v4 = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let v6 = TcpListener::bind((Ipv6Addr::LOCALHOST, port));
    v4 && !v6.is_err_and(|error| error.kind() == std::io::ErrorKind::AddrInUse)
}

/// False if another cluster has the port. Where no lock can be made, every port is anybody's.
fn reserve(port: u16) -> bool {
    let mut reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
    if reserved.contains_key(&port) {
        return true;
    }
    let Ok(file) = lock_file(port) else {
        return true;
    };
    match file.try_lock() {
        Ok(()) => {
            reserved.insert(port, file);
            true
        }
        Err(fs::TryLockError::WouldBlock) => false,
        Err(fs::TryLockError::Error(_)) => true,
    }
}

/// All clusters of a machine agree on this file.
fn lock_file(port: u16) -> io::Result<File> {
    let folder: PathBuf = env::temp_dir().join("blindpipe-ports");
    fs::create_dir_all(&folder)?;
    let file = folder.join(port.to_string());
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(file)
}

fn pick(from: u16, is_free: impl Fn(u16) -> bool) -> Option<u16> {
    (from..FIRST_EPHEMERAL_PORT).find(|port| is_free(*port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_ports_are_passed_over() {
        assert_eq!(pick(15432, |port| port > 15434), Some(15435));
        assert_eq!(pick(32767, |_| true), Some(32767));
        assert_eq!(pick(32768, |_| true), None);
        assert_eq!(pick(15432, |_| false), None);
    }

    #[test]
    fn a_port_with_a_listener_is_not_free() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(!is_free(port));
    }

    #[test]
    fn a_port_of_another_cluster_is_left_to_it() {
        let first = free_port(22000, &[]).unwrap();
        let other = lock_file(first + 1).unwrap();
        other.lock().unwrap();
        assert!(!reserve(first + 1));
        drop(other);
        assert!(reserve(first + 1) && reserve(first + 1));
    }

    #[test]
    fn reserved_ports_are_not_given_twice() {
        let first = free_port(21000, &[]).unwrap();
        assert_ne!(free_port(21000, &[first]).unwrap(), first);
    }
}
