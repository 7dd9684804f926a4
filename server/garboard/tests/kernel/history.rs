//! What the writers know and what the store must therefore hold: every acknowledged write at its revision, every one in
//! doubt wholly or not at all, and nothing else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use garboard_proto::etcdserverpb::{
    HashKvRequest, HashKvResponse, LeaseLeasesRequest, LeaseLeasesResponse, RangeRequest, RangeResponse,
    WatchCreateRequest, WatchRequest, WatchResponse, watch_request::RequestUnion,
};
use garboard_proto::mvccpb::{Event, KeyValue, event::EventType};

use crate::common::client::{CallError, Client, Stream};

/// The key and the end of a range that hold every key.
const ZERO: Bytes = Bytes::from_static(b"\0");

/// What one write does to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Put { key: Bytes, value: Bytes, lease: i64 },
    Delete { key: Bytes },
}

impl Change {
    /// What an event says was done.
    pub fn of(event: &Event) -> Change {
        let kv = event.kv.clone().unwrap_or_default();
        match event.r#type() {
            EventType::Put => Change::Put { key: kv.key, value: kv.value, lease: kv.lease },
            EventType::Delete => Change::Delete { key: kv.key },
        }
    }
}

/// What a write does to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseChange {
    Granted(i64),
    Revoked(i64),
}

/// What a writer was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It is done, at this revision.
    Done(i64),
    /// It is done, at this revision or an earlier one.
    DoneBy(i64),
    /// Nothing: it may be done or not.
    Nothing,
}

/// One write, as its writer knows it.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// What it does to keys, in the order of its events; a write without any has no revision.
    pub changes: Vec<Change>,
    pub lease: Option<LeaseChange>,
    pub told: Told,
}

/// What happened while a server ran.
#[derive(Default)]
pub struct Record {
    /// Each writer's writes, in the order in which it made them.
    pub writers: Vec<Vec<Attempt>>,
    /// Compactions that were asked for, and whether they were acknowledged.
    pub compactions: Vec<(i64, bool)>,
    /// Events that a watch delivered before the end.
    pub seen: Vec<Event>,
    /// The errors that ended the writers, where the server gave them.
    pub errors: Vec<String>,
}

/// What was found about a record.
#[derive(Clone, Copy, Debug, Default)]
pub struct Verified {
    pub acknowledged: u64,
    /// Writes in doubt that are there.
    pub doubtful_there: u64,
    /// Writes in doubt that are not.
    pub doubtful_gone: u64,
    pub events: u64,
}

/// One `HashKV` answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hash {
    revision: i64,
    compacted: i64,
    hash: u32,
}

/// The store as it is known to be.
#[derive(Clone, Debug, Default)]
pub struct Store {
    pub revision: i64,
    pub keys: BTreeMap<Bytes, KeyValue>,
    pub leases: BTreeSet<i64>,
    /// Below it history is compacted.
    compacted: i64,
    hash: Option<Hash>,
    /// The store when it was verified before.
    before: Option<(i64, BTreeMap<Bytes, KeyValue>)>,
}

impl Store {
    /// A store that was never written to.
    pub fn new() -> Store {
        Store { revision: 1, ..Store::default() }
    }

    /// Checks what a server serves against a record of what was done since the last check, and takes that over.
    ///
    /// # Errors
    /// The violation, in words.
    pub fn verify(&mut self, client: &Client, record: &Record) -> Result<Verified, String> {
        let (keys, revision) = self.read_all(client)?;
        let events = read_events(client, self.revision, revision)?;
        let mut verified =
            Verified { events: events.values().map(|events| events.len() as u64).sum(), ..<_>::default() };
        let before = (self.revision, self.keys.clone());
        let Outcome { revoked, granted, maybe_granted } = attribute(&events, record, &mut verified)?;
        check_seen(&events, record, self.revision)?;
        for (revision, events) in &events {
            for event in events {
                self.apply(*revision, event)?;
            }
        }
        self.revision = revision;
        compare(&self.keys, &keys, "now")?;
        self.check_leases(client, &granted, &maybe_granted, &revoked)?;
        self.check_compaction_and_hash(client, record)?;
        self.before = Some(before);
        Ok(verified)
    }

    /// The newest revision known to be compacted.
    pub fn compacted(&self) -> i64 {
        self.compacted
    }

