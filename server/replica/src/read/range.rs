//! Range reads, with etcd's semantics.
//!
//! What etcd does and a reader may not expect: the count covers the whole range, whatever limit and filters. Filters
//! and real sorts see the whole range before the limit cuts it, but an order of "none" counts as the natural order when
//! the limit is chosen, so that a sort by anything but the key then orders the first `limit + 1` keys alone. A
//! keys-only read leaves the lease out too, unless it sorts by value.

use garboard_storage::{Paged, Version, View};

use super::fault::may_miss;
use super::rows::Rows;
use crate::error::Error;
use crate::request::{KeyRange, Range, RangeResult, SortOrder, SortTarget};

/// The revision to hand to the index for the newest state, whatever its revision.
pub const NEWEST: i64 = i64::MAX;

/// Evaluates a whole range read over one view.
///
/// After [`NeedPage`](garboard_storage::NeedPage) it is called again and starts anew. Meant for small reads and for
/// reads within apply; [`RangeScan`](super::scan::RangeScan) is the form for large ones. The revision of the reply's
/// header is the view's, also for a read of the past.
///
/// # Errors
/// [`Error::FutureRevision`] and [`Error::Compacted`] as [`read_revision`] says.
pub fn evaluate(view: &View<'_>, range: &Range, inside_txn: bool) -> Paged<Result<RangeResult, Error>> {
    let at = match read_revision(view.revision(), view.compacted(), range.revision, inside_txn) {
        Ok(at) => at,
        Err(error) => return Ok(Err(error)),
    };
    // Outside a transaction the view's revision is its newest state, and the index counts that without a scan.
    let at = if !inside_txn && at == view.revision() { NEWEST } else { at };
    evaluate_at(view, range, at).map(Ok)
}

/// Evaluates a range read at a revision that [`read_revision`] returned.
///
/// For apply: it checks all ranges of a transaction before the first write, against its own revision, which runs ahead
/// of the view's until the batch is published.
pub fn evaluate_at(view: &View<'_>, range: &Range, at: i64) -> Paged<RangeResult> {
    if range.count_only {
        let count = count(view, &range.keys, at)?;
        return Ok(RangeResult { kvs: Vec::new(), more: false, count });
    }
    let shape = Shape::of(range);
    let mut rows = Rows::default();
    let count = select(view, range, &shape, at, &mut rows)?;
    if let Some(sort) = shape.sort {
        if sort.target == SortTarget::Value {
            rows.load_values(view)?;
        }
        rows.sort(sort);
    }
    let more = rows.truncate(range.limit);
    if shape.values {
        rows.load_values(view)?;
    }
    Ok(RangeResult { kvs: rows.into_key_values(&shape), more, count })
}

/// The revision at which a read takes place: the one asked for, or [`NEWEST`].
///
/// `current` and `compacted` are the store's revision and floor. Outside a transaction every revision of 0 or less is
/// the newest. Inside one, etcd holds a negative revision against the floor like any other: it is compacted, except −1
/// before the first compaction. Inside a transaction that writes, `current` is the revision it began at.
///
/// # Errors
/// [`Error::FutureRevision`] above `current`, [`Error::Compacted`] below `compacted`; the floor itself is served.
pub fn read_revision(current: i64, compacted: i64, asked: i64, inside_txn: bool) -> Result<i64, Error> {
    if asked > current {
        return Err(Error::FutureRevision);
    }
    if asked == 0 || (asked < 0 && !inside_txn) {
        return Ok(NEWEST);
    }
    if asked < compacted {
        return Err(Error::Compacted);
    }
    Ok(if asked < 0 { NEWEST } else { asked })
}

/// The number of live keys of a range.
pub(crate) fn count(view: &View<'_>, keys: &KeyRange, at: i64) -> Paged<i64> {
    may_miss()?;
    let count = match (keys, keys.span()) {
        (KeyRange::Point(key), _) => u64::from(view.find(key, at)?.is_some()),
        (_, Some(bounds)) if !keys.is_empty() => view.count(bounds, at)?,
        _ => 0,
    };
    Ok(i64::try_from(count).expect("a store holds fewer than 2^63 keys"))
}

/// How a sort orders rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sort {
    pub(crate) target: SortTarget,
    pub(crate) descending: bool,
}

/// What a range request means for the walk that serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Rows after which the walk may stop, one beyond the limit so that `more` can be told; `None`: never.
    pub(crate) walk_limit: Option<u64>,
    /// The sort, where key order is not what was asked for.
    pub(crate) sort: Option<Sort>,
    /// Whether rows are returned with their values.
    pub(crate) values: bool,
    /// Whether rows are returned with their leases.
    pub(crate) leases: bool,
}

impl Shape {
    pub(crate) fn of(range: &Range) -> Self {
        let natural =
            range.order == SortOrder::None || (range.target == SortTarget::Key && range.order == SortOrder::Ascend);
        let walk_limit = match u64::try_from(range.limit) {
            Ok(limit) if limit > 0 && natural && !has_filters(range) => Some(limit.saturating_add(1)),
            _ => None,
        };
        let sort = match (range.target, range.order) {
            (SortTarget::Key, SortOrder::None | SortOrder::Ascend) => None,
            (target, order) => Some(Sort { target, descending: order == SortOrder::Descend }),
        };
        let leases = !range.keys_only || range.target == SortTarget::Value;
        Self { walk_limit, sort, values: !range.keys_only, leases }
    }
}

/// Whether a request leaves rows out by their revisions.
pub(crate) fn has_filters(range: &Range) -> bool {
    range.min_mod_revision != 0
        || range.max_mod_revision != 0
        || range.min_create_revision != 0
        || range.max_create_revision != 0
}

/// Whether the request's filters let a row pass; each is off at 0.
pub(crate) fn admits(range: &Range, version: &Version) -> bool {
    let modified = version.modified.main;
    let created = version.create_revision;
    (range.max_mod_revision == 0 || modified <= range.max_mod_revision)
        && (range.min_mod_revision == 0 || modified >= range.min_mod_revision)
        && (range.max_create_revision == 0 || created <= range.max_create_revision)
        && (range.min_create_revision == 0 || created >= range.min_create_revision)
}

/// Gathers the rows that pass the filters, up to the walk's limit, and returns the count of the whole range.
fn select(view: &View<'_>, range: &Range, shape: &Shape, at: i64, rows: &mut Rows) -> Paged<i64> {
    if let KeyRange::Point(key) = &range.keys {
        may_miss()?;
        let found = view.find(key, at)?;
        if let Some(version) = found.filter(|version| admits(range, version)) {
            rows.push(key, version);
        }
        return Ok(i64::from(found.is_some()));
    }
    let Some(bounds) = range.keys.span().filter(|_| !range.keys.is_empty()) else {
        return Ok(0);
    };
    let mut walked = 0_i64;
    let mut cursor = view.cursor(bounds, at);
    loop {
        if shape.walk_limit.is_some_and(|limit| rows.len() >= limit) {
            return count(view, &range.keys, at);
        }
        may_miss()?;
        let Some((key, version)) = cursor.next()? else {
            return Ok(walked);
        };
        walked += 1;
        if admits(range, &version) {
            rows.push(key, version);
        }
    }
}
