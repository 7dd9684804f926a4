//! The promises of long reads.

use prost::Message;

use super::fault::{miss_one_in, whole};
use super::fixture::{Change, Dice, Store, bytes, read, seeds};
use super::limits::SCAN_HEAD_BYTES;
use super::scan::{RangePlan, RangeScan};
use super::stream::{RangeStream, StreamChunk, StreamEnd, StreamRefusal, StreamStep};
use super::tests::{model, random_range, random_store};
use super::{Budget, Progress};
use crate::error::Error;
use crate::request::{KeyRange, KeyValue, Range, RangeResult, SortOrder, SortTarget};

#[derive(Clone, PartialEq, Message)]
struct WireKeyValue {
    #[prost(bytes = "bytes", tag = "1")]
    key: bytes::Bytes,
    #[prost(int64, tag = "2")]
    create_revision: i64,
    #[prost(int64, tag = "3")]
    mod_revision: i64,
    #[prost(int64, tag = "4")]
    version: i64,
    #[prost(bytes = "bytes", tag = "5")]
    value: bytes::Bytes,
    #[prost(int64, tag = "6")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct WireRangeResponse {
    #[prost(message, repeated, tag = "2")]
    kvs: Vec<WireKeyValue>,
}

fn decode(rows: &[u8]) -> Vec<KeyValue> {
    let response = WireRangeResponse::decode(rows).unwrap();
    assert_eq!(response.encode_to_vec(), rows, "rows are encoded as any encoder would");
    let pair = |kv: WireKeyValue| KeyValue {
        key: kv.key,
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        value: kv.value,
        lease: kv.lease,
    };
    response.kvs.into_iter().map(pair).collect()
}

/// What may happen between two steps.
type Between<'b> = &'b mut dyn FnMut(&mut Store);

fn plan(store: &mut Store, asked: &Range, budget: Budget, between: Between<'_>) -> Result<RangePlan, Error> {
    let mut scan = RangeScan::new(&store.snapshot().view(), asked)?;
    loop {
        let snapshot = store.snapshot();
        if whole(|| scan.step(&snapshot.view(), budget))? == Progress::Done {
            return Ok(scan.into_plan());
        }
        between(store);
    }
}

fn rows(store: &mut Store, plan: RangePlan, budget: Budget, between: Between<'_>) -> Result<RangeResult, Error> {
    let RangePlan { row_count, rows_len, more, count, mut rows, .. } = plan;
    let mut message = Vec::new();
    loop {
        between(store);
        let snapshot = store.snapshot();
        if whole(|| rows.step(&snapshot.view(), budget, &mut message))? == Progress::Done {
            break;
        }
    }
    assert_eq!(u64::try_from(message.len()), Ok(rows_len), "the first pass told the exact length");
    let kvs = decode(&message);
    assert_eq!(u64::try_from(kvs.len()), Ok(row_count));
    Ok(RangeResult { kvs, more, count })
}

fn stream(
    store: &mut Store,
    asked: &Range,
    target: usize,
    budget: Budget,
    between: Between<'_>,
) -> Result<Vec<StreamChunk>, StreamRefusal> {
    let mut stream = RangeStream::new(&store.snapshot().view(), asked, target)?;
    let mut chunks = Vec::new();
    loop {
        let snapshot = store.snapshot();
        if let StreamStep::Chunk(chunk) = whole(|| stream.step(&snapshot.view(), budget))? {
            let last = chunk.end.is_some();
            chunks.push(chunk);
            if last {
                return Ok(chunks);
            }
        }
        between(store);
    }
}

fn small(dice: &mut Dice) -> Budget {
    let mut up_to = |bound| usize::try_from(dice.below(bound)).unwrap();
    Budget { keys: up_to(6), bytes: up_to(900) }
}

/// A store changes in any way but compaction.
fn disturb(store: &mut Store, dice: &mut Dice) {
    let key = bytes(&format!("{}{}", ["a", "b", "bb", "c"][usize::try_from(dice.below(4)).unwrap()], dice.below(3)));
    let change = if dice.one_in(2) { Change::Delete(key) } else { Change::Put(key, bytes("later"), 0) };
    store.apply(&[vec![change]]);
}

