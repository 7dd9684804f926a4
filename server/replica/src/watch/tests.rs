//! The promises of watches, one by one.

use core::time::Duration;

use bytes::Bytes;

use super::limits::{EVENT_OVERHEAD_BYTES, STREAM_CONTROL_RESPONSES, STREAM_PROGRESS_REQUESTS};
use super::{CancelReason, CatchUpBudget, StreamFull, StreamId, WatchConfig, WatchCreate, WatchHub, WatchResponse};
use crate::read::fault::whole;
use crate::read::fixture::{Change, Store, bytes, span};
use crate::request::KeyRange;

const INTERVAL: Duration = Duration::from_secs(10);

/// A store with one hub.
pub(super) struct Bench {
    pub(super) store: Store,
    pub(super) hub: WatchHub,
    pub(super) now: Duration,
}

impl Bench {
    pub(super) fn new(config: WatchConfig) -> Self {
        let store = Store::new();
        let hub = WatchHub::new(config, store.revision);
        Self { store, hub, now: Duration::ZERO }
    }

    fn open(&mut self) -> StreamId {
        self.hub.open_stream(self.now, INTERVAL)
    }

    pub(super) fn apply(&mut self, txns: &[Vec<Change>]) {
        if let Some(batch) = self.store.apply(txns) {
            self.hub.handle_events(&batch);
        }
    }

    fn put(&mut self, key: &str, value: &str) {
        self.apply(&[vec![Change::Put(bytes(key), bytes(value), 0)]]);
    }

    fn delete(&mut self, key: &str) {
        self.apply(&[vec![Change::Delete(bytes(key))]]);
    }

    pub(super) fn create(&mut self, stream: StreamId, create: WatchCreate) {
        let snapshot = self.store.snapshot();
        self.hub.create(self.now, stream, create, &snapshot.view()).unwrap();
    }

    fn cancel(&mut self, stream: StreamId, watch_id: i64) {
        let snapshot = self.store.snapshot();
        self.hub.cancel(stream, watch_id, &snapshot.view()).unwrap();
    }

    fn ask_progress(&mut self, stream: StreamId) {
        let snapshot = self.store.snapshot();
        self.hub.request_progress(stream, &snapshot.view());
    }

    fn tick(&mut self, after: Duration) {
        self.now += after;
        self.hub.handle_timeout(self.now);
    }

    pub(super) fn pull(&mut self, stream: StreamId) -> Option<WatchResponse> {
        let snapshot = self.store.snapshot();
        whole(|| self.hub.next_response(stream, &snapshot.view()))
    }

    /// Everything that a stream has, until it has nothing more to do.
    pub(super) fn drain(&mut self, stream: StreamId) -> Vec<WatchResponse> {
        let mut responses = Vec::new();
        loop {
            match self.pull(stream) {
                Some(response) => responses.push(response),
                None if self.hub.poll_ready().is_none() => return responses,
                None => {}
            }
        }
    }

    /// What a stream has, each response in a line of text.
    fn lines(&mut self, stream: StreamId) -> Vec<String> {
        self.drain(stream).iter().map(line).collect()
    }
}

fn line(response: &WatchResponse) -> String {
    let mut words = vec![format!("{}@{}", response.watch_id, response.header_revision)];
    words.extend(response.created.then(|| "created".to_owned()));
    words.extend(response.canceled.then(|| "canceled".to_owned()));
    words.extend(response.cancel_reason.as_ref().map(|reason| format!("{reason:?}")));
    words.extend((response.compact_revision != 0).then(|| format!("compact={}", response.compact_revision)));
    words.extend(response.fragment.then(|| "fragment".to_owned()));
    for event in &response.events {
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        let kv = &event.event().kv;
        let change = if event.event().deleted { "-".to_owned() } else { format!("={}", text(&kv.value)) };
        let previous = event.previous().map_or(String::new(), |previous| format!("<{}", text(&previous.value)));
        words.push(format!("{}{change}{previous}:{}", text(&kv.key), kv.mod_revision));
    }
    words.join(" ")
}

