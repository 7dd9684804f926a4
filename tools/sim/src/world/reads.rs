//! Reads of clients: when they begin, and how they go on.

use std::time::Duration;

use garboard_replica::read::{Budget, Progress};

use super::{Event, ONLY, World};
use crate::check::reads::Read;
use crate::outcome::{Check, violated};

/// Mean time between two steps of a long read.
const STEP: Duration = Duration::from_micros(200);

/// A read under way.
#[derive(Debug)]
pub(super) struct ReadTask {
    client: usize,
    read: Read,
}

impl World {
    /// A read begins. It must see everything that was acknowledged by now, since only its own client waits.
    pub(super) fn begin_read(&mut self, at: usize, client: usize, read: Read) -> Check {
        let revision = self.sites[at].node.reader().revision();
        let acknowledged = self.checker.acknowledged_revision();
        if revision < acknowledged {
            return violated(
                "a read sees everything that was acknowledged before",
                format!("revision {acknowledged} or later"),
                revision.to_string(),
            );
        }
        let token = self.token();
        self.story.tell(self.now, "read", token, || format!("read {token} of client {client} at {revision}: {read:?}"));
        self.reads.insert(token, ReadTask { client, read });
        self.step_read(token)
    }

    /// A page that a read or a stream waited for is there.
    pub(super) fn resume(&mut self, at: usize, token: u64) {
        if self.reads.contains_key(&token) {
            self.after(Event::Read(token), Duration::ZERO);
        } else {
            self.resume_stream(at, token);
        }
    }

    /// A read goes on.
    pub(super) fn step_read(&mut self, token: u64) -> Check {
        let Some(mut task) = self.reads.remove(&token) else { return Ok(()) };
        let budget = Budget { keys: 1 + self.rng.index(20), bytes: 1 + self.rng.index(2_000) };
        let site = &mut self.sites[ONLY];
        let snapshot = site.node.reader().pin();
        let view = snapshot.view();
        let model = &mut self.checker.model;
        match task.read.step(&view, model, budget) {
            Ok(Ok(Progress::More)) => {
                self.reads.insert(token, task);
                self.soon(Event::Read(token), STEP);
            }
            Ok(Ok(Progress::Done)) => {
                self.story.tell(self.now, "read", token, || format!("read {token} is right"));
                self.summary.reads += 1;
                self.release(task.client);
            }
            Ok(Err(violation)) => return Err(violation),
            Err(need) => {
                self.reads.insert(token, task);
                site.node.load_for_reader(need.0, snapshot, token);
            }
        }
        Ok(())
    }
}