#[test]
fn a_long_read_sees_one_revision_whatever_is_written_between_its_steps() {
    seeds(60, |seed| {
        let mut dice = Dice::new(seed);
        let mut store = random_store(&mut dice);
        for _ in 0..20 {
            let asked = random_range(&mut dice, &store);
            let expected = model(&store, &asked);
            let revision = store.revision;
            let (budget, noise) = (small(&mut dice), dice.next());
            let mut noise = Dice::new(noise);
            let mut between = |store: &mut Store| {
                if noise.one_in(2) {
                    disturb(store, &mut noise);
                }
            };
            miss_one_in(if dice.one_in(2) { 20 } else { 0 }, dice.next());
            let plan = plan(&mut store, &asked, budget, &mut between).unwrap();
            assert_eq!(plan.revision, revision, "the header shows the revision of the start");
            let found = rows(&mut store, plan, budget, &mut between);
            miss_one_in(0, 0);
            assert_eq!(found, Ok(expected), "{asked:?}");
        }
    });
}

#[test]
fn a_long_read_is_compacted_at_the_first_step_after_the_floor_passed_its_revision() {
    let mut store = Store::new();
    for index in 0..100 {
        store.put(&format!("{index:03}"), "value");
    }
    let asked = read(KeyRange::All);
    let step = Budget { keys: 10, bytes: 1 << 20 };
    let mut steps = 0;
    let mut compact = |store: &mut Store| {
        steps += 1;
        if steps == 3 {
            store.put("x", "");
            store.compact(store.revision, true);
        }
    };
    assert_eq!(plan(&mut store, &asked, step, &mut compact).err(), Some(Error::Compacted));
    assert_eq!(steps, 3);
    // A read at the floor itself goes on.
    let at_floor = Range { revision: store.compacted, ..asked };
    let mut nothing = |_: &mut Store| {};
    let plan = plan(&mut store, &at_floor, step, &mut nothing).unwrap();
    assert_eq!(rows(&mut store, plan, step, &mut nothing).unwrap().count, 101);
}

#[test]
fn an_answer_larger_than_the_head_comes_whole_from_both_passes() {
    let mut store = Store::new();
    let value = "v".repeat(SCAN_HEAD_BYTES / 10);
    for index in 0..25 {
        store.put_leased(&format!("{index:03}"), &value, index % 2);
    }
    store.put("020", "");
    store.put("large", &value.repeat(15));
    let mut nothing = |_: &mut Store| {};
    for asked in [
        read(KeyRange::All),
        read(KeyRange::Point(bytes("large"))),
        Range { limit: 17, ..read(KeyRange::All) },
        Range { limit: 12, min_mod_revision: 7, ..read(KeyRange::All) },
        Range { keys_only: true, ..read(KeyRange::All) },
        Range { limit: 9, order: SortOrder::Descend, ..read(KeyRange::All) },
        Range { target: SortTarget::Value, ..read(KeyRange::All) },
        Range { count_only: true, revision: 20, ..read(KeyRange::All) },
    ] {
        let plan = plan(&mut store, &asked, Budget::default(), &mut nothing).unwrap();
        let found = rows(&mut store, plan, Budget { keys: 4, bytes: 40_000 }, &mut nothing).unwrap();
        assert_eq!(found, model(&store, &asked), "{asked:?}");
    }
}

#[test]
fn a_count_in_the_past_is_right_by_the_history_and_by_the_keys() {
    let mut store = Store::new();
    for index in 0..200 {
        store.put(&format!("{index:03}"), "");
    }
    let mut nothing = |_: &mut Store| {};
    // Close to the newest revision the history is shorter, far from it the keys are.
    for revision in [201, 190, 100, 2] {
        let asked = Range { revision, count_only: true, ..read(KeyRange::FromKey(bytes("050"))) };
        let step = Budget { keys: 3, bytes: 100 };
        let plan = plan(&mut store, &asked, step, &mut nothing).unwrap();
        assert_eq!(plan.count, (revision - 51).max(0));
    }
}

#[test]
fn a_stream_starts_with_ten_rows_doubles_small_chunks_and_halves_large_ones() {
    let mut store = Store::new();
    let wide = "v".repeat(95);
    for index in 0..400 {
        store.put(&format!("{index:03}"), if index < 70 { "" } else { &wide });
    }
    let mut nothing = |_: &mut Store| {};
    let chunks = stream(&mut store, &read(KeyRange::All), 2_000, Budget::default(), &mut nothing).unwrap();
    let counts: Vec<u64> = chunks.iter().map(|chunk| chunk.row_count).collect();
    // 10, 20 and 40 rows are small; the next chunk ends early, above twice the target, and later ones are half of it.
    assert_eq!(counts[..3], [10, 20, 40]);
    assert!(chunks[3].rows.len() > 4_000 && chunks[3].rows.len() < 4_000 + 120);
    assert!(counts[4..counts.len() - 1].iter().all(|count| *count == counts[3] / 2), "{counts:?}");
    assert!(chunks[..chunks.len() - 1].iter().all(|chunk| chunk.end.is_none()), "only the last has a header");
    let end = StreamEnd { revision: 401, more: false, count: 400 };
    assert_eq!(chunks.last().unwrap().end, Some(end));
}