fn defaults() -> WatchConfig {
    WatchConfig::new(1 << 20)
}

pub(super) fn watch(keys: KeyRange) -> WatchCreate {
    WatchCreate {
        watch_id: 0,
        keys,
        start_revision: 0,
        progress_notify: false,
        prev_kv: false,
        fragment: false,
        no_put: false,
        no_delete: false,
    }
}

fn point(key: &str) -> WatchCreate {
    watch(KeyRange::Point(bytes(key)))
}

fn from(create: WatchCreate, start_revision: i64) -> WatchCreate {
    WatchCreate { start_revision, ..create }
}

#[test]
fn an_empty_key_watches_from_the_smallest_key_and_a_zero_end_to_the_end() {
    let keys = |key: &'static [u8], end: &'static [u8]| {
        WatchCreate::watched_keys(Bytes::from_static(key), Bytes::from_static(end))
    };
    assert_eq!(keys(b"", b""), KeyRange::Point(bytes("\0")));
    assert_eq!(keys(b"", b"\0"), KeyRange::FromKey(bytes("\0")));
    assert_eq!(keys(b"", b"b"), span("\0", "b"));
    assert_eq!(keys(b"a", b"\0"), KeyRange::FromKey(bytes("a")));
}

#[test]
fn the_created_response_comes_first_with_the_current_revision_and_events_only_after_it() {
    let mut bench = Bench::new(defaults());
    bench.put("a", "1");
    let stream = bench.open();
    bench.create(stream, from(point("a"), 2));
    bench.put("a", "2");
    bench.create(stream, point("a"));
    bench.put("a", "3");
    let lines = bench.lines(stream);
    assert_eq!(lines[..2], ["0@2 created", "1@3 created"]);
    let mut events = lines[2..].to_vec();
    events.sort();
    assert_eq!(events, ["0@4 a=1:2 a=2:3 a=3:4", "1@4 a=3:4"]);
}

#[test]
fn a_watch_that_cannot_be_made_is_created_and_canceled_with_no_id() {
    let mut bench = Bench::new(defaults());
    let stream = bench.open();
    bench.create(stream, from(point("a"), -1));
    bench.create(stream, watch(span("b", "a")));
    bench.create(stream, watch(span("a", "a")));
    bench.create(stream, WatchCreate { watch_id: 7, ..point("a") });
    bench.create(stream, WatchCreate { watch_id: 7, ..point("b") });
    let snapshot = bench.store.snapshot();
    bench.hub.reject(stream, CancelReason::Denied("no".into()), &snapshot.view()).unwrap();
    let expected = [
        "-1@1 created canceled Compacted",
        "-1@1 created canceled EmptyRange",
        "-1@1 created canceled EmptyRange",
        "7@1 created",
        "-1@1 created canceled DuplicateId",
        "-1@1 created canceled Denied(\"no\")",
    ];
    assert_eq!(bench.lines(stream), expected);
}

#[test]
fn chosen_ids_count_from_zero_and_pass_over_ids_that_were_given() {
    let mut bench = Bench::new(defaults());
    let stream = bench.open();
    for watch_id in [0, 1, 0, 0] {
        bench.create(stream, WatchCreate { watch_id, ..point("a") });
    }
    assert_eq!(bench.lines(stream), ["0@1 created", "1@1 created", "2@1 created", "3@1 created"]);
    let other = bench.open();
    bench.create(other, point("a"));
    assert_eq!(bench.lines(other), ["0@1 created"]);
}

#[test]
fn a_canceled_watcher_sends_nothing_more_and_an_unknown_id_is_met_with_silence() {
    let mut bench = Bench::new(defaults());
    let stream = bench.open();
    bench.create(stream, point("a"));
    bench.put("a", "1");
    bench.cancel(stream, 0);
    bench.cancel(stream, 0);
    bench.cancel(stream, 5);
    bench.put("a", "2");
    assert_eq!(bench.lines(stream), ["0@1 created", "0@2 canceled"]);
    assert_eq!((bench.hub.stats().watchers, bench.hub.stats().pending_bytes), (0, 0));
}

