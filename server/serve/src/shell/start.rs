//! Opening a member: its data directory, its index, the tail of its log.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use garboard_replica::auto_compaction::AutoCompaction;
use garboard_replica::corruption::CorruptionChecks;
use garboard_replica::member::{self, Member, MemberConfig, RecoveredState};
use garboard_replica::members::Attributes;
use garboard_replica::raft::Membership;
use garboard_replica::repair::{Loss, Mark, Stage as RepairStage};
use garboard_replica::request::KeyspaceId;
use garboard_storage::{Index, IndexConfig, MappedFile, OpenError, OpenFacts, PageFile, limits};
use garboard_wal::{Anchor, HardState, Log, LogConfig, ManifestError, MetaFacts, Recovery, RecoveryError, SegmentFile};

use super::bus_error;
use super::data_dir::{DataDir, DataDirError, Ownership, Stage};
use super::founding::{Origin, Standing};
use super::index_file::IndexFile;
use super::log_files::LogFiles;
use super::log_reader;
use super::memory;
use super::peer_keys;
use super::repair::{self, RepairFiles};
use crate::config::{self, Config, Url};

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory can't be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// A file can't be used.
    #[error("{action} {path}")]
    File {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: String,
        /// What came back.
        source: io::Error,
    },
    /// The index can't be opened.
    #[error("{path} can't be used (restore it from a copy, or the member from a snapshot into an empty --data-dir)")]
    Index {
        /// The file.
        path: String,
        /// Why.
        source: OpenError,
    },
    /// The log can't be opened without losing what was acknowledged.
    #[error("{path} can't be used")]
    Log {
        /// The log's folder.
        path: String,
        /// Why.
        source: RecoveryError,
    },
    /// What log and index hold can't be put together.
    #[error("{path} can't be used (restore it from a copy, or the member from a snapshot into an empty --data-dir)")]
    Member {
        /// The index's file.
        path: String,
        /// Why.
        source: member::OpenError,
    },
    /// The member is no longer one.
    #[error(
        "the member has been permanently removed from the cluster; the data directory {0} must be removed, and the \
         member added anew, before it can join again"
    )]
    Removed(String),
    /// A setting does not fit.
    #[error("{0}")]
    Setting(String),
    /// The machine lacks something.
    #[error("{0}")]
    Machine(String),
}

/// A member and its files.
pub struct Opened {
    /// The member.
    pub member: Member,
    /// Its index.
    pub index_file: IndexFile,
    /// Its log.
    pub log_files: LogFiles,
}

/// Opens the member in a locked data directory, or creates it where the directory is new.
///
/// # Errors
/// See [`StartError`]; nothing on disk was changed then.
pub async fn open_member(
    dir: &DataDir,
    config: &Config,
    standing: &Standing,
    now: Duration,
) -> Result<Opened, StartError> {
    let Standing { cluster_id, member_id, .. } = *standing;
    let member_config = member_config(config, standing)?;
    let index_config = index_config(config, standing);
    let log_files = LogFiles::new(dir.wal_path().to_path_buf());
    if standing.origin == Origin::Data {
        let opened = reopen_or_repair(dir, config, standing, now).await?;
        if opened.member.members().is_removed(member_id) {
            return Err(StartError::Removed(config.data_dir.display().to_string()));
        }
        return Ok(opened);
    }
    dir.remove_unfinished()?;
    dir.set_ownership(&Ownership { cluster_id, member_id, stage: Stage::Creating })?;
    repair::prepare(&RepairFiles::of(dir), None);
    create(dir, index_config, member_config, log_files, now)
}

/// A member with an empty index and an empty log.
fn create(
    dir: &DataDir,
    index_config: IndexConfig,
    member_config: MemberConfig,
    log_files: LogFiles,
    now: Duration,
) -> Result<Opened, StartError> {
    let path = dir.index_path();
    let index_file = IndexFile::create(&path).map_err(|source| failed("creating", &path, source))?;
    let index = Index::create(index_config, map(&index_file)?);
    let log =
        Log::create(LogConfig::default(), random_id()?).map_err(|error| StartError::Setting(error.to_string()))?;
    let member = Member::create(now, member_config, log, index);
    Ok(Opened { member, index_file, log_files })
}

/// Marks a directory as one that has served: from now on what it holds is never taken for an unfinished creation.
///
/// # Errors
/// What the file system answers.
pub fn mark_ready(dir: &DataDir, standing: &Standing) -> Result<(), StartError> {
    let Standing { cluster_id, member_id, .. } = *standing;
    let repair = RepairFiles::of(dir);
    if let Some(mark) = repair.mark()?.filter(|mark| mark.stage == RepairStage::Clearing) {
        repair.set_mark(&Mark { stage: RepairStage::Filling, ..mark })?;
    }
    let ready = Ownership { cluster_id, member_id, stage: Stage::Ready };
    // A directory that has served needs no write, for which a full disk would have no room.
    if dir.ownership()? == Some(ready) {
        return Ok(());
    }
    Ok(dir.set_ownership(&ready)?)
}

