//! Faults: what goes wrong on a machine, and how its process ends and starts again.

use std::sync::Arc;
use std::time::Duration;

use garboard_simdisk::{self as simdisk, Operation};

use super::{Event, World};
use crate::node::{Refusal, Rescue, Start, Stop};
use crate::outcome::{Check, violated, with_sources};
use crate::plan::Fault;
use crate::rotten::Rotten;

/// Events after which a process that is doomed ends, at most.
const DOOM_EVENTS: u64 = 60;
/// How long a full disk may show after there is room again: the log and the index look once a second.
const ROOM_NOTICED: Duration = Duration::from_secs(30);

impl World {
    /// After each request of a client, faults may come.
    pub(super) fn roll_faults(&mut self, at: usize) {
        for number in 0..self.plan.faults.len() {
            let (fault, often) = self.plan.faults[number];
            if self.rng.below(10_000) < often {
                self.inject(at, fault);
            }
        }
    }

    fn inject(&mut self, at: usize, fault: Fault) {
        let delay = self.rng.below(DOOM_EVENTS);
        let site = &mut self.sites[at];
        let shared = Arc::clone(&site.node.disk);
        let mut disk = shared.lock().expect("one thread");
        let mut detail = String::new();
        match fault {
            Fault::Crash | Fault::Kill | Fault::Rot if site.doom.is_some() => return,
            Fault::Crash | Fault::Kill => site.doom = Some((delay, fault)),
            Fault::Rot if site.rotten.is_some() => return,
            Fault::Rot => {
                // It strikes once everything that is under way is done: until its seal a log's last batch can't be told
                // from one that was torn.
                site.doom = Some((0, fault));
                self.hold = true;
            }
            Fault::SyncError => disk.plan(Operation::Sync, delay % 12, simdisk::Fault::Error),
            Fault::WriteError => disk.plan(Operation::Write, delay % 12, simdisk::Fault::Error),
            Fault::ShortWrite => {
                let bytes = self.rng.index(16 << 10);
                disk.plan(Operation::Write, delay % 12, simdisk::Fault::Short(bytes));
            }
            Fault::ReadError => disk.plan(Operation::Read, delay % 4, simdisk::Fault::Error),
            Fault::AllocateError => disk.plan(Operation::Allocate, delay % 2, simdisk::Fault::Error),
            Fault::Stall => {
                let stall = Duration::from_millis(1 << self.rng.below(14));
                site.node.stall_until(self.now + stall);
                detail = format!("for {stall:?}");
            }
            Fault::FullDisk => {
                let room = self.rng.below(1 << 20);
                let capacity = disk.used() + room;
                disk.set_capacity(Some(capacity));
                let lasts = Duration::from_millis(10 << self.rng.below(12));
                detail = format!("{room} bytes are left, for {lasts:?}");
                self.checker.allow_full_disk(self.now + lasts + ROOM_NOTICED);
                self.after(Event::Room(at), lasts);
            }
            Fault::Pause => {
                let pause = Duration::from_millis(10 << self.rng.below(13));
                self.now += pause;
                self.checker.paused(pause);
                detail = format!("for {pause:?}");
            }
            other => unreachable!("{other:?} is a fault of a cluster"),
        }
        drop(disk);
        let site = &mut self.sites[at];
        let breaks_io = matches!(
            fault,
            Fault::SyncError | Fault::WriteError | Fault::ShortWrite | Fault::ReadError | Fault::AllocateError
        );
        site.io_faults += u64::from(breaks_io);
        *self.summary.faults.entry(fault.name()).or_default() += 1;
        self.story.tell(self.now, "fault", delay, || format!("{} {detail}", fault.name()));
    }

    /// The disk has room again. Whoever asks for space may be refused a little longer.
    pub(super) fn lift_capacity(&mut self, at: usize) {
        self.sites[at].node.disk.lock().expect("one thread").set_capacity(None);
        self.checker.allow_full_disk(self.now + ROOM_NOTICED);
        self.story.tell(self.now, "fault", 0, || "the disk has room again".to_owned());
    }

    /// Ends the process if its time has come.
    pub(super) fn maybe_crash(&mut self, at: usize) -> Check {
        if self.options.crash_at == Some(self.turns) {
            *self.summary.faults.entry(Fault::Crash.name()).or_default() += 1;
            return self.end(at, Fault::Crash);
        }
        let site = &mut self.sites[at];
        match site.doom {
            None => Ok(()),
            Some((0, Fault::Rot)) if !is_quiet(site) => Ok(()),
            Some((0, fault)) => self.end(at, fault),
            Some((left, fault)) => {
                site.doom = Some((left - 1, fault));
                Ok(())
            }
        }
    }

    /// The process ends; after a while it starts again.
    pub(super) fn end(&mut self, at: usize, how: Fault) -> Check {
        let site = &mut self.sites[at];
        site.end();
        let lost = {
            let disk = site.node.disk.lock().expect("one thread");
            (disk.unsynced_sectors(), disk.unsynced_metadata())
        };
        if how == Fault::Crash {
            site.node.power_off();
        }
        {
            let mut disk = site.node.disk.lock().expect("one thread");
            disk.clear_plans();
            disk.settle_abandoned(&mut site.node.rng);
        }
        if how == Fault::Rot {
            self.rot(at);
        }
        self.hold = self.calm;
        self.checker.ended();
        self.asks.clear();
        self.reads.clear();
        let now = self.now;
        self.story.tell(now, "end", self.turns, || {
            format!("the process ends: {}; {} sectors and {} names were not durable", how.name(), lost.0, lost.1)
        });
        for client in 0..self.clients.len() {
            if std::mem::take(&mut self.clients[client].outstanding) > 0 {
                self.soon(Event::Client(client), Duration::from_millis(50));
            }
        }
        let pause = Duration::from_millis(1 << self.rng.below(13));
        self.after(Event::Start(at), pause);
        Ok(())
    }