#[test]
fn a_start_below_the_floor_is_created_and_then_canceled_and_one_at_the_floor_is_served() {
    let mut bench = Bench::new(defaults());
    for value in ["1", "2", "3"] {
        bench.put("a", value);
    }
    bench.delete("a");
    bench.store.compact(5, true);
    let stream = bench.open();
    bench.create(stream, from(point("a"), 4));
    assert_eq!(bench.lines(stream), ["0@5 created", "0@0 canceled compact=5"]);
    // The deletion at the floor itself is not missed.
    bench.create(stream, from(point("a"), 5));
    assert_eq!(bench.lines(stream), ["1@5 created", "1@5 a-:5"]);
}

#[test]
fn a_deletion_shows_its_key_and_revision_alone() {
    let mut bench = Bench::new(defaults());
    let stream = bench.open();
    bench.create(stream, watch(KeyRange::All));
    bench.store.put_leased("a", "1", 9);
    bench.hub.handle_restore(2);
    bench.delete("a");
    for response in bench.drain(stream) {
        for event in response.events.iter().filter(|event| event.event().deleted) {
            let kv = &event.event().kv;
            assert_eq!((kv.create_revision, kv.version, kv.lease, kv.value.len()), (0, 0, 0, 0));
            assert_eq!((&kv.key[..], kv.mod_revision), (&b"a"[..], 3));
        }
    }
}

#[test]
fn the_previous_pair_is_the_one_before_the_event_and_none_for_a_creation_or_once_compacted() {
    let mut bench = Bench::new(defaults());
    let stream = bench.open();
    bench.create(stream, WatchCreate { prev_kv: true, ..watch(KeyRange::All) });
    let changes = |bench: &mut Bench| {
        bench.put("a", "1");
        bench.put("a", "2");
        bench.delete("a");
        bench.put("a", "3");
        bench.put("a", "4");
    };
    changes(&mut bench);
    let expected = "a=1:2 a=2<1:3 a-<2:4 a=3:5 a=4<3:6";
    assert_eq!(bench.lines(stream), ["0@1 created".to_owned(), format!("0@6 {expected}")]);
    // The same by the history.
    bench.create(stream, from(WatchCreate { prev_kv: true, ..watch(KeyRange::All) }, 2));
    assert_eq!(bench.lines(stream)[1], format!("1@6 {expected}"));
    // What is below the floor is left out, although the event itself is not.
    bench.store.compact(5, false);
    bench.create(stream, from(WatchCreate { prev_kv: true, ..watch(KeyRange::All) }, 5));
    assert_eq!(bench.lines(stream)[1], "2@6 a=3:5 a=4<3:6");
    bench.store.compact(6, false);
    bench.create(stream, from(WatchCreate { prev_kv: true, ..watch(KeyRange::All) }, 6));
    assert_eq!(bench.lines(stream)[1], "3@6 a=4:6");
}

#[test]
fn the_previous_pair_of_a_key_that_a_transaction_changes_twice_is_from_before_the_transaction() {
    let mut bench = Bench::new(defaults());
    let stream = bench.open();
    bench.create(stream, WatchCreate { prev_kv: true, ..point("a") });
    bench.put("a", "1");
    bench.apply(&[vec![Change::Put(bytes("a"), bytes("2"), 0), Change::Delete(bytes("a"))]]);
    assert_eq!(bench.lines(stream), ["0@1 created", "0@3 a=1:2 a=2<1:3 a-<1:3"]);
}

