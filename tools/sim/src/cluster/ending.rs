//! The end of a seed: faults stop, and then everything that was promised must come about.

use std::time::Duration;

use bytes::Bytes;
use garboard_replica::envelope::Request;
use garboard_replica::request::{Command, Put};

use super::clients::What;
use super::{Cluster, Event};
use crate::check::reads::Read;
use crate::check::whole::check_whole;
use crate::outcome::{Check, same, violated};
use crate::plan::Fault;
use crate::workload::Workload;

/// How long a cluster may take once nothing goes wrong any more until it has a leader and all have what it has, beyond
/// what I/O itself takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an event may take to its watches' clients, which read at once by then.
const DELIVERY: Duration = Duration::from_secs(5);
/// Leases that are longer are not waited for.
const SHORT_TTL_SECONDS: i64 = 60;

impl Cluster {
    /// Ends the seed.
    pub(super) fn finish(&mut self) -> Check {
        self.summary.elections = u64::try_from(self.leaders.len()).expect("small");
        self.stop_faults()?;
        self.wait_for("once nothing goes wrong, there is a leader", Self::is_led)?;
        // While an alarm stops revocations, renewals of expired leases wait.
        self.disarm()?;
        self.settle("everything under way comes to its end, and all members have everything")?;
        // What was still under way may have raised one.
        self.disarm()?;
        self.settle("alarms are taken back")?;
        self.probe()?;
        self.catch_up()?;
        self.expire()?;
        self.check_whole()?;
        for how in [Fault::Crash, Fault::Kill] {
            for at in 0..self.machines.len() {
                self.end(at, how)?;
            }
            self.wait_for("after a failure of all, there is a leader", Self::is_led)?;
            self.settle("after a failure of all, all members have everything")?;
            self.check_whole()?;
        }
        Ok(())
    }

    fn stop_faults(&mut self) -> Check {
        self.story.tell(self.now, "calm", self.turns, || "nothing goes wrong any more".to_owned());
        self.calm = true;
        self.network.heal();
        for at in 0..self.machines.len() {
            self.machines[at].doom = None;
            self.machines[at].node.disk.lock().expect("one thread").clear_plans();
            self.lift_capacity(at);
            self.restore_sector(at);
            if self.machines[at].is_up() {
                let life = self.machines[at].life;
                self.machines[at].node.hold_until(self.now);
                self.resume_machine(at, life)?;
            } else {
                self.after(Event::Start(at), Duration::ZERO);
            }
        }
        Ok(())
    }

    /// Who leads, if all members that run agree on it.
    pub(super) fn leader(&self) -> Option<usize> {
        let ready = |at: &usize| self.machines[*at].is_up() && self.machines[*at].node.member.is_ready();
        let newest = (0..self.machines.len()).filter(ready).max_by_key(|at| self.machines[*at].node.member.term())?;
        let term = self.machines[newest].node.member.term();
        let agreed = self.machines.iter().all(|machine| machine.is_up() && machine.node.member.term() == term);
        agreed.then_some(newest)
    }

    fn is_led(&self) -> bool {
        self.leader().is_some()
    }

    fn is_settled(&self) -> bool {
        let newest = self.history.committed_index();
        let rests = |machine: &super::Machine| {
            machine.published == newest
                && machine.log.last_index() == newest
                && machine.is_quiet()
                && !machine.node.is_under_repair_on_disk()
                && !machine.node.member.machine().index().compaction_pending()
        };
        self.ops.is_empty() && self.reads.is_empty() && self.is_led() && self.machines.iter().all(rests)
    }

    fn settle(&mut self, what: &str) -> Check {
        self.wait_for(what, Self::is_settled)
    }

    /// Runs until something holds.
    fn wait_for(&mut self, what: &str, holds: fn(&Cluster) -> bool) -> Check {
        let deadline = self.now + PATIENCE + self.plan.each.latency.io_max * 10_000;
        while !holds(self) {
            if self.now > deadline {
                let members = self.machines.iter().map(|machine| {
                    let member = &machine.node.member;
                    let (first, last) = (machine.published, machine.log.last_index());
                    let (up, term, leads, quiet) = (machine.is_up(), member.term(), member.leads(), machine.is_quiet());
                    format!(
                        "m{}: up {up}, term {term}, leads {leads}, published {first} of {last}, quiet {quiet}, repair {}",
                        machine.id,
                        machine.node.is_under_repair_on_disk()
                    )
                });
                let members: Vec<String> = members.collect();
                return violated(what, "", format!("{members:?}; waiting: {:?}, {:?}", self.ops, self.reads.keys()));
            }
            self.turn()?;
        }
        Ok(())
    }

