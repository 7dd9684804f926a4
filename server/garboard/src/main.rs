//! The one executable: each subcommand is a library of its own, joined here.

fn main() {}