#[test]
fn filters_leave_events_out_and_nothing_is_sent_when_all_are() {
    let mut bench = Bench::new(defaults());
    let stream = bench.open();
    bench.create(stream, WatchCreate { no_put: true, ..point("a") });
    bench.create(stream, WatchCreate { no_delete: true, ..point("a") });
    bench.create(stream, WatchCreate { no_put: true, no_delete: true, ..point("a") });
    assert_eq!(bench.drain(stream).len(), 3);
    bench.put("a", "1");
    assert_eq!(bench.lines(stream), ["1@2 a=1:2"]);
    bench.delete("a");
    assert_eq!(bench.lines(stream), ["0@3 a-:3"]);
}

/// A transaction that puts `count` keys.
fn wide(count: usize, value: &str) -> Vec<Change> {
    (0..count).map(|index| Change::Put(bytes(&format!("{index:03}")), bytes(value), 0)).collect()
}

#[test]
fn one_revision_is_never_split_over_responses_unless_the_watcher_takes_fragments() {
    let config = WatchConfig { response_bytes: 200, catch_up: CatchUpBudget { records: 3, bytes: 1000 }, ..defaults() };
    let mut bench = Bench::new(config);
    let stream = bench.open();
    bench.create(stream, watch(KeyRange::All));
    bench.apply(&[wide(20, "x"), wide(15, "y")]);
    bench.create(stream, from(watch(KeyRange::All), 2));
    let responses = bench.drain(stream);
    let mut sizes: Vec<(i64, usize)> =
        responses.iter().map(|response| (response.watch_id, response.events.len())).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [(0, 0), (0, 15), (0, 20), (1, 0), (1, 15), (1, 20)]);
}

#[test]
fn fragments_stay_below_the_limit_follow_each_other_and_only_the_last_is_unmarked() {
    let mut bench = Bench::new(WatchConfig { fragment_bytes: 300, ..defaults() });
    let stream = bench.open();
    bench.create(stream, WatchCreate { fragment: true, ..watch(KeyRange::All) });
    bench.create(stream, watch(KeyRange::All));
    bench.drain(stream);
    let long = "v".repeat(400);
    let mut txn = wide(12, "value");
    txn.push(Change::Put(bytes("long"), bytes(&long), 0));
    txn.push(Change::Put(bytes("z"), bytes(""), 0));
    bench.apply(&[txn]);
    let first = bench.pull(stream).unwrap();
    assert!(first.fragment && first.watch_id == 0);
    // Neither another watcher's events nor a reply come between.
    bench.create(stream, point("b"));
    bench.put("000", "again");
    bench.cancel(stream, 0);
    let mut fragments = vec![first];
    while fragments.last().unwrap().fragment {
        fragments.push(bench.pull(stream).unwrap());
    }
    assert!(fragments.iter().all(|fragment| fragment.watch_id == 0 && !fragment.events.is_empty()));
    assert_eq!(fragments.iter().map(|fragment| fragment.events.len()).sum::<usize>(), 14);
    let encoded = |fragment: &WatchResponse| fragment.events.iter().map(|event| event.encoded_len()).sum::<u64>();
    assert!(fragments.iter().all(|fragment| encoded(fragment) < 300 || fragment.events.len() == 1));
    assert!(fragments.len() >= 3 && fragments.len() <= 6, "{}", fragments.len());
    assert_eq!(bench.lines(stream)[..2], ["2@2 created", "0@3 canceled"]);
}

#[test]
fn a_response_with_events_shows_the_current_revision_also_while_more_are_to_follow() {
    let config =
        WatchConfig { response_bytes: 1, catch_up: CatchUpBudget { records: 2, bytes: 1 << 20 }, ..defaults() };
    let mut bench = Bench::new(config);
    for value in ["1", "2", "3"] {
        bench.put("a", value);
    }
    let stream = bench.open();
    bench.create(stream, from(point("a"), 2));
    assert_eq!(bench.lines(stream), ["0@4 created", "0@4 a=1:2", "0@4 a=2:3", "0@4 a=3:4"]);
}