/// Opens the member of a directory that has served. What is damaged of one that has peers is left to them: it is under
/// repair then.
async fn reopen_or_repair(
    dir: &DataDir,
    config: &Config,
    standing: &Standing,
    now: Duration,
) -> Result<Opened, StartError> {
    let (index_config, repair) = (index_config(config, standing), RepairFiles::of(dir));
    let mark = repair.mark()?;
    repair::prepare(&repair, mark.clone());
    let member_config = |mark: Option<&Mark>| {
        let peers = known_peers(dir, config, standing);
        let loss = mark.map(|mark| Loss { peers, ..mark.loss.clone() });
        Ok::<_, StartError>(MemberConfig { loss, ..member_config(config, standing)? })
    };
    let is_given_up = mark.as_ref().is_some_and(|mark| config.force_new_cluster && mark.stage == RepairStage::Filling);
    if is_given_up {
        tracing::warn!("this member becomes the only one, and what it lacks is given up");
        repair.remove_mark().map_err(|source| failed("removing", &dir.repair_path(), source))?;
    }
    let mark = match mark.filter(|_| !is_given_up) {
        None => {
            repair
                .remove_aside()
                .map_err(|source| failed("removing what was set aside for", dir.wal_path(), source))?;
            None
        }
        Some(mark) if mark.stage == RepairStage::Filling => Some(mark),
        Some(mark) => {
            let is_found = mark.stage == RepairStage::Found;
            let mark = Mark { stage: RepairStage::Clearing, ..mark };
            let mark = if is_found { mark.with_state(newest_state(dir, &index_config).await) } else { mark };
            return refill(dir, index_config, member_config(Some(&mark))?, &mark, now);
        }
    };
    let error = match reopen(dir, index_config.clone(), member_config(mark.as_ref())?, false, now).await {
        Ok(opened) => return Ok(opened),
        Err(error) => error,
    };
    let has_peers = has_peers(dir, config, standing, &index_config);
    if !is_damage(&error) || !has_peers || config.force_new_cluster {
        return Err(error);
    }
    tracing::error!("{}", super::edge::with_sources(&error));
    let mark = Mark::begin(RepairStage::Filling, mark).with_state(newest_state(dir, &index_config).await);
    let is_cut = matches!(&error, StartError::Log { source: RecoveryError::Damaged(damage), .. } if damage.repairable);
    if is_cut {
        repair.set_mark(&mark)?;
        let opened = reopen(dir, index_config.clone(), member_config(Some(&mark))?, true, now).await;
        if opened.is_ok() {
            tracing::warn!("under repair: the log is cut before the damage, and the other members give back the rest");
            return opened;
        }
    }
    let mark = Mark { stage: RepairStage::Clearing, ..mark };
    refill(dir, index_config, member_config(Some(&mark))?, &mark, now)
}

/// Begins anew with nothing but what is known of the last vote; the other members fill it.
fn refill(
    dir: &DataDir,
    index_config: IndexConfig,
    member_config: MemberConfig,
    mark: &Mark,
    now: Duration,
) -> Result<Opened, StartError> {
    tracing::warn!("under repair: index and log are set aside, and the other members refill this one");
    RepairFiles::of(dir).set_aside(mark)?;
    let member_config = MemberConfig { initial_members: Membership::default(), ..member_config };
    create(dir, index_config, member_config, LogFiles::new(dir.wal_path().to_path_buf()), now)
}

/// Whether this is damage that other members can mend: rot, not a file that is missing, of another version or of another
/// store.
fn is_damage(error: &StartError) -> bool {
    match error {
        StartError::Index { source, .. } => {
            matches!(source, OpenError::NoMeta(_) | OpenError::Truncated { .. } | OpenError::FreeMap { .. })
        }
        StartError::Log { source, .. } => match source {
            RecoveryError::Damaged(_) | RecoveryError::NoMeta { .. } | RecoveryError::Meta { .. } => true,
            RecoveryError::Manifest(reason) => !matches!(reason, ManifestError::Version { .. }),
            _ => false,
        },
        StartError::Member { .. } => true,
        _ => false,
    }
}

