//! Faults: what goes wrong on machines and between them, and how processes end and start again.

use std::sync::Arc;
use std::time::Duration;

use garboard_replica::envelope::Request;
use garboard_simdisk::{self as simdisk, Operation};

use super::clients::What;
use super::machine::Input;
use super::{Cluster, Event, breaks_io};
use crate::node::{Rescue, Stop};
use crate::outcome::{Check, violated, with_sources};
use crate::plan::Fault;
use crate::rotten::Rotten;

/// Events after which a process that is doomed ends, at most.
const DOOM_EVENTS: u64 = 60;
/// How long a full disk may show after there is room again: the log and the index look once a second.
const ROOM_NOTICED: Duration = Duration::from_secs(30);
/// How often a machine is looked at that is to rot once it is quiet.
const ROT_RETRY: Duration = Duration::from_millis(20);
const ROT_TRIES: u32 = 100;

impl Cluster {
    /// A fault comes, and the next one of its kind is drawn.
    pub(super) fn fault(&mut self, number: usize) -> Check {
        if self.calm {
            return Ok(());
        }
        let (fault, mean) = self.plan.faults[number];
        self.soon(Event::Fault(number), mean);
        self.inject(fault)
    }

    /// A machine: any, or the one that leads.
    fn draw_machine(&mut self) -> usize {
        let leader = self.machines.iter().position(|machine| machine.is_up() && machine.node.member.leads());
        match leader.filter(|_| self.rng.chance(40)) {
            Some(leader) => leader,
            None => self.rng.index(self.machines.len()),
        }
    }

    /// A number of milliseconds of any order of magnitude below 2 to the power `bits`.
    fn draw_millis(&mut self, bits: u64) -> Duration {
        let bound = 2 << self.rng.below(bits);
        Duration::from_millis(1 + self.rng.below(bound))
    }

    fn inject(&mut self, fault: Fault) -> Check {
        *self.summary.faults.entry(fault.name()).or_default() += 1;
        match fault {
            Fault::Crash if self.rng.chance(10) => return self.black_out(),
            Fault::MoveLeader => return self.move_leader(),
            Fault::Reset => {
                let (at, other) = (self.draw_machine(), self.rng.index(self.machines.len()));
                let peer = self.machines[other].id;
                if at != other {
                    self.after(Event::Hangup { to: at, peer }, Duration::ZERO);
                }
                return Ok(());
            }
            Fault::OneWay | Fault::Isolate | Fault::Partition | Fault::SlowLink => {
                self.disturb_network(fault);
                return Ok(());
            }
            Fault::Rot => {
                let machine = self.draw_machine();
                self.after(Event::Rot { machine, tries: 0 }, Duration::ZERO);
                return Ok(());
            }
            _ => {}
        }
        let at = self.draw_machine();
        if !self.machines[at].is_up() {
            return Ok(());
        }
        let detail = match fault {
            Fault::Stall => {
                let stall = self.draw_millis(13);
                let until = self.now + stall;
                self.machines[at].node.stall_until(until);
                self.machines[at].refresh();
                format!("for {stall:?}")
            }
            Fault::Pause => self.pause(at),
            Fault::FullDisk => self.fill_disk(at),
            Fault::Crash | Fault::Kill => {
                let delay = self.rng.below(DOOM_EVENTS);
                self.machines[at].doom.get_or_insert((delay, fault));
                format!("in {delay} events")
            }
            _ => self.break_io(at, fault),
        };
        self.machines[at].io_faults += u64::from(breaks_io(fault));
        self.story.tell(self.now, "fault", at as u64, || format!("{} of m{} {detail}", fault.name(), at + 1));
        Ok(())
    }

    fn break_io(&mut self, at: usize, fault: Fault) -> String {
        let nth = self.rng.below(12);
        let bytes = self.rng.index(16 << 10);
        let mut disk = self.machines[at].node.disk.lock().expect("one thread");
        match fault {
            Fault::SyncError => disk.plan(Operation::Sync, nth, simdisk::Fault::Error),
            Fault::WriteError => disk.plan(Operation::Write, nth, simdisk::Fault::Error),
            Fault::ShortWrite => disk.plan(Operation::Write, nth, simdisk::Fault::Short(bytes)),
            Fault::ReadError => disk.plan(Operation::Read, nth % 4, simdisk::Fault::Error),
            _ => disk.plan(Operation::Allocate, nth % 2, simdisk::Fault::Error),
        }
        String::new()
    }

