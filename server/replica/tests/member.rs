//! What a member promises, one promise at a time.

#![allow(clippy::unwrap_used)]

mod sim;

use std::time::Duration;

use bytes::Bytes;
use garboard_replica::Error;
use garboard_replica::envelope::{Request, Response};
use garboard_replica::request::{Command, DeleteRange, KeyRange, Outcome, Put};
use sim::Sim;

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

fn value(sim: &Sim, name: &str) -> Option<Vec<u8>> {
    let snapshot = sim.reader().pin();
    let view = snapshot.view();
    let version = view.find(name.as_bytes(), i64::MAX).unwrap()?;
    let mut value = Vec::new();
    assert!(view.value(version.modified, &mut value).unwrap());
    Some(value)
}

#[test]
fn a_put_is_answered_once_it_is_durable_applied_and_published() {
    let mut sim = Sim::new(1);
    let reply = sim.execute(put("a", "1")).unwrap();
    assert_eq!((reply.revision, reply.outcome), (2, Outcome::Put(None)));
    assert_eq!(value(&sim, "a").as_deref(), Some(&b"1"[..]));
    sim.crash();
    assert_eq!(sim.call(Request::ReadIndex), Ok(Response::ReadIndex));
    assert_eq!(value(&sim, "a").as_deref(), Some(&b"1"[..]));
}

#[test]
fn writes_of_one_call_share_one_entry() {
    let mut sim = Sim::new(2);
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
    let mut sim = Sim::new(3);
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
    let mut sim = Sim::new(4);
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
