//! What a root shows: lookups, counts and cursors.

use crate::codec::to_usize;
use crate::entry::{Newest, RecordHead, SOUND, revision_key, revision_of_key};
use crate::map::PageBytes;
use crate::page::{self, Cell};
use crate::pages::Pages;
use crate::pins::{Pin, Root};
use crate::store::Shared;
use crate::tree::{self, Counted, Walk};
use crate::types::{Applied, Bounds, PageId, Paged, Record, Revision, Version};
use crate::{NeedPage, PageError};
use bytes::Bytes;
use std::sync::Arc;

/// What a pinned root or the writer's working state shows.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub(crate) pages: &'a Pages,
    pub(crate) root: &'a Root,
}

/// Room for a record's body that is made before its pages are read: an extent's length is not believed beyond it.
const BODY_ROOM_BYTES: usize = 1 << 20;

/// The whole key of a cell.
pub(crate) fn whole_key(pages: &Pages, page: &PageBytes, cell: &Cell<'_>, into: &mut Vec<u8>) -> Paged<()> {
    into.clear();
    into.extend_from_slice(page::prefix(page));
    into.extend_from_slice(cell.suffix);
    match cell.key_extent {
        Some(extent) => pages.read_extent(extent, 0, into),
        None => Ok(()),
    }
}

impl<'a> View<'a> {
    /// The newest main revision; 1 in an empty store.
    pub fn revision(&self) -> i64 {
        self.root.revision
    }

    /// The logical compaction floor; −1 before any compaction.
    pub fn compacted(&self) -> i64 {
        self.root.compacted
    }

    /// What the log had applied.
    pub fn applied(&self) -> Applied {
        self.root.applied
    }

    /// The version of `key` that is live at revision `at` (`i64::MAX` for the newest).
    pub fn find(&self, key: &[u8], at: i64) -> Paged<Option<Version>> {
        Ok(self.version_at(key, at)?.filter(|version| !version.deleted))
    }

    /// The newest version of `key`, tombstones included.
    pub fn newest(&self, key: &[u8]) -> Paged<Option<Version>> {
        Ok(tree::get(self.pages, &self.root.current, key)?.map(|cell| Newest::decode_version(cell.value)))
    }

    /// The newest version of `key` at revision `at`, tombstones included. Nothing below the compaction floor is sure
    /// to be there.
    pub fn version_at(&self, key: &[u8], at: i64) -> Paged<Option<Version>> {
        match self.newest(key)? {
            Some(newest) => self.walk_back(newest, at),
            None => Ok(None),
        }
    }

    /// The version at `at` in the chain that ends with `newest`.
    pub(crate) fn walk_back(&self, newest: Version, at: i64) -> Paged<Option<Version>> {
        let mut version = newest;
        while version.modified.main > at {
            let Some((_, head)) = self.head(version.modified)? else { return Ok(None) };
            let earlier = head.jump.filter(|jump| jump.main > at).or(head.previous);
            let Some(earlier) = earlier else { return Ok(None) };
            match self.head(earlier)? {
                Some((_, head)) => version = head.version,
                None => return Ok(None),
            }
        }
        Ok(Some(version))
    }

    /// The metadata of a revision.
    fn head(&self, revision: Revision) -> Paged<Option<(Cell<'a>, RecordHead<'a>)>> {
        let cell = tree::get(self.pages, &self.root.revisions, &revision_key(revision))?;
        Ok(cell.map(|cell| (cell, RecordHead::decode(revision, cell.value))))
    }

    /// How many keys are live inside `bounds` at revision `at`. A long count at an older revision is better done in
    /// steps, with [`View::counter`].
    pub fn count(&self, bounds: Bounds<'_>, at: i64) -> Paged<u64> {
        let mut counter = self.counter(bounds, at);
        loop {
            if let Some(count) = counter.step(usize::MAX)? {
                return Ok(count);
            }
        }
    }

