//! Rows on their way to a result.

use std::cmp::Ordering;

use bytes::Bytes;
use garboard_storage::{Paged, Version, View};

use super::fault::may_miss;
use super::range::{Shape, Sort};
use crate::request::{KeyValue, SortTarget};

/// One row, its key and value as positions in the buffer that all rows share.
#[derive(Clone, Debug)]
struct Row {
    key_start: usize,
    key_end: usize,
    value: Option<(usize, usize)>,
    version: Version,
}

/// Rows on their way to a result. All keys and values share one buffer, which the result's rows then share too.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    bytes: Vec<u8>,
    rows: Vec<Row>,
}

impl Rows {
    pub(crate) fn push(&mut self, key: &[u8], version: Version) {
        let key_start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.rows.push(Row { key_start, key_end: self.bytes.len(), value: None, version });
    }

    /// Adds a row with its value; on a missing page the rows are as they were.
    pub(crate) fn push_with_value(&mut self, view: &View<'_>, key: &[u8], version: Version) -> Paged<()> {
        let value = read_value(view, &version, &mut self.bytes)?;
        self.push(key, version);
        self.rows.last_mut().expect("just pushed").value = Some(value);
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Ends the gathering: the rows can be looked at and no longer changed.
    pub(crate) fn freeze(self) -> Run {
        Run { bytes: Bytes::from(self.bytes), rows: self.rows }
    }

    pub(crate) fn len(&self) -> u64 {
        u64::try_from(self.rows.len()).expect("a length fits in 64 bits")
    }

    /// What the rows occupy.
    pub(crate) fn size_bytes(&self) -> usize {
        self.bytes.len() + self.rows.len() * size_of::<Row>()
    }

    /// Reads the values that are not there yet; after a missing page it goes on where it stopped.
    pub(crate) fn load_values(&mut self, view: &View<'_>) -> Paged<()> {
        for row in self.rows.iter_mut().filter(|row| row.value.is_none()) {
            row.value = Some(read_value(view, &row.version, &mut self.bytes)?);
        }
        Ok(())
    }

    /// Sorts the rows. Rows that the target does not tell apart keep their key order.
    pub(crate) fn sort(&mut self, sort: Sort) {
        let bytes = &self.bytes;
        self.rows.sort_by(|a, b| compare_rows(bytes, sort, a, b));
    }

    /// Cuts the rows to a limit, if there is one, and says whether that left some out.
    pub(crate) fn truncate(&mut self, limit: i64) -> bool {
        match usize::try_from(limit) {
            Ok(limit) if limit > 0 && self.rows.len() > limit => {
                self.rows.truncate(limit);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn into_key_values(self, shape: &Shape) -> Vec<KeyValue> {
        let bytes = Bytes::from(self.bytes);
        let pair = |row: Row| KeyValue {
            key: bytes.slice(row.key_start..row.key_end),
            create_revision: row.version.create_revision,
            mod_revision: row.version.modified.main,
            version: row.version.version,
            value: match row.value {
                Some((start, end)) if shape.values => bytes.slice(start..end),
                _ => Bytes::new(),
            },
            lease: if shape.leases { row.version.lease } else { 0 },
        };
        self.rows.into_iter().map(pair).collect()
    }
}

/// Rows that are sorted and no longer change.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    bytes: Bytes,
    rows: Vec<Row>,
}

/// What a sort compares of a row. Ranks of one sort are of one kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    Number(i64),
    Text(Bytes),
}

impl Run {
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn key(&self, row: usize) -> &[u8] {
        let row = &self.rows[row];
        &self.bytes[row.key_start..row.key_end]
    }

    pub(crate) fn version(&self, row: usize) -> &Version {
        &self.rows[row].version
    }

    /// The value, if it was read.
    pub(crate) fn value(&self, row: usize) -> Option<&[u8]> {
        self.rows[row].value.map(|(start, end)| &self.bytes[start..end])
    }

    pub(crate) fn rank(&self, target: SortTarget, row: usize) -> Rank {
        let row = &self.rows[row];
        match target {
            SortTarget::Key => Rank::Text(self.bytes.slice(row.key_start..row.key_end)),
            SortTarget::Version => Rank::Number(row.version.version),
            SortTarget::Create => Rank::Number(row.version.create_revision),
            SortTarget::Mod => Rank::Number(row.version.modified.main),
            SortTarget::Value => {
                Rank::Text(row.value.map_or(Bytes::new(), |(start, end)| self.bytes.slice(start..end)))
            }
        }
    }

    /// Copies one row to the end of `into`.
    pub(crate) fn copy_to(&self, row: usize, into: &mut Rows) {
        let value = self.value(row).map(|value| {
            let start = into.bytes.len();
            into.bytes.extend_from_slice(value);
            (start, into.bytes.len())
        });
        into.push(self.key(row), *self.version(row));
        into.rows.last_mut().expect("just pushed").value = value;
    }
}

/// Appends a version's value to `into` and returns where it lies; on a missing page `into` is as it was.
pub(crate) fn read_value(view: &View<'_>, version: &Version, into: &mut Vec<u8>) -> Paged<(usize, usize)> {
    let start = into.len();
    let found = match may_miss().and_then(|()| view.value(version.modified, into)) {
        Ok(found) => found,
        Err(need) => {
            into.truncate(start);
            return Err(need);
        }
    };
    assert!(found, "a version that a view shows as live has its value in the same view");
    let length = into.len() - start;
    assert_eq!(Ok(length), usize::try_from(version.value_len), "the value has the length that its version says");
    Ok((start, into.len()))
}

fn compare_rows(bytes: &[u8], sort: Sort, a: &Row, b: &Row) -> Ordering {
    let value = |row: &Row| match row.value {
        Some((start, end)) => &bytes[start..end],
        None => &[],
    };
    let order = match sort.target {
        SortTarget::Key => bytes[a.key_start..a.key_end].cmp(&bytes[b.key_start..b.key_end]),
        SortTarget::Version => a.version.version.cmp(&b.version.version),
        SortTarget::Create => a.version.create_revision.cmp(&b.version.create_revision),
        SortTarget::Mod => a.version.modified.main.cmp(&b.version.modified.main),
        SortTarget::Value => value(a).cmp(value(b)),
    };
    if sort.descending { order.reverse() } else { order }
}