#[test]
fn a_watcher_of_the_future_sees_neither_events_nor_progress_below_its_start() {
    let mut bench = Bench::new(defaults());
    let stream = bench.open();
    bench.create(stream, WatchCreate { progress_notify: true, ..from(point("a"), 4) });
    bench.put("a", "1");
    bench.tick(INTERVAL);
    bench.ask_progress(stream);
    assert_eq!(bench.lines(stream), ["0@1 created"]);
    bench.put("a", "2");
    bench.tick(INTERVAL);
    bench.ask_progress(stream);
    assert_eq!(bench.lines(stream), Vec::<String>::new());
    bench.put("a", "3");
    bench.ask_progress(stream);
    assert_eq!(bench.lines(stream), ["0@4 a=3:4", "-1@4"]);
    bench.tick(INTERVAL);
    bench.tick(INTERVAL);
    assert_eq!(bench.lines(stream), ["0@4"]);
}

#[test]
fn periodic_progress_comes_only_if_nothing_was_sent_in_the_interval_and_the_watcher_is_synced() {
    let mut bench = Bench::new(defaults());
    let stream = bench.open();
    bench.create(stream, WatchCreate { progress_notify: true, ..point("a") });
    bench.create(stream, point("b"));
    bench.drain(stream);
    assert_eq!(bench.hub.poll_timeout(), Some(INTERVAL));
    bench.tick(INTERVAL);
    assert_eq!(bench.lines(stream), ["0@1"]);
    bench.put("a", "1");
    bench.put("b", "1");
    bench.drain(stream);
    bench.tick(INTERVAL);
    assert_eq!(bench.lines(stream), Vec::<String>::new(), "an event was sent");
    bench.tick(INTERVAL);
    assert_eq!(bench.lines(stream), ["0@3"]);
    // Events that are not read yet are as good as sent.
    bench.put("a", "2");
    bench.tick(INTERVAL);
    assert_eq!(bench.lines(stream), ["0@4 a=2:4"]);
    bench.cancel(stream, 0);
    assert_eq!(bench.hub.poll_timeout(), None);
}

#[test]
fn progress_that_is_asked_for_comes_after_every_event_up_to_its_revision() {
    let mut bench = Bench::new(defaults());
    let stream = bench.open();
    bench.create(stream, point("a"));
    bench.create(stream, watch(KeyRange::All));
    bench.drain(stream);
    bench.put("a", "1");
    bench.ask_progress(stream);
    bench.put("a", "2");
    // Each of both watchers gets all that is pending in one response.
    let lines = bench.lines(stream);
    assert_eq!(lines, ["0@3 a=1:2 a=2:3", "1@3 a=1:2 a=2:3", "-1@2"]);
    // The request knows of a revision that the hub does not: progress waits for it.
    let batch = bench.store.put("a", "3");
    bench.ask_progress(stream);
    assert_eq!(bench.lines(stream), Vec::<String>::new());
    bench.hub.handle_events(&batch);
    assert_eq!(bench.lines(stream), ["0@4 a=3:4", "1@4 a=3:4", "-1@4"]);
}

#[test]
fn asking_for_progress_is_met_with_silence_unless_all_watchers_are_synced() {
    let mut bench = Bench::new(defaults());
    let stream = bench.open();
    bench.ask_progress(stream);
    assert_eq!(bench.lines(stream), Vec::<String>::new(), "no watcher");
    bench.put("a", "1");
    bench.create(stream, point("b"));
    bench.create(stream, from(point("a"), 2));
    bench.ask_progress(stream);
    assert_eq!(bench.lines(stream), ["0@2 created", "1@2 created", "1@2 a=1:2"], "a watcher lagged");
    bench.ask_progress(stream);
    assert_eq!(bench.lines(stream), ["-1@2"]);
    bench.create(stream, from(point("a"), 9));
    bench.ask_progress(stream);
    assert_eq!(bench.lines(stream), ["2@2 created"], "a watcher of the future");
    bench.cancel(stream, 2);
    assert_eq!(bench.lines(stream), ["2@2 canceled"]);
    for _ in 0..STREAM_PROGRESS_REQUESTS + 5 {
        bench.ask_progress(stream);
    }
    assert_eq!(bench.lines(stream).len(), STREAM_PROGRESS_REQUESTS, "a full stream drops further requests");
}