    fn read_all(&self, client: &Client) -> Result<(Vec<KeyValue>, i64), String> {
        let response = range_all(client, 0).map_err(|error| format!("reading all keys: {error:?}"))?;
        let revision = response.header.map_or(0, |header| header.revision);
        match revision >= self.revision {
            true => Ok((response.kvs, revision)),
            false => Err(format!("the store went back from revision {} to {revision}", self.revision)),
        }
    }

    /// Checks an event against the state before it, and applies it.
    fn apply(&mut self, revision: i64, event: &Event) -> Result<(), String> {
        let kv = event.kv.clone().unwrap_or_default();
        let old = self.keys.get(&kv.key);
        match event.r#type() {
            EventType::Put => {
                let created = old.map_or(revision, |old| old.create_revision);
                let version = old.map_or(1, |old| old.version + 1);
                if (kv.create_revision, kv.version) != (created, version) {
                    return Err(format!("{kv:?} at {revision}: created at {created}, version {version} expected"));
                }
                self.keys.insert(kv.key.clone(), kv);
            }
            EventType::Delete => {
                self.keys.remove(&kv.key).ok_or(format!("{:?} is deleted at {revision}, but is not there", kv.key))?;
            }
        }
        Ok(())
    }

    fn check_leases(
        &mut self,
        client: &Client,
        granted: &BTreeSet<i64>,
        maybe_granted: &BTreeSet<i64>,
        revoked: &BTreeMap<i64, bool>,
    ) -> Result<(), String> {
        let response: LeaseLeasesResponse =
            patiently(|| client.call("etcdserverpb.Lease/LeaseLeases", &LeaseLeasesRequest {}))
                .map_err(|error| format!("listing leases: {error:?}"))?;
        let found: BTreeSet<i64> = response.leases.iter().map(|lease| lease.id).collect();
        let known: BTreeSet<i64> = self.leases.union(granted).copied().collect();
        for lease in known.iter().filter(|lease| !revoked.contains_key(lease)) {
            if !found.contains(lease) {
                return Err(format!("lease {lease} was granted and never revoked, but is not there"));
            }
        }
        for (lease, sure) in revoked {
            if *sure && found.contains(lease) {
                return Err(format!("lease {lease} was revoked, but is there"));
            }
        }
        if let Some(lease) = found.iter().find(|lease| !known.contains(lease) && !maybe_granted.contains(lease)) {
            return Err(format!("lease {lease} is there, but nobody asked for it"));
        }
        for kv in self.keys.values().filter(|kv| kv.lease != 0) {
            if !found.contains(&kv.lease) {
                return Err(format!("{:?} is there, but its lease {} is gone", kv.key, kv.lease));
            }
        }
        self.leases = found;
        Ok(())
    }

    /// The compaction floor is one that was asked for, none that was acknowledged is lost, and history hashes to what it
    /// did at the start before.
    fn check_compaction_and_hash(&mut self, client: &Client, record: &Record) -> Result<(), String> {
        let now = hash(client, 0)?;
        let sure = record.compactions.iter().filter(|(_, acknowledged)| *acknowledged).map(|(revision, _)| *revision);
        let least = sure.max().unwrap_or(0).max(self.compacted);
        let asked =
            now.compacted == self.compacted || record.compactions.iter().any(|(asked, _)| *asked == now.compacted);
        if now.revision != self.revision || now.compacted < least || !asked {
            return Err(format!("{now:?}: revision {}, compaction at least at {least} expected", self.revision));
        }
        if let Some(before) = self.hash.filter(|before| before.compacted == now.compacted) {
            let again = hash(client, before.revision)?;
            if again != before {
                return Err(format!("history changed: {again:?}, at the start before {before:?}"));
            }
        }
        self.compacted = now.compacted;
        self.hash = Some(now);
        Ok(())
    }

    /// Checks a read at an older revision: the store as it was when it was verified before.
    ///
    /// # Errors
    /// The violation, in words.
    pub fn verify_history(&self, client: &Client) -> Result<(), String> {
        let Some((revision, keys)) = self.before.as_ref().filter(|(revision, _)| *revision >= self.compacted.max(2))
        else {
            return Ok(());
        };
        let found = range_all(client, *revision).map_err(|error| format!("reading at {revision}: {error:?}"))?;
        compare(keys, &found.kvs, &format!("at revision {revision}"))
    }
}

