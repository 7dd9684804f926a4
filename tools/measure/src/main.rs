//! Measures every row of the table of speed: a release build of Garboard beside a real etcd, in temporary directories on
//! one disk, the two by turns. Prints the table as Markdown.
//!
//!     cargo build --release && tools/conformance/build
//!     cargo run --release -p garboard-measure -- --rows floor,p99
//!
//! Rows that need it make a file system in a file or a memory control group, and say so where they cannot. The load runs
//! in this process and shares the machine with the servers; what it costs is in the reports that `--log` keeps.

#![allow(clippy::disallowed_methods, reason = "a tool that measures starts processes and reads clocks")]

mod cluster;
mod memory;
mod network;
mod rows;
mod servers;
mod steps;
mod volume;

use clap::Parser;
use rows::{Line, ROWS};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Measures the rows of the table of speed and prints them as Markdown.
#[derive(Debug, Parser)]
struct Options {
    /// The rows to measure, separated by commas. [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    rows: Vec<String>,
    /// Say which rows there are.
    #[arg(long)]
    list: bool,
    /// The executable that is measured.
    #[arg(long, default_value = "target/release/garboard", value_name = "FILE")]
    garboard: PathBuf,
    /// The etcd that it is compared with.
    #[arg(long, default_value = "tools/conformance/bin/etcd", value_name = "FILE")]
    etcd: PathBuf,
    /// Measure Garboard alone.
    #[arg(long)]
    without_etcd: bool,
    /// A directory on the disk to measure on; what is written there is removed at the end.
    #[arg(long, default_value = "target", value_name = "DIR")]
    dir: PathBuf,
    /// Multiplies numbers of keys and operations; below 1 the figures say only that the row works.
    #[arg(long, default_value_t = 1.0, value_name = "X")]
    scale: f64,
    /// Rounds on each server.
    #[arg(long, default_value_t = 5, value_name = "N")]
    rounds: u32,
    /// Keep all reports in this file.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

/// What went wrong, in words.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    /// With a message.
    pub fn new(message: String) -> Self {
        Self(message)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<garboard_bench::BenchError> for Failure {
    fn from(error: garboard_bench::BenchError) -> Self {
        Self(error.explain())
    }
}

/// What every row needs to know.
pub struct Setting {
    options: Options,
    /// Where this run's servers have their data.
    folder: PathBuf,
}

impl Setting {
    /// A number of keys or operations, scaled.
    pub fn scaled(&self, number: u64) -> u64 {
        ((number as f64 * self.options.scale).round() as u64).max(1)
    }

    /// What they are multiplied by.
    pub fn scale(&self) -> f64 {
        self.options.scale
    }

    /// Rounds on each server.
    pub fn rounds(&self) -> u32 {
        self.options.rounds
    }

    /// A folder of its own for a row, empty.
    pub fn folder(&self, row: &str) -> Result<PathBuf, Failure> {
        let folder = self.folder.join(row);
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// Keeps a report.
    pub fn keep(&self, report: &str) {
        let Some(path) = &self.options.log else { return };
        let appended = fs::OpenOptions::new().create(true).append(true).open(path);
        if let Err(error) = appended.and_then(|mut file| std::io::Write::write_all(&mut file, report.as_bytes())) {
            eprintln!("{}: {error}", path.display());
        }
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.list {
        ROWS.iter().for_each(|row| println!("{:<20} {}", row.name, row.what));
        return ExitCode::SUCCESS;
    }
    let outcome = run(options);
    servers::clean_up();
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(2),
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Measures and prints. False if a target was missed.
fn run(options: Options) -> Result<bool, Failure> {
    let wanted: Vec<_> = match &options.rows[..] {
        [] => ROWS.iter().collect(),
        names => names
            .iter()
            .map(|name| {
                ROWS.iter().find(|row| row.name == name).ok_or_else(|| Failure(format!("no row {name:?}: see --list")))
            })
            .collect::<Result<_, _>>()?,
    };
    for program in [Some(&options.garboard), (!options.without_etcd).then_some(&options.etcd)].into_iter().flatten() {
        if !program.is_file() {
            return Err(Failure(format!("{} is not there: build it, or name another", program.display())));
        }
    }
    servers::end_on_signals()?;
    let folder = options.dir.join(format!("measure-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    servers::remove_at_end(&folder);
    let setting = Setting { options, folder: folder.canonicalize()? };
    println!("{}", heading(&setting));
    println!("| row | what | target | Garboard | etcd | met |\n|---|---|---|---|---|---|");
    let mut all_met = true;
    for row in wanted {
        eprintln!("== {}: {}", row.name, row.what);
        setting.keep(&format!("\n== {}: {}\n", row.name, row.what));
        let outcome = (row.measure)(&setting);
        // The next row needs the room.
        let _ = fs::remove_dir_all(setting.folder.join(row.name));
        let lines = outcome.unwrap_or_else(|failure| vec![Line::failed(row.what, &failure)]);
        for line in lines {
            all_met &= line.met != Some(false);
            println!("{}", line.to_markdown(row.name));
        }
    }
    Ok(all_met)
}

/// When, what and on which machine.
fn heading(setting: &Setting) -> String {
    let said = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines().next().map(str::to_owned)
    };
    let unknown = || "unknown".to_owned();
    let processor = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let file_system = said("stat", &["--file-system", "--format=%T", &setting.folder.display().to_string()]);
    let etcd = setting.options.etcd.display().to_string();
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{}, commit {}, {} cores ({}), kernel {}, {} in {}; {}; {} rounds, scale {}.",
        said("date", &["--iso-8601"]).unwrap_or_else(unknown),
        said("git", &["rev-parse", "--short", "HEAD"]).unwrap_or_else(unknown),
        cores,
        processor.unwrap_or_else(unknown),
        said("uname", &["-r"]).unwrap_or_else(unknown),
        file_system.unwrap_or_else(unknown),
        setting.options.dir.display(),
        if setting.options.without_etcd { None } else { said(&etcd, &["--version"]) }
            .unwrap_or_else(|| "no etcd".into()),
        setting.options.rounds,
        setting.options.scale,
    );
    text
}

/// The executable of a kind of server; nothing if it is not to be measured.
pub fn program(setting: &Setting, kind: servers::Kind) -> Option<&Path> {
    match kind {
        servers::Kind::Garboard => Some(&setting.options.garboard),
        servers::Kind::Etcd => (!setting.options.without_etcd).then_some(setting.options.etcd.as_path()),
    }
}