    /// Counts in bounded steps.
    pub fn counter(&self, bounds: Bounds<'_>, at: i64) -> Counter<'a> {
        Counter {
            view: *self,
            start: bounds.start.to_vec(),
            end: bounds.end.map(<[u8]>::to_vec),
            at,
            state: CounterState::New,
        }
    }

    /// The live keys inside `bounds` at revision `at`, in key order.
    pub fn cursor(&self, bounds: Bounds<'_>, at: i64) -> Cursor<'a> {
        let newest = at >= self.root.revision;
        let end = bounds.end.map(<[u8]>::to_vec);
        Cursor { view: *self, walk: None, start: bounds.start.to_vec(), end, at, newest, key: Vec::new() }
    }

    /// Appends the value of a revision to `into`; false when the revision is gone.
    pub fn value(&self, revision: Revision, into: &mut Vec<u8>) -> Paged<bool> {
        let Some((cell, head)) = self.head(revision)? else { return Ok(false) };
        match cell.value_extent {
            Some(extent) => self.pages.read_extent(extent, head.key_in_body(), into)?,
            None => into.extend_from_slice(head.rest.get(head.key_in_body()..).expect(SOUND)),
        }
        Ok(true)
    }

    /// One revision.
    pub fn record(&self, revision: Revision) -> Paged<Option<Record>> {
        match self.head(revision)? {
            Some((cell, head)) => Ok(Some(self.whole_record(&cell, &head)?)),
            None => Ok(None),
        }
    }

    fn whole_record(&self, cell: &Cell<'_>, head: &RecordHead<'_>) -> Paged<Record> {
        let body = match cell.value_extent {
            Some(extent) => {
                let mut body = Vec::with_capacity(to_usize(extent.len).min(BODY_ROOM_BYTES));
                self.pages.read_extent(extent, 0, &mut body)?;
                Bytes::from(body)
            }
            None => Bytes::copy_from_slice(head.rest),
        };
        assert!(head.key_in_body() <= body.len(), "{SOUND}");
        let key = head.key.map_or_else(|| body.slice(..head.key_in_body()), Bytes::copy_from_slice);
        Ok(Record {
            revision: head.version.modified,
            key,
            value: body.slice(head.key_in_body()..),
            create_revision: head.version.create_revision,
            version: head.version.version,
            lease: head.version.lease,
            deleted: head.version.deleted,
            previous: head.previous,
        })
    }

    /// The key of a record, without its value.
    pub(crate) fn record_key(&self, cell: &Cell<'_>, head: &RecordHead<'_>, into: &mut Vec<u8>) -> Paged<()> {
        into.clear();
        match (head.key, cell.value_extent) {
            (Some(key), _) => into.extend_from_slice(key),
            (None, Some(extent)) => {
                self.pages.read_extent(extent, 0, into)?;
                into.truncate(head.key_in_body());
            }
            (None, None) => into.extend_from_slice(head.rest.get(..head.key_in_body()).expect(SOUND)),
        }
        Ok(())
    }

    /// The revisions from `from` on, in order.
    pub fn events(&self, from: Revision) -> EventCursor<'a> {
        EventCursor { view: *self, walk: None, from }
    }

    /// An entry of the system tree.
    pub fn system_get(&self, key: &[u8]) -> Paged<Option<Vec<u8>>> {
        match tree::get(self.pages, &self.root.system, key)? {
            Some(cell) => Ok(Some(self.system_value(&cell)?)),
            None => Ok(None),
        }
    }

    pub(crate) fn system_value(&self, cell: &Cell<'_>) -> Paged<Vec<u8>> {
        let mut value = cell.value.to_vec();
        if let Some(extent) = cell.value_extent {
            self.pages.read_extent(extent, 0, &mut value)?;
        }
        Ok(value)
    }

    /// The entries of the system tree whose keys begin with `prefix`, in order.
    pub fn system_scan(&self, prefix: &[u8]) -> SystemCursor<'a> {
        SystemCursor { view: *self, walk: None, prefix: prefix.to_vec() }
    }
}

/// Walks live keys in key order.
#[derive(Debug)]
pub struct Cursor<'a> {
    view: View<'a>,
    walk: Option<Walk<'a>>,
    start: Vec<u8>,
    end: Option<Vec<u8>>,
    at: i64,
    newest: bool,
    key: Vec<u8>,
}

impl Cursor<'_> {
    /// The next live key and its version. After [`NeedPage`] the cursor stands where it stood, but for dead keys
    /// passed by.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Paged<Option<(&[u8], Version)>> {
        let view = self.view;
        let walk = match &mut self.walk {
            Some(walk) => walk,
            None => {
                let walk = Walk::start(view.pages, &view.root.current, &self.start, self.newest)?;
                self.walk.insert(walk)
            }
        };
        while let Some((page, cell)) = walk.entry()? {
            whole_key(view.pages, page, &cell, &mut self.key)?;
            if self.end.as_ref().is_some_and(|end| self.key >= *end) {
                return Ok(None);
            }
            let newest = Newest::decode_version(cell.value);
            let found = if self.newest { Some(newest) } else { view.walk_back(newest, self.at)? };
            walk.pass();
            if let Some(version) = found.filter(|version| !version.deleted) {
                return Ok(Some((&self.key, version)));
            }
        }
        Ok(None)
    }
}