fn range_all(client: &Client, revision: i64) -> Result<RangeResponse, CallError> {
    patiently(|| client.range(&RangeRequest { key: ZERO, range_end: ZERO, revision, ..Default::default() }))
}

/// A read, again where it failed: a machine that stops the test and the server for a while makes reads time out, and an
/// answer that is wrong is no error.
fn patiently<T>(mut read: impl FnMut() -> Result<T, CallError>) -> Result<T, CallError> {
    for _ in 0..2 {
        if let Ok(answer) = read() {
            return Ok(answer);
        }
    }
    read()
}

fn hash(client: &Client, revision: i64) -> Result<Hash, String> {
    let response: HashKvResponse =
        patiently(|| client.call("etcdserverpb.Maintenance/HashKV", &HashKvRequest { revision }))
            .map_err(|error| format!("hashing at {revision}: {error:?}"))?;
    Ok(Hash { revision: response.hash_revision, compacted: response.compact_revision.max(0), hash: response.hash })
}

/// A watch of every key from a revision on.
pub fn watch(client: &Client, from: i64) -> Result<Stream, CallError> {
    let create = WatchCreateRequest { key: ZERO, range_end: ZERO, start_revision: from, ..Default::default() };
    let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    client.stream("etcdserverpb.Watch/Watch", &request)
}

/// The next events of a watch.
pub fn next_events(stream: &mut Stream) -> Result<Vec<Event>, CallError> {
    let response: WatchResponse = stream.next()?;
    match response.canceled {
        true => Err(CallError::Lost(format!("cancelled: {response:?}"))),
        false => Ok(response.events),
    }
}

/// Every event after one revision, up to another, by revision: each revision has some.
fn read_events(client: &Client, after: i64, to: i64) -> Result<BTreeMap<i64, Vec<Event>>, String> {
    let mut found: BTreeMap<i64, Vec<Event>> = BTreeMap::new();
    if to == after {
        return Ok(found);
    }
    let failed = |error| format!("watching from {}: {error:?}", after + 1);
    let mut stream = watch(client, after + 1).map_err(failed)?;
    while found.last_key_value().is_none_or(|(revision, _)| *revision < to) {
        for event in next_events(&mut stream).map_err(failed)? {
            let revision = event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
            let newest = found.last_key_value().map_or(after, |(revision, _)| *revision);
            if revision != newest && revision != newest + 1 {
                return Err(format!("after the events of revision {newest} come those of {revision}"));
            }
            found.entry(revision).or_default().push(event);
        }
    }
    Ok(found)
}

/// What the writes of a record came to that have to do with leases.
struct Outcome {
    granted: BTreeSet<i64>,
    maybe_granted: BTreeSet<i64>,
    /// Leases that somebody asked to revoke, and whether it is certain that it was done.
    revoked: BTreeMap<i64, bool>,
}

/// Finds for each revision the write that made it. Every acknowledged write has one; a write in doubt has all of its
/// events, or none.
fn attribute(events: &BTreeMap<i64, Vec<Event>>, record: &Record, verified: &mut Verified) -> Result<Outcome, String> {
    let mut groups: BTreeMap<i64, Vec<Change>> =
        events.iter().map(|(revision, events)| (*revision, events.iter().map(Change::of).collect())).collect();
    for attempt in record.writers.iter().flatten() {
        verified.acknowledged += u64::from(attempt.told != Told::Nothing);
        if let Told::Done(revision) = attempt.told
            && !attempt.changes.is_empty()
        {
            let found = groups.remove(&revision);
            if found.as_ref() != Some(&attempt.changes) {
                let changes = brief(&attempt.changes);
                return Err(format!("{changes} was acknowledged at {revision}; found: {:?}", found.map(|f| brief(&f))));
            }
        }
    }
    let mut outcome = Outcome { granted: <_>::default(), maybe_granted: <_>::default(), revoked: <_>::default() };
    let mut unclear: Vec<(i64, Vec<Change>)> = groups.into_iter().collect();
    for writer in &record.writers {
        attribute_unclear(writer, &mut unclear, &mut outcome, verified)?;
    }
    match unclear.first() {
        None => Ok(outcome),
        Some((revision, changes)) => {
            Err(format!("revision {revision} has {}, which nobody wrote, or not like this", brief(changes)))
        }
    }
}

