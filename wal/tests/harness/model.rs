//! The plain model that the log is compared with: a list of entries and a hard state, after every step it ever took.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::VecDeque;

use garboard_simdisk::Rng;
use garboard_wal::{Append, AppendNumber, Entry, HardState, MetaFacts, Recovered};

use super::entry;

/// What the log presents at some moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Index and term before the first entry.
    pub base: (u64, u64),
    pub entries: Vec<Entry>,
    pub hard_state: HardState,
}

impl State {
    pub fn last_index(&self) -> u64 {
        self.base.0 + self.entries.len() as u64
    }

    pub fn term_at(&self, index: u64) -> u64 {
        if index == self.base.0 { self.base.1 } else { self.entries[(index - self.base.0 - 1) as usize].term }
    }

    /// The state after the first `count` entries of an append.
    fn after(&self, append: &Append, count: usize) -> State {
        let mut state = self.clone();
        if let Some(first) = append.entries.first() {
            state.entries.truncate((first.index - self.base.0 - 1) as usize);
            state.entries.extend_from_slice(&append.entries[..count]);
        }
        let commit = append.hard_state.commit.min(state.last_index());
        state.hard_state = HardState { commit, ..append.hard_state };
        state
    }

    /// Whether a recovered log presents this state above the index's applied entry.
    pub fn is_presented(&self, recovered: &Recovered, meta: &MetaFacts) -> bool {
        let skip = (meta.applied_index.max(self.base.0) - self.base.0) as usize;
        let hard_state = HardState { commit: self.hard_state.commit.max(meta.applied_index), ..self.hard_state };
        skip <= self.entries.len()
            && recovered.entries[..] == self.entries[skip..]
            && recovered.hard_state == hard_state
            && recovered.log.last().0 == self.last_index()
    }
}

/// The model: what must be there, and what may be there beyond it.
#[derive(Clone, Debug)]
pub struct Model {
    /// The newest state that was acknowledged.
    pub durable: State,
    /// Appends behind it, in order, each with the state after it.
    pub waiting: VecDeque<(AppendNumber, Append, State)>,
    /// What the index's meta page says.
    pub meta: MetaFacts,
}

impl Model {
    pub fn new(meta: MetaFacts) -> Model {
        let durable = State { base: (0, 0), entries: Vec::new(), hard_state: HardState::default() };
        Model { durable, waiting: VecDeque::new(), meta }
    }

    /// The state after everything that was appended.
    pub fn newest(&self) -> &State {
        self.waiting.back().map_or(&self.durable, |(_, _, state)| state)
    }

    pub fn append(&mut self, number: AppendNumber, append: Append) {
        let state = self.newest().after(&append, append.entries.len());
        self.waiting.push_back((number, append, state));
    }

    /// The log acknowledged everything up to this append.
    pub fn acknowledge(&mut self, durable: AppendNumber) {
        while self.waiting.front().is_some_and(|(number, ..)| *number <= durable) {
            self.durable = self.waiting.pop_front().expect("there is a front").2;
        }
    }

    /// Every state that a crash may leave: what was acknowledged, and any step beyond it, since a large append is
    /// written in parts.
    pub fn allowed(&self) -> Vec<State> {
        let mut allowed = vec![self.durable.clone()];
        for (_, append, _) in &self.waiting {
            let before = allowed.last().expect("never empty").clone();
            if append.entries.is_empty() {
                allowed.push(before.after(append, 0));
            }
            allowed.extend((1..=append.entries.len()).map(|count| before.after(append, count)));
        }
        allowed
    }

    /// The state a recovered log presents.
    ///
    /// # Panics
    /// When it is none that the crash may have left.
    pub fn check(&self, recovered: &Recovered) -> State {
        let allowed = self.allowed();
        let found = allowed.iter().find(|state| state.is_presented(recovered, &self.meta));
        found.cloned().unwrap_or_else(|| {
            let (last, report) = (recovered.entries.last(), recovered.report);
            let last = last.map(|entry| (entry.index, entry.term));
            let mut text = format!("{:?} {last:?}, {report:?}, {:?}\nallowed:\n", recovered.hard_state, self.meta);
            for state in allowed {
                let last = (state.last_index(), state.term_at(state.last_index()));
                text += &format!("{:?} {last:?} base {:?}\n", state.hard_state, state.base);
            }
            panic!("a state that no crash may leave: {text}")
        })
    }

    /// The log was opened again and presents this state.
    pub fn reopen(&mut self, presented: State) {
        self.durable = presented;
        self.durable.hard_state.commit = self.durable.hard_state.commit.max(self.meta.applied_index);
        self.waiting.clear();
    }

    /// A random append that Raft could make.
    pub fn random_append(&self, rng: &mut Rng) -> Append {
        let newest = self.newest();
        let HardState { mut term, mut vote, commit } = newest.hard_state;
        let last = newest.last_index();
        if rng.chance(10) {
            term += 1 + rng.below(2);
            vote = rng.below(4);
        }
        if rng.chance(10) {
            let commit = commit + rng.below(last - commit + 1);
            return Append { entries: Vec::new(), hard_state: HardState { term, vote, commit } };
        }
        let conflict = rng.chance(10) && last > commit;
        let first = if conflict { commit + 1 + rng.below(last - commit) } else { last + 1 };
        if conflict && term == newest.hard_state.term {
            term += 1;
        }
        let count = if rng.chance(5) { rng.below(40) + 1 } else { rng.below(4) + 1 };
        let term_before = newest.term_at(first - 1);
        // Most entries are of the current term, as a leader's; a follower catches up through older ones.
        let mut entry_term = if rng.chance(80) { term } else { term_before + rng.below(term - term_before + 1) };
        let mut entries = Vec::new();
        for index in first..first + count {
            if rng.chance(10) && entry_term < term {
                entry_term += 1;
            }
            let len = match rng.below(100) {
                0 => 70_000,
                1..=5 => rng.index(12_000),
                _ => rng.index(600),
            };
            entries.push(entry(index, entry_term, len));
        }
        let last = first + count - 1;
        let commit = commit + rng.below(last - commit + 1);
        Append { entries, hard_state: HardState { term, vote, commit } }
    }
}