/// Whether the index knows other voters, or where it can't be read whether flags or pinned keys name other members.
fn has_peers(dir: &DataDir, config: &Config, standing: &Standing, index_config: &IndexConfig) -> bool {
    let membership = open_index(dir, index_config.clone()).ok();
    let membership = membership.and_then(|(_, _, facts)| Membership::from_bytes(&facts.conf).ok());
    match membership.filter(|membership| !membership.is_empty()) {
        Some(membership) => membership.voters.iter().any(|id| *id != standing.member_id),
        None => !known_peers(dir, config, standing).is_empty(),
    }
}

/// Members that flags and pinned keys name.
fn known_peers(dir: &DataDir, config: &Config, standing: &Standing) -> Vec<u64> {
    let pinned = peer_keys::load_pins(&dir.peer_pins_path()).unwrap_or_default();
    let named = config.cluster.members.iter().map(|member| member.id);
    let named = named.filter(|_| config.cluster.cluster_id == standing.cluster_id);
    let known: std::collections::BTreeSet<u64> = named.chain(pinned.into_keys()).collect();
    known.into_iter().filter(|id| *id != standing.member_id).collect()
}

/// The log's newest term and vote, if that can be told.
async fn newest_state(dir: &DataDir, index_config: &IndexConfig) -> Option<HardState> {
    // An open segment is locked until it is closed.
    let log_files = || LogFiles::new(dir.wal_path().to_path_buf());
    let facts = open_index(dir, index_config.clone()).ok().map(|(_, _, facts)| facts);
    let with_anchor = match &facts {
        Some(facts) if Anchor::from_bytes(&facts.anchor).is_ok() => scan_log(dir, facts, &log_files()).await.ok(),
        _ => None,
    };
    match with_anchor {
        Some(mut recovery) => recovery.newest_state(),
        None => scan(dir, &log_files(), Recovery::survey).await.ok()?.newest_state(),
    }
}

async fn reopen(
    dir: &DataDir,
    index_config: IndexConfig,
    member_config: MemberConfig,
    is_cut: bool,
    now: Duration,
) -> Result<Opened, StartError> {
    let log_files = LogFiles::new(dir.wal_path().to_path_buf());
    let (index_file, index, facts) = open_index(dir, index_config)?;
    let recovery = scan_log(dir, &facts, &log_files).await?;
    let recovered = if is_cut { recovery.finish_repaired(Vec::new()) } else { recovery.finish() };
    let recovered = recovered.map_err(|source| refused(dir, source))?;
    tracing::info!(
        entries = recovered.entries.len(),
        read_bytes = recovered.report.read_bytes,
        "read the log above index {}",
        facts.applied.index
    );
    let broken = |source| StartError::Member { path: index_file.path().display().to_string(), source };
    let state = RecoveredState::new(&member_config, &facts, recovered.hard_state, recovered.entries)
        .map_err(|error| broken(error.into()))?;
    let member = Member::open(now, member_config, recovered.log, index, state).map_err(broken)?;
    Ok(Opened { member, index_file, log_files })
}

/// Opens the index of a directory that has served.
///
/// # Errors
/// Where its file can't be used.
pub fn open_index(dir: &DataDir, config: IndexConfig) -> Result<(IndexFile, Index, OpenFacts), StartError> {
    let path = dir.index_path();
    let index_file = IndexFile::open(&path).map_err(|source| failed("opening", &path, source))?;
    // What a killed process wrote last may be in the page cache alone; nothing may build on a meta page that a power
    // failure takes back.
    index_file.sync().map_err(|source| failed("syncing", &path, source))?;
    index_file.forget_unwritten().map_err(|source| failed("reading", &path, source))?;
    let (index, facts) = Index::open(config, map(&index_file)?)
        .map_err(|source| StartError::Index { path: path.display().to_string(), source })?;
    Ok((index_file, index, facts))
}

/// Opens and reads all of the log's segments.
///
/// # Errors
/// Where the files can't be used, or do not belong together. What they hold is not judged yet.
pub async fn scan_log(dir: &DataDir, facts: &OpenFacts, log_files: &LogFiles) -> Result<Recovery, StartError> {
    let meta = MetaFacts {
        applied_index: facts.applied.index,
        applied_term: facts.applied.term,
        anchor: Anchor::from_bytes(&facts.anchor).ok(),
    };
    scan(dir, log_files, |config, manifest, segments| Recovery::new(config, manifest, segments, meta)).await
}