    fn fill_disk(&mut self, at: usize) -> String {
        let room = self.rng.below(1 << 20);
        let lasts = Duration::from_millis(10 << self.rng.below(12));
        {
            let mut disk = self.machines[at].node.disk.lock().expect("one thread");
            let capacity = disk.used() + room;
            disk.set_capacity(Some(capacity));
        }
        self.machines[at].was_full = true;
        self.history.allow_full_disk(self.now + lasts + ROOM_NOTICED);
        self.after(Event::Room(at), lasts);
        format!("{room} bytes are left, for {lasts:?}")
    }

    /// A disk has room again. Whoever asks for space may be refused a little longer.
    pub(super) fn lift_capacity(&mut self, at: usize) {
        self.machines[at].node.disk.lock().expect("one thread").set_capacity(None);
        self.history.allow_full_disk(self.now + ROOM_NOTICED);
        self.story.tell(self.now, "fault", at as u64, || format!("the disk of m{} has room again", at + 1));
    }

    /// A process stands still, and its clock with it or not.
    fn pause(&mut self, at: usize) -> String {
        let pause = self.draw_millis(13);
        let sleeps = self.rng.chance(40);
        self.pause_for(at, pause, sleeps)
    }

    pub(super) fn pause_for(&mut self, at: usize, pause: Duration, sleeps: bool) -> String {
        let until = self.now + pause;
        let life = self.machines[at].life;
        let machine = &mut self.machines[at];
        if machine.paused_until.is_some() {
            return "again".to_owned();
        }
        machine.node.now = machine.node.now.max(self.now);
        machine.paused_until = Some(until);
        machine.node.hold_until(until);
        if sleeps {
            machine.node.process_clock.stand_still(pause);
        }
        machine.refresh();
        self.history.allow_full_disk(until + ROOM_NOTICED);
        self.after(Event::Resume { machine: at, life }, pause);
        format!("for {pause:?}{}", if sleeps { ", and its clock with it" } else { "" })
    }

    /// A process that stood still goes on. What came in meanwhile it sees before its timers, after them or between.
    pub(super) fn resume_machine(&mut self, at: usize, life: u64) -> Check {
        let machine = &mut self.machines[at];
        if machine.life != life || machine.paused_until.is_none() {
            return Ok(());
        }
        self.story.tell(self.now, "resume", at as u64, || format!("m{} goes on", at + 1));
        let machine = &mut self.machines[at];
        machine.paused_until = None;
        let backlog = std::mem::take(&mut machine.backlog);
        machine.refresh();
        let timers_first = self.rng.chance(30);
        if timers_first {
            self.machine_turn(at)?;
        }
        for input in backlog {
            if self.machines[at].life != life {
                self.forget(input);
                continue;
            }
            self.input(at, input)?;
            if self.rng.chance(5) && self.machines[at].life == life {
                self.machine_turn(at)?;
            }
        }
        Ok(())
    }

    /// What a process had not seen when it ended.
    fn forget(&mut self, input: Input) {
        if let Input::Read { client, .. } = input {
            self.release(client);
        }
    }

    fn disturb_network(&mut self, fault: Fault) {
        let size = self.machines.len();
        let lasts = self.draw_millis(14);
        let until = self.now + lasts;
        let (one, other) = (self.draw_machine(), self.rng.index(size));
        let mut side = vec![false; size];
        match fault {
            Fault::OneWay if self.rng.chance(50) => self.network.cut(one, other, until),
            Fault::OneWay => self.network.cut(other, one, until),
            Fault::Isolate => side[one] = true,
            Fault::Partition => side.iter_mut().for_each(|member| *member = self.rng.chance(50)),
            _ => {
                let slowness = self.draw_millis(11);
                self.network.slow_down(one, other, until, slowness);
            }
        }
        for (from, to) in (0..size).flat_map(|from| (0..size).map(move |to| (from, to))) {
            if side[from] != side[to] {
                self.network.cut(from, to, until);
            }
        }
        self.story.tell(self.now, "fault", one as u64, || {
            format!("{} of m{} and m{}, {side:?}, for {lasts:?}", fault.name(), one + 1, other + 1)
        });
    }

