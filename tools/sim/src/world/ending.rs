//! The end of a seed: faults stop, and then everything that was promised must come about.

use std::time::Duration;

use garboard_replica::request::{Command, KeyRange, KeyValue};
use garboard_replica::system;
use garboard_storage::hash::KvHasher;
use garboard_storage::{Bounds, Paged, Revision, View};

use super::clients::{Ask, What};
use super::{ONLY, World};
use crate::model::Change;
use crate::node::read;
use crate::outcome::{Check, same, short, violated};
use crate::plan::Fault;

/// How long everything under way may take once nothing goes wrong any more, beyond what I/O itself takes.
const PATIENCE: Duration = Duration::from_secs(120);
/// Leases that are longer are not waited for.
const SHORT_TTL_SECONDS: i64 = 60;
/// How many revisions of the past are compared whole.
const PAST_REVISIONS: usize = 12;
const HASH_STEP_REVISIONS: usize = 1_000;

impl World {
    /// Ends the seed.
    pub(super) fn finish(&mut self) -> Check {
        self.stop_faults();
        // While an alarm stops revocations, renewals of expired leases wait.
        self.disarm()?;
        self.settle("everything under way comes to its end")?;
        self.catch_up()?;
        self.expire()?;
        self.check_whole()?;
        for how in [Fault::Crash, Fault::Kill] {
            self.end(ONLY, how)?;
            self.settle("a member that starts serves")?;
            self.check_whole()?;
        }
        Ok(())
    }

    fn stop_faults(&mut self) {
        self.story.tell(self.now, "calm", self.turns, || "nothing goes wrong any more".to_owned());
        self.plan.faults.clear();
        self.plan.crash_again = 0;
        (self.hold, self.calm) = (true, true);
        let site = &mut self.sites[ONLY];
        site.doom = None;
        site.node.disk.lock().expect("one thread").clear_plans();
        self.lift_capacity(ONLY);
        self.repair(ONLY);
    }

    /// Runs until nobody waits for anything.
    fn settle(&mut self, what: &str) -> Check {
        let deadline = self.now + PATIENCE + self.plan.latency.io_max * 10_000;
        loop {
            let site = &self.sites[ONLY];
            let serves = site.is_up() && site.node.is_serving() && site.node.member.is_quiet() && !site.node.has_io();
            if serves && self.asks.is_empty() && self.reads.is_empty() && self.checker.is_settled() {
                let works = site.node.member.machine().index().compaction_pending();
                if !works {
                    return Ok(());
                }
            }
            if self.now > deadline {
                return violated(what, "", format!("waiting: {:?}, {:?}", self.asks, self.reads.keys()));
            }
            self.turn()?;
        }
    }

    /// Alarms are taken back once the member serves: nothing is refused for their sake.
    fn disarm(&mut self) -> Check {
        let deadline = self.now + PATIENCE;
        while !(self.sites[ONLY].is_up() && self.sites[ONLY].node.is_serving() && self.checker.is_settled()) {
            if self.now > deadline {
                return violated("a member that starts serves, and what was asked is done", "", "");
            }
            self.turn()?;
        }
        for alarm in self.checker.model.alarms() {
            let ask = Ask { client: 0, at: self.now, what: What::Write };
            let request = garboard_replica::envelope::Request::Write(Command::AlarmDeactivate(alarm));
            self.send(ONLY, vec![(request, ask)])?;
        }
        Ok(())
    }

    /// Every stream is read to its end, and then tells how far it is.
    fn catch_up(&mut self) -> Check {
        self.read_all_streams(ONLY);
        self.run_for(PATIENCE.min(Duration::from_secs(5)))?;
        let tokens: Vec<u64> = self.sites[ONLY].streams.keys().copied().collect();
        for token in tokens {
            self.sites[ONLY].streams[&token].checker.check_complete(&self.checker.model)?;
            let revision = self.checker.model.revision();
            if self.sites[ONLY].streams[&token].checker.can_progress(revision) {
                let before = self.sites[ONLY].streams[&token].checker.told;
                self.ask_progress(ONLY, token);
                self.run_for(Duration::from_secs(1))?;
                let told = self.sites[ONLY].streams[&token].checker.told;
                same("a stream that is up to date tells so if asked", &(before + 1), &told)?;
            }
        }
        Ok(())
    }

    fn run_for(&mut self, duration: Duration) -> Check {
        let until = self.now + duration;
        while self.next().is_some_and(|(due, _)| due <= until) {
            self.turn()?;
        }
        self.now = until;
        Ok(())
    }

