//! Applying committed commands: the deterministic part of a replica.
//!
//! [`Machine`] owns the index and the replicated tables and executes one command at a time, with etcd's exact
//! semantics. A command may need pages that are not resident: [`Machine::apply`] then answers
//! [`NeedPage`](garboard_storage::NeedPage) and is called again with the same command, and goes on where it stopped.
//! Nothing that it has changed so far is visible to anybody before [`Machine::publish`]. What a command checks, it
//! checks before its first change: it never fails half way.

mod delete;
mod machine;
mod txn;

pub use machine::{Machine, Published};

#[cfg(test)]
mod tests;
