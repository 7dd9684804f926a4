//! A process starts: it finds out what is on the disk, twice, and opens the member on it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use garboard_replica::member::{Member, MemberConfig, RecoveredState};
use garboard_replica::raft::{Membership, MembershipError};
use garboard_replica::repair::{Loss, Mark, Stage};
use garboard_simdisk::{Disk, Rng};
use garboard_storage::{Index, IndexConfig, OpenError, OpenFacts};
use garboard_wal as wal;

use super::io::{MANIFEST, SimFile, segment_name};
use super::{INDEX_FILE, MemberOpenError, Node, Start};

/// Says that the store was served from: from then on what is there is never taken for an unfinished creation.
const SERVED: &str = "served";
/// The mark of a repair is a file with this prefix, whose name says all: it needs no room.
const REPAIR: &str = "repair ";

/// Why a member does not open.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The index's file.
    #[error("the index is refused: {0}")]
    Index(#[source] OpenError),
    /// The log's manifest is gone or can't be read.
    #[error("the log's manifest can't be read")]
    NoManifest,
    /// The log.
    #[error("the log is refused: {0}")]
    Log(#[source] wal::RecoveryError),
    /// What both hold does not make a member.
    #[error("the member is refused: {0}")]
    Member(#[source] MemberOpenError),
    /// The membership in the index.
    #[error("the membership is refused: {0}")]
    Membership(#[source] MembershipError),
    /// Reading the same disk twice gave two states.
    #[error("recovery presents one state and then another")]
    TwoStates,
}

impl Refusal {
    /// Whether `garboard salvage` could cut the log where the damage is.
    pub fn is_salvageable(&self) -> bool {
        matches!(self, Refusal::Log(wal::RecoveryError::Damaged(damage)) if damage.repairable)
    }

    /// Whether this is damage found on the disk, as rot leaves it.
    pub fn is_damage(&self) -> bool {
        match self {
            Refusal::NoManifest => true,
            Refusal::Log(wal::RecoveryError::Damaged(_) | wal::RecoveryError::Manifest(_)) => true,
            Refusal::Index(OpenError::NoMeta(_) | OpenError::FreeMap { .. }) => true,
            Refusal::Member(error) => matches!(error, MemberOpenError::Page(_)),
            _ => false,
        }
    }
}

/// What an operator has allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rescue {
    /// Nothing: damage is refused.
    Nothing,
    /// Cutting the log where it is damaged, and with it what was acknowledged behind.
    Salvage,
    /// Nothing, but the other members give back what is lost.
    Peers,
}

/// A member of a new store.
pub struct Found {
    pub(super) member: Member,
    pub(super) file: Arc<SimFile>,
    pub(super) log_id: u128,
}

/// Makes a new store on the disk, whatever is there.
pub(super) fn found(
    disk: &Arc<Mutex<Disk>>,
    config: &MemberConfig,
    log_config: wal::LogConfig,
    index_config: &IndexConfig,
    rng: &mut Rng,
    now: Duration,
) -> Found {
    {
        let mut disk = disk.lock().expect("one thread");
        let names: Vec<String> = disk.list().map(|(name, _)| name.to_owned()).collect();
        let is_kept = |name: &String| config.loss.is_some() && (name == SERVED || name.starts_with(REPAIR));
        for name in names.into_iter().filter(|name| !is_kept(name)) {
            disk.remove(&name).expect("just listed");
        }
        disk.create(INDEX_FILE, 0).expect("an empty file has room");
        disk.sync(INDEX_FILE).expect("the disk works while a store is made");
        disk.sync_folder().expect("the disk works while a store is made");
    }
    let file = SimFile::new(disk);
    let index = Index::create(index_config.clone(), file.clone());
    let log_id = u128::from(rng.next_u64());
    let log = wal::Log::create(log_config, log_id).expect("the configuration is valid");
    Found { member: Member::create(now, config.clone(), log, index), file, log_id }
}

/// What the disk holds.
struct Presented {
    index: Index,
    file: Arc<SimFile>,
    facts: OpenFacts,
    log_id: u128,
    recovered: wal::Recovered,
}

impl Node {
    /// Somebody will rely on what is there from now on.
    pub(super) fn mark_served(&mut self) {
        self.served = true;
        let mut disk = self.disk.lock().expect("one thread");
        if disk.size(SERVED).is_err() {
            // Whatever the disk does otherwise, this step succeeds or the process does not get so far.
            let result = disk.create(SERVED, 0).and_then(|()| disk.sync_folder());
            self.served = result.is_ok();
        }
    }

    /// The same where others will rely on the log from its first write on: nothing goes on before it is durable.
    pub(super) fn insist_on_served(&mut self) {
        let mut disk = self.disk.lock().expect("one thread");
        while disk.size(SERVED).is_err() && disk.create(SERVED, 0).is_err() {}
        while disk.sync_folder().is_err() {}
        self.served = true;
    }

    pub(super) fn open(&mut self, rescue: Rescue) -> Result<Start, Refusal> {
        // What a process that was killed had written may be read and still be lost with the power: before anything
        // rests on it, it is made durable.
        self.make_durable();
        self.served = self.disk.lock().expect("one thread").size(SERVED).is_ok();
        (self.config.loss, self.is_clearing) = (None, false);
        let mark = self.mark();
        match &mark {
            Some(mark) if mark.stage == Stage::Clearing => return Ok(self.refill(mark.clone())),
            Some(mark) if mark.stage == Stage::Found => return Ok(self.set_aside(mark.clone())),
            _ => {}
        }
        let presented = match self.present(rescue) {
            Ok(presented) => presented,
            Err(_) if !self.served => return Ok(self.found_anew()),
            Err(refusal) if rescue == Rescue::Peers && refusal.is_damage() => {
                return self.begin_repair(mark, &refusal);
            }
            Err(refusal) => return Err(refusal),
        };
        let again = self.present(rescue)?;
        let same = presented.facts == again.facts
            && presented.recovered.entries == again.recovered.entries
            && presented.recovered.hard_state == again.recovered.hard_state
            && presented.recovered.report == again.recovered.report;
        drop(again);
        if !same {
            return Err(Refusal::TwoStates);
        }
        self.config.loss = mark.as_ref().map(|mark| self.loss(mark));
        match self.assume(presented) {
            Err(refusal) if rescue == Rescue::Peers && refusal.is_damage() => self.begin_repair(mark, &refusal),
            other => other,
        }
    }

    /// The other members are to give back what is lost: the log is cut where it is damaged, if that is all, or everything
    /// begins anew.
    fn begin_repair(&mut self, before: Option<Mark>, refusal: &Refusal) -> Result<Start, Refusal> {
        let mark = Mark::begin(Stage::Filling, before).with_state(self.newest_state());
        if refusal.is_salvageable() {
            self.set_mark(Some(&mark));
            self.config.loss = Some(self.loss(&mark));
            if let Ok(presented) = self.present(Rescue::Salvage) {
                return self.assume(presented);
            }
        }
        Ok(self.refill(Mark { stage: Stage::Clearing, ..mark }))
    }

    /// The index was found damaged while it was served from.
    fn set_aside(&mut self, mark: Mark) -> Start {
        let state = self.newest_state();
        self.refill(Mark { stage: Stage::Clearing, ..mark }.with_state(state))
    }

    /// Begins anew with nothing but what is known of votes.
    fn refill(&mut self, mark: Mark) -> Start {
        self.set_mark(Some(&mark));
        let config = MemberConfig {
            initial_members: Membership::default(),
            loss: Some(self.loss(&mark)),
            ..self.config.clone()
        };
        let now = self.clock();
        let Found { member, file, log_id } =
            found(&self.disk, &config, self.log_config, &self.index_config, &mut self.rng, now);
        (self.member, self.file, self.log_id) = (member, file, log_id);
        (self.config.loss, self.is_clearing) = (config.loss, true);
        Start { last_index: 0, entries: Vec::new(), applied_index: 0, revision: 1, founded: false, cut_count: 0 }
    }

    fn loss(&self, mark: &Mark) -> Loss {
        Loss { peers: self.config.initial_members.voters.clone(), ..mark.loss.clone() }
    }

    /// The log's newest state, if it can be told.
    fn newest_state(&self) -> Option<wal::HardState> {
        let manifest = self.read_manifest()?;
        let facts = Index::open(self.index_config.clone(), SimFile::new(&self.disk)).ok().map(|(_, facts)| facts);
        let meta = facts.and_then(|facts| {
            let anchor = Some(wal::Anchor::from_bytes(&facts.anchor).ok()?);
            Some(wal::MetaFacts { anchor, applied_index: facts.applied.index, applied_term: facts.applied.term })
        });
        let mut recovery = self.scan(|config, segments| match meta {
            Some(meta) => wal::Recovery::new(config, &manifest, segments, meta),
            None => wal::Recovery::survey(config, &manifest, segments),
        });
        recovery.as_mut().ok()?.newest_state()
    }

    /// A page of the index was found damaged. The next start refills the member.
    pub fn mark_damaged(&mut self) {
        let mark = Mark::begin(Stage::Found, self.mark());
        self.set_mark(Some(&mark));
    }

    /// Others will rely on what a member that began anew writes into its log.
    pub(super) fn end_clearing(&mut self) {
        self.is_clearing = false;
        let mark = Mark { stage: Stage::Filling, ..self.mark().expect("it is being cleared") };
        self.set_mark(Some(&mark));
    }

    pub(super) fn end_repair(&mut self) {
        self.config.loss = None;
        self.repaired = true;
        self.set_mark(None);
    }

    /// Whether the member is under repair, as its disk says.
    pub fn is_under_repair_on_disk(&self) -> bool {
        self.mark().is_some()
    }

    fn mark(&self) -> Option<Mark> {
        let disk = self.disk.lock().expect("one thread");
        let name = disk.list().find_map(|(name, _)| Some(name.strip_prefix(REPAIR)?.to_owned()))?;
        Some(Mark::decode(&name).expect("names do not rot"))
    }

    /// Whatever the disk does otherwise, this step succeeds or the process does not get so far.
    fn set_mark(&self, mark: Option<&Mark>) {
        let mut disk = self.disk.lock().expect("one thread");
        let old: Vec<String> =
            disk.list().filter(|(name, _)| name.starts_with(REPAIR)).map(|(name, _)| name.to_owned()).collect();
        let new = mark.map(|mark| format!("{REPAIR}{}", mark.encode()));
        if let Some(new) = new.as_ref().filter(|new| !old.contains(new)) {
            while disk.create(new, 0).is_err() {}
        }
        while disk.sync_folder().is_err() {}
        for name in old.iter().filter(|old| Some(*old) != new.as_ref()) {
            disk.remove(name).expect("just listed");
        }
        while disk.sync_folder().is_err() {}
    }

    fn make_durable(&self) {
        let mut disk = self.disk.lock().expect("one thread");
        let names: Vec<String> = disk.list().map(|(name, _)| name.to_owned()).collect();
        for name in names.iter().filter(|name| name.ends_with(".tmp")) {
            disk.remove(name).expect("just listed");
        }
        for name in names.iter().filter(|name| !name.ends_with(".tmp")) {
            disk.sync(name).expect("faults are taken back before a start");
        }
        disk.sync_folder().expect("faults are taken back before a start");
    }

    /// Reads everything and writes nothing.
    fn present(&self, rescue: Rescue) -> Result<Presented, Refusal> {
        let file = SimFile::new(&self.disk);
        let (index, facts) = Index::open(self.index_config.clone(), file.clone()).map_err(Refusal::Index)?;
        let manifest = self.read_manifest().ok_or(Refusal::NoManifest)?;
        let log_id = wal::Manifest::from_bytes(&manifest)
            .map_err(|error| Refusal::Log(wal::RecoveryError::Manifest(error)))?
            .log_id;
        let anchor = match facts.anchor.as_ref() {
            [] => Some(wal::Anchor::genesis(log_id)),
            bytes => wal::Anchor::from_bytes(bytes).ok(),
        };
        let meta = wal::MetaFacts { anchor, applied_index: facts.applied.index, applied_term: facts.applied.term };
        let recovered = self.recover(&manifest, meta, rescue).map_err(Refusal::Log)?;
        Ok(Presented { index, file, facts, log_id, recovered })
    }

    fn read_manifest(&self) -> Option<Vec<u8>> {
        let mut disk = self.disk.lock().expect("one thread");
        let size = usize::try_from(disk.size(MANIFEST).ok()?).expect("small");
        let mut bytes = vec![0; size];
        disk.read(MANIFEST, 0, &mut bytes).ok()?;
        Some(bytes)
    }

    fn recover(
        &self,
        manifest: &[u8],
        meta: wal::MetaFacts,
        rescue: Rescue,
    ) -> Result<wal::Recovered, wal::RecoveryError> {
        let recovery = self.scan(|config, segments| wal::Recovery::new(config, manifest, segments, meta))?;
        match rescue {
            Rescue::Nothing | Rescue::Peers => recovery.finish(),
            Rescue::Salvage => recovery.finish_repaired(Vec::new()),
        }
    }

    fn scan(
        &self,
        begin: impl FnOnce(wal::LogConfig, Vec<wal::SegmentFile>) -> Result<wal::Recovery, wal::RecoveryError>,
    ) -> Result<wal::Recovery, wal::RecoveryError> {
        let mut disk = self.disk.lock().expect("one thread");
        let segments = disk.list().filter_map(|(name, size_bytes)| {
            let (shard, segment) = name.strip_prefix("wal/shard-")?.split_once("/segment-")?;
            Some(wal::SegmentFile { shard: shard.parse().ok()?, segment: segment.parse().ok()?, size_bytes })
        });
        let mut recovery = begin(self.log_config, segments.collect())?;
        let mut bytes = Vec::new();
        while let Some(read) = recovery.poll_read() {
            bytes.resize(read.len, 0);
            let result = disk.read(&segment_name(read.shard, read.segment), read.offset, &mut bytes);
            let result = result.map(|()| &bytes[..]).map_err(|_| wal::DiskError::Io { errno: 5 });
            recovery.handle_read(read, result);
        }
        Ok(recovery)
    }

    fn assume(&mut self, presented: Presented) -> Result<Start, Refusal> {
        let Presented { index, file, facts, log_id, recovered } = presented;
        let start = Start {
            last_index: recovered.log.last().0,
            entries: recovered.entries.clone(),
            applied_index: facts.applied.index,
            revision: facts.revision,
            founded: false,
            cut_count: recovered.report.cut_count,
        };
        let state = RecoveredState::new(&self.config, &facts, recovered.hard_state, recovered.entries)
            .map_err(Refusal::Membership)?;
        self.member =
            Member::open(self.clock(), self.config.clone(), recovered.log, index, state).map_err(Refusal::Member)?;
        (self.file, self.log_id) = (file, log_id);
        Ok(start)
    }

    /// The member was never served from: its first meta page or its log's manifest did not become durable, and nobody
    /// relies on them.
    fn found_anew(&mut self) -> Start {
        let now = self.clock();
        let Found { member, file, log_id } =
            found(&self.disk, &self.config, self.log_config, &self.index_config, &mut self.rng, now);
        (self.member, self.file, self.log_id) = (member, file, log_id);
        Start { last_index: 0, entries: Vec::new(), applied_index: 0, revision: 1, founded: true, cut_count: 0 }
    }
}
