//! Clients that write and read through every member, and watchers that follow, while things happen to the members.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use garboard_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use garboard_proto::etcdserverpb::request_op;
use garboard_proto::etcdserverpb::watch_request::RequestUnion;
use garboard_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse, RequestOp,
    TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest, WatchResponse,
};
use garboard_proto::mvccpb::event::EventType;

use super::common::client::{CallError, Client};
use super::common::random::Random;
use super::history::{Answered, Asked, Change, Operation};
use super::namespaces::Network;

/// What all keys begin with.
pub const PREFIX: &str = "k/";
/// The last write of a run: watchers stop at it.
pub const END_KEY: &str = "k/end";
/// How many keys there are.
const KEYS: u64 = 12;
/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(8);
/// How long a watcher waits for an event before it asks another member.
const WATCH_PATIENCE: Duration = Duration::from_millis(1_500);
/// Between two calls of a client.
const PAUSE: Duration = Duration::from_millis(1);
/// What [`log_only`] has a member log.
const LOGGED_AT_ONCE: usize = 1 << 20;
/// After a call that came to nothing.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(20);

/// What clients share.
pub struct Scene {
    pub network: Arc<Network>,
    /// HOST:PORT of each member.
    pub addresses: Vec<String>,
    pub started: Instant,
    pub operations: Mutex<Vec<Operation>>,
    /// Writes and reads that were answered.
    pub answered: AtomicU64,
    /// Clients stop.
    pub over: AtomicBool,
    /// Watchers stop at the next failure.
    pub abandoned: AtomicBool,
}

impl Scene {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn connect(&self, member: usize) -> Option<Client> {
        Client::tcp(&self.addresses[member]).ok()
    }
}

/// Starts a client that asks one member after the other.
pub fn client(scene: Arc<Scene>, name: usize, mut random: Random) -> JoinHandle<()> {
    std::thread::spawn(move || {
        scene.network.enter(0);
        let mut member = name % scene.addresses.len();
        let mut connection = None;
        let mut number = 0_u64;
        // What it read last of each key, to swap.
        let mut known = vec![0; usize::try_from(KEYS).unwrap()];
        while !scene.over.load(Ordering::Relaxed) {
            if random.percent(3) {
                member = usize::try_from(random.below(scene.addresses.len() as u64)).unwrap();
                connection = None;
            }
            let Some(client) = connection.take().or_else(|| scene.connect(member)) else {
                member = (member + 1) % scene.addresses.len();
                std::thread::sleep(PAUSE_AFTER_FAILURE);
                continue;
            };
            number += 1;
            let asked = choose(&mut random, &known, &format!("{name}-{number}"));
            let began = scene.now();
            let answer = ask(&client, &asked);
            let ended = scene.now();
            note(&mut known, &asked, &answer);
            let answered = match answer {
                Ok(answered) => {
                    scene.answered.fetch_add(1, Ordering::Relaxed);
                    connection = Some(client);
                    std::thread::sleep(PAUSE);
                    answered
                }
                Err(error) => {
                    if matches!(error, CallError::Lost(_)) || random.percent(50) {
                        member = (member + 1) % scene.addresses.len();
                    } else {
                        connection = Some(client);
                    }
                    std::thread::sleep(PAUSE_AFTER_FAILURE);
                    Answered::Unknown
                }
            };
            scene.operations.lock().unwrap().push(Operation { asked, answered, began, ended, member });
        }
    })
}

fn choose(random: &mut Random, known: &[i64], value: &str) -> Asked {
    let at = random.below(KEYS);
    let (key, value) = (format!("{PREFIX}{at}"), value.to_owned());
    match random.below(100) {
        0..=39 => Asked::Put { key, value },
        40..=49 => Asked::Delete { key },
        50..=64 => Asked::Swap { key, modified: known[usize::try_from(at).unwrap()], value },
        65..=92 => Asked::Get { key, serializable: false },
        _ => Asked::Get { key, serializable: true },
    }
}

fn note(known: &mut [i64], asked: &Asked, answer: &Result<Answered, CallError>) {
    let (Asked::Put { key, .. } | Asked::Delete { key } | Asked::Swap { key, .. } | Asked::Get { key, .. }) = asked;
    let at: usize = key[PREFIX.len()..].parse().unwrap();
    match answer {
        Ok(Answered::Put { revision } | Answered::Swap { revision, succeeded: true }) => known[at] = *revision,
        Ok(Answered::Get { found, .. }) => known[at] = found.as_ref().map_or(0, |(_, modified)| *modified),
        Ok(Answered::Delete { .. }) => known[at] = 0,
        _ => {}
    }
}

