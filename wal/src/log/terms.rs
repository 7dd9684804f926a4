//! Which term each entry of the log has, without the entries.

/// The terms of the entries from a base on, as runs: terms change once an election, so this stays small.
///
/// Invariant: runs are in order of index and of term, the first starts at `base_index + 1`, none is beyond `last_index`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    base_index: u64,
    base_term: u64,
    last_index: u64,
    /// First index and term of each run.
    runs: Vec<(u64, u64)>,
}

impl Terms {
    /// A log whose last entry is at `index`; what is before is not known.
    pub(crate) fn new(index: u64, term: u64) -> Terms {
        Terms { base_index: index, base_term: term, last_index: index, runs: Vec::new() }
    }

    pub(crate) fn last_index(&self) -> u64 {
        self.last_index
    }

    pub(crate) fn last_term(&self) -> u64 {
        self.runs.last().map_or(self.base_term, |(_, term)| *term)
    }

    /// The term of the entry at `index`; `None` below the base and beyond the end.
    pub(crate) fn at(&self, index: u64) -> Option<u64> {
        if index < self.base_index || index > self.last_index {
            return None;
        }
        let later = self.runs.partition_point(|(first, _)| *first <= index);
        Some(if later == 0 { self.base_term } else { self.runs[later - 1].1 })
    }

    /// Puts an entry at `index`, which replaces what was there and beyond.
    pub(crate) fn put(&mut self, index: u64, term: u64) {
        assert!(index > self.base_index && index <= self.last_index + 1, "entries are put without gaps");
        if index <= self.last_index {
            let kept = self.runs.partition_point(|(first, _)| *first < index);
            self.runs.truncate(kept);
        }
        assert!(term >= self.last_term(), "terms never fall along a log");
        if term > self.last_term() || self.runs.is_empty() {
            self.runs.push((index, term));
        }
        self.last_index = index;
    }

    /// Forgets what is before `index`, which must be known.
    pub(crate) fn rebase(&mut self, index: u64) {
        let Some(term) = self.at(index) else { return };
        let kept = self.runs.partition_point(|(first, _)| *first <= index);
        self.runs.drain(..kept);
        self.base_index = index;
        self.base_term = term;
        if index < self.last_index && self.runs.first().is_none_or(|(first, _)| *first > index + 1) {
            self.runs.insert(0, (index + 1, term));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_those_of_a_plain_list_under_replacement_and_rebasing() {
        let mut terms = Terms::new(4, 2);
        let mut plain: Vec<Option<u64>> = vec![None, None, None, None, Some(2)];
        let puts = [(5, 2), (6, 2), (7, 3), (8, 3), (9, 5), (8, 6), (9, 6), (6, 7), (7, 7), (8, 9)];
        for (index, term) in puts {
            terms.put(index, term);
            plain.truncate(usize::try_from(index).unwrap());
            plain.push(Some(term));
            for at in 0..12usize {
                let expected = plain.get(at).copied().flatten();
                assert_eq!(terms.at(at.try_into().unwrap()), expected, "index {at} after put {index}");
            }
            assert_eq!(terms.last_term(), term);
        }
        for base in 5..=8 {
            terms.rebase(base);
            plain[..usize::try_from(base).unwrap()].fill(None);
            for (at, expected) in plain.iter().enumerate() {
                assert_eq!(terms.at(at.try_into().unwrap()), *expected, "index {at} after rebase {base}");
            }
            assert_eq!((terms.last_index(), terms.last_term()), (8, 9));
        }
    }
}
