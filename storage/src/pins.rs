//! The published root, and which roots readers hold.
//!
//! A reader announces the sequence that it pins in a slot, copies the root, and looks again whether the sequence is
//! still the published one. The writer publishes first and looks at the slots afterwards. All four are sequentially
//! consistent, so either the writer sees the slot or the reader sees the newer sequence and tries again. What the
//! writer moved before it looked (a page's place) is then seen by the reader as well.

use crate::codec::to_usize;
use crate::types::{Applied, PageId, Revision};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// One tree of the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct TreeRoot {
    /// The root page; of no meaning while `height` is zero.
    pub(crate) page: u32,
    /// Levels of the tree; zero when it is empty.
    pub(crate) height: u32,
    /// The root page's birth.
    pub(crate) birth: u64,
    /// Live entries.
    pub(crate) count: u64,
}

impl TreeRoot {
    pub(crate) fn id(&self) -> Option<PageId> {
        (self.height > 0).then_some(PageId { number: self.page, birth: self.birth })
    }
}

/// Everything that a root says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Root {
    /// Counts published roots; a page's birth is the sequence of the first root that reaches it.
    pub(crate) sequence: u64,
    pub(crate) applied: Applied,
    pub(crate) revision: i64,
    pub(crate) compacted: i64,
    /// The floor up to which physical compaction is done.
    pub(crate) finished: i64,
    /// The revision at which physical compaction goes on.
    pub(crate) scanned_to: Revision,
    pub(crate) revisions: TreeRoot,
    pub(crate) current: TreeRoot,
    pub(crate) system: TreeRoot,
}

const ROOT_WORDS: usize = 17;

impl Root {
    /// The root of an empty store.
    pub(crate) fn empty() -> Root {
        Root {
            sequence: 1,
            applied: Applied::default(),
            revision: 1,
            compacted: -1,
            finished: -1,
            scanned_to: Revision::default(),
            revisions: TreeRoot::default(),
            current: TreeRoot::default(),
            system: TreeRoot::default(),
        }
    }

    pub(crate) fn trees(&self) -> [TreeRoot; 3] {
        [self.revisions, self.current, self.system]
    }

    fn to_words(self) -> [u64; ROOT_WORDS] {
        let mut words = [0; ROOT_WORDS];
        words[0] = self.sequence;
        words[1] = self.applied.index;
        words[2] = self.applied.term;
        words[3] = self.revision.cast_unsigned();
        words[4] = self.compacted.cast_unsigned();
        words[5] = self.finished.cast_unsigned();
        words[6] = self.scanned_to.main.cast_unsigned();
        words[16] = self.scanned_to.sub.cast_unsigned();
        for (i, tree) in self.trees().into_iter().enumerate() {
            words[7 + 3 * i] = u64::from(tree.height) << 32 | u64::from(tree.page);
            words[8 + 3 * i] = tree.birth;
            words[9 + 3 * i] = tree.count;
        }
        words
    }

    fn from_words(words: &[u64; ROOT_WORDS]) -> Root {
        let tree = |i: usize| TreeRoot {
            page: u32::try_from(words[7 + 3 * i] & 0xffff_ffff).expect("masked to 32 bits"),
            height: u32::try_from(words[7 + 3 * i] >> 32).expect("shifted to 32 bits"),
            birth: words[8 + 3 * i],
            count: words[9 + 3 * i],
        };
        Root {
            sequence: words[0],
            applied: Applied { index: words[1], term: words[2] },
            revision: words[3].cast_signed(),
            compacted: words[4].cast_signed(),
            finished: words[5].cast_signed(),
            scanned_to: Revision { main: words[6].cast_signed(), sub: words[16].cast_signed() },
            revisions: tree(0),
            current: tree(1),
            system: tree(2),
        }
    }
}

/// How many roots can be pinned without a lock.
const SLOT_COUNT: usize = 1024;
/// How many slots a reader's first choice lies behind the previous reader's.
const SLOT_STRIDE: usize = 64;

/// The newest root for readers, and the readers' pins for the writer.
#[derive(Debug)]
pub(crate) struct Pins {
    published: AtomicU64,
    revision: AtomicU64,
    /// The published root and the one before, by the parity of their sequences.
    roots: [[AtomicU64; ROOT_WORDS]; 2],
    slots: Box<[AtomicU64]>,
    /// Pins beyond the slots. The count lets the writer pass by the lock.
    overflow_count: AtomicU64,
    overflow: Mutex<Vec<u64>>,
    readers: AtomicU64,
}

