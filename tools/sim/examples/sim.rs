//! `garboard sim` by itself, without the server: quicker to build while the simulator is worked on.

use clap::Parser;
use garboard_sim::SimArgs;

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    sim: SimArgs,
}

fn main() -> std::process::ExitCode {
    garboard_sim::run(Arguments::parse().sim)
}