#[test]
fn a_stream_that_a_limit_cuts_counts_the_rest_exactly() {
    let mut store = Store::new();
    for index in 0..40 {
        store.put(&format!("{index:03}"), "");
    }
    let mut nothing = |_: &mut Store| {};
    let mut streamed = |asked: Range| {
        let chunks = stream(&mut store, &asked, 1 << 20, Budget { keys: 7, bytes: 1000 }, &mut nothing).unwrap();
        let counts: Vec<u64> = chunks.iter().map(|chunk| chunk.row_count).collect();
        (counts, chunks.last().unwrap().end.unwrap())
    };
    let end = |more, count| StreamEnd { revision: 41, more, count };
    assert_eq!(streamed(Range { limit: 15, ..read(KeyRange::All) }), (vec![10, 5], end(true, 40)));
    assert_eq!(streamed(Range { limit: 10, ..read(KeyRange::All) }), (vec![10], end(true, 40)));
    assert_eq!(streamed(Range { limit: 40, ..read(KeyRange::All) }), (vec![10, 20, 10], end(false, 40)));
    assert_eq!(streamed(Range { limit: 3, revision: 11, ..read(KeyRange::All) }), (vec![3], end(true, 10)));
    assert_eq!(streamed(Range { count_only: true, limit: 3, ..read(KeyRange::All) }), (vec![0], end(false, 40)));
    assert_eq!(streamed(read(KeyRange::Point(bytes("x")))), (vec![0], end(false, 0)));
}

#[test]
fn a_stream_refuses_sorts_and_filters_and_revisions_as_a_range_does() {
    let store = Store::with(&[("a", "1")]);
    let snapshot = store.snapshot();
    let refusal = |asked: &Range| RangeStream::new(&snapshot.view(), asked, 100).err();
    let all = || read(KeyRange::All);
    assert_eq!(refusal(&Range { order: SortOrder::Descend, ..all() }), Some(StreamRefusal::SortOrder));
    assert_eq!(refusal(&Range { target: SortTarget::Mod, ..all() }), Some(StreamRefusal::SortOrder));
    assert_eq!(refusal(&Range { order: SortOrder::Ascend, ..all() }), None);
    assert_eq!(refusal(&Range { max_create_revision: 1, ..all() }), Some(StreamRefusal::RevisionFilters));
    assert_eq!(refusal(&Range { revision: 3, ..all() }), Some(StreamRefusal::Read(Error::FutureRevision)));
}

#[test]
fn a_stream_returns_the_rows_of_a_range_whatever_happens_between_its_steps() {
    seeds(60, |seed| {
        let mut dice = Dice::new(seed);
        let mut store = random_store(&mut dice);
        for _ in 0..20 {
            let asked = Range { order: SortOrder::None, target: SortTarget::Key, ..random_range(&mut dice, &store) };
            let asked = Range { min_mod_revision: 0, max_mod_revision: 0, ..asked };
            let asked = Range { min_create_revision: 0, max_create_revision: 0, ..asked };
            let expected = model(&store, &asked);
            let (budget, revision) = (small(&mut dice), store.revision);
            let target = usize::try_from(dice.below(600)).unwrap();
            let mut noise = Dice::new(dice.next());
            let mut between = |store: &mut Store| disturb(store, &mut noise);
            miss_one_in(if dice.one_in(2) { 20 } else { 0 }, dice.next());
            let chunks = stream(&mut store, &asked, target, budget, &mut between).unwrap();
            miss_one_in(0, 0);
            let kvs = chunks.iter().flat_map(|chunk| decode(&chunk.rows)).collect();
            let end = chunks.last().unwrap().end.unwrap();
            assert_eq!(RangeResult { kvs, more: end.more, count: end.count }, expected, "{asked:?}");
            assert_eq!(end.revision, revision);
        }
    });
}
