//! When pages and frames may be used again.
//!
//! A page born at b and dead at d can be reached from the roots b … d−1. While one of them is pinned, it stays. Then
//! its frame is free. Its number is free as well if no checkpoint ever held it, or else once a checkpoint at or after
//! d is durable: until then a crash would lead back to it.

use std::collections::BTreeMap;

/// Something that readers may still reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Remains {
    /// A page that the roots from `birth` on up to, without, `death` reach. `saved`: a started checkpoint holds it.
    Page { number: u32, birth: u64, death: u64, saved: bool },
    /// A frame whose page has moved to the file while the root `last` was the newest.
    Frame { frame: u32, last: u64 },
}

impl Remains {
    /// The newest pinned root that reaches it.
    fn holder(&self, pinned: &[u64]) -> Option<u64> {
        let (birth, death) = match *self {
            Remains::Page { birth, death, .. } => (birth, death),
            Remains::Frame { last, .. } => (0, last + 1),
        };
        let newest = pinned[..pinned.partition_point(|&root| root < death)].last().copied();
        newest.filter(|&root| root >= birth)
    }
}

/// Pages of a chunk: how many go back to the free map at a time.
const CHUNK_PAGES: usize = 1024;

/// A long list of pages that is never moved as a whole.
#[derive(Clone, Debug, Default)]
struct Chunks(Vec<Vec<u32>>);

impl Chunks {
    fn push(&mut self, number: u32) {
        match self.0.last_mut() {
            Some(last) if last.len() < CHUNK_PAGES => last.push(number),
            _ => {
                let mut chunk = Vec::with_capacity(CHUNK_PAGES);
                chunk.push(number);
                self.0.push(chunk);
            }
        }
    }

    fn take_over(&mut self, other: &mut Chunks) {
        self.0.append(&mut other.0);
    }
}

/// What waits for readers or for a checkpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reclaim {
    /// Died in the working state: the newest root still reaches them.
    working: Vec<Remains>,
    fresh: Vec<Remains>,
    held: BTreeMap<u64, Vec<Remains>>,
    /// Pages that the checkpoint under way frees once it is durable.
    dead_before: Chunks,
    /// Pages that only a later checkpoint frees.
    dead_since: Chunks,
    /// Pages that are free, and go back to the free map a chunk at a time.
    durable: Chunks,
}

impl Reclaim {
    /// Adds a page that died in the working state.
    pub(crate) fn add_page(&mut self, number: u32, birth: u64, death: u64, saved: bool) {
        self.working.push(Remains::Page { number, birth, death, saved });
    }

    /// Adds a frame whose page is in the file now.
    pub(crate) fn add_frame(&mut self, frame: u32, last: u64) {
        self.fresh.push(Remains::Frame { frame, last });
    }

    /// The working state was published.
    pub(crate) fn publish(&mut self) {
        self.fresh.append(&mut self.working);
    }

    /// Whether a look at the pins could free anything.
    pub(crate) fn is_idle(&self) -> bool {
        self.fresh.is_empty() && self.held.is_empty()
    }

    /// What no pinned root reaches any more. `pinned` was read after the newest root was published.
    pub(crate) fn drain_free(&mut self, pinned: &[u64], into: &mut Vec<Remains>) {
        let mut looked_at = std::mem::take(&mut self.fresh);
        let released: Vec<u64> = self.held.keys().copied().filter(|root| pinned.binary_search(root).is_err()).collect();
        for root in released {
            looked_at.extend(self.held.remove(&root).expect("the key was just listed"));
        }
        for remains in looked_at.drain(..) {
            match remains.holder(pinned) {
                Some(root) => self.held.entry(root).or_default().push(remains),
                None => into.push(remains),
            }
        }
        self.fresh = looked_at;
    }

    /// A page that only a crash could lead back to. `saving` is the root of the newest checkpoint started.
    pub(crate) fn wait_for_checkpoint(&mut self, death: u64, number: u32, saving: u64) {
        let list = if death <= saving { &mut self.dead_before } else { &mut self.dead_since };
        list.push(number);
    }

    /// A checkpoint starts: once it is durable, nothing leads back to what died so far.
    pub(crate) fn begin_checkpoint(&mut self) {
        self.dead_before.take_over(&mut self.dead_since);
    }

    /// The checkpoint was given up.
    pub(crate) fn give_up_checkpoint(&mut self) {
        self.dead_since.take_over(&mut self.dead_before);
    }

    /// The checkpoint is durable.
    pub(crate) fn end_checkpoint(&mut self) {
        self.durable.take_over(&mut self.dead_before);
    }

    /// Some of the pages that are free now.
    pub(crate) fn take_durable(&mut self) -> Option<Vec<u32>> {
        self.durable.0.pop()
    }
}
