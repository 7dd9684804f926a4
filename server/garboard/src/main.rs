//! The one executable: each subcommand is a library of its own, joined here.
//!
//! Called through a link named `etcd` it is `garboard serve` with etcd's defaults.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use garboard_bench::BenchArgs;
use garboard_server::config::{self, Invocation, Personality};
use garboard_server::logging;
use garboard_server::shell::{self, Salvage};
use garboard_sim::SimArgs;

/// A control-plane store that speaks the etcd v3 protocol.
#[derive(Parser)]
#[command(name = "garboard", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a member; takes etcd's flags (`garboard serve --help` lists them).
    #[command(disable_help_flag = true)]
    Serve {
        /// etcd's flags.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<String>,
    },
    /// Cut a stopped member's damaged log where the damage is; without the flag, say where that is.
    Salvage {
        /// The member's data directory.
        #[arg(long, default_value = "garboard.data")]
        data_dir: PathBuf,
        /// The log's folder, if it is not within the data directory.
        #[arg(long)]
        wal_dir: Option<PathBuf>,
        /// Lose what was acknowledged behind the damage.
        #[arg(long = "give-up-acknowledged-writes")]
        give_up: bool,
    },
    /// Measure load and latency of any etcd endpoint.
    Bench(Box<BenchArgs>),
    /// Run a member on a simulated disk, clock and clients, from seeds, against a model.
    Sim(SimArgs),
}

fn main() -> ExitCode {
    let mut arguments = std::env::args();
    let program = arguments.next().unwrap_or_default();
    if Personality::of_program(&program) == Personality::Etcd {
        return serve(Personality::Etcd, arguments.collect());
    }
    match Arguments::parse().command {
        Command::Serve { flags } => serve(Personality::Garboard, flags),
        Command::Salvage { data_dir, wal_dir, give_up } => salvage(Salvage { data_dir, wal_dir, give_up }),
        Command::Bench(arguments) => garboard_bench::run(*arguments),
        Command::Sim(arguments) => garboard_sim::run(arguments),
    }
}

fn salvage(order: Salvage) -> ExitCode {
    match shell::salvage(order) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => failed(&error),
    }
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("garboard: {}", shell::with_sources(error));
    ExitCode::FAILURE
}

fn serve(personality: Personality, flags: Vec<String>) -> ExitCode {
    let variables =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let (config, warnings) = match config::parse(personality, flags, variables) {
        Ok(Invocation::Serve { config, warnings }) => (config, warnings),
        Ok(Invocation::Print(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("garboard: {error}");
            return ExitCode::from(error.exit_code());
        }
    };
    logging::start(config.log_level);
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    match shell::run(*config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}
