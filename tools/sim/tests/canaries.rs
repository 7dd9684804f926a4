//! Each deliberate bug is caught by the simulator, and without one it is quiet.
//!
//! `CANARY_SEEDS=n` sets how many seeds each may take.

use std::time::Instant;

use bytes::Bytes;
use garboard_replica::canary::{self as replica, Canary as Replica};
use garboard_replica::envelope::{Request, Response};
use garboard_replica::request::{Command, Put};
use garboard_sim::node::Node;
use garboard_sim::{Options, run_seed};
use garboard_storage::canary::{self as storage, Canary as Storage};
use garboard_wal::canary::{self as wal, Canary as Wal};

/// The first seed at which something is noticed: how many it took, and what was noticed.
fn first_violation(seeds: u64, members: usize) -> Option<(u64, String)> {
    let options = Options { members: Some(members), ..Options::default() };
    (0..seeds).find_map(|seed| {
        let violation = run_seed(seed, &options).violation?;
        Some((seed + 1, violation.to_string()))
    })
}

fn seeds() -> u64 {
    std::env::var("CANARY_SEEDS").map_or(400, |value| value.parse().expect("a number"))
}

#[expect(clippy::disallowed_methods, reason = "how long it took is printed, and decides nothing")]
fn assert_caught(name: &str, members: usize) {
    let started = Instant::now();
    let (count, what) = first_violation(seeds(), members).unwrap_or_else(|| panic!("{name} is not caught"));
    let took = started.elapsed().as_secs_f64();
    let what: String = what.replace('\n', " ").chars().take(400).collect();
    println!("{name}: caught after {count} seeds of {members} members, {took:.2} s: {what}");
}

/// One test for each bug, named after it.
macro_rules! caught {
    ($members:literal, $module:ident, $canary:ident: $($name:ident => $bug:ident,)*) => {
        $(#[test]
        fn $name() {
            let _planted = $module::plant($canary::$bug);
            assert_caught(stringify!($bug), $members);
        })*
    };
}

caught! { 1, replica, Replica:
    an_ack_before_the_sync => AckBeforeSync,
    apply_above_durable => ApplyAboveDurable,
    a_saved_index_that_trails => SavedIndexBehind,
    a_log_forgotten_early => LogForgottenEarly,
    an_event_twice => TxnEventTwice,
    a_compacted_read_in_a_txn => CompactedReadInTxn,
    a_renewal_that_is_lost => LeaseRenewalLost,
    progress_ahead_of_events => ProgressAhead,
    events_lost_under_a_starved_stream => StarvedEventsLost,
    a_watch_of_a_future_revision_too_early => FutureWatchEarly,
    a_compacted_watch_that_skips => CompactedWatchSkips,
}

caught! { 1, storage, Storage:
    a_free_map_in_place => FreeMapInPlace,
    a_page_reused_under_a_reader => PinsIgnored,
    a_page_reused_before_its_checkpoint => ReusedBeforeCheckpoint,
    a_tombstone_lost_at_the_floor => FloorTombstoneLost,
    a_revision_that_falls => RevisionFromRecords,
}

caught! { 1, wal, Wal:
    an_ack_out_of_order => AcknowledgedOutOfOrder,
    a_claim_of_too_much => DurableClaimedEarly,
    a_segment_reused_early => SegmentReusedEarly,
    a_torn_batch_accepted => TornBatchAccepted,
    rot_that_is_cut_away => DurableSequenceIgnored,
    an_epoch_without_a_start => EpochStartMissing,
}

caught! { 3, replica, Replica:
    a_cluster_with_an_ack_before_the_sync => AckBeforeSync,
    a_cluster_that_applies_above_durable => ApplyAboveDurable,
    a_vote_that_is_forgotten => VoteForgotten,
    a_follower_that_acknowledges_early => FollowerAcksEarly,
    a_stale_read_of_a_leader_that_was_replaced => ReadIndexUnproved,
    a_retry_that_takes_effect_again => RetriesForgotten,
    a_new_leader_that_expires_leases_early => NewLeaderExpiresEarly,
    a_snapshot_acknowledged_before_it_is_durable => SnapshotBeforeDurable,
    a_watch_that_goes_on_behind_a_snapshot => RestoredWatchSkips,
    a_watch_that_goes_back_in_time_at_another_member => FutureWatchEarly,
    progress_ahead_of_events_at_a_follower => ProgressAhead,
}

/// The bug shows to readers, too. What counts here is that the members' own checks see it.
#[test]
fn a_state_that_differs_is_seen_by_the_members_checks() {
    let _planted = replica::plant(Replica::StoresDifferently);
    let options = Options { members: Some(3), ..Options::default() };
    let told = |seed: &u64| {
        let violation = run_seed(*seed, &options).violation?.to_string();
        let compared = violation.contains("members that are compared are equal");
        (compared || violation.contains("members that start are equal")).then(|| violation.replace('\n', " "))
    };
    let (seed, what) = (0..seeds()).find_map(|seed| Some((seed, told(&seed)?))).expect("the checks see nothing");
    println!("StoresDifferently: its checks tell after {} seeds of 3 members: {what}", seed + 1);
}

/// The first seed at which a read that is asked for as the member starts misses what was acknowledged before: clients of
/// the simulator wait until the member is ready.
fn first_stale_read(seeds: u64) -> Option<u64> {
    let is_stale = |seed: &u64| {
        let mut node = Node::new(*seed);
        let put = Put {
            key: Bytes::from_static(b"key"),
            value: Bytes::from_static(b"value"),
            lease: 0,
            prev_kv: false,
            ignore_value: false,
            ignore_lease: false,
        };
        let acknowledged = (0..20).map(|_| node.execute(Command::Put(put.clone())).expect("nothing fails").revision);
        let acknowledged = acknowledged.max();
        node.crash();
        assert_eq!(node.call(Request::ReadIndex), Ok(Response::ReadIndex));
        acknowledged > Some(node.reader().revision())
    };
    (0..seeds).find(is_stale).map(|seed| seed + 1)
}

#[test]
fn a_stale_read_after_a_start() {
    let _planted = replica::plant(Replica::StaleReadAfterStart);
    let count = first_stale_read(seeds()).expect("a stale read is caught");
    println!("StaleReadAfterStart: caught after {count} seeds");
}

#[test]
fn it_is_quiet_without_a_bug() {
    assert_eq!(first_violation(seeds() / 10, 3), None);
    assert_eq!((first_violation(seeds() / 4, 1), first_stale_read(seeds() / 4)), (None, None));
}
