//! Reads of a keyspace, evaluated over a view of the index on any core.
//!
//! A read needs no lock and no copy of the index: it walks a published root. Short reads ([`range::evaluate`],
//! [`txn::evaluate`]) run whole, and simply start anew after a page had to be loaded. Long ones ([`scan::RangeScan`],
//! [`stream::RangeStream`]) hold no root between their steps: they remember a revision and the next key and go on at
//! the newest root, so that one slow client never keeps old pages from being reused.

pub mod compare;
pub(crate) mod fault;
#[cfg(test)]
pub(crate) mod fixture;
mod keys;
pub mod limits;
#[cfg(test)]
mod long_tests;
pub mod range;
mod rows;
pub mod scan;
mod sorter;
pub mod stream;
#[cfg(test)]
mod tests;
pub mod txn;
mod walk;
pub(crate) mod wire;

pub use walk::{Budget, Progress};
