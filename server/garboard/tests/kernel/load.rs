//! Writers of every kind at once, each with keys of its own, a compactor and a watch; they end when the server does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use bytes::Bytes;
use garboard_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use garboard_proto::etcdserverpb::request_op::Request as Op;
use garboard_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, LeaseGrantRequest, LeaseGrantResponse, LeaseRevokeRequest,
    LeaseRevokeResponse, PutRequest, PutResponse, RequestOp, ResponseHeader, TxnRequest, TxnResponse,
};
use garboard_proto::mvccpb::Event;

use crate::common::Server;
use crate::common::client::{CallError, Client};
use crate::common::random::Random;
use crate::history::{Attempt, Change, LeaseChange, Record, Store, Told, next_events, watch};

/// Keys of each writer.
const KEYS: u64 = 48;
/// Operations of a transaction at most.
const TXN_OPS_MAX: u64 = 24;
/// Seconds that leases live: none ends by itself while the rounds last.
const LEASE_SECONDS: i64 = 1_000_000;

/// What a load is made of.
#[derive(Clone, Debug)]
pub struct Shape {
    pub writers: usize,
    /// Percent of the values that are tens and hundreds of kilobytes.
    pub large_percent: u64,
    pub compacts: bool,
}

/// A load under way.
pub struct Load {
    acknowledged: Arc<AtomicU64>,
    writers: Vec<JoinHandle<(Vec<Attempt>, CallError)>>,
    watcher: JoinHandle<Vec<Event>>,
    compactor: Option<JoinHandle<(i64, bool)>>,
}

impl Load {
    /// Starts one over a store that has been verified.
    pub fn start(server: &Server, store: &Store, shape: &Shape, round: u64, random: &mut Random) -> Load {
        let acknowledged = Arc::new(AtomicU64::new(0));
        let mut stream = watch(&server.client(), store.revision + 1).expect("a watch");
        let watcher = std::thread::spawn(move || {
            let mut seen = Vec::new();
            while let Ok(events) = next_events(&mut stream) {
                seen.extend(events);
            }
            seen
        });
        let writers = (0..shape.writers).map(|number| {
            let writer = Writer::new(number, round, store, shape, random.fork());
            let (client, acknowledged) = (server.client(), acknowledged.clone());
            std::thread::spawn(move || writer.run(&client, &acknowledged))
        });
        let writers = writers.collect();
        let compactor = (shape.compacts && store.revision > 3).then(|| {
            let client = server.client();
            // Up to what has been verified: what the writers do is looked for event by event afterwards.
            let span = u64::try_from(store.revision - store.compacted()).unwrap();
            let revision = store.revision - i64::try_from(random.below(span / 2 + 1)).unwrap();
            std::thread::spawn(move || (revision, client.compact(revision).is_ok()))
        });
        Load { acknowledged, writers, watcher, compactor }
    }

    /// Writes acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Waits until all have met the server's end.
    pub fn finish(self) -> Record {
        let ended = self.writers.into_iter().map(|writer| writer.join().unwrap());
        let (writers, errors): (Vec<_>, Vec<_>) = ended.unzip();
        Record {
            writers,
            errors: errors.iter().map(CallError::text).filter(|text| !text.is_empty()).map(str::to_owned).collect(),
            compactions: self.compactor.into_iter().map(|compactor| compactor.join().unwrap()).collect(),
            seen: self.watcher.join().unwrap(),
        }
    }
}

/// A request and what it does.
struct Order {
    call: Call,
    changes: Vec<Change>,
    lease: Option<LeaseChange>,
}

enum Call {
    Put(PutRequest),
    Delete(DeleteRangeRequest),
    Txn(TxnRequest),
    Grant(i64),
    Revoke(i64),
}

/// One client. Nobody else writes its keys, and it has one write under way at a time: it knows what each write does.
struct Writer {
    number: usize,
    round: u64,
    random: Random,
    large_percent: u64,
    made: u64,
    /// Its keys that are there: newest revision and lease.
    keys: BTreeMap<Bytes, (i64, i64)>,
    leases: Vec<i64>,
}

