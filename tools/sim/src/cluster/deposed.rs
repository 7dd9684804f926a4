//! A leader that does not know yet that another one was elected, and clients that ask just that one, at once.
//!
//! Chance seldom brings this about: the old leader must be cut off or stand still, the new one must have gone on, and
//! somebody must ask the old one in the moment before it gives up. What it answers then without asking a quorum is stale.
//! All of it is drawn from a stream of its own, so that the seeds that have none of it mean what they always meant.

use std::time::Duration;

use garboard_replica::envelope::Request;
use garboard_simdisk::Rng;

use super::clients::{Client, What};
use super::{Cluster, Event};
use crate::check::reads::Read;
use crate::outcome::Check;
use crate::plan::{Fault, Options};
use crate::workload::Workload;

/// Seeds in a hundred that have old leaders.
const SEEDS: u64 = 15;
/// Most questions to one old leader.
const QUESTIONS_MAX: u32 = 10;
/// Mean time between two looks at an old leader.
const LOOK: Duration = Duration::from_millis(4);

/// Old leaders of a seed, and who asks them.
pub(super) struct Deposed {
    rng: Rng,
    /// Mean time between two of them.
    often: Duration,
    /// The client that asks nothing else.
    client: usize,
    case: Option<Case>,
}

/// A leader that others are about to replace.
struct Case {
    at: usize,
    life: u64,
    until: Duration,
    questions_left: u32,
}

impl Cluster {
    /// Draws whether the seed has old leaders, and begins to look for the first one.
    pub(super) fn begin_deposing(&mut self, seed: u64, options: &Options) {
        let mut rng = Rng::new(seed ^ 0x6465_706f_7365_6421);
        let mut rng = Rng::new(rng.next_u64());
        let drawn = rng.below(100) < SEEDS || options.force.contains(&Fault::OldLeader);
        let often = Duration::from_millis(1_000 << rng.below(4));
        if !drawn || options.disable.contains(&Fault::OldLeader) || options.steady.is_some() {
            return;
        }
        let client = self.clients.len();
        self.clients.push(Client::that_is_told());
        self.deposed = Some(Deposed { rng, often, client, case: None });
        self.look_later(often);
    }

    fn look_later(&mut self, mean: Duration) {
        let deposed = self.deposed.as_mut().expect("this seed has them");
        let nanos = u64::try_from(mean.as_nanos()).expect("short");
        let delay = Duration::from_nanos(1 + deposed.rng.below(2 * nanos));
        self.after(Event::OldLeader, delay);
    }

    /// Looks at the old leader, or for one.
    pub(super) fn old_leader_turn(&mut self) -> Check {
        if self.calm {
            return Ok(());
        }
        let Deposed { often, case, .. } = self.deposed.as_mut().expect("this seed has them");
        let often = *often;
        let Some(Case { at, life, until, questions_left }) = case.take() else {
            return self.depose();
        };
        let machine = &self.machines[at];
        let leads = machine.is_up() && machine.life == life && machine.node.member.leads();
        if !leads || self.now > until || questions_left == 0 {
            self.look_later(often);
            return Ok(());
        }
        let is_old = self.history.committed_index() > machine.published;
        let case = Case { at, life, until, questions_left: questions_left - u32::from(is_old) };
        let deposed = self.deposed.as_mut().expect("this seed has them");
        deposed.case = Some(case);
        self.look_later(LOOK);
        if !is_old {
            return Ok(());
        }
        let deposed = self.deposed.as_mut().expect("this seed has them");
        let client = deposed.client;
        let mut workload = Workload { rng: &mut deposed.rng, plan: &self.plan.each, model: &self.history.model };
        let read = Read::range(workload.range());
        self.send(at, client, vec![(Request::ReadIndex, What::ReadIndex(Box::new(read)))])
    }

    /// Cuts the leader off, or has it stand still, for about as long as it takes to replace it and to notice.
    fn depose(&mut self) -> Check {
        let ready = |at: &usize| self.machines[*at].runs() && self.machines[*at].node.member.is_ready();
        let newest = (0..self.machines.len()).filter(ready).max_by_key(|at| self.machines[*at].node.member.term());
        let Some(at) = newest else {
            self.look_later(LOOK * 10);
            return Ok(());
        };
        let timeout = self.plan.each.member.election_timeout;
        let deposed = self.deposed.as_mut().expect("this seed has them");
        let lasts = timeout + timeout.mul_f64(f64::from(u16::try_from(deposed.rng.below(200)).expect("small")) / 100.0);
        // The others think that its process has died: they replace it at once.
        let seems_dead = deposed.rng.chance(40);
        let pauses = deposed.rng.chance(25);
        let until = self.now + lasts;
        deposed.case =
            Some(Case { at, life: self.machines[at].life, until: until + timeout, questions_left: QUESTIONS_MAX });
        for other in (0..self.machines.len()).filter(|other| *other != at).collect::<Vec<_>>() {
            self.network.cut(at, other, until);
            self.network.cut(other, at, until);
            if seems_dead {
                self.after(Event::Hangup { to: other, peer: self.machines[at].id }, Duration::ZERO);
            }
        }
        if pauses {
            // It goes on before it hears of the others again.
            self.pause_for(at, lasts.mul_f64(0.9), false);
        }
        *self.summary.faults.entry(Fault::OldLeader.name()).or_default() += 1;
        self.story.tell(self.now, "fault", at as u64, || {
            format!(
                "{} m{} is cut off for {lasts:?}{}{}",
                Fault::OldLeader.name(),
                at + 1,
                if pauses { ", and stands still" } else { "" },
                if seems_dead { ", and seems dead" } else { "" },
            )
        });
        self.look_later(LOOK);
        Ok(())
    }
}
