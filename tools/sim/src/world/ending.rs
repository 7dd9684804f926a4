//! The end of a seed: faults stop, and then everything that was promised must come about.

use std::time::Duration;

use garboard_replica::request::Command;

use super::clients::{Ask, What};
use super::{ONLY, World};
use crate::check::whole::check_whole;
use crate::outcome::{Check, same, violated};
use crate::plan::Fault;

/// How long everything under way may take once nothing goes wrong any more, beyond what I/O itself takes.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long an event may take to its watches' clients, which read at once by then.
const DELIVERY: Duration = Duration::from_secs(5);
/// Leases that are longer are not waited for.
const SHORT_TTL_SECONDS: i64 = 60;

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
            self.complete_streams()?;
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

    /// Runs until every stream was sent everything: a lease may have expired just now.
    fn complete_streams(&mut self) -> Check {
        let deadline = self.now + DELIVERY;
        loop {
            let (model, mut streams) = (&self.checker.model, self.sites[ONLY].streams.values());
            let complete = streams.try_for_each(|stream| stream.checker.check_complete(model));
            if complete.is_ok() || self.now >= deadline {
                return complete;
            }
            self.run_for(DELIVERY / 100)?;
        }
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
        self.complete_streams()
    }

    /// The whole state is what the model says, and the index is sound.
    fn check_whole(&mut self) -> Check {
        let revision = check_whole(&self.sites[ONLY].node, &self.checker.model, &mut self.rng)?;
        self.story.tell(self.now, "whole", revision.unsigned_abs(), || format!("revision {revision} is whole"));
        Ok(())
    }
}