impl Writer {
    fn new(number: usize, round: u64, store: &Store, shape: &Shape, random: Random) -> Writer {
        let prefix = format!("w{number:02}/");
        let own =
            store.keys.range(Bytes::from(prefix.clone())..).take_while(|(key, _)| key.starts_with(prefix.as_bytes()));
        let leases = store.leases.iter().copied().filter(|lease| lease_owner(*lease) == number);
        Writer {
            number,
            round,
            random,
            large_percent: shape.large_percent,
            made: 0,
            keys: own.map(|(key, kv)| (key.clone(), (kv.mod_revision, kv.lease))).collect(),
            leases: leases.collect(),
        }
    }

    /// Writes until the server is gone.
    fn run(mut self, client: &Client, acknowledged: &AtomicU64) -> (Vec<Attempt>, CallError) {
        let mut attempts = Vec::new();
        loop {
            let Order { call, changes, lease } = self.order();
            self.made += 1;
            match send(client, &call) {
                Ok(told) => {
                    self.apply(&changes, lease, told);
                    acknowledged.fetch_add(1, Ordering::Relaxed);
                    attempts.push(Attempt { changes, lease, told });
                }
                // Whatever the error, it does not promise that nothing was done.
                Err(error) => {
                    attempts.push(Attempt { changes, lease, told: Told::Nothing });
                    return (attempts, error);
                }
            }
        }
    }

    fn apply(&mut self, changes: &[Change], lease: Option<LeaseChange>, told: Told) {
        let revision = if let Told::Done(revision) = told { revision } else { 0 };
        for change in changes {
            match change {
                Change::Put { key, lease, .. } => drop(self.keys.insert(key.clone(), (revision, *lease))),
                Change::Delete { key } => drop(self.keys.remove(key)),
            }
        }
        match lease {
            Some(LeaseChange::Granted(id)) => self.leases.push(id),
            Some(LeaseChange::Revoked(id)) => self.leases.retain(|lease| *lease != id),
            None => {}
        }
    }

    /// Another write. Its changes are never empty unless it is about a lease.
    fn order(&mut self) -> Order {
        match self.random.below(100) {
            0..45 => self.put(),
            45..72 => self.txn(),
            72..80 => self.compare_and_put(),
            80..88 => self.delete_one(),
            88..92 => self.delete_some(),
            92..96 => self.grant(),
            _ => self.revoke(),
        }
    }

    fn put(&mut self) -> Order {
        let key = self.key();
        let (request, change) = self.put_of(key);
        Order { call: Call::Put(request), changes: vec![change], lease: None }
    }

    fn put_of(&mut self, key: Bytes) -> (PutRequest, Change) {
        let value = self.value(&key);
        let lease = match self.leases.is_empty() || self.random.percent(85) {
            true => 0,
            false => *self.random.pick(&self.leases),
        };
        let request = PutRequest { key: key.clone(), value: value.clone(), lease, ..Default::default() };
        (request, Change::Put { key, value, lease })
    }

    /// Puts and deletes of several keys: all are there afterwards, or none.
    fn txn(&mut self) -> Order {
        let (mut success, mut changes) = (Vec::new(), Vec::new());
        let mut used = std::collections::BTreeSet::new();
        for _ in 0..2 + self.random.below(TXN_OPS_MAX - 1) {
            let key = self.key();
            if !used.insert(key.clone()) {
                continue;
            }
            let op = if self.keys.contains_key(&key) && self.random.percent(25) {
                changes.push(Change::Delete { key: key.clone() });
                Op::RequestDeleteRange(Box::new(DeleteRangeRequest { key, ..Default::default() }))
            } else {
                let (request, change) = self.put_of(key);
                changes.push(change);
                Op::RequestPut(Box::new(request))
            };
            success.push(RequestOp { request: Some(op) });
        }
        Order { call: Call::Txn(TxnRequest { success, ..Default::default() }), changes, lease: None }
    }

