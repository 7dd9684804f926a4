//! Watchers that check what they are sent: every event of the round, once, in order, with the key, the value and the
//! revision of its put.

use crate::client::Connection;
use crate::error::BenchError;
use crate::load::Line;
use crate::plan::Watchers;
use crate::proto::watch_request::RequestUnion;
use crate::proto::{Event, WatchCreateRequest, WatchRequest, WatchResponse};
use crate::workload::{OperationError, Stamp, Workload, mix};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use tonic::Streaming;
use tonic::codegen::tokio_stream::Stream;

/// Which puts there were, or which events: two are equal if they are of the same puts at the same revisions, as surely
/// as a hash of 64 bits can tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many.
    pub count: u64,
    hash: u64,
}

impl Tally {
    /// Counts a put in.
    pub fn add(&mut self, index: u64, revision: i64) {
        self.merge(Self { count: 1, hash: mix(index ^ mix(revision.cast_unsigned())) });
    }

    /// Counts both. The order does not matter.
    pub fn merge(&mut self, other: Self) {
        self.count += other.count;
        self.hash = self.hash.wrapping_add(other.hash);
    }
}

/// What one watcher saw: the numbers of the keys that it watched, and its events.
pub type Seen = (Range<u64>, Tally);

/// Checks that every watcher saw what was put.
pub fn compare(endpoint: &str, puts: &HashMap<u64, Tally>, seen: &[Seen]) -> Result<(), BenchError> {
    let mut sums: HashMap<Range<u64>, Tally> = HashMap::new();
    for (keys, events) in seen {
        let expected = *sums.entry(keys.clone()).or_insert_with(|| {
            let mut sum = Tally::default();
            if keys.end - keys.start == 1 {
                sum.merge(puts.get(&keys.start).copied().unwrap_or_default());
            } else {
                puts.iter().filter(|(key, _)| keys.contains(key)).for_each(|(_, tally)| sum.merge(*tally));
            }
            sum
        });
        if expected != *events {
            let what = format!(
                "the watcher of keys {keys:?} got {} events of {} puts, and they are not the same",
                events.count, expected.count
            );
            return Err(BenchError::WrongEvents { endpoint: endpoint.to_owned(), what });
        }
    }
    Ok(())
}

/// What each stream of a thread watches: ranges of key numbers. Streams are dealt to threads in turn.
pub fn streams(watchers: Watchers, thread: u32, threads: u32) -> Vec<Vec<Range<u64>>> {
    let ranges = (0..watchers.ranges).map(|_| std::iter::once(0..watchers.watched_keys).collect());
    let first_keys: Vec<u64> = (0..watchers.keys.into()).collect();
    let keys = first_keys
        .chunks(watchers.keys_per_stream as usize)
        .map(|keys| keys.iter().map(|&key| key..key + 1).collect())
        .collect::<Vec<Vec<_>>>();
    ranges.chain(keys).skip(thread as usize).step_by(threads as usize).collect()
}

/// How many puts of a round each watched range of keys gets.
#[derive(Debug)]
pub struct Expected {
    by_key: HashMap<u64, u64>,
}

impl Expected {
    /// Of a round's operations.
    pub fn new(workload: &Workload, round: u64, total: u64) -> Self {
        let mut by_key = HashMap::new();
        for index in 0..total {
            *by_key.entry(workload.key_number(round, index)).or_default() += 1;
        }
        Self { by_key }
    }

    fn within(&self, keys: &Range<u64>) -> u64 {
        if keys.end - keys.start == 1 {
            return self.by_key.get(&keys.start).copied().unwrap_or_default();
        }
        self.by_key.iter().filter(|(key, _)| keys.contains(key)).map(|(_, count)| count).sum()
    }
}

/// One watch of a stream.
#[derive(Debug)]
struct Watch {
    keys: Range<u64>,
    expected: u64,
    seen: Tally,
    last_revision: i64,
}

/// A stream of watches that the server has confirmed.
#[derive(Debug)]
pub struct WatchStream {
    responses: Streaming<WatchResponse>,
    endpoint: String,
    watches: HashMap<i64, Watch>,
    /// Watches that have not got all their events.
    waiting: usize,
}

/// The requests of a stream, and then an open end, for a closed one would cancel the watches.
struct Requests(VecDeque<WatchRequest>);

impl Stream for Requests {
    type Item = WatchRequest;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<WatchRequest>> {
        self.0.pop_front().map_or(Poll::Pending, |request| Poll::Ready(Some(request)))
    }
}

impl WatchStream {
    /// Watches ranges of keys from now on; returns when the server has confirmed every watch.
    pub async fn open(
        connection: &Connection,
        workload: &Workload,
        ranges: Vec<Range<u64>>,
        expected: &Expected,
        endpoint: String,
    ) -> Result<Self, BenchError> {
        let create = |keys: &Range<u64>| {
            let (key, range_end) = if keys.start == 0 && keys.end > 1 {
                workload.first_keys(keys.end)
            } else {
                workload.one_key(keys.start)
            };
            let create = WatchCreateRequest { key, range_end, start_revision: 0 };
            WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
        };
        let requests = Requests(ranges.iter().map(create).collect());
        let failed = |status| call_failed(&endpoint, &status);
        let mut responses = connection.watch().watch(requests).await.map_err(failed)?.into_inner();
        let mut watches = HashMap::new();
        let mut waiting = 0;
        // The server confirms in the order of the requests.
        for keys in ranges {
            let response = loop {
                match responses.message().await.map_err(failed)? {
                    // Events of a load that still goes on.
                    Some(response) if !response.created && !response.canceled => {}
                    response => break response,
                }
            };
            let Some(response) = response.filter(|response| response.created && !response.canceled) else {
                return Err(call_failed(&endpoint, &tonic::Status::aborted("a watch was not created")));
            };
            let expected = expected.within(&keys);
            waiting += usize::from(expected > 0);
            let watch = Watch { keys, expected, seen: Tally::default(), last_revision: 0 };
            if watches.insert(response.watch_id, watch).is_some() {
                return Err(call_failed(&endpoint, &tonic::Status::aborted("two watches of a stream have one id")));
            }
        }
        Ok(Self { responses, endpoint, watches, waiting })
    }