    /// Every lease comes to its end.
    fn expire(&mut self) -> Check {
        let short_ones = self.checker.model.leases().values().filter(|ttl| **ttl <= SHORT_TTL_SECONDS);
        let Some(longest) = short_ones.max() else { return Ok(()) };
        let longest = Duration::from_secs(longest.unsigned_abs());
        // Beside its own time: what a start adds, and what a revocation takes that failed before.
        self.run_for(longest + self.plan.member.election_timeout + Duration::from_secs(10))?;
        self.settle("expired leases are revoked")?;
        let left = self.checker.model.leases().iter().find(|(_, ttl)| **ttl <= SHORT_TTL_SECONDS);
        same("every lease expires in its time", &None, &left)?;
        self.run_for(Duration::from_secs(5))?;
        for stream in self.sites[ONLY].streams.values() {
            stream.checker.check_complete(&self.checker.model)?;
        }
        Ok(())
    }

    /// The whole state is what the model says, and the index is sound.
    fn check_whole(&mut self) -> Check {
        let node = &self.sites[ONLY].node;
        let model = &self.checker.model;
        if let Err(error) = node.member.machine().index().check() {
            return violated("the index is whole", "", format!("{error:?}"));
        }
        let reader = node.reader();
        let (revision, floor) = read(&reader, |view| Ok((view.revision(), view.compacted())));
        same("the revision at the end", &(model.revision(), model.compacted()), &(revision, floor))?;
        let found = read(&reader, |view| history(view, floor));
        let from = model.position_of(floor.max(0) + 1);
        for (expected, found) in model.changes()[from..].iter().zip(&found) {
            same("the history at the end", &without_previous(expected), found)?;
        }
        same("the history's length at the end", &(model.changes().len() - from), &found.len())?;
        let first = floor.max(1);
        let mut revisions = vec![first, revision];
        revisions.extend(
            (0..PAST_REVISIONS).map(|_| first + self.rng.below((revision - first + 1).unsigned_abs()).cast_signed()),
        );
        for at in revisions {
            let expected: Vec<KeyValue> = model.within(&KeyRange::All, at).into_iter().cloned().collect();
            same(&format!("what is there at revision {at}"), &expected, &read(&reader, |view| live(view, at)))?;
            let mut hasher = None;
            let hash = read(&reader, |view| {
                let hasher = hasher.get_or_insert_with(|| KvHasher::new(view, at));
                loop {
                    if let Some(hash) = hasher.step(view, HASH_STEP_REVISIONS)? {
                        return Ok(hash);
                    }
                }
            });
            same(&format!("the hash at revision {at}"), &model.hash(floor, at), &hash.hash)?;
        }
        let leases = read(&reader, system::leases);
        let expected: Vec<(i64, i64)> = model.leases().iter().map(|(id, ttl)| (*id, *ttl)).collect();
        let mut found = match leases {
            Ok(leases) => leases,
            Err(error) => return violated("the leases can be read", "", short(&error)),
        };
        found.sort_unstable();
        same("the leases at the end", &expected, &found)?;
        for (id, _) in expected {
            let attached = read(&reader, |view| system::attached_keys(view, id));
            same(&format!("the keys of lease {id}"), &model.attached(id), &attached)?;
        }
        self.story.tell(self.now, "whole", revision.unsigned_abs(), || format!("revision {revision} is whole"));
        Ok(())
    }
}

fn without_previous(change: &Change) -> Change {
    Change { previous: None, ..change.clone() }
}

/// Every change above the floor.
fn history(view: &View<'_>, floor: i64) -> Paged<Vec<Change>> {
    let mut events = view.events(Revision { main: floor.max(0) + 1, sub: 0 });
    let mut found = Vec::new();
    while let Some(record) = events.next()? {
        let kv = KeyValue {
            key: record.key,
            create_revision: record.create_revision,
            mod_revision: record.revision.main,
            version: record.version,
            value: record.value,
            lease: record.lease,
        };
        found.push(Change { revision: record.revision, deleted: record.deleted, kv, previous: None });
    }
    Ok(found)
}

fn live(view: &View<'_>, at: i64) -> Paged<Vec<KeyValue>> {
    let mut pairs = Vec::new();
    let mut cursor = view.cursor(Bounds::ALL, at);
    while let Some((key, version)) = cursor.next()? {
        let key = bytes::Bytes::copy_from_slice(key);
        let mut value = Vec::new();
        assert!(view.value(version.modified, &mut value)?, "a live version has its value");
        pairs.push(KeyValue {
            key,
            create_revision: version.create_revision,
            mod_revision: version.modified.main,
            version: version.version,
            value: value.into(),
            lease: version.lease,
        });
    }
    Ok(pairs)
}
