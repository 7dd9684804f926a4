//! Sorting more rows than one step may hold up.
//!
//! Each step's rows are sorted by themselves into a run; the runs are then merged in bounded steps. Runs are gathered in
//! key order and each is sorted stably, so that rows which the target does not tell apart stay in key order.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use garboard_storage::{Paged, Version, View};

use super::limits::SORT_BYTES_MAX;
use super::range::Sort;
use super::rows::{Rank, Rows, Run};
use crate::error::Error;
use crate::request::SortTarget;

/// Gathers rows and sorts them.
#[derive(Debug)]
pub(crate) struct Sorter {
    sort: Sort,
    /// Rows that are asked for; every run keeps so many at most.
    limit: Option<usize>,
    /// The rows of the step under way.
    current: Rows,
    runs: Vec<Run>,
    /// What all runs occupy.
    size_bytes: usize,
    size_bytes_max: usize,
    /// Rows gathered in all, those included that no run keeps.
    row_count: u64,
}

impl Sorter {
    pub(crate) fn new(sort: Sort, limit: i64) -> Self {
        let limit = usize::try_from(limit).ok().filter(|limit| *limit > 0);
        let size_bytes_max = SORT_BYTES_MAX;
        Self { sort, limit, current: Rows::default(), runs: Vec::new(), size_bytes: 0, size_bytes_max, row_count: 0 }
    }

    pub(crate) fn row_count(&self) -> u64 {
        self.row_count
    }

    /// Adds a row, in key order; on a missing page nothing is added. Returns the bytes it occupies.
    pub(crate) fn add(&mut self, view: &View<'_>, key: &[u8], version: &Version) -> Paged<usize> {
        let before = self.current.size_bytes();
        if self.sort.target == SortTarget::Value {
            self.current.push_with_value(view, key, *version)?;
        } else {
            self.current.push(key, *version);
        }
        self.row_count += 1;
        Ok(self.current.size_bytes() - before)
    }

    /// Makes a run of what was added since the last call.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] when the rows outgrow [`SORT_BYTES_MAX`].
    pub(crate) fn seal(&mut self) -> Result<(), Error> {
        if self.current.is_empty() {
            return Ok(());
        }
        let mut run = std::mem::take(&mut self.current);
        run.sort(self.sort);
        if let Some(limit) = self.limit {
            run.truncate(i64::try_from(limit).expect("it came from one"));
        }
        self.size_bytes += run.size_bytes();
        self.runs.push(run.freeze());
        if self.size_bytes <= self.size_bytes_max {
            return Ok(());
        }
        self.prune();
        // What a limit keeps must leave room to gather more, or every further run would be merged at once.
        if self.size_bytes > self.size_bytes_max / 2 { Err(Error::TooManyRequests) } else { Ok(()) }
    }

    /// Merges all runs into one that holds what the limit asks for.
    fn prune(&mut self) {
        if self.limit.is_none() {
            return;
        }
        let mut merge = Merge::new(std::mem::take(&mut self.runs), self.sort, self.limit);
        while !merge.step(usize::MAX, &mut |_, _| {}) {}
        let sorted = merge.into_sorted();
        let mut rows = Rows::default();
        for (run, row) in sorted.order {
            sorted.runs[run].copy_to(row, &mut rows);
        }
        self.size_bytes = rows.size_bytes();
        self.runs.push(rows.freeze());
    }

    /// Ends the gathering.
    pub(crate) fn into_merge(self) -> Merge {
        assert!(self.current.is_empty(), "every row is in a run before the runs are merged");
        Merge::new(self.runs, self.sort, self.limit)
    }
}

/// The first row of a run that is not merged yet.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    rank: Rank,
    descending: bool,
    run: usize,
    row: usize,
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_rank = self.rank.cmp(&other.rank);
        let by_rank = if self.descending { by_rank.reverse() } else { by_rank };
        by_rank.then(self.run.cmp(&other.run)).then(self.row.cmp(&other.row))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Merges sorted runs.