    /// A process stops by itself, as it must after the first failed write or sync, and never otherwise.
    pub(super) fn stopped(&mut self, at: usize, stop: &Stop) -> Check {
        let text = with_sources(stop);
        self.story.tell(self.now, "stop", self.turns, || format!("the process stops: {text}"));
        let site = &mut self.sites[at];
        let rotten = site.rotten.is_some() && matches!(stop, Stop::Page(_));
        if site.io_faults == 0 && !rotten {
            return violated("a process stops only when I/O failed or a page is damaged", "", text);
        }
        site.node.drain();
        if matches!(stop, Stop::Fatal(_)) && !(site.node.answers.is_empty() && site.node.events.is_empty()) {
            return violated("after a failure nothing is answered any more", "", format!("{:?}", site.node.answers));
        }
        *self.summary.faults.entry("stopped").or_default() += 1;
        let how = if self.rng.chance(50) { Fault::Crash } else { Fault::Kill };
        self.end(at, how)?;
        if rotten {
            self.repair(at);
        }
        Ok(())
    }

    /// A process starts.
    pub(super) fn start(&mut self, at: usize) -> Check {
        let now = self.now;
        let site = &mut self.sites[at];
        if site.is_up() {
            return Ok(());
        }
        site.node.now = now;
        let durable = site.durable_index;
        let start = match site.node.start_process() {
            Ok(start) => {
                self.checker.started(now, &start, durable)?;
                start
            }
            Err(refusal) => self.refused(at, &refusal)?,
        };
        let site = &mut self.sites[at];
        site.begin();
        site.published = None;
        self.summary.restarts += 1;
        self.summary.checkpoint_starts += u64::from(start.applied_index > 0);
        self.story.tell(now, "start", start.last_index, || {
            format!(
                "the process starts: index at {} (revision {}), log up to {}, {} entries to apply, {} batches cut{}",
                start.applied_index,
                start.revision,
                start.last_index,
                start.entries.len(),
                start.cut_count,
                if start.founded { ", a new store" } else { "" },
            )
        });
        if self.rng.chance(20) {
            let disk = self.sites[at].node.disk.lock().expect("one thread").clone();
            self.sites[at].older = Some(disk);
        }
        self.open_hubs(at);
        self.observe(at)?;
        if self.rng.below(100) < self.plan.crash_again && self.plan.has(Fault::Crash) {
            let delay = self.rng.below(DOOM_EVENTS / 2);
            self.inject(at, Fault::Crash);
            self.sites[at].doom = Some((delay, Fault::Crash));
        }
        Ok(())
    }

    /// A start is refused, which it may only be where something has rotted; an operator then restores the sector, or
    /// cuts the log.
    fn refused(&mut self, at: usize, refusal: &Refusal) -> Check<Start> {
        let now = self.now;
        let text = with_sources(refusal);
        self.story.tell(now, "refuse", self.turns, || format!("the start is refused: {text}"));
        let site = &mut self.sites[at];
        if site.rotten.is_none() || !refusal.is_damage() {
            return violated("a member opens after any crash", "", text);
        }
        *self.summary.faults.entry("refused").or_default() += 1;
        if refusal.is_salvageable() && self.rng.chance(50) {
            match site.node.start_with(Rescue::Salvage) {
                Ok(start) => {
                    *self.summary.faults.entry("salvaged").or_default() += 1;
                    self.story.tell(now, "salvage", start.last_index, || {
                        format!("the log is cut behind index {}", start.last_index)
                    });
                    self.checker.salvaged(now, &start)?;
                    self.drop_rotten(at);
                    return Ok(start);
                }
                Err(error) if error.is_damage() => {}
                Err(error) => return violated("salvage opens the log or leaves it", "", with_sources(&error)),
            }
        }
        self.repair(at);
        let site = &mut self.sites[at];
        let durable = site.durable_index;
        match site.node.start_process() {
            Ok(start) => self.checker.started(now, &start, durable).map(|()| start),
            Err(error) => violated("a member opens once its disk is as it was", "", with_sources(&error)),
        }
    }

    /// One durable sector changes.
    fn rot(&mut self, at: usize) {
        let site = &mut self.sites[at];
        let mut disk = site.node.disk.lock().expect("one thread");
        let Some((rotten, text)) = Rotten::strike(&mut disk, &mut self.rng, site.older.as_ref()) else { return };
        drop(disk);
        self.story
            .tell(self.now, "rot", rotten.sector, || format!("sector {} of {}: {text}", rotten.sector, rotten.name));
        self.sites[at].rotten = Some(rotten);
    }

    /// The sector that rotted is restored, unless it was written since.
    pub(super) fn repair(&mut self, at: usize) {
        let site = &mut self.sites[at];
        let Some(rotten) = site.rotten.take() else { return };
        if let Some(restored) = rotten.repair(&mut site.node.disk.lock().expect("one thread")) {
            let Rotten { name, sector, .. } = rotten;
            self.story.tell(self.now, "repair", sector, || format!("sector {sector} of {name}: {restored}"));
        }
    }

    /// Nothing needs the sector that rotted any more.
    fn drop_rotten(&mut self, at: usize) {
        if let Some(Rotten { name, sector, .. }) = self.sites[at].rotten.take() {
            let _ = self.sites[at].node.disk.lock().expect("one thread").heal(&name, sector);
        }
    }
}

/// Whether everything that the process has written is durable, and known to be.
fn is_quiet(site: &super::site::Site) -> bool {
    site.node.is_serving()
        && site.node.member.is_quiet()
        && !site.node.has_io()
        && site.node.member.log().poll_timeout().is_none()
}