    /// Alarms are taken back: nothing is refused for their sake.
    fn disarm(&mut self) -> Check {
        let leader = self.leader().expect("the caller has waited for one");
        let alarms = self.history.model.alarms();
        if alarms.is_empty() {
            return Ok(());
        }
        let requests = alarms.into_iter().map(|alarm| (Request::Write(Command::AlarmDeactivate(alarm)), What::Write));
        self.send(leader, 0, requests.collect())
    }

    /// Every member takes a write and gives a read.
    fn probe(&mut self) -> Check {
        // A disk that was full may show for a while.
        self.run_for(self.history.full_until().saturating_sub(self.now))?;
        let (acknowledged, reads) = (self.history.acknowledged, self.summary.reads);
        for at in 0..self.machines.len() {
            let put = Put {
                key: Bytes::from(format!("probe-{at}")),
                value: Bytes::from_static(b"alive"),
                lease: 0,
                prev_kv: true,
                ignore_value: false,
                ignore_lease: false,
            };
            let range = Workload { rng: &mut self.rng, plan: &self.plan.each, model: &self.history.model }.range();
            let read = (Request::ReadIndex, What::ReadIndex(Box::new(Read::range(range))));
            let write = (Request::Write(Command::Put(put)), What::Write);
            self.send(at, 0, vec![write, read])?;
        }
        self.settle("a write and a read on every member succeed")?;
        let all = u64::try_from(self.machines.len()).expect("small");
        same("a read on every member succeeds", &(reads + all), &self.summary.reads)?;
        if self.plan.each.member.quota_bytes < 0 {
            same("a write on every member succeeds", &(acknowledged + all), &self.history.acknowledged)?;
        }
        Ok(())
    }

    /// Every stream is read to its end, and then tells how far it is.
    fn catch_up(&mut self) -> Check {
        self.read_all_streams();
        self.run_for(Duration::from_secs(5))?;
        for at in 0..self.machines.len() {
            let tokens: Vec<u64> = self.machines[at].streams.keys().copied().collect();
            for token in tokens {
                self.complete_streams()?;
                let checker = &self.machines[at].streams[&token].checker;
                if !checker.can_progress(self.history.model.revision()) {
                    continue;
                }
                let before = checker.told;
                self.machines[at].node.now = self.machines[at].node.now.max(self.now);
                self.ask_progress(at, token);
                self.run_for(Duration::from_secs(1))?;
                let told = self.machines[at].streams[&token].checker.told;
                same("a stream that is up to date tells so if asked", &(before + 1), &told)?;
            }
        }
        Ok(())
    }

    /// Every lease comes to its end.
    fn expire(&mut self) -> Check {
        let short_ones = self.history.model.leases().values().filter(|ttl| **ttl <= SHORT_TTL_SECONDS);
        let Some(longest) = short_ones.max() else { return Ok(()) };
        let longest = Duration::from_secs(longest.unsigned_abs());
        // Beside its own time: what a new leader adds, and what a revocation takes that failed before.
        self.run_for(longest.mul_f64(1.02) + self.plan.each.member.election_timeout + Duration::from_secs(10))?;
        self.settle("expired leases are revoked")?;
        let left = self.history.model.leases().iter().find(|(_, ttl)| **ttl <= SHORT_TTL_SECONDS);
        same("every lease expires in its time", &None, &left)?;
        self.run_for(Duration::from_secs(5))?;
        self.complete_streams()
    }

    /// Runs until every stream was sent everything: a lease may have expired just now.
    fn complete_streams(&mut self) -> Check {
        let deadline = self.now + DELIVERY;
        loop {
            let mut streams = self.machines.iter().flat_map(|machine| machine.streams.values());
            let complete = streams.try_for_each(|stream| stream.checker.check_complete(&self.history.model));
            if complete.is_ok() || self.now >= deadline {
                return complete;
            }
            self.run_for(DELIVERY / 100)?;
        }
    }

    /// Every member's whole state is what the model says, and its index is sound.
    fn check_whole(&mut self) -> Check {
        for machine in &self.machines {
            let revision = check_whole(&machine.node, &self.history.model, &mut self.rng)?;
            self.story.tell(self.now, "whole", revision.unsigned_abs(), || {
                format!("revision {revision} is whole on m{}", machine.id)
            });
        }
        Ok(())
    }
}
