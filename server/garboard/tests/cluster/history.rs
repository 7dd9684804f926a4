//! What clients saw of a cluster, and whether one store could have shown them that.
//!
//! Every write makes one revision, and every value is written once. So the members' own history, read to its end when all
//! is quiet, is the order in which the writes happened, and what remains to be checked takes one pass: that each answer is
//! what that order gives at the answer's revision, and that no answer is older than one that was there before it was asked.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

/// A change of one key, at the revision that it made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub revision: i64,
    pub key: String,
    /// Nothing: the key was deleted.
    pub value: Option<String>,
}

/// What was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    Put {
        key: String,
        value: String,
    },
    Delete {
        key: String,
    },
    /// A put if the key was last changed at this revision; 0: if it is not there.
    Swap {
        key: String,
        modified: i64,
        value: String,
    },
    Get {
        key: String,
        serializable: bool,
    },
}

/// What was answered, with the revision in the answer's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered {
    Put {
        revision: i64,
    },
    Delete {
        revision: i64,
        deleted: bool,
    },
    Swap {
        revision: i64,
        succeeded: bool,
    },
    Get {
        revision: i64,
        found: Option<(String, i64)>,
    },
    /// Nothing that says whether it happened.
    Unknown,
}

impl Answered {
    fn revision(&self) -> Option<i64> {
        match self {
            Answered::Put { revision }
            | Answered::Delete { revision, .. }
            | Answered::Swap { revision, .. }
            | Answered::Get { revision, .. } => Some(*revision),
            Answered::Unknown => None,
        }
    }
}

/// A call of a client, with the times at which it began and ended.
#[derive(Clone, Debug)]
pub struct Operation {
    pub asked: Asked,
    pub answered: Answered,
    pub began: Duration,
    pub ended: Duration,
    /// Through which member; for whoever reads a failure.
    #[allow(dead_code)]
    pub member: usize,
}

impl Operation {
    /// Whether it made the revision of its answer.
    fn made_revision(&self) -> bool {
        matches!(
            self.answered,
            Answered::Put { .. } | Answered::Delete { deleted: true, .. } | Answered::Swap { succeeded: true, .. }
        )
    }

    /// Whether its answer must not be older than the moment at which it was asked.
    fn is_linearizable(&self) -> bool {
        !matches!(self.asked, Asked::Get { serializable: true, .. })
    }
}

/// The keys as they were at each revision.
struct Store<'h> {
    /// By key: the revisions that changed it and what they left.
    changes: HashMap<&'h str, BTreeMap<i64, Option<&'h str>>>,
    newest: i64,
}

impl<'h> Store<'h> {
    fn new(history: &'h [Change]) -> Store<'h> {
        let mut changes: HashMap<&str, BTreeMap<i64, Option<&str>>> = HashMap::new();
        for change in history {
            changes.entry(&change.key).or_default().insert(change.revision, change.value.as_deref());
        }
        Store { changes, newest: history.last().map_or(1, |change| change.revision) }
    }

    /// The key's value at a revision, and the revision that wrote it.
    fn at(&self, key: &str, revision: i64) -> Option<(&'h str, i64)> {
        let (modified, value) = self.changes.get(key)?.range(..=revision).next_back()?;
        Some(((*value)?, *modified))
    }

    /// What a revision did to a key; nothing if it did nothing to it.
    fn change(&self, key: &str, revision: i64) -> Option<Option<&'h str>> {
        self.changes.get(key)?.get(&revision).copied()
    }
}

/// Checks everything.
///
/// # Errors
/// The first thing that no single store could have shown.
pub fn check(history: &[Change], operations: &[Operation]) -> Result<(), String> {
    check_revisions(history)?;
    let store = Store::new(history);
    for operation in operations {
        check_answer(&store, operation).map_err(|what| format!("{what}: {operation:?}"))?;
    }
    check_values(history, operations)?;
    check_order(history, operations)
}

/// Revisions follow one another without gaps, and no value was written twice.
fn check_revisions(history: &[Change]) -> Result<(), String> {
    let mut values = HashSet::new();
    for (change, expected) in history.iter().zip(2..) {
        if change.revision != expected {
            return Err(format!("revision {expected} is missing: {change:?} comes next"));
        }
        if let Some(value) = &change.value
            && !values.insert(value)
        {
            return Err(format!("a write happened twice: {change:?}"));
        }
    }
    Ok(())
}

fn check_answer(store: &Store<'_>, operation: &Operation) -> Result<(), String> {
    if let Some(revision) = operation.answered.revision()
        && revision > store.newest
    {
        return Err(format!("revision {revision} was answered and is lost; the newest is {}", store.newest));
    }
    let holds = match (&operation.asked, &operation.answered) {
        (_, Answered::Unknown) => true,
        (Asked::Put { key, value }, Answered::Put { revision }) => store.change(key, *revision) == Some(Some(value)),
        (Asked::Delete { key }, Answered::Delete { revision, deleted: true }) => {
            store.change(key, *revision) == Some(None) && store.at(key, revision - 1).is_some()
        }
        (Asked::Delete { key }, Answered::Delete { revision, deleted: false }) => store.at(key, *revision).is_none(),
        (Asked::Swap { key, modified, value }, Answered::Swap { revision, succeeded: true }) => {
            store.change(key, *revision) == Some(Some(value))
                && store.at(key, revision - 1).map_or(0, |(_, modified)| modified) == *modified
        }
        (Asked::Swap { key, modified, .. }, Answered::Swap { revision, succeeded: false }) => {
            store.at(key, *revision).map_or(0, |(_, modified)| modified) != *modified
        }
        (Asked::Get { key, .. }, Answered::Get { revision, found }) => {
            store.at(key, *revision).map(|(value, modified)| (value.to_owned(), modified)) == *found
        }
        _ => false,
    };
    if holds { Ok(()) } else { Err("the answer is not what the history gives".to_owned()) }
}

