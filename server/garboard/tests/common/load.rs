//! Writers that run while something happens to the server, and what was acknowledged to them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use super::client::{CallError, Client};
use super::{Server, eventually};

/// What was acknowledged: key → revision and value.
pub type Acknowledged = BTreeMap<String, (i64, String)>;

/// Writers under way; each has one put in flight on a connection of its own, and never writes a key twice.
pub struct Load {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    writers: Vec<JoinHandle<(Acknowledged, CallError)>>,
}

impl Load {
    /// Starts `writers` of them. Keys begin with `name`, values are padded to `value_bytes`.
    pub fn start(server: &Server, name: &str, writers: usize, value_bytes: usize) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let count = Arc::new(AtomicUsize::new(0));
        let writers = (0..writers).map(|writer| {
            let (client, stop, count) = (server.client(), stop.clone(), count.clone());
            let prefix = format!("{name}/{writer}");
            std::thread::spawn(move || write(&client, &prefix, value_bytes, &stop, &count))
        });
        let writers = writers.collect();
        Load { stop, count, writers }
    }

    /// Waits until so many writes are acknowledged.
    pub fn wait_for(&self, acknowledged: usize) {
        eventually("writes are acknowledged", || (self.count.load(Ordering::Relaxed) >= acknowledged).then_some(()));
    }

    /// Waits until every writer has met an error (the server being gone), and gives what was acknowledged.
    pub fn finish(self) -> (Acknowledged, Vec<CallError>) {
        let mut all = Acknowledged::new();
        let mut errors = Vec::new();
        for writer in self.writers {
            let (acknowledged, error) = writer.join().unwrap();
            all.extend(acknowledged);
            errors.push(error);
        }
        (all, errors)
    }

    /// Stops the writers after their current put.
    pub fn stop(self) -> Acknowledged {
        self.stop.store(true, Ordering::Relaxed);
        self.finish().0
    }
}

fn write(
    client: &Client,
    prefix: &str,
    value_bytes: usize,
    stop: &AtomicBool,
    count: &AtomicUsize,
) -> (Acknowledged, CallError) {
    let mut acknowledged = Acknowledged::new();
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("{prefix}/{number:06}");
        let value = format!("{key:=<value_bytes$}");
        match client.put(&key, value.clone()) {
            Ok(revision) => {
                acknowledged.insert(key, (revision, value));
                count.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => return (acknowledged, error),
        }
    }
    (acknowledged, CallError::Lost("stopped".to_owned()))
}

/// Checks that every acknowledged write is there, with the value that was written and the revision it was acknowledged
/// with; gives the store's revision.
pub fn check_all_there(server: &Server, acknowledged: &Acknowledged) -> i64 {
    let client = server.client();
    let (keys, revision) = client.keys().unwrap();
    let found: BTreeMap<&[u8], i64> = keys.iter().map(|kv| (&kv.key[..], kv.mod_revision)).collect();
    for (key, (written, _)) in acknowledged {
        let found = found.get(key.as_bytes());
        assert_eq!(found, Some(written), "{key} was acknowledged with revision {written}; now: {found:?}");
    }
    // The values of a sample: all of them would take the tests minutes on a slow machine.
    for (key, (_, value)) in acknowledged.iter().step_by(1 + acknowledged.len() / 64) {
        assert_eq!(client.get(key).unwrap().unwrap().value, value.as_bytes(), "the value of {key}");
    }
    let newest = acknowledged.values().map(|(revision, _)| *revision).max().unwrap_or(0);
    assert!(revision >= newest, "the store is at revision {revision}, but {newest} was acknowledged");
    revision
}
