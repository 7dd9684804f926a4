//! What a published batch changed, as the watch hubs of every core see it.

use garboard_storage::Revision;

use crate::request::KeyValue;

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