async fn scan(
    dir: &DataDir,
    log_files: &LogFiles,
    begin: impl FnOnce(LogConfig, &[u8], Vec<SegmentFile>) -> Result<Recovery, RecoveryError>,
) -> Result<Recovery, StartError> {
    let manifest_path = dir.manifest_path();
    let manifest = std::fs::read(&manifest_path).map_err(|source| failed("reading", &manifest_path, source))?;
    let mut segments = Vec::new();
    for (shard, segment, path) in dir.segments()? {
        let size_bytes = std::fs::metadata(&path).map_err(|source| failed("reading", &path, source))?.len();
        segments.push(SegmentFile { shard, segment, size_bytes });
    }
    for file in &segments {
        let opened = log_files.open(file.shard, file.segment).await;
        opened.map_err(|source| failed("opening", &log_files.path(file.shard, file.segment), source))?;
    }
    log_files.sync_all().await.map_err(|source| failed("syncing", dir.wal_path(), source))?;
    let mut recovery = begin(LogConfig::default(), &manifest, segments).map_err(|source| refused(dir, source))?;
    log_reader::read_log(&mut recovery, log_files);
    Ok(recovery)
}

/// Says which log was refused.
pub fn refused(dir: &DataDir, source: RecoveryError) -> StartError {
    StartError::Log { path: dir.wal_path().display().to_string(), source }
}

fn map(index_file: &IndexFile) -> Result<Arc<dyn PageFile>, StartError> {
    let failed = |source| failed("mapping", index_file.path(), source);
    let file = index_file.file().try_clone().map_err(failed)?;
    let mapped = Arc::new(MappedFile::new(file, limits::RESERVE_BYTES).map_err(failed)?);
    bus_error::watch(mapped.clone(), index_file.path()).map_err(failed)?;
    Ok(mapped)
}

fn failed(action: &'static str, path: &std::path::Path, source: io::Error) -> StartError {
    StartError::File { action, path: path.display().to_string(), source }
}

fn member_config(config: &Config, standing: &Standing) -> Result<MemberConfig, StartError> {
    let member_id = standing.member_id;
    let records = match &standing.origin {
        Origin::Founding(records) => records.clone(),
        // What the data says counts, or what the others will say.
        Origin::Data | Origin::Joining => Vec::new(),
    };
    let initial_members = match &standing.origin {
        // A directory of which not even the first meta page names the members.
        Origin::Data => Membership::single(member_id),
        Origin::Founding(_) | Origin::Joining => {
            Membership { voters: records.iter().map(|record| record.id).collect(), learners: Vec::new() }
        }
    };
    let texts = |urls: &[Url]| urls.iter().map(ToString::to_string).collect();
    let attributes = Attributes {
        name: config.name.clone(),
        client_urls: texts(&config.advertise_client_urls),
        peer_urls: texts(&config.cluster.local().peer_urls),
    };
    let seed = u64::try_from(random_id()? & u128::from(u64::MAX)).expect("masked to 64 bits");
    Ok(MemberConfig {
        keyspace: KeyspaceId(0),
        member_id,
        boot: boot_number(seed),
        initial_members,
        initial_records: records,
        attributes: Some(attributes),
        strict_reconfig: config.strict_reconfig,
        learners_max: config.max_learners,
        force_new_cluster: config.force_new_cluster && standing.origin == Origin::Data,
        election_timeout: config.election_timeout,
        heartbeat_interval: config.heartbeat_interval,
        seed,
        quota_bytes: config.quota_bytes.map_or(-1, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX)),
        auto_compaction: match config.auto_compaction {
            config::AutoCompaction::Off => AutoCompaction::Off,
            config::AutoCompaction::Periodic(period) => AutoCompaction::Periodic(period),
            config::AutoCompaction::Revision(count) => AutoCompaction::Revision(count),
        },
        pending_bytes_max: memory::pending_bytes_max(),
        catch_up_commands: config.catch_up_commands,
        corruption: CorruptionChecks {
            initial: config.initial_corrupt_check,
            periodic: config.corrupt_check_interval,
            compactions: config.compact_hash_check_interval,
        },
        ..MemberConfig::single(member_id)
    })
}

/// A number for this start of the process: larger than that of any earlier one, unless the clock was set back, and even
/// then hardly ever the same. Microseconds since 1970 fill 52 bits until the year 2112.
fn boot_number(random: u64) -> u64 {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let micros = u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX);
    (micros << 12) | (random % (1 << 12))
}

fn index_config(config: &Config, standing: &Standing) -> IndexConfig {
    let mut index_config = memory::index_config(standing.cluster_id, standing.member_id);
    if let Some(bytes) = config.checkpoint_bytes {
        index_config.checkpoint_bytes = bytes;
        // Never less than by default: it bounds what one huge transaction may change, too.
        index_config.dirty_bytes_max = index_config.dirty_bytes_max.max(2 * bytes);
    }
    index_config
}

/// Sixteen random bytes of the kernel.
///
/// # Errors
/// Where it gives none.
pub fn random_id() -> Result<u128, StartError> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        let got = rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
            .map_err(|error| StartError::Machine(format!("the kernel gives no random bytes: {error}")))?;
        filled += got;
    }
    Ok(u128::from_le_bytes(bytes))
}
