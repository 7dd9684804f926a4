//! The load generator alone: `cargo run --release -p garboard-bench --example bench -- put --total 10000`.

use clap::Parser;
use garboard_bench::BenchArgs;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Load and latency against any etcd endpoint")]
struct Cli {
    #[command(flatten)]
    bench: BenchArgs,
}

fn main() -> ExitCode {
    garboard_bench::run(Cli::parse().bench)
}
