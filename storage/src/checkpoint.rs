//! A checkpoint: the pages of one root on their way to the file, as effects.
//!
//! The order is: grow the file if it must; write every page that no earlier checkpoint holds, and the changed pages of
//! the free map, to places that the newest durable checkpoint does not use; sync; write one copy of the meta page;
//! sync; write the other; sync. Only then does the checkpoint count.

use crate::canary::{self, Canary};
use crate::codec::to_u64;
use crate::io::{CheckpointDone, IndexFailure, IndexIo, IoFailure, IoId, IoOp};
use crate::limits;
use crate::map::{PAGE_SIZE, PageBytes};
use crate::meta::{Meta, slot_of};
use crate::page;
use crate::pages::offset_of;
use crate::space::SpaceImages;
use crate::store::Store;
use bytes::Bytes;
use std::collections::BTreeMap;

/// What the checkpoint does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// What a crashed process left in the kernel's cache is made durable before anything is overwritten.
    SyncFirst,
    Grow,
    Pages,
    SyncPages,
    /// The first copy of the meta page, or the second.
    WriteMeta(u32),
    SyncMeta(u32),
    Done,
}

/// An effect that is out.
#[derive(Clone, Debug)]
enum Out {
    /// These positions of the list of pages.
    Pages {
        from: usize,
        to: usize,
    },
    /// A page of the free map or of the meta page.
    Fixed,
    Sync,
    Grow,
}

/// How the shell's outcome leaves the checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    GoesOn,
    /// The disk is full and the file cannot hold the pages: nothing was written, everything stays dirty.
    GivenUp,
    Durable,
}

/// One checkpoint under way.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    pub(crate) meta: Meta,
    pub(crate) images: SpaceImages,
    pub(crate) pages: Vec<u32>,
    /// Before this checkpoint was started.
    pub(crate) saved_before: u64,
    pub(crate) grown_to: u64,
    needed_bytes: u64,
    /// What lies below the end of the used part and is not in use.
    spare_bytes: u64,
    file_bytes_max: u64,
    next_page: usize,
    next_image: usize,
    /// The copy of the meta page that is written first.
    first_copy: u32,
    phase: Phase,
    out: BTreeMap<IoId, (Out, u64)>,
    /// Whether growing was refused; not fatal as long as what is allocated suffices.
    pub(crate) refused: bool,
}

impl Checkpoint {
    /// A checkpoint of what `meta` says. `sync_first` says whether the process has not synced the file yet, `first_copy`
    /// which copy of the meta page is written first.
    pub(crate) fn new(
        meta: Meta,
        images: SpaceImages,
        pages: Vec<u32>,
        saved_before: u64,
        sync_first: bool,
        first_copy: u32,
        store: &Store,
    ) -> Self {
        let needed_bytes = offset_of(images.page_end);
        Checkpoint {
            spare_bytes: offset_of(images.page_end - store.space.live_count() - store.staged_count()),
            file_bytes_max: store.pages().span_bytes(),
            grown_to: meta.file_bytes,
            meta,
            images,
            pages,
            saved_before,
            needed_bytes,
            next_page: 0,
            next_image: 0,
            first_copy,
            phase: if sync_first { Phase::SyncFirst } else { Phase::Grow },
            out: BTreeMap::new(),
            refused: false,
        }
    }

    /// The size to grow to, if the file should grow.
    fn growth(&self) -> Option<u64> {
        if self.refused {
            return (self.grown_to < self.needed_bytes).then_some(self.needed_bytes);
        }
        let wanted = self.needed_bytes + limits::RESERVED_BYTES.saturating_sub(self.spare_bytes);
        if self.grown_to >= wanted {
            return None;
        }
        let step = (self.needed_bytes / 8).clamp(limits::GROW_BYTES_MIN, limits::GROW_BYTES_MAX);
        let size = (wanted + step).next_multiple_of(limits::GROW_BYTES_MIN).min(self.file_bytes_max);
        (size > self.grown_to).then_some(size)
    }

    /// Whether the file has the room that this checkpoint wants, reserve included.
    pub(crate) fn has_room(&self) -> bool {
        !self.refused && self.growth().is_none()
    }

    /// The next effect, if one may start now.
    pub(crate) fn poll(&mut self, store: &Store, next_id: &mut u64) -> Option<IndexIo> {
        let may_write = self.phase == Phase::Pages && self.out.len() < limits::WRITES_IN_FLIGHT_MAX;
        if !self.out.is_empty() && !may_write {
            return None;
        }
        loop {
            let (out, op) = match self.phase {
                Phase::SyncFirst | Phase::SyncPages | Phase::SyncMeta(_) => (Out::Sync, IoOp::Sync),
                Phase::Grow => match self.growth() {
                    Some(new_size) => (Out::Grow, IoOp::Grow { new_size }),
                    None => {
                        self.phase = Phase::Pages;
                        continue;
                    }
                },
                Phase::Pages => match self.next_write(store) {
                    Some(write) => write,
                    None if self.out.is_empty() => {
                        self.phase = match canary::is_on(Canary::MetaBeforePages) {
                            true => Phase::WriteMeta(0),
                            false => Phase::SyncPages,
                        };
                        continue;
                    }
                    None => return None,
                },
                Phase::WriteMeta(turn) => {
                    let copy = turn ^ self.first_copy;
                    self.meta.file_bytes = self.grown_to;
                    let bytes = Bytes::copy_from_slice(self.meta.encode(copy).as_slice());
                    let offset = offset_of(slot_of(self.meta.generation, copy));
                    (Out::Fixed, IoOp::Write { offset, bytes })
                }
                Phase::Done => return None,
            };
            *next_id += 1;
            let id = IoId(*next_id);
            let place = match &op {
                IoOp::Write { offset, .. } => *offset,
                IoOp::Grow { new_size } => *new_size,
                IoOp::Sync => 0,
            };
            self.out.insert(id, (out, place));
            return Some(IndexIo { id, op });
        }
    }

