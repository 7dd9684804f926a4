//! Opening a damaged log by giving up what lies behind the damage: the last resort of a member without peers.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use garboard_storage::IndexConfig;
use garboard_wal::{Effect, Log};

use super::data_dir::{DataDir, Stage};
use super::edge::with_sources;
use super::home::log_error;
use super::log_files::LogFiles;
use super::start::{self, StartError};

/// What to salvage, and whether to.
#[derive(Clone, Debug)]
pub struct Salvage {
    /// The member's data directory.
    pub data_dir: PathBuf,
    /// Its log's folder, if that is not within the data directory.
    pub wal_dir: Option<PathBuf>,
    /// Whether to do it, rather than to say what would be lost.
    pub give_up: bool,
}

/// Looks at a stopped member's log. A sound one is left alone. Of a damaged one it is said where the damage is; with
/// `give_up` the log is cut there, durably, and the member can start again without what was acknowledged behind it.
///
/// # Errors
/// Where the directory can't be used, the damage can't be salvaged, or nothing may be given up.
pub fn salvage(order: Salvage) -> Result<String, StartError> {
    garboard_executor::run(garboard_executor::Options::default(), || run(order))
        .map_err(|error| StartError::Machine(format!("starting an executor: {error}")))?
}

async fn run(order: Salvage) -> Result<String, StartError> {
    let dir = DataDir::lock(&order.data_dir, order.wal_dir.as_deref(), false)?;
    let Some(owner) = dir.ownership()?.filter(|owner| owner.stage == Stage::Ready) else {
        return Ok(format!("{} has never served: there is nothing to salvage", order.data_dir.display()));
    };
    let (_, _, facts) = start::open_index(&dir, IndexConfig::new(owner.cluster_id, owner.member_id))?;
    let log_files = LogFiles::new(dir.wal_path().to_path_buf());
    let mut recovery = start::scan_log(&dir, &facts, &log_files).await?;
    let damage = match recovery.judge() {
        Ok(_) => return Ok("the log is sound: nothing was changed".to_owned()),
        Err(damage) => damage,
    };
    if !order.give_up {
        return Ok(format!(
            "{}\nnothing was changed; with --give-up-acknowledged-writes the log is cut there, and what was acknowledged \
             behind it is lost",
            with_sources(&damage)
        ));
    }
    let recovered = recovery.finish_repaired(Vec::new()).map_err(|source| start::refused(&dir, source))?;
    let last_index = recovered.entries.last().map_or(facts.applied.index, |entry| entry.index);
    make_durable(recovered.log, &log_files).await?;
    Ok(format!("the log was cut behind index {last_index}; the member can be started again"))
}

/// Carries out what a log that was just opened wants: the epoch start that makes the cut durable.
async fn make_durable(mut log: Log, files: &LogFiles) -> Result<(), StartError> {
    let now = Duration::ZERO;
    let mut effects = VecDeque::new();
    loop {
        effects.extend(std::iter::from_fn(|| log.poll_effect(now)));
        let Some(effect) = effects.pop_front() else { return Ok(()) };
        let (op, outcome) = match effect {
            Effect::Write { op, shard, segment, offset, len } => {
                let mut buffer = files.buffer(len);
                log.fill(op, buffer.bytes_mut());
                (op, files.write(shard, segment, offset, buffer).await)
            }
            Effect::PrepareSegment { op, shard, segment, size_bytes } => {
                (op, files.prepare(shard, segment, size_bytes).await)
            }
            Effect::Remove { op, shard, segment } => (op, files.remove(shard, segment).await),
            Effect::WriteManifest { op, bytes } => (op, files.write_manifest(bytes).await),
        };
        log.handle_done(now, op, outcome.map_err(log_error))
            .map_err(|failure| StartError::Machine(with_sources(&failure)))?;
    }
}