/// Walks revisions in order.
#[derive(Debug)]
pub struct EventCursor<'a> {
    view: View<'a>,
    walk: Option<Walk<'a>>,
    from: Revision,
}

impl<'a> EventCursor<'a> {
    /// The next revision. After [`NeedPage`] the cursor stands where it stood.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Paged<Option<Record>> {
        let Some((cell, head)) = self.head()? else { return Ok(None) };
        let record = self.view.whole_record(&cell, &head)?;
        self.pass();
        Ok(Some(record))
    }

    /// The revision at the position, without its value.
    pub(crate) fn head(&mut self) -> Paged<Option<(Cell<'a>, RecordHead<'a>)>> {
        let view = self.view;
        let walk = match &mut self.walk {
            Some(walk) => walk,
            None => {
                let key = revision_key(self.from);
                self.walk.insert(Walk::start(view.pages, &view.root.revisions, &key, false)?)
            }
        };
        let Some((page, cell)) = walk.entry()? else { return Ok(None) };
        let mut key = [0; crate::entry::REVISION_KEY_SIZE];
        let prefix = page::prefix(page);
        assert!(prefix.len() + cell.suffix.len() == key.len(), "{SOUND}");
        key[..prefix.len()].copy_from_slice(prefix);
        key[prefix.len()..].copy_from_slice(cell.suffix);
        Ok(Some((cell, RecordHead::decode(revision_of_key(&key), cell.value))))
    }

    pub(crate) fn pass(&mut self) {
        if let Some(walk) = &mut self.walk {
            walk.pass();
        }
    }
}

/// Walks entries of the system tree.
#[derive(Debug)]
pub struct SystemCursor<'a> {
    view: View<'a>,
    walk: Option<Walk<'a>>,
    prefix: Vec<u8>,
}

impl SystemCursor<'_> {
    /// The next entry. After [`NeedPage`] the cursor stands where it stood.
    #[allow(clippy::should_implement_trait, clippy::type_complexity)]
    pub fn next(&mut self) -> Paged<Option<(Vec<u8>, Vec<u8>)>> {
        let view = self.view;
        let walk = match &mut self.walk {
            Some(walk) => walk,
            None => self.walk.insert(Walk::start(view.pages, &view.root.system, &self.prefix, false)?),
        };
        let Some((page, cell)) = walk.entry()? else { return Ok(None) };
        let mut key = Vec::new();
        whole_key(view.pages, page, &cell, &mut key)?;
        if !key.starts_with(&self.prefix) {
            return Ok(None);
        }
        let value = view.system_value(&cell)?;
        walk.pass();
        Ok(Some((key, value)))
    }
}

/// Counts live keys in bounded steps.
#[derive(Debug)]
pub struct Counter<'a> {
    view: View<'a>,
    start: Vec<u8>,
    end: Option<Vec<u8>>,
    at: i64,
    state: CounterState<'a>,
}

#[derive(Debug)]
enum CounterState<'a> {
    New,
    /// The newest count, corrected by the creations and deletions since.
    ///
    /// On the way it may fall below zero: a key made and deleted since is subtracted before it is added.
    Correct {
        events: Box<EventCursor<'a>>,
        count: i64,
        key: Vec<u8>,
    },
    /// A scan of the range at the older revision.
    Scan {
        cursor: Box<Cursor<'a>>,
        count: u64,
    },
}