    /// A client has the leader, or whom it takes for it, hand leadership over.
    fn move_leader(&mut self) -> Check {
        let (at, target) = (self.draw_machine(), self.rng.index(self.machines.len()));
        let target = self.machines[target].id;
        if !self.machines[at].is_up() {
            return Ok(());
        }
        self.send(at, 0, vec![(Request::MoveLeader { target }, What::MoveLeader)])
    }

    /// Power fails everywhere.
    fn black_out(&mut self) -> Check {
        for at in 0..self.machines.len() {
            if self.machines[at].is_up() {
                self.end(at, Fault::Crash)?;
            }
        }
        Ok(())
    }

    /// Ends a doomed process if its time has come.
    pub(super) fn count_down(&mut self, at: usize) -> Check {
        match self.machines[at].doom {
            None => Ok(()),
            Some((0, fault)) => self.end(at, fault),
            Some((left, fault)) => {
                self.machines[at].doom = Some((left - 1, fault));
                Ok(())
            }
        }
    }

    /// A process ends; after a while it starts again.
    pub(super) fn end(&mut self, at: usize, how: Fault) -> Check {
        let backlog = std::mem::take(&mut self.machines[at].backlog);
        self.break_streams(at);
        self.lose_requests(at);
        backlog.into_iter().for_each(|input| self.forget(input));
        if how != Fault::Crash {
            self.trip(at);
        }
        let machine = &mut self.machines[at];
        machine.end();
        let lost = {
            let disk = machine.node.disk.lock().expect("one thread");
            (disk.unsynced_sectors(), disk.unsynced_metadata())
        };
        if how == Fault::Crash {
            machine.node.power_off();
        }
        {
            let mut disk = machine.node.disk.lock().expect("one thread");
            disk.clear_plans();
            disk.settle_abandoned(&mut machine.node.rng);
        }
        self.story.tell(self.now, "end", at as u64, || {
            format!("m{} ends: {}; {} sectors and {} names were not durable", at + 1, how.name(), lost.0, lost.1)
        });
        let bits = if self.rng.chance(10) { 15 } else { 12 };
        let pause = if self.calm { Duration::from_millis(100) } else { self.draw_millis(bits) };
        self.after(Event::Start(at), pause);
        Ok(())
    }

    /// A process stops by itself, as it must after the first failed write or sync, and never otherwise.
    pub(super) fn stopped(&mut self, at: usize, stop: &Stop) -> Check {
        let text = with_sources(stop);
        self.story.tell(self.now, "stop", at as u64, || format!("m{} stops: {text}", at + 1));
        let machine = &mut self.machines[at];
        let rotten = machine.rotten.is_some() && matches!(stop, Stop::Page(_));
        if machine.io_faults == 0 && !machine.was_full && !rotten {
            return violated("a process stops only when I/O failed or a page is damaged", "", text);
        }
        machine.node.drain();
        let node = &mut machine.node;
        let says = !(node.answers.is_empty() && node.events.is_empty());
        if matches!(stop, Stop::Fatal(_)) && says {
            return violated("after a failure nothing is answered any more", "", format!("{:?}", node.answers));
        }
        *self.summary.faults.entry("stopped").or_default() += 1;
        let how = if self.rng.chance(50) { Fault::Crash } else { Fault::Kill };
        self.end(at, how)?;
        if rotten {
            // The page was never served, and the next start refills the member.
            let machine = &mut self.machines[at];
            machine.rotten = None;
            machine.node.mark_damaged();
            *self.summary.faults.entry("damaged").or_default() += 1;
        }
        Ok(())
    }