    /// The next run of adjacent pages, or the next page of the free map.
    fn next_write(&mut self, store: &Store) -> Option<(Out, IoOp)> {
        let Some(&first) = self.pages.get(self.next_page) else {
            let (number, image) = self.images.pages.get(self.next_image)?;
            self.next_image += 1;
            let mut image = **image;
            page::seal(&mut image, store.pages().seed);
            let bytes = Bytes::copy_from_slice(&image);
            return Some((Out::Fixed, IoOp::Write { offset: offset_of(*number), bytes }));
        };
        let run_max = limits::WRITE_BYTES_MAX / PAGE_SIZE;
        let rest = &self.pages[self.next_page..];
        let run = rest.iter().zip(first..).take(run_max).take_while(|&(&page, expected)| page == expected).count();
        let mut bytes = vec![0; run * PAGE_SIZE];
        for (target, &number) in bytes.chunks_exact_mut(PAGE_SIZE).zip(rest) {
            let target: &mut PageBytes = target.try_into().expect("chunks of one page");
            store.image(number, target);
        }
        let from = self.next_page;
        self.next_page += run;
        let out = Out::Pages { from, to: self.next_page };
        Some((out, IoOp::Write { offset: offset_of(first), bytes: Bytes::from(bytes) }))
    }

    /// Takes the outcome of an effect.
    pub(crate) fn handle(
        &mut self,
        store: &mut Store,
        id: IoId,
        result: Result<(), IoFailure>,
    ) -> Result<Outcome, IndexFailure> {
        let (out, place) = self.out.remove(&id).expect("an outcome names an effect that is out");
        match (out, result) {
            (Out::Pages { .. } | Out::Fixed, Err(source)) => {
                return Err(IndexFailure::Write { offset: place, source });
            }
            (Out::Sync, Err(source)) => return Err(IndexFailure::Sync { source }),
            (Out::Grow, Err(IoFailure::NoSpace)) => {
                if self.refused {
                    return Ok(Outcome::GivenUp);
                }
                self.refused = true;
            }
            (Out::Grow, Err(source)) => return Err(IndexFailure::Grow { new_size: place, source }),
            (Out::Grow, Ok(())) => self.grown_to = place,
            (Out::Pages { from, to }, Ok(())) => {
                for position in from..to {
                    store.written(self.pages[position]);
                }
                store.reclaim();
                store.trim();
            }
            (Out::Sync | Out::Fixed, Ok(())) => (),
        }
        self.phase = match self.phase {
            Phase::SyncFirst => Phase::Grow,
            Phase::Grow => Phase::Grow,
            Phase::Pages => Phase::Pages,
            Phase::SyncPages => Phase::WriteMeta(0),
            Phase::WriteMeta(0) if canary::is_on(Canary::MetaCopiesTogether) => Phase::WriteMeta(1),
            Phase::WriteMeta(copy) => Phase::SyncMeta(copy),
            Phase::SyncMeta(0) => Phase::WriteMeta(1),
            Phase::SyncMeta(_) => Phase::Done,
            Phase::Done => unreachable!("a finished checkpoint has no effects out"),
        };
        Ok(if self.phase == Phase::Done { Outcome::Durable } else { Outcome::GoesOn })
    }

    /// What the shell is told when the checkpoint is durable.
    pub(crate) fn done(&self) -> CheckpointDone {
        CheckpointDone { applied: self.meta.root.applied, anchor: self.meta.anchor.clone(), installed: false }
    }

    /// Bytes that it writes in all, without the meta page.
    pub(crate) fn bytes_total(&self) -> u64 {
        to_u64((self.pages.len() + self.images.pages.len()) * PAGE_SIZE)
    }

    /// Bytes of them that are still to be written.
    pub(crate) fn bytes_left(&self) -> u64 {
        to_u64((self.pages.len() - self.next_page + self.images.pages.len() - self.next_image) * PAGE_SIZE)
    }
}

const _: () = assert!(limits::WRITE_BYTES_MAX.is_multiple_of(PAGE_SIZE) && limits::WRITES_IN_FLIGHT_MAX > 0);
const _: () = assert!(limits::GROW_BYTES_MIN.is_multiple_of(1 << 20));