/// Makes a call.
pub fn ask(client: &Client, asked: &Asked) -> Result<Answered, CallError> {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    match asked {
        Asked::Put { key, value } => {
            let request = PutRequest { key: bytes(key), value: bytes(value), ..Default::default() };
            let response: PutResponse = client.call_within(PATIENCE, "etcdserverpb.KV/Put", &request)?;
            Ok(Answered::Put { revision: response.header.unwrap().revision })
        }
        Asked::Delete { key } => {
            let request = DeleteRangeRequest { key: bytes(key), ..Default::default() };
            let response: DeleteRangeResponse =
                client.call_within(PATIENCE, "etcdserverpb.KV/DeleteRange", &request)?;
            Ok(Answered::Delete { revision: response.header.unwrap().revision, deleted: response.deleted == 1 })
        }
        Asked::Swap { key, modified, value } => {
            let compare = Compare {
                result: CompareResult::Equal.into(),
                target: CompareTarget::Mod.into(),
                key: bytes(key),
                target_union: Some(TargetUnion::ModRevision(*modified)),
                ..Default::default()
            };
            let put = PutRequest { key: bytes(key), value: bytes(value), ..Default::default() };
            let success = vec![RequestOp { request: Some(request_op::Request::RequestPut(Box::new(put))) }];
            let request = TxnRequest { compare: vec![compare], success, failure: Vec::new() };
            let response: TxnResponse = client.call_within(PATIENCE, "etcdserverpb.KV/Txn", &request)?;
            Ok(Answered::Swap { revision: response.header.unwrap().revision, succeeded: response.succeeded })
        }
        Asked::Get { key, serializable } => {
            let request = RangeRequest { key: bytes(key), serializable: *serializable, ..Default::default() };
            let response: RangeResponse = client.call_within(PATIENCE, "etcdserverpb.KV/Range", &request)?;
            let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
            let found = response.kvs.first().map(|kv| (text(&kv.value), kv.mod_revision));
            Ok(Answered::Get { revision: response.header.unwrap().revision, found })
        }
    }
}

/// Has a member log as much as one request may hold, and change nothing: a transaction whose condition never holds. How many
/// bytes that was, if it was done.
pub fn log_only(scene: &Scene, member: usize) -> Option<usize> {
    let key = Bytes::from_static(b"k/never");
    let compare = Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Version.into(),
        key: key.clone(),
        target_union: Some(TargetUnion::Version(i64::MAX)),
        ..Default::default()
    };
    let put = PutRequest { key, value: vec![0; LOGGED_AT_ONCE].into(), ..Default::default() };
    let success = vec![RequestOp { request: Some(request_op::Request::RequestPut(Box::new(put))) }];
    let request = TxnRequest { compare: vec![compare], success, failure: Vec::new() };
    let client = scene.connect(member)?;
    let response: TxnResponse = client.call_within(PATIENCE, "etcdserverpb.KV/Txn", &request).ok()?;
    assert!(!response.succeeded, "a key has no such version");
    Some(LOGGED_AT_ONCE)
}

/// Starts a watcher of everything from revision 2 on, which goes to another member whenever it hears nothing, and ends
/// with what it was sent up to the last write.
pub fn watcher(scene: Arc<Scene>, mut member: usize) -> JoinHandle<Vec<Change>> {
    std::thread::spawn(move || {
        scene.network.enter(0);
        let mut seen: Vec<Change> = Vec::new();
        loop {
            let from = seen.last().map_or(2, |change| change.revision + 1);
            if follow(&scene, member, from, &mut seen) {
                return seen;
            }
            if scene.abandoned.load(Ordering::Relaxed) {
                return seen;
            }
            member = (member + 1) % scene.addresses.len();
            std::thread::sleep(PAUSE_AFTER_FAILURE);
        }
    })
}

/// Watches one member for as long as that brings events. True once the last write has come.
pub fn follow(scene: &Scene, member: usize, from: i64, seen: &mut Vec<Change>) -> bool {
    let Some(client) = scene.connect(member) else { return false };
    let create = WatchCreateRequest {
        key: Bytes::from_static(PREFIX.as_bytes()),
        range_end: Bytes::from_static(b"k0"),
        start_revision: from,
        ..Default::default()
    };
    let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let Ok(mut stream) = client.stream_within(WATCH_PATIENCE, "etcdserverpb.Watch/Watch", &request) else {
        return false;
    };
    while let Ok(response) = stream.next_within::<WatchResponse>(WATCH_PATIENCE) {
        assert!(!response.canceled, "nothing is compacted here: {response:?}");
        for event in response.events {
            let kv = event.kv.unwrap();
            let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
            let value = (event.r#type == i32::from(EventType::Put)).then(|| text(&kv.value));
            seen.push(Change { revision: kv.mod_revision, key: text(&kv.key), value });
        }
        if seen.last().is_some_and(|change| change.key == END_KEY) {
            return true;
        }
    }
    false
}