    /// A put on condition that the key is as this writer knows it.
    fn compare_and_put(&mut self) -> Order {
        let key = self.key();
        let revision = match self.keys.get(&key) {
            // The revision of what a lease's end did is not known exactly.
            Some((0, _)) => return self.put(),
            Some((revision, _)) => *revision,
            None => 0,
        };
        let compare = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Mod.into(),
            key: key.clone(),
            target_union: Some(TargetUnion::ModRevision(revision)),
            ..Default::default()
        };
        let (request, change) = self.put_of(key);
        let success = vec![RequestOp { request: Some(Op::RequestPut(Box::new(request))) }];
        let txn = TxnRequest { compare: vec![compare], success, ..Default::default() };
        Order { call: Call::Txn(txn), changes: vec![change], lease: None }
    }

    fn delete_one(&mut self) -> Order {
        let keys: Vec<&Bytes> = self.keys.keys().collect();
        if keys.is_empty() {
            return self.put();
        }
        let key = (*self.random.pick(&keys)).clone();
        let request = DeleteRangeRequest { key: key.clone(), ..Default::default() };
        Order { call: Call::Delete(request), changes: vec![Change::Delete { key }], lease: None }
    }

    /// Deletes about a tenth of its keys at once.
    fn delete_some(&mut self) -> Order {
        let from = self.random.below(KEYS);
        let (from, to) = (self.name(from), self.name(from + KEYS / 10));
        let changes: Vec<Change> =
            self.keys.range(from.clone()..to.clone()).map(|(key, _)| Change::Delete { key: key.clone() }).collect();
        if changes.is_empty() {
            return self.put();
        }
        let request = DeleteRangeRequest { key: from, range_end: to, ..Default::default() };
        Order { call: Call::Delete(request), changes, lease: None }
    }

    fn grant(&mut self) -> Order {
        let id = lease_id(self.number, self.round, self.made);
        Order { call: Call::Grant(id), changes: Vec::new(), lease: Some(LeaseChange::Granted(id)) }
    }

    fn revoke(&mut self) -> Order {
        if self.leases.is_empty() {
            return self.grant();
        }
        let id = *self.random.pick(&self.leases);
        let attached = self.keys.iter().filter(|(_, (_, lease))| *lease == id);
        let changes = attached.map(|(key, _)| Change::Delete { key: key.clone() }).collect();
        Order { call: Call::Revoke(id), changes, lease: Some(LeaseChange::Revoked(id)) }
    }

    fn key(&mut self) -> Bytes {
        let number = self.random.below(KEYS);
        self.name(number)
    }

    fn name(&self, number: u64) -> Bytes {
        format!("w{:02}/{number:03}", self.number).into()
    }

    /// A value that no other write has.
    fn value(&mut self, key: &Bytes) -> Bytes {
        let len = match self.random.below(100) {
            large if large < self.large_percent => 20_000 + self.random.below(300_000),
            large if large < 2 * self.large_percent => 3_000 + self.random.below(10_000),
            _ => 10 + self.random.below(900),
        };
        let mut value = format!("{}/{}/{}:", self.round, self.made, String::from_utf8_lossy(key)).into_bytes();
        while (value.len() as u64) < len {
            value.extend_from_slice(&self.random.next().to_le_bytes());
        }
        value.into()
    }
}

/// A lease's number says whose it is.
fn lease_id(owner: usize, round: u64, made: u64) -> i64 {
    i64::try_from((round << 32 | made << 8 | owner as u64) + 256).unwrap()
}

fn lease_owner(id: i64) -> usize {
    usize::try_from(id % 256).unwrap()
}

fn send(client: &Client, call: &Call) -> Result<Told, CallError> {
    let revision = |header: Option<ResponseHeader>| header.expect("a header").revision;
    Ok(match call {
        Call::Put(request) => {
            let response: PutResponse = client.call("etcdserverpb.KV/Put", request)?;
            Told::Done(revision(response.header))
        }
        Call::Delete(request) => {
            let response: DeleteRangeResponse = client.call("etcdserverpb.KV/DeleteRange", request)?;
            assert!(response.deleted > 0, "{request:?} found nothing");
            Told::Done(revision(response.header))
        }
        Call::Txn(request) => {
            let response: TxnResponse = client.call("etcdserverpb.KV/Txn", request)?;
            assert!(response.succeeded, "{:?} is false", request.compare);
            Told::Done(revision(response.header))
        }
        Call::Grant(id) => {
            let request = LeaseGrantRequest { id: *id, ttl: LEASE_SECONDS };
            let response: LeaseGrantResponse = client.call("etcdserverpb.Lease/LeaseGrant", &request)?;
            assert_eq!(response.error, "");
            Told::DoneBy(revision(response.header))
        }
        Call::Revoke(id) => {
            let response: LeaseRevokeResponse =
                client.call("etcdserverpb.Lease/LeaseRevoke", &LeaseRevokeRequest { id: *id })?;
            Told::DoneBy(revision(response.header))
        }
    })
}