    /// Receives until every watch has its events of the round.
    pub async fn receive(mut self, line: Arc<Line>, workload: Workload) -> Result<(), BenchError> {
        while self.waiting > 0 {
            let response = self.responses.message().await.map_err(|status| call_failed(&self.endpoint, &status))?;
            let Some(response) = response else {
                return Err(call_failed(&self.endpoint, &tonic::Status::cancelled("the stream ended")));
            };
            if response.canceled {
                return Err(call_failed(&self.endpoint, &tonic::Status::cancelled(response.cancel_reason)));
            }
            let arrived = Instant::now();
            let Some(watch) = self.watches.get_mut(&response.watch_id) else {
                return Err(wrong(
                    &self.endpoint,
                    format!("a response for watch {}, which there is not", response.watch_id),
                ));
            };
            for event in response.events {
                if let Some(stamp) = watch.take(event, &line, &workload).map_err(|what| wrong(&self.endpoint, what))? {
                    line.record_event(stamp, arrived);
                    self.waiting -= usize::from(watch.seen.count == watch.expected);
                }
            }
        }
        line.record_seen(self.watches.into_values().map(|watch| (watch.keys, watch.seen)));
        Ok(())
    }
}

impl Watch {
    /// Checks an event. Nothing if it is not one of this round's.
    fn take(&mut self, event: Event, line: &Line, workload: &Workload) -> Result<Option<Stamp>, String> {
        let Some(kv) = event.kv else { return Err("an event without a key".into()) };
        let Some(stamp) = Stamp::of_value(&kv.value).filter(|stamp| line.owns(*stamp)) else { return Ok(None) };
        let number = workload.key_number(line.round_number(), stamp.index);
        if !self.keys.contains(&number) || !workload.is_key(number, &kv.key) {
            return Err(format!("the watcher of keys {:?} got an event of {:?}", self.keys, kv.key));
        }
        if kv.mod_revision <= self.last_revision {
            return Err(format!("an event of revision {} came after one of {}", kv.mod_revision, self.last_revision));
        }
        if self.seen.count == self.expected {
            return Err(format!("the watcher of keys {:?} got more than {} events", self.keys, self.expected));
        }
        self.last_revision = kv.mod_revision;
        self.seen.add(stamp.index, kv.mod_revision);
        Ok(Some(stamp))
    }
}

fn wrong(endpoint: &str, what: String) -> BenchError {
    BenchError::WrongEvents { endpoint: endpoint.to_owned(), what }
}

fn call_failed(endpoint: &str, status: &tonic::Status) -> BenchError {
    BenchError::Call {
        endpoint: endpoint.to_owned(),
        call: "Watch",
        code: format!("{:?}", status.code()),
        message: status.message().to_owned(),
    }
}

/// A put that failed while watchers wait for its event: the round cannot end as planned.
pub fn put_failed(endpoint: &str, error: &OperationError) -> BenchError {
    let code = match error {
        OperationError::Status(status) => format!("{:?}", status.code()),
        OperationError::WrongAnswer(_) => "a wrong answer".to_owned(),
    };
    BenchError::Call { endpoint: endpoint.to_owned(), call: "Put", code, message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_dealt_to_threads_and_each_key_is_watched_once() {
        let watchers = Watchers { ranges: 2, watched_keys: 50, keys: 25, keys_per_stream: 10 };
        let all: Vec<_> = (0..3).flat_map(|thread| streams(watchers, thread, 3)).collect();
        assert_eq!(all.len(), watchers.stream_count() as usize);
        assert_eq!(all.iter().filter(|stream| stream[0] == (0..50)).count(), 2);
        let mut keys: Vec<u64> =
            all.iter().flatten().filter(|keys| keys.end - keys.start == 1).map(|keys| keys.start).collect();
        keys.sort_unstable();
        assert_eq!(keys, (0..25).collect::<Vec<_>>());
    }

    #[test]
    fn a_watcher_that_saw_another_revision_or_missed_one_is_told() {
        let mut puts: HashMap<u64, Tally> = HashMap::new();
        for (index, key, revision) in [(0, 3, 10), (1, 4, 11), (2, 3, 12)] {
            puts.entry(key).or_default().add(index, revision);
        }
        let seen = |events: &[(u64, i64)]| {
            let mut tally = Tally::default();
            events.iter().for_each(|&(index, revision)| tally.add(index, revision));
            tally
        };
        let whole = [(3..4, seen(&[(2, 12), (0, 10)])), (0..9, seen(&[(0, 10), (1, 11), (2, 12)])), (7..8, seen(&[]))];
        compare("e", &puts, &whole).unwrap();
        for wrong in [seen(&[(0, 10), (2, 13)]), seen(&[(0, 10)])] {
            assert!(matches!(compare("e", &puts, &[(3..4, wrong)]), Err(BenchError::WrongEvents { .. })));
        }
    }
}
