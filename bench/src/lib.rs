//! Load and latency against any etcd endpoint.
//!
//! `put`, `range`, `count`, `watch` and `noop` talk plain gRPC and share nothing with the store, so what they say about
//! Garboard and about another server is measured by the same means. With a rate the loop is open: the schedule decides
//! when an operation should start, and its latency counts from there. With a second endpoint the two take turns in one
//! run, so that what the machine does meanwhile falls on both. `disk` measures the disk's synchronous writes alone, and
//! `floor` how far a put is above what disk and network take by themselves.

#![deny(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a load generator reads clocks, starts threads and opens /proc")]

mod args;
mod client;
mod disk;
mod disturb;
mod endpoint;
mod error;
mod floor;
mod gap;
mod limits;
mod load;
mod measure;
mod member;
mod pacer;
mod plan;
mod process;
mod report;
mod schedule;
mod stages;
mod stats;
mod watch;
mod workload;

/// The messages and clients of the part of etcd's API that the load uses.
mod proto {
    #![allow(missing_docs, clippy::all, reason = "generated")]
    include!(concat!(env!("OUT_DIR"), "/client/etcdserverpb.rs"));

    /// Garboard's own service.
    pub mod diagnostics {
        include!(concat!(env!("OUT_DIR"), "/client/garboard.v1.rs"));
    }

    /// The call that does nothing.
    pub mod health {
        include!(concat!(env!("OUT_DIR"), "/client/grpc.health.v1.rs"));
    }
}

pub use args::{
    BenchArgs, CountArgs, DiskArgs, During, FloorArgs, LoadArgs, PutArgs, RangeArgs, WatchArgs, WorkloadArgs,
};
pub use disk::{DiskReport, FormResult, SyncForm, WriteFigures};
pub use disturb::{Passes, save};
pub use endpoint::Endpoint;
pub use error::BenchError;
pub use floor::{FloorReport, FloorRound, TargetFloor, measure as measure_floor};
pub use gap::{Gap, GapPlan, measure_gap};
pub use measure::{Progress, measure, measure_all, read_once};
pub use member::{MemberStatus, add_learner, member_status, move_leader};
pub use plan::{DiskPlan, Disturbance, Operation, Plan, Target, Task, Watchers};
pub use process::{anonymous_bytes, file_bytes, parse_stat_ticks, process_cpu, processes_cpu, written_bytes};
pub use report::{DisturbedResult, Report, Setup, TargetResult};
pub use schedule::Schedule;
pub use stages::StageFigures;
pub use stats::{Figures, Metric};

use std::process::ExitCode;

/// Runs what the command line asks for: the report goes to standard output, progress and errors to standard error.
pub fn run(args: BenchArgs) -> ExitCode {
    match Task::new(args).and_then(|task| report(&task, &mut |line| eprintln!("{line}"))) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {}", error.explain());
            ExitCode::FAILURE
        }
    }
}

fn report(task: &Task, progress: Progress<'_>) -> Result<String, BenchError> {
    let (text, json, wants_json) = match task {
        Task::Load(plan) => {
            let report = measure(plan, progress)?;
            (report.to_text(), report.to_json(), plan.json)
        }
        Task::Disk(plan) => {
            let report = disk::measure(plan, progress)?;
            (report.to_text(), report.to_json(), plan.json)
        }
        Task::Floor(disk_plan, plan) => {
            let report = floor::measure(disk_plan, plan, progress)?;
            (report.to_text(), report.to_json(), plan.json)
        }
    };
    Ok(if wants_json { json + "\n" } else { text })
}