/// Everything in the history was asked for.
fn check_values(history: &[Change], operations: &[Operation]) -> Result<(), String> {
    let asked: HashSet<(&str, &str)> = operations
        .iter()
        .filter_map(|operation| match &operation.asked {
            Asked::Put { key, value } | Asked::Swap { key, value, .. } => Some((key.as_str(), value.as_str())),
            _ => None,
        })
        .collect();
    for change in history {
        if let Some(value) = &change.value
            && !asked.contains(&(change.key.as_str(), value.as_str()))
        {
            return Err(format!("nobody asked for {change:?}"));
        }
    }
    Ok(())
}

/// What was answered before something was asked is seen by it; what has no answer did not happen before it was asked.
fn check_order(history: &[Change], operations: &[Operation]) -> Result<(), String> {
    let mut by_end: Vec<&Operation> = operations.iter().filter(|op| op.answered.revision().is_some()).collect();
    by_end.sort_by_key(|operation| operation.ended);
    let mut by_begin: Vec<&Operation> = operations.iter().collect();
    by_begin.sort_by_key(|operation| operation.began);
    let written: HashMap<&str, i64> =
        history.iter().filter_map(|change| Some((change.value.as_deref()?, change.revision))).collect();
    let mut ended = by_end.into_iter().peekable();
    let mut newest: (i64, Option<&Operation>) = (0, None);
    for operation in by_begin {
        while let Some(before) = ended.next_if(|before| before.ended < operation.began) {
            let revision = before.answered.revision().expect("only those were taken");
            if revision > newest.0 {
                newest = (revision, Some(before));
            }
        }
        let stale = |what: &str| Err(format!("{what}: {operation:?}, although before {:?}", newest.1));
        match operation.answered.revision() {
            Some(revision) if operation.made_revision() && revision <= newest.0 => return stale("a write too early"),
            Some(revision) if operation.is_linearizable() && revision < newest.0 => return stale("a stale answer"),
            Some(_) => {}
            None => {
                let (Asked::Put { value, .. } | Asked::Swap { value, .. }) = &operation.asked else { continue };
                if written.get(value.as_str()).is_some_and(|revision| *revision <= newest.0) {
                    return stale("a write before it was asked for");
                }
            }
        }
    }
    Ok(())
}

/// Checks what a watcher was sent: all changes from its first to its last revision, once, in order.
///
/// # Errors
/// Where it is not.
pub fn check_watch(history: &[Change], from: i64, seen: &[Change]) -> Result<(), String> {
    let expected = history.iter().filter(|change| change.revision >= from);
    for (seen, expected) in seen.iter().zip(expected) {
        if seen != expected {
            return Err(format!("a watcher from revision {from} was sent {seen:?} instead of {expected:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(revision: i64, value: &str) -> Change {
        Change { revision, key: "k".to_owned(), value: Some(value.to_owned()) }
    }

    fn operation(asked: Asked, answered: Answered, began: u64, ended: u64) -> Operation {
        let (began, ended) = (Duration::from_millis(began), Duration::from_millis(ended));
        Operation { asked, answered, began, ended, member: 0 }
    }

    fn asked_put(value: &str) -> Asked {
        Asked::Put { key: "k".to_owned(), value: value.to_owned() }
    }

    fn get(revision: i64, found: Option<(&str, i64)>, began: u64) -> Operation {
        let found = found.map(|(value, modified)| (value.to_owned(), modified));
        let asked = Asked::Get { key: "k".to_owned(), serializable: false };
        operation(asked, Answered::Get { revision, found }, began, began + 1)
    }

    #[test]
    fn each_thing_that_no_store_could_have_shown_is_found() {
        let history = [put(2, "a"), put(3, "b")];
        let a = operation(asked_put("a"), Answered::Put { revision: 2 }, 0, 1);
        let b = operation(asked_put("b"), Answered::Put { revision: 3 }, 2, 3);
        let unknown = operation(asked_put("b"), Answered::Unknown, 2, 3);
        let seen = get(3, Some(("b", 3)), 4);
        let good = [a.clone(), b.clone(), seen.clone()];
        assert_eq!(check(&history, &good), Ok(()));
        assert_eq!(check(&history, &[a.clone(), unknown.clone(), seen.clone()]), Ok(()));
        let refused = |history: &[Change], operations: &[Operation], text: &str| {
            let error = check(history, operations).unwrap_err();
            assert!(error.contains(text), "{error}");
        };
        refused(&history[..1], &good, "is lost");
        refused(&[put(2, "a"), put(4, "b")], &good, "is missing");
        refused(&[put(2, "a"), put(3, "a")], &good, "happened twice");
        refused(&history, &[a.clone(), b.clone(), get(2, Some(("a", 2)), 4)], "stale");
        refused(&history, &[a.clone(), b.clone(), get(3, Some(("a", 2)), 4)], "not what the history gives");
        refused(&history, &[a.clone(), seen.clone()], "nobody asked");
        refused(&history, &[a, operation(asked_put("b"), Answered::Unknown, 7, 8), seen], "before it was asked");
    }

    #[test]
    fn a_watcher_gets_every_change_once_and_in_order() {
        let history = [put(2, "a"), put(3, "b"), put(4, "c")];
        assert_eq!(check_watch(&history, 3, &history[1..]), Ok(()));
        assert!(check_watch(&history, 2, &history[1..]).is_err());
        assert!(check_watch(&history, 2, &[history[0].clone(), history[0].clone()]).is_err());
        assert!(check_watch(&history, 2, &[history[0].clone(), history[2].clone()]).is_err());
    }
}
