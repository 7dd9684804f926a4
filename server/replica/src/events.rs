//! What a published batch changed, as the watch hubs of every core see it.

use crate::request::KeyValue;

/// A position in the history: the main revision of a command and the number of the change within it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Revision {
    /// The revision clients see.
    pub main: i64,
    /// The change's number within it, from 0.
    pub sub: i64,
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whether the key was deleted.
    pub deleted: bool,
    /// The pair after the change; for a deletion the key and the modification revision alone.
    pub kv: KeyValue,
    /// Where in the history the change stands.
    pub revision: Revision,
    /// The live version that it replaced.
    pub previous: Option<Revision>,
}

impl Event {
    /// Whether the change brought the key into being.
    pub fn is_create(&self) -> bool {
        !self.deleted && self.kv.version == 1
    }
}

/// The changes of one published batch of commands.
///
/// Invariants: `events` is not empty and in revision order; its main revisions lie within `first_revision ..=
/// last_revision`; one main revision is never spread over two batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventBatch {
    /// The first main revision of the batch.
    pub first_revision: i64,
    /// The last main revision of the batch: the store's revision once the batch is published.
    pub last_revision: i64,
    /// The changes.
    pub events: Vec<Event>,
}