impl Counter<'_> {
    /// Goes on for at most `budget` keys or revisions; gives the count at the end. After [`NeedPage`] it goes on from
    /// where it stood.
    pub fn step(&mut self, budget: usize) -> Paged<Option<u64>> {
        if matches!(self.state, CounterState::New)
            && let Some(count) = self.begin()?
        {
            return Ok(Some(count));
        }
        let bounds = Bounds { start: &self.start, end: self.end.as_deref() };
        match &mut self.state {
            CounterState::New => unreachable!("the counter has begun"),
            CounterState::Scan { cursor, count } => {
                for _ in 0..budget {
                    if cursor.next()?.is_none() {
                        return Ok(Some(*count));
                    }
                    *count += 1;
                }
            }
            CounterState::Correct { events, count, key } => {
                for _ in 0..budget {
                    let Some((cell, head)) = events.head()? else {
                        return Ok(Some(u64::try_from(*count).expect(SOUND)));
                    };
                    let created = !head.version.deleted && head.version.version == 1;
                    if created || head.version.deleted {
                        self.view.record_key(&cell, &head, key)?;
                        if bounds.contains(key) {
                            *count = if created { *count - 1 } else { *count + 1 };
                        }
                    }
                    events.pass();
                }
            }
        }
        Ok(None)
    }

    /// Counts at the newest revision, which is the answer or where the correction starts from.
    fn begin(&mut self) -> Paged<Option<u64>> {
        let view = self.view;
        let bounds = Bounds { start: &self.start, end: self.end.as_deref() };
        if bounds.end.is_some_and(|end| end <= bounds.start) {
            return Ok(Some(0));
        }
        let current = &view.root.current;
        let below = tree::rank(view.pages, current, Counted::Live, bounds.start)?;
        let up_to = match bounds.end {
            Some(end) => tree::rank(view.pages, current, Counted::Live, end)?,
            None => current.count,
        };
        let count = up_to.checked_sub(below).expect(SOUND);
        if self.at >= view.root.revision {
            return Ok(Some(count));
        }
        let from = Revision { main: self.at + 1, sub: 0 };
        let older = tree::rank(view.pages, &view.root.revisions, Counted::All, &revision_key(from))?;
        let changes = view.root.revisions.count.checked_sub(older).expect(SOUND);
        self.state = if changes <= count.saturating_mul(2) + 64 {
            CounterState::Correct { events: Box::new(view.events(from)), count: count.cast_signed(), key: Vec::new() }
        } else {
            CounterState::Scan { cursor: Box::new(view.cursor(bounds, self.at)), count: 0 }
        };
        Ok(None)
    }
}

/// Pins published roots, on any core.
#[derive(Debug)]
pub struct Reader {
    pub(crate) shared: Arc<Shared>,
    hint: usize,
}

impl Clone for Reader {
    fn clone(&self) -> Reader {
        Reader::new(Arc::clone(&self.shared))
    }
}

impl Reader {
    pub(crate) fn new(shared: Arc<Shared>) -> Reader {
        let hint = shared.pins.next_hint();
        Reader { shared, hint }
    }

    /// Pins the newest published root.
    pub fn pin(&self) -> Snapshot {
        let (pin, root) = self.shared.pins.pin(self.hint);
        Snapshot { shared: Arc::clone(&self.shared), pin, root }
    }

    /// Reads a page and verifies it; blocks, so it is called where blocking is allowed. Afterwards the walk that
    /// answered [`NeedPage`] gets further.
    pub fn load(&self, page: PageId) -> Result<(), PageError> {
        self.shared.pages.load(page)
    }

    /// Does as [`Reader::load`] does if that needs no waiting, because the kernel has the page in its cache; false
    /// otherwise.
    pub fn load_cached(&self, page: PageId) -> Result<bool, PageError> {
        self.shared.pages.load_cached(page)
    }

    /// Reads pages that [`Index::pages_in_file`](crate::Index::pages_in_file) named again and verifies them; blocks.
    /// It finds rot in pages that nobody reads, while other copies still exist.
    pub fn scrub(&self, pages: &[u32]) -> Result<(), PageError> {
        // A page may be younger than the list of pages, but not younger than the index.
        pages.iter().try_for_each(|&page| self.shared.pages.scrub(page, self.shared.pins.sequence()))
    }

    /// The revision of the newest published root.
    pub fn revision(&self) -> i64 {
        self.shared.pins.revision()
    }
}

/// A pinned root; dropping it unpins.
#[derive(Debug)]
pub struct Snapshot {
    shared: Arc<Shared>,
    pin: Pin,
    root: Root,
}

impl Snapshot {
    /// What the root shows.
    pub fn view(&self) -> View<'_> {
        View { pages: &self.shared.pages, root: &self.root }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.shared.pins.unpin(self.pin);
    }
}

const _: () = {
    const fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<Reader>();
    is_send_and_sync::<Snapshot>();
    is_send_and_sync::<NeedPage>();
};
