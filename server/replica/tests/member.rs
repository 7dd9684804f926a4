//! What a member promises, one promise at a time.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use bytes::Bytes;
use garboard_replica::auto_compaction::AutoCompaction;
use garboard_replica::envelope::{Envelope, Request, Response, Ticket};
use garboard_replica::request::{Alarm, AlarmKind, Command, DeleteRange, KeyRange, Outcome, Put};
use garboard_replica::{Error, Fatal, MemberConfig, limits};
use garboard_sim::node::{Node, Stop, context, read};
use garboard_simdisk::{Fault, Operation};

fn key(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(name: &str, value: &str) -> Command {
    put_with(name, value, 0)
}

fn put_with(name: &str, value: &str, lease: i64) -> Command {
    Command::Put(Put {
        key: key(name),
        value: key(value),
        lease,
        prev_kv: false,
        ignore_value: false,
        ignore_lease: false,
    })
}

fn value(sim: &Node, name: &str) -> Option<Vec<u8>> {
    read(&sim.reader(), |view| {
        let Some(version) = view.find(name.as_bytes(), i64::MAX)? else { return Ok(None) };
        let mut value = Vec::new();
        assert!(view.value(version.modified, &mut value)?);
        Ok(Some(value))
    })
}

#[test]
fn a_put_is_answered_once_it_is_durable_applied_and_published() {
    let mut sim = Node::new(1);
    let reply = sim.execute(put("a", "1")).unwrap();
    assert_eq!((reply.revision, reply.outcome), (2, Outcome::Put(None)));
    assert_eq!(value(&sim, "a").as_deref(), Some(&b"1"[..]));
    sim.crash();
    assert_eq!(sim.call(Request::ReadIndex), Ok(Response::ReadIndex));
    assert_eq!(value(&sim, "a").as_deref(), Some(&b"1"[..]));
}

#[test]
fn writes_of_one_call_share_one_entry() {
    let mut sim = Node::new(2);
    sim.execute(put("a", "1")).unwrap();
    let before = sim.member.log().stats().entry_count;
    let tickets = sim.send((0..100).map(|n| Request::Write(put(&format!("k{n}"), "v"))));
    let last = *tickets.last().unwrap();
    assert!(sim.wait(last).is_ok());
    assert_eq!(sim.member.log().stats().entry_count, before + 1);
    assert_eq!(sim.reader().revision(), 102);
}

#[test]
fn a_deletion_reports_what_it_deleted() {
    let mut sim = Node::new(3);
    for name in ["a", "b", "c"] {
        sim.execute(put(name, name)).unwrap();
    }
    let delete = DeleteRange { keys: KeyRange::FromKey(key("b")), prev_kv: true };
    let reply = sim.execute(Command::DeleteRange(delete.clone())).unwrap();
    let Outcome::DeleteRange(2, previous) = reply.outcome else { panic!("{reply:?}") };
    assert_eq!(reply.revision, 5);
    assert_eq!(previous.iter().map(|kv| kv.mod_revision).collect::<Vec<_>>(), [3, 4]);
    let reply = sim.execute(Command::DeleteRange(delete)).unwrap();
    assert_eq!((reply.revision, reply.outcome), (5, Outcome::DeleteRange(0, vec![])), "nothing deleted, no revision");
}

#[test]
fn an_expired_lease_takes_its_keys_with_it_in_one_revision() {
    let mut sim = Node::new(4);
    sim.execute(Command::LeaseGrant { id: 5, ttl_seconds: 10 }).unwrap();
    for name in ["c", "a", "b"] {
        sim.execute(put_with(name, "v", 5)).unwrap();
    }
    sim.execute(put("kept", "v")).unwrap();
    sim.run_until(Duration::from_secs(9));
    assert!(value(&sim, "a").is_some());
    let left = sim.call(Request::LeaseTimeToLive { id: 5 });
    assert!(matches!(left, Ok(Response::LeaseTimeToLive { granted_ttl_seconds: 10, ttl_seconds: 0..=2 })), "{left:?}");
    assert_eq!(sim.call(Request::LeaseKeepAlive { id: 5 }), Ok(Response::LeaseKeepAlive { ttl_seconds: 10 }));
    sim.run_until(Duration::from_secs(18));
    assert!(value(&sim, "a").is_some());
    sim.events.clear();
    sim.run_until(Duration::from_secs(20));
    assert!(value(&sim, "a").is_none() && value(&sim, "kept").is_some());
    let deleted: Vec<_> = sim.events[0].events.iter().map(|event| (event.kv.key.clone(), event.revision.sub)).collect();
    assert_eq!(deleted, [(key("a"), 0), (key("b"), 1), (key("c"), 2)]);
    assert_eq!(sim.events[0].first_revision, sim.events[0].last_revision);
    assert_eq!(sim.call(Request::LeaseKeepAlive { id: 5 }), Ok(Response::LeaseKeepAlive { ttl_seconds: 0 }));
    assert_eq!(sim.execute(put_with("a", "v", 5)), Err(Error::LeaseNotFound));
}

fn big(name: &str) -> Command {
    put(name, &"v".repeat(10_000))
}

#[test]
fn the_process_stops_at_the_first_failed_log_write_and_answers_nothing_more() {
    let mut sim = Node::new(5);
    sim.execute(put("a", "1")).unwrap();
    sim.disk.lock().unwrap().plan(Operation::Sync, 0, Fault::Error);
    let ticket = sim.write(put("a", "2"));
    let failure = loop {
        match sim.try_step() {
            Ok(true) => {}
            Ok(false) => panic!("the failed write was not noticed"),
            Err(failure) => break failure,
        }
    };
    assert!(matches!(failure, Stop::Fatal(Fatal::Log(_))), "{failure}");
    sim.send([Request::Write(put("a", "3")), Request::ReadIndex]);
    assert!(sim.answers.iter().all(|(answered, _)| *answered != ticket), "what is not durable is not answered");
    sim.restart();
    sim.call(Request::ReadIndex).unwrap();
    assert!(value(&sim, "a").is_some());
}

#[test]
fn a_full_disk_refuses_what_grows_the_store_and_recovers_by_itself() {
    let mut sim = Node::new(6);
    sim.config.log_reserve_bytes = 256 << 10;
    sim.restart();
    sim.execute(put("a", "1")).unwrap();
    let used = sim.disk.lock().unwrap().used();
    sim.disk.lock().unwrap().set_capacity(Some(used));
    let mut refused = false;
    for _ in 0..1_000 {
        match sim.execute(big("a")) {
            Ok(_) => {}
            Err(Error::NoSpace) => {
                refused = true;
                break;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused, "a full disk is noticed before the log has no room");
    // What frees space goes on, and so do reads.
    assert_eq!(sim.call(Request::ReadIndex), Ok(Response::ReadIndex));
    let delete = DeleteRange { keys: KeyRange::Point(key("a")), prev_kv: false };
    assert!(sim.execute(Command::DeleteRange(delete)).is_ok());
    let revision = sim.reader().revision();
    assert!(sim.execute(Command::Compact { revision, physical: false }).is_ok());
    let Ok(Response::Status(status)) = sim.call(Request::Status) else { panic!() };
    assert!(status.alarms.is_empty(), "a full disk raises no alarm that must be disarmed");
    sim.disk.lock().unwrap().set_capacity(None);
    sim.run_for(Duration::from_secs(3));
    assert!(sim.execute(put("a", "2")).is_ok());
}

#[test]
fn an_alarm_refuses_until_it_is_disarmed_and_survives_a_restart() {
    let mut sim = Node::new(7);
    let alarm = Alarm { member_id: 3, kind: AlarmKind::NoSpace };
    let reply = sim.execute(Command::AlarmActivate(alarm)).unwrap();
    assert_eq!(reply.outcome, Outcome::Alarm(vec![alarm]));
    sim.crash();
    assert_eq!(sim.execute(put("a", "1")), Err(Error::NoSpace));
    assert_eq!(sim.execute(Command::LeaseGrant { id: 1, ttl_seconds: 5 }), Err(Error::NoSpace));
    let delete = DeleteRange { keys: KeyRange::All, prev_kv: false };
    assert!(sim.execute(Command::DeleteRange(delete)).is_ok());
    let Ok(Response::Status(status)) = sim.call(Request::Status) else { panic!() };
    assert_eq!(status.alarms, [alarm]);
    let reply = sim.execute(Command::AlarmDeactivate(alarm)).unwrap();
    assert_eq!(reply.outcome, Outcome::Alarm(vec![alarm]));
    assert_eq!(sim.execute(Command::AlarmDeactivate(alarm)).unwrap().outcome, Outcome::Alarm(vec![]));
    assert!(sim.execute(put("a", "1")).is_ok());
}

#[test]
fn an_alarm_that_is_disarmed_is_not_raised_again_by_what_it_had_refused() {
    let mut sim = Node::new(18);
    let alarm = Alarm { member_id: 7, kind: AlarmKind::NoSpace };
    sim.execute(Command::AlarmActivate(alarm)).unwrap();
    // One batch: once it is published the alarm is gone.
    let tickets = sim.send([Request::Write(put("a", "1")), Request::Write(Command::AlarmDeactivate(alarm))]);
    assert_eq!(sim.wait(tickets[0]), Err(Error::NoSpace));
    sim.settle();
    let Ok(Response::Status(status)) = sim.call(Request::Status) else { panic!() };
    assert!(status.alarms.is_empty());
    assert!(sim.execute(put("a", "1")).is_ok());
}

#[test]
fn what_is_over_the_quota_is_refused_and_raises_the_alarm() {
    let mut config = MemberConfig::single(7);
    config.quota_bytes = 1;
    let mut sim = Node::with(8, config);
    assert_eq!(sim.execute(put("a", "1")), Err(Error::NoSpace));
    // The answer comes when the alarm shows, and not before.
    let Ok(Response::Status(status)) = sim.call(Request::Status) else { panic!() };
    assert_eq!(status.alarms, [Alarm { member_id: 7, kind: AlarmKind::NoSpace }]);
    let entries = sim.member.log().stats().entry_count;
    assert_eq!(sim.execute(put("a", "1")), Err(Error::NoSpace));
    assert_eq!(sim.member.log().stats().entry_count, entries, "the alarm is raised once");
    let delete = DeleteRange { keys: KeyRange::All, prev_kv: false };
    assert!(sim.execute(Command::DeleteRange(delete)).is_ok());
}

#[test]
fn a_physical_compaction_is_answered_when_the_work_is_done() {
    let mut sim = Node::new(9);
    for n in 0..600 {
        sim.write(put("a", &n.to_string()));
    }
    sim.settle();
    let revision = sim.reader().revision();
    let ticket = sim.write(Command::Compact { revision, physical: true });
    let answer = sim.wait(ticket).unwrap();
    assert!(matches!(answer, Response::Write(_)));
    assert!(!sim.member.machine().index().compaction_pending());
    assert_eq!(sim.execute(Command::Compact { revision, physical: true }), Err(Error::Compacted));
    let beyond = Command::Compact { revision: revision + 10, physical: false };
    assert_eq!(sim.execute(beyond), Err(Error::FutureRevision));
}

#[test]
fn automatic_compaction_keeps_the_revisions_it_is_told_to() {
    let mut config = MemberConfig::single(7);
    config.auto_compaction = AutoCompaction::Revision(10);
    let mut sim = Node::with(10, config);
    for n in 0..50 {
        sim.execute(put("a", &n.to_string())).unwrap();
    }
    sim.run_until(Duration::from_secs(301));
    let Ok(Response::Status(status)) = sim.call(Request::Status) else { panic!() };
    assert_eq!((status.revision, status.compacted_revision), (51, 41));
}

#[test]
fn a_lease_gets_its_full_time_and_more_after_a_restart() {
    let mut sim = Node::new(11);
    sim.execute(Command::LeaseGrant { id: 5, ttl_seconds: 10 }).unwrap();
    sim.execute(put_with("a", "v", 5)).unwrap();
    sim.run_for(Duration::from_secs(9));
    sim.crash();
    let restarted = sim.now;
    sim.call(Request::ReadIndex).unwrap();
    sim.run_until(restarted + Duration::from_secs(11));
    assert!(value(&sim, "a").is_some(), "ten seconds and an election timeout have not passed");
    sim.run_until(restarted + Duration::from_secs(12));
    assert!(value(&sim, "a").is_none());
}

#[test]
fn leases_expire_at_a_bounded_rate_and_batched() {
    let mut sim = Node::new(12);
    let grants = (1..=3_000).map(|id| Request::Write(Command::LeaseGrant { id, ttl_seconds: 5 }));
    sim.send(grants);
    sim.run_until(Duration::from_secs(4));
    let granted = sim.now;
    let entries = sim.member.log().stats().entry_count;
    sim.run_until(granted + Duration::from_millis(1_000) + Duration::from_millis(1_000));
    let left = sim.member.machine().lessor().len();
    assert!((1_900..=2_100).contains(&left), "{left}");
    sim.run_for(Duration::from_secs(3));
    assert_eq!(sim.member.machine().lessor().len(), 0);
    assert!(sim.member.log().stats().entry_count - entries <= 31, "revocations share entries");
}

#[test]
fn the_stages_of_a_write_are_counted() {
    let mut sim = Node::new(13);
    for n in 0..20 {
        sim.execute(put("a", &n.to_string())).unwrap();
    }
    let stages = sim.member.stages();
    assert!(stages.queue.count() >= 20 && stages.wal_write.count() >= 20);
    assert!(stages.apply.count() >= 20);
    assert!(stages.wal_write.quantile(0.5) > Duration::ZERO);
}

#[test]
fn the_wait_of_the_oldest_request_is_a_part_of_its_batch_s_queue() {
    let mut sim = Node::new(16);
    sim.execute(put("a", "0")).unwrap();
    sim.settle();
    let before = sim.member.stages().queue.sum();
    let asked = sim.now - Duration::from_millis(5);
    let ticket = Ticket { core: 0, sequence: u64::MAX };
    let envelope = Envelope { ticket, context: context(), request: Request::Write(put("a", "1")) };
    sim.member.handle_requests_since(sim.now, asked, [envelope]);
    sim.settle();
    assert!(sim.member.stages().queue.sum() - before >= Duration::from_millis(5));
}

#[test]
fn a_checkpoint_that_is_asked_for_ends_with_everything_saved() {
    let mut sim = Node::new(15);
    for n in 0..20 {
        sim.execute(put("a", &n.to_string())).unwrap();
    }
    let ask = |sim: &mut Node| match sim.call(Request::Checkpoint).unwrap() {
        Response::Checkpoint { published_index, saved_index } => (published_index, saved_index),
        other => panic!("{other:?}"),
    };
    let (published, saved) = ask(&mut sim);
    assert!(saved < published);
    sim.settle();
    assert_eq!(ask(&mut sim), (published, published));
    let log = sim.member.log().stats().entry_count;
    sim.settle();
    assert_eq!(sim.member.log().stats().entry_count, log, "a checkpoint writes nothing into the log");
}

#[test]
fn commands_beyond_the_bound_are_refused_and_not_kept() {
    let mut sim = Node::new(14);
    sim.settle();
    let bound = limits::PENDING_COMMANDS_MAX;
    let requests = (0..bound + 10).map(|_| Request::Write(put("a", "v")));
    sim.send(requests);
    let refused = sim.answers.iter().filter(|(_, result)| *result == Err(Error::TooManyRequests)).count();
    assert_eq!(refused, 10);
    sim.answers.clear();
    sim.settle();
    assert_eq!(u64::try_from(sim.answers.len()).unwrap(), bound);
}

#[test]
fn requests_of_a_member_that_is_being_founded_wait_for_its_first_meta_page() {
    let mut sim = Node::new(15);
    let ticket = sim.write(put("a", "1"));
    assert!(sim.wait(ticket).is_ok());
    sim.crash();
    sim.call(Request::ReadIndex).unwrap();
    assert!(value(&sim, "a").is_some());
}

#[test]
fn writes_are_refused_while_apply_is_far_behind() {
    let mut sim = Node::new(16);
    for n in 0..200 {
        sim.write(put(&format!("key-{n}"), &"v".repeat(100)));
    }
    sim.settle();
    assert!(sim.member.checkpoint());
    sim.settle();
    sim.restart();
    sim.call(Request::ReadIndex).unwrap();
    sim.latency.page_delay = Duration::from_secs(100);
    let mut refused = 0;
    for _ in 0..7 {
        sim.send((0..1_000).map(|n| Request::Write(put(&format!("key-{}", n % 200), "w"))));
        sim.run_for(Duration::from_millis(100));
        refused = sim.answers.iter().filter(|(_, result)| *result == Err(Error::TooManyRequests)).count();
    }
    let Ok(Response::Status(status)) = sim.call(Request::Status) else { panic!() };
    assert!(status.raft_index > status.raft_applied_index, "apply waits for pages");
    assert_eq!(refused, 1_000, "the first thousand beyond the bound");
    // Reads of what is published go on, and everything that was admitted is answered in the end.
    assert_eq!(sim.call(Request::ReadIndex), Ok(Response::ReadIndex));
    sim.run_for(Duration::from_secs(1_000));
    let done = sim.answers.iter().filter(|(_, result)| result.is_ok()).count();
    assert_eq!(done, 6_000);
    assert!(sim.execute(put("a", "1")).is_ok());
}

#[test]
fn what_a_start_replays_is_bounded_by_bytes_of_log_and_a_stop_leaves_nothing_to_replay() {
    let bound = 1 << 20;
    let config = MemberConfig { checkpoint_log_bytes: bound, ..MemberConfig::single(7) };
    let mut sim = Node::with(17, config);
    (sim.index_config.checkpoint_bytes, sim.index_config.dirty_bytes_max) = (64 << 20, 128 << 20);
    sim.settle();
    sim.restart();
    for n in 0..4_000 {
        sim.execute(put(&format!("key-{}", n % 500), &"v".repeat(100))).unwrap();
        assert!(sim.member.log().replay_bytes() < 2 * bound);
    }
    assert!(sim.member.log().base().sequence() > 1);
    assert!(sim.member.log().replay_bytes() > 0);
    assert!(!sim.member.prepare_stop(sim.clock()) && sim.member.is_checkpoint_urgent());
    while !sim.member.prepare_stop(sim.clock()) {
        assert!(sim.step());
    }
    assert_eq!(sim.member.log().replay_bytes(), 0);
    sim.restart();
    assert_eq!(sim.member.log().replay_bytes(), 0);
    assert_eq!(value(&sim, "key-499"), Some("v".repeat(100).into_bytes()));
}

#[test]
fn a_start_that_replayed_much_saves_without_rests_so_that_the_log_does_not_grow_from_start_to_start() {
    let bound = 1 << 20;
    let config = MemberConfig { checkpoint_log_bytes: bound, ..MemberConfig::single(7) };
    let mut sim = Node::with(18, config);
    sim.restart_pause = Duration::ZERO;
    (sim.index_config.checkpoint_bytes, sim.index_config.dirty_bytes_max) = (64 << 20, 128 << 20);
    sim.settle();
    sim.restart();
    while sim.member.log().replay_bytes() < bound {
        sim.execute(put("key", &"v".repeat(1_000))).unwrap();
    }
    assert!(!sim.member.is_checkpoint_urgent(), "while it runs there is no hurry");
    sim.crash();
    assert!(sim.member.log().replay_bytes() >= bound);
    while sim.member.machine().index().checkpoint_progress().is_none() {
        assert!(sim.step());
    }
    assert!(sim.member.is_checkpoint_urgent());
    sim.run_for(Duration::from_millis(500));
    assert!(sim.member.log().replay_bytes() < bound / 4, "nobody asked for it");
    assert!(!sim.member.is_checkpoint_urgent());
}