    /// A process starts.
    pub(super) fn start(&mut self, at: usize) -> Check {
        let now = self.now;
        let machine = &mut self.machines[at];
        if machine.is_up() {
            return Ok(());
        }
        machine.node.now = machine.node.now.max(now);
        // Only where something has rotted a start may find damage.
        let rescue = if machine.rotten.is_some() { Rescue::Peers } else { Rescue::Nothing };
        let before = machine.node.is_under_repair_on_disk();
        let start = match machine.node.start_with(rescue) {
            Ok(start) => start,
            Err(refusal) => return violated("a member opens after any crash", "", with_sources(&refusal)),
        };
        let is_repair = machine.node.member.is_under_repair();
        if is_repair && !before {
            machine.rotten = None;
            *self.summary.faults.entry("damaged").or_default() += 1;
        }
        let machine = &mut self.machines[at];
        if (start.founded || is_repair) && start.last_index == 0 {
            // The store is a new one. What it replaces keeps its place until it is no longer needed: no sector of the new
            // files held any of that before.
            machine.older = None;
        }
        machine.begin(&start, self.plan.each.watch)?;
        machine.published = start.applied_index;
        if start.applied_index > self.history.committed_index() {
            return violated("what was saved is committed", "", format!("m{}: {start:?}", at + 1));
        }
        machine.events_to = self.history.model.position_of(start.revision + 1);
        self.summary.restarts += 1;
        self.summary.checkpoint_starts += u64::from(start.applied_index > 0);
        self.story.tell(now, "start", at as u64, || {
            format!(
                "m{} starts: index at {} (revision {}), log up to {}, {} entries to apply, {} batches cut{}",
                at + 1,
                start.applied_index,
                start.revision,
                start.last_index,
                start.entries.len(),
                start.cut_count,
                match (start.founded, is_repair) {
                    (true, _) => ", a new store",
                    (false, true) => ", under repair",
                    (false, false) => "",
                },
            )
        });
        let machine = &mut self.machines[at];
        if let Some(links) = machine.links.take() {
            machine.links = Some(links.again(machine.id, machine.node.starts));
        }
        self.meet(at);
        if self.rng.chance(20) {
            let disk = self.machines[at].node.disk.lock().expect("one thread").clone();
            self.machines[at].older = Some(disk);
        }
        self.observe(at)
    }

    /// A sector of a machine rots once everything that it has written is known to be durable: until its seal a log's
    /// last batch can't be told from one that was torn. At most a minority is struck at a time, or under repair.
    pub(super) fn try_rot(&mut self, at: usize, tries: u32) -> Check {
        let struck = self.machines.iter().filter(|machine| machine.is_struck()).count();
        let minority = (self.machines.len() - 1) / 2;
        let machine = &self.machines[at];
        if self.calm || machine.is_struck() || struck >= minority || tries > ROT_TRIES {
            return Ok(());
        }
        if !machine.is_quiet() {
            self.soon(Event::Rot { machine: at, tries: tries + 1 }, ROT_RETRY);
            return Ok(());
        }
        self.end(at, Fault::Rot)?;
        let machine = &mut self.machines[at];
        let shared = Arc::clone(&machine.node.disk);
        let mut disk = shared.lock().expect("one thread");
        let Some((rotten, text)) = Rotten::strike(&mut disk, &mut self.rng, machine.older.as_ref()) else {
            return Ok(());
        };
        self.story.tell(self.now, "rot", rotten.sector, || {
            format!("m{}: sector {} of {}: {text}", at + 1, rotten.sector, rotten.name)
        });
        machine.rotten = Some(rotten);
        Ok(())
    }

    /// A sector that rotted and that nobody has missed is restored, unless it was written since.
    pub(super) fn restore_sector(&mut self, at: usize) {
        let machine = &mut self.machines[at];
        let Some(rotten) = machine.rotten.take() else { return };
        let restored = rotten.repair(&mut machine.node.disk.lock().expect("one thread"));
        self.story.tell(self.now, "repair", rotten.sector, || {
            format!("m{}: sector {} of {}: {restored:?}", at + 1, rotten.sector, rotten.name)
        });
    }
}