#[test]
fn a_watcher_behind_the_floor_blocks_progress_and_keeps_its_id_until_the_client_cancels_it() {
    let mut bench = Bench::new(defaults());
    bench.put("a", "1");
    bench.put("a", "2");
    bench.store.compact(3, true);
    let stream = bench.open();
    bench.create(stream, WatchCreate { watch_id: 5, ..from(point("a"), 2) });
    assert_eq!(bench.lines(stream), ["5@3 created", "5@0 canceled compact=3"]);
    bench.create(stream, WatchCreate { watch_id: 5, ..point("a") });
    bench.create(stream, point("b"));
    bench.ask_progress(stream);
    assert_eq!(bench.lines(stream), ["-1@3 created canceled DuplicateId", "0@3 created"]);
    bench.cancel(stream, 5);
    bench.ask_progress(stream);
    assert_eq!(bench.lines(stream), ["5@3 canceled", "-1@3"]);
}

#[test]
fn after_a_restored_snapshot_watchers_see_what_lies_between_once_and_in_order() {
    let mut bench = Bench::new(defaults());
    let stream = bench.open();
    bench.create(stream, watch(KeyRange::All));
    bench.create(stream, from(point("a"), 5));
    bench.put("a", "1");
    for value in ["2", "3", "4"] {
        bench.store.put("a", value);
    }
    bench.hub.handle_restore(bench.store.revision);
    let batch = bench.store.put("a", "5");
    bench.hub.handle_events(&batch);
    bench.hub.handle_events(&batch);
    let lines = bench.lines(stream);
    assert_eq!(lines[..2], ["0@1 created", "1@1 created"]);
    let of = |prefix: &str| -> Vec<String> {
        let events = lines[2..].iter().filter(|line| line.starts_with(prefix));
        events.flat_map(|line| line.split(' ').skip(1)).map(str::to_owned).collect()
    };
    assert_eq!(of("0@"), ["a=1:2", "a=2:3", "a=3:4", "a=4:5", "a=5:6"]);
    assert_eq!(of("1@"), ["a=4:5", "a=5:6"]);
}

#[test]
fn a_stream_that_never_reads_keeps_memory_within_its_bounds_and_loses_nothing() {
    let config =
        WatchConfig { stream_pending_bytes: 5_000, hub_recent_bytes: 20_000, hub_history_bytes: 10_000, ..defaults() };
    let mut bench = Bench::new(config);
    let (asleep, awake) = (bench.open(), bench.open());
    for _ in 0..10 {
        bench.create(asleep, watch(KeyRange::All));
    }
    bench.create(awake, point("k007"));
    let mut seen = Vec::new();
    for round in 0..2_000 {
        bench.put(&format!("k{:03}", round % 100), &"v".repeat(100));
        let stats = bench.hub.stats();
        assert!(stats.pending_bytes <= 5_000 + 200, "{stats:?}");
        assert!(stats.held_bytes <= 20_000 + 10_000, "{stats:?}");
        seen.extend(bench.drain(awake).into_iter().flat_map(|response| response.events));
    }
    assert_eq!(seen.len(), 20, "a reader is not held up by one that does not read");
    let mut counts = [0; 10];
    let mut last = [0; 10];
    for response in bench.drain(asleep) {
        let watcher = usize::try_from(response.watch_id).unwrap();
        for event in response.events {
            counts[watcher] += 1;
            assert!(event.event().kv.mod_revision > last[watcher]);
            last[watcher] = event.event().kv.mod_revision;
        }
    }
    assert_eq!(counts, [2_000; 10]);
    bench.hub.close_stream(asleep);
    bench.hub.close_stream(awake);
    let stats = bench.hub.stats();
    assert_eq!((stats.streams, stats.watchers, stats.pending_bytes), (0, 0, 0));
}