/// Where a pin is noted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pin {
    Slot(usize),
    Overflow(u64),
}

impl Pins {
    pub(crate) fn new(root: &Root) -> Pins {
        let pins = Pins {
            published: AtomicU64::new(0),
            revision: AtomicU64::new(0),
            roots: Default::default(),
            slots: (0..SLOT_COUNT).map(|_| AtomicU64::new(0)).collect(),
            overflow_count: AtomicU64::new(0),
            overflow: Mutex::new(Vec::new()),
            readers: AtomicU64::new(0),
        };
        pins.publish(root);
        pins
    }

    /// Where the next reader looks for a slot first.
    pub(crate) fn next_hint(&self) -> usize {
        let reader = self.readers.fetch_add(1, Ordering::Relaxed);
        usize::try_from(reader).map_or(0, |reader| reader.wrapping_mul(SLOT_STRIDE) % SLOT_COUNT)
    }

    /// The revision of the newest published root.
    pub(crate) fn revision(&self) -> i64 {
        self.revision.load(Ordering::Acquire).cast_signed()
    }

    /// The sequence of the newest published root.
    pub(crate) fn sequence(&self) -> u64 {
        self.published.load(Ordering::Acquire)
    }

    /// Publishes a root; the writer only.
    pub(crate) fn publish(&self, root: &Root) {
        let parity = to_usize(u32::from(root.sequence % 2 == 1));
        fence(Ordering::Release);
        for (word, value) in self.roots[parity].iter().zip(root.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        self.published.store(root.sequence, Ordering::SeqCst);
        self.revision.store(root.revision.cast_unsigned(), Ordering::Release);
    }

    /// Pins the newest published root.
    pub(crate) fn pin(&self, hint: usize) -> (Pin, Root) {
        let mut sequence = self.published.load(Ordering::SeqCst);
        let slot = (0..SLOT_COUNT).map(|step| (hint + step) % SLOT_COUNT).find(|&slot| {
            self.slots[slot].load(Ordering::Relaxed) == 0
                && self.slots[slot].compare_exchange(0, sequence, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        });
        let Some(slot) = slot else { return self.pin_overflow() };
        loop {
            fence(Ordering::SeqCst);
            let root = self.copy_root(sequence);
            let newest = self.published.load(Ordering::SeqCst);
            if newest == sequence {
                return (Pin::Slot(slot), root);
            }
            sequence = newest;
            self.slots[slot].store(sequence, Ordering::SeqCst);
        }
    }

    /// The words of a root, of meaning only if the published sequence is still the same afterwards.
    fn copy_root(&self, sequence: u64) -> Root {
        let parity = to_usize(u32::from(sequence % 2 == 1));
        let words = std::array::from_fn(|i| self.roots[parity][i].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        Root::from_words(&words)
    }

    fn pin_overflow(&self) -> (Pin, Root) {
        let mut overflow = self.overflow.lock().expect("no holder panics");
        self.overflow_count.fetch_add(1, Ordering::SeqCst);
        loop {
            let sequence = self.published.load(Ordering::SeqCst);
            let root = self.copy_root(sequence);
            if self.published.load(Ordering::SeqCst) == sequence {
                overflow.push(sequence);
                return (Pin::Overflow(sequence), root);
            }
        }
    }

    pub(crate) fn unpin(&self, pin: Pin) {
        match pin {
            Pin::Slot(slot) => self.slots[slot].store(0, Ordering::Release),
            Pin::Overflow(sequence) => {
                let mut overflow = self.overflow.lock().expect("no holder panics");
                let position = overflow.iter().position(|&pinned| pinned == sequence);
                overflow.swap_remove(position.expect("a pin is noted until it is dropped"));
                self.overflow_count.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// The sequences pinned now, sorted, each once; the writer only.
    pub(crate) fn pinned(&self, into: &mut Vec<u64>) {
        into.clear();
        fence(Ordering::SeqCst);
        into.extend(self.slots.iter().map(|slot| slot.load(Ordering::SeqCst)).filter(|&sequence| sequence != 0));
        if self.overflow_count.load(Ordering::SeqCst) > 0 {
            into.extend(self.overflow.lock().expect("no holder panics").iter());
        }
        into.sort_unstable();
        into.dedup();
    }
}