/// Finds the revisions of one writer's writes that it does not know the revision of; they lie in the order in which it
/// wrote.
fn attribute_unclear(
    writer: &[Attempt],
    unclear: &mut Vec<(i64, Vec<Change>)>,
    outcome: &mut Outcome,
    verified: &mut Verified,
) -> Result<(), String> {
    let mut newest = 0;
    let mut todo: VecDeque<&Attempt> = writer.iter().collect();
    while let Some(attempt) = todo.pop_front() {
        let sure = attempt.told != Told::Nothing;
        let mut done = sure;
        match attempt.told {
            Told::Done(revision) => {
                if !attempt.changes.is_empty() && revision <= newest {
                    return Err(format!("one writer's write at {revision} comes after its write at {newest}"));
                }
                newest = revision.max(newest);
            }
            Told::DoneBy(_) | Told::Nothing if !attempt.changes.is_empty() => {
                let limit = if let Told::DoneBy(revision) = attempt.told { revision } else { i64::MAX };
                let place = unclear.iter().position(|(revision, changes)| {
                    *revision > newest && *revision <= limit && *changes == attempt.changes
                });
                match place {
                    Some(place) => newest = unclear.remove(place).0,
                    None if sure => return Err(format!("{} was acknowledged; it is gone", brief(&attempt.changes))),
                    None => {}
                }
                done = place.is_some();
            }
            Told::DoneBy(_) | Told::Nothing => {}
        }
        if !sure {
            *(if done { &mut verified.doubtful_there } else { &mut verified.doubtful_gone }) += 1;
        }
        match attempt.lease {
            Some(LeaseChange::Granted(id)) if sure => drop(outcome.granted.insert(id)),
            Some(LeaseChange::Granted(id)) => drop(outcome.maybe_granted.insert(id)),
            // Of a lease without keys only its absence tells.
            Some(LeaseChange::Revoked(id)) if done || attempt.changes.is_empty() => {
                outcome.revoked.insert(id, done);
            }
            Some(LeaseChange::Revoked(_)) | None => {}
        }
    }
    Ok(())
}

/// What a watch delivered before the end must be there after it.
fn check_seen(events: &BTreeMap<i64, Vec<Event>>, record: &Record, after: i64) -> Result<(), String> {
    let mut all = events.values().flatten();
    for seen in &record.seen {
        let revision = seen.kv.as_ref().map_or(0, |kv| kv.mod_revision);
        assert!(revision > after, "the watch began behind revision {after}, and delivers {revision}");
        if all.next() != Some(seen) {
            return Err(format!("a watch delivered {}, which is gone", brief(&[Change::of(seen)])));
        }
    }
    Ok(())
}

fn compare(expected: &BTreeMap<Bytes, KeyValue>, found: &[KeyValue], when: &str) -> Result<(), String> {
    if expected.len() == found.len() && expected.values().eq(found) {
        return Ok(());
    }
    let found: BTreeMap<&Bytes, &KeyValue> = found.iter().map(|kv| (&kv.key, kv)).collect();
    let keys: BTreeSet<&Bytes> = expected.keys().chain(found.keys().copied()).collect();
    let differs = keys.into_iter().find(|key| expected.get(*key) != found.get(key).copied());
    let show = |kv: Option<&KeyValue>| kv.map(|kv| (kv.mod_revision, kv.version, kv.create_revision, kv.lease));
    Err(match differs {
        Some(key) => format!(
            "{when} {key:?} is {:?}, {:?} expected (mod revision, version, create revision, lease)",
            show(found.get(key).copied()),
            show(expected.get(key)),
        ),
        None => format!("{when} the keys are not in order"),
    })
}

/// Changes without their values.
fn brief(changes: &[Change]) -> String {
    let one = |change: &Change| match change {
        Change::Put { key, value, lease } => {
            format!("put {} ({} bytes, lease {lease})", String::from_utf8_lossy(key), value.len())
        }
        Change::Delete { key } => format!("delete {}", String::from_utf8_lossy(key)),
    };
    let all: Vec<String> = changes.iter().map(one).collect();
    format!("[{}]", all.join(", "))
}