#[test]
fn a_revision_larger_than_a_streams_bound_is_sent_alone_and_whole() {
    let config =
        WatchConfig { stream_pending_bytes: 500, hub_recent_bytes: 1_000, hub_history_bytes: 600, ..defaults() };
    let mut bench = Bench::new(config);
    let stream = bench.open();
    bench.create(stream, watch(KeyRange::All));
    bench.create(stream, watch(span("0", "1")));
    bench.apply(&[wide(50, "x")]);
    bench.apply(&[wide(3, "x"), wide(60, "y")]);
    let mut counts: Vec<(i64, usize)> = Vec::new();
    for response in bench.drain(stream).iter().filter(|response| !response.events.is_empty()) {
        counts.push((response.watch_id, response.events.len()));
    }
    let total = |id| counts.iter().filter(|(watch_id, _)| *watch_id == id).map(|(_, count)| count).sum::<usize>();
    assert_eq!((total(0), total(1)), (113, 113), "{counts:?}");
    assert!(counts.iter().all(|(_, count)| [50, 53, 63, 60, 3, 113].contains(count)), "{counts:?}");
}

#[test]
fn a_busy_watcher_holds_up_neither_other_watchers_nor_those_that_catch_up() {
    let mut bench = Bench::new(WatchConfig { response_bytes: EVENT_OVERHEAD_BYTES, ..defaults() });
    for index in 0..50 {
        bench.put(&format!("old{index}"), "");
    }
    let stream = bench.open();
    bench.create(stream, point("busy"));
    bench.create(stream, point("calm"));
    bench.drain(stream);
    for _ in 0..100 {
        bench.put("busy", "x");
    }
    bench.put("calm", "x");
    bench.create(stream, from(watch(span("old", "olf")), 2));
    let order: Vec<i64> = bench.drain(stream).iter().map(|response| response.watch_id).collect();
    let first = |id| order.iter().position(|other| *other == id).unwrap();
    assert!(first(1) <= 3, "{order:?}");
    let caught_up = order.iter().enumerate().filter(|(_, id)| **id == 2).nth(1).unwrap().0;
    assert!(caught_up <= 12, "{order:?}");
}

#[test]
fn a_stream_is_named_ready_once_for_whatever_it_has_until_it_was_read() {
    let mut bench = Bench::new(defaults());
    let (first, second) = (bench.open(), bench.open());
    assert_eq!(bench.hub.poll_ready(), None);
    bench.create(first, point("a"));
    bench.create(second, point("b"));
    bench.create(first, point("b"));
    assert_eq!(
        [bench.hub.poll_ready(), bench.hub.poll_ready(), bench.hub.poll_ready()],
        [Some(first), Some(second), None]
    );
    bench.drain(first);
    bench.put("b", "1");
    assert_eq!([bench.hub.poll_ready(), bench.hub.poll_ready()], [Some(first), None], "the second was not read");
    bench.hub.close_stream(first);
    bench.drain(second);
    bench.put("b", "2");
    assert_eq!([bench.hub.poll_ready(), bench.hub.poll_ready()], [Some(second), None]);
    assert_eq!(bench.pull(first), None);
}

#[test]
fn a_client_that_asks_and_does_not_read_is_refused_at_the_bound() {
    let mut bench = Bench::new(defaults());
    let stream = bench.open();
    for _ in 0..STREAM_CONTROL_RESPONSES {
        assert!(bench.hub.accepts_requests(stream));
        bench.create(stream, point("a"));
    }
    assert!(!bench.hub.accepts_requests(stream));
    let snapshot = bench.store.snapshot();
    assert_eq!(bench.hub.create(bench.now, stream, point("a"), &snapshot.view()), Err(StreamFull));
    assert_eq!(bench.hub.cancel(stream, 0, &snapshot.view()), Err(StreamFull));
    assert_eq!(bench.hub.stats().watchers, STREAM_CONTROL_RESPONSES);
    bench.pull(stream);
    assert!(bench.hub.accepts_requests(stream));
}