#[derive(Debug)]
pub(crate) struct Merge {
    sort: Sort,
    limit: usize,
    heads: BinaryHeap<Reverse<Head>>,
    sorted: Sorted,
}

/// Rows in their final order.
#[derive(Clone, Debug)]
pub(crate) struct Sorted {
    runs: Vec<Run>,
    /// Run and row of each, in order.
    order: Vec<(usize, usize)>,
}

impl Merge {
    fn new(runs: Vec<Run>, sort: Sort, limit: Option<usize>) -> Self {
        let sorted = Sorted { runs, order: Vec::new() };
        let mut merge = Self { sort, limit: limit.unwrap_or(usize::MAX), heads: BinaryHeap::new(), sorted };
        for run in 0..merge.sorted.runs.len() {
            merge.push_head(run, 0);
        }
        merge
    }

    fn push_head(&mut self, run: usize, row: usize) {
        if row < self.sorted.runs[run].len() {
            let rank = self.sorted.runs[run].rank(self.sort.target, row);
            self.heads.push(Reverse(Head { rank, descending: self.sort.descending, run, row }));
        }
    }

    /// Merges so many rows, showing each to `visit`; true when no row is left.
    pub(crate) fn step(&mut self, rows: usize, visit: &mut dyn FnMut(&[u8], &Version)) -> bool {
        for _ in 0..rows {
            if self.sorted.order.len() >= self.limit {
                return true;
            }
            let Some(Reverse(head)) = self.heads.pop() else {
                return true;
            };
            let run = &self.sorted.runs[head.run];
            visit(run.key(head.row), run.version(head.row));
            self.sorted.order.push((head.run, head.row));
            self.push_head(head.run, head.row + 1);
        }
        false
    }

    pub(crate) fn into_sorted(self) -> Sorted {
        self.sorted
    }
}

impl Sorted {
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// Key, version and, if it was read, value of a row.
    pub(crate) fn get(&self, index: usize) -> (&[u8], &Version, Option<&[u8]>) {
        let (run, row) = self.order[index];
        let run = &self.runs[run];
        (run.key(row), run.version(row), run.value(row))
    }
}

#[cfg(test)]
mod tests {
    use garboard_storage::Revision;

    use super::*;
    use crate::read::fixture::Store;

    fn version(number: i64) -> Version {
        let modified = Revision { main: number, sub: 0 };
        Version { modified, create_revision: number, version: number, lease: 0, deleted: false, value_len: 0 }
    }

    /// Sorts `count` rows of descending versions under a bound, sealing every `run_len`.
    fn sort(limit: i64, bytes_max: usize, count: i64, run_len: i64) -> Result<Vec<i64>, Error> {
        let store = Store::new();
        let snapshot = store.snapshot();
        let mut sorter = Sorter::new(Sort { target: SortTarget::Version, descending: false }, limit);
        sorter.size_bytes_max = bytes_max;
        for number in 0..count {
            sorter.add(&snapshot.view(), format!("{number:06}").as_bytes(), &version(count - number)).unwrap();
            if number % run_len == run_len - 1 {
                sorter.seal()?;
            }
        }
        sorter.seal()?;
        let mut merge = sorter.into_merge();
        while !merge.step(3, &mut |_, _| {}) {}
        let sorted = merge.into_sorted();
        Ok((0..sorted.len()).map(|index| sorted.get(index).1.version).collect())
    }

    #[test]
    fn runs_merge_into_one_order_and_a_limit_keeps_the_first() {
        assert_eq!(sort(0, usize::MAX, 100, 7), Ok((1..=100).collect()));
        assert_eq!(sort(5, usize::MAX, 100, 7), Ok((1..=5).collect()));
    }

    #[test]
    fn a_sort_with_a_small_limit_stays_within_its_bound_and_one_without_is_refused() {
        assert_eq!(sort(5, 4096, 10_000, 7), Ok((1..=5).collect()));
        assert_eq!(sort(0, 4096, 10_000, 7), Err(Error::TooManyRequests));
    }
}
