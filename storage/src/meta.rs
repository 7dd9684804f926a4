//! The meta page: everything that a checkpoint says, in four slots.
//!
//! A generation is written to two slots, the even ones to slots 0 and 1, the odd ones to slots 2 and 3, the second
//! copy only after the first is durable. So a crash can tear one copy of the generation under way, never both, while
//! rot can take any: two unreadable copies of a generation beside an older valid one mean that the newest durable
//! generation may be lost, and opening refuses.

use crate::codec::{get_u16, get_u32, get_u64, set_u16, set_u32, set_u64, to_usize};
use crate::io::OpenError;
use crate::limits::{ANCHOR_BYTES_MAX, CONF_BYTES_MAX};
use crate::map::{PAGE_SIZE, PageBytes};
use crate::page::CHILD_COUNT_MAX;
use crate::pins::{Root, TreeRoot};
use crate::space::{GROUP_FIXED_PAGES, META_SLOTS, SPAN_PAGES, SPANS_MAX, Shadow};
use crate::tree::HEIGHT_MAX;
use crate::types::{Applied, Revision};
use bytes::Bytes;

/// What the first bytes of a meta slot are.
const MAGIC: [u8; 8] = *b"GARBINDX";
/// The version of the whole file's format.
pub(crate) const FORMAT_VERSION: u32 = 1;

const AT_CHECKSUM: usize = 0;
const AT_FORMAT: usize = 4;
const AT_MAGIC: usize = 8;
const AT_GENERATION: usize = 16;
const AT_SLOT: usize = 24;
const AT_PAGE_END: usize = 28;
const AT_CLUSTER: usize = 32;
const AT_MEMBER: usize = 40;
const AT_SEQUENCE: usize = 48;
const AT_APPLIED_INDEX: usize = 56;
const AT_APPLIED_TERM: usize = 64;
const AT_REVISION: usize = 72;
const AT_COMPACTED: usize = 80;
const AT_FINISHED: usize = 88;
const AT_SCANNED_MAIN: usize = 96;
const AT_SCANNED_SUB: usize = 104;
const AT_FILE_BYTES: usize = 112;
const AT_TREES: usize = 120;
const TREE_SIZE: usize = 24;
const AT_SPAN_COUNT: usize = 192;
const AT_ANCHOR_LEN: usize = 194;
const AT_CONF_LEN: usize = 196;
const AT_SPANS: usize = 200;
const AT_ANCHOR: usize = AT_SPANS + 8 * SPANS_MAX;
const AT_CONF: usize = AT_ANCHOR + ANCHOR_BYTES_MAX;

/// No generation, root or index of the log reaches this, so that counting on never overflows.
const COUNTER_MAX: u64 = 1 << 62;

const _: () = assert!(AT_TREES + 3 * TREE_SIZE == AT_SPAN_COUNT);
const _: () = assert!(AT_CONF + CONF_BYTES_MAX <= PAGE_SIZE);

/// One generation of the meta page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Meta {
    pub(crate) generation: u64,
    pub(crate) cluster_id: u64,
    pub(crate) member_id: u64,
    pub(crate) root: Root,
    pub(crate) page_end: u32,
    pub(crate) file_bytes: u64,
    pub(crate) spans: Vec<Shadow>,
    pub(crate) anchor: Bytes,
    pub(crate) conf: Bytes,
}

/// What a slot holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Slot {
    /// Zeros: never written.
    Blank,
    /// Torn or rotten.
    Bad,
    /// Sound, but of a format that this program does not read.
    Foreign(u32),
    Valid(Box<Meta>),
}

/// The slot of a copy of a generation.
pub(crate) fn slot_of(generation: u64, copy: u32) -> u32 {
    let pair = if generation.is_multiple_of(2) { 0 } else { 1 };
    pair * 2 + copy
}

impl Meta {
    /// Whether the fields are in their bounds and agree with each other.
    fn is_plausible(&self) -> bool {
        let Root { sequence, applied, revision, compacted, finished, scanned_to, .. } = self.root;
        let counters = [self.generation, sequence, applied.index, applied.term];
        let trees = self.root.trees();
        counters.iter().all(|counter| *counter < COUNTER_MAX)
            && revision >= 0
            && (-1..=revision).contains(&compacted)
            && (-1..=compacted).contains(&finished)
            && scanned_to.main >= 0
            && u32::try_from(scanned_to.sub).is_ok()
            && trees.iter().all(|tree| to_usize(tree.height) <= HEIGHT_MAX && tree.count <= CHILD_COUNT_MAX)
            && self.page_end >= GROUP_FIXED_PAGES
            && self.spans.len() == to_usize(self.page_end.div_ceil(SPAN_PAGES))
    }

    /// The page for one slot. The file's identity is in it, and seeds no checksum here: it is read before it is known.
    pub(crate) fn encode(&self, copy: u32) -> Box<PageBytes> {
        assert!(self.is_plausible(), "a meta page that would be refused is never written");
        let mut page = Box::new([0; PAGE_SIZE]);
        let bytes = page.as_mut_slice();
        set_u32(bytes, AT_FORMAT, FORMAT_VERSION);
        bytes[AT_MAGIC..AT_MAGIC + 8].copy_from_slice(&MAGIC);
        set_u64(bytes, AT_GENERATION, self.generation);
        set_u32(bytes, AT_SLOT, slot_of(self.generation, copy));
        set_u32(bytes, AT_PAGE_END, self.page_end);
        set_u64(bytes, AT_CLUSTER, self.cluster_id);
        set_u64(bytes, AT_MEMBER, self.member_id);
        set_u64(bytes, AT_SEQUENCE, self.root.sequence);
        set_u64(bytes, AT_APPLIED_INDEX, self.root.applied.index);
        set_u64(bytes, AT_APPLIED_TERM, self.root.applied.term);
        set_u64(bytes, AT_REVISION, self.root.revision.cast_unsigned());
        set_u64(bytes, AT_COMPACTED, self.root.compacted.cast_unsigned());
        set_u64(bytes, AT_FINISHED, self.root.finished.cast_unsigned());
        set_u64(bytes, AT_SCANNED_MAIN, self.root.scanned_to.main.cast_unsigned());
        set_u64(bytes, AT_SCANNED_SUB, self.root.scanned_to.sub.cast_unsigned());
        set_u64(bytes, AT_FILE_BYTES, self.file_bytes);
        for (i, tree) in self.root.trees().iter().enumerate() {
            let at = AT_TREES + i * TREE_SIZE;
            set_u32(bytes, at, tree.page);
            set_u32(bytes, at + 4, tree.height);
            set_u64(bytes, at + 8, tree.birth);
            set_u64(bytes, at + 16, tree.count);
        }
        set_u16(bytes, AT_SPAN_COUNT, self.spans.len());
        set_u16(bytes, AT_ANCHOR_LEN, self.anchor.len());
        set_u16(bytes, AT_CONF_LEN, self.conf.len());
        for (i, span) in self.spans.iter().enumerate() {
            set_u64(bytes, AT_SPANS + 8 * i, span.to_word());
        }
        bytes[AT_ANCHOR..AT_ANCHOR + self.anchor.len()].copy_from_slice(&self.anchor);
        bytes[AT_CONF..AT_CONF + self.conf.len()].copy_from_slice(&self.conf);
        sign(&mut page);
        page
    }

    /// Says that a page is the slot of this number, of a generation that belongs there.
    #[cfg(feature = "fuzz")]
    pub(crate) fn claim(page: &mut PageBytes, slot: u32) {
        let bytes = page.as_mut_slice();
        set_u32(bytes, AT_FORMAT, FORMAT_VERSION);
        bytes[AT_MAGIC..AT_MAGIC + 8].copy_from_slice(&MAGIC);
        set_u32(bytes, AT_SLOT, slot);
        bytes[AT_GENERATION] = bytes[AT_GENERATION] & !1 | u8::from(slot >= 2);
    }

    /// What a slot of the file holds.
    pub(crate) fn decode(page: &PageBytes, slot: u32) -> Slot {
        if page.iter().all(|&byte| byte == 0) {
            return Slot::Blank;
        }
        let sound = get_u32(page, AT_CHECKSUM) == crc32c::crc32c(&page[AT_FORMAT..]);
        if !sound || page[AT_MAGIC..AT_MAGIC + 8] != MAGIC {
            return Slot::Bad;
        }
        if get_u32(page, AT_FORMAT) != FORMAT_VERSION {
            return Slot::Foreign(get_u32(page, AT_FORMAT));
        }
        let generation = get_u64(page, AT_GENERATION);
        let (spans, anchor, conf) =
            (get_u16(page, AT_SPAN_COUNT), get_u16(page, AT_ANCHOR_LEN), get_u16(page, AT_CONF_LEN));
        let fits = spans <= SPANS_MAX && anchor <= ANCHOR_BYTES_MAX && conf <= CONF_BYTES_MAX;
        if !fits || get_u32(page, AT_SLOT) != slot || slot_of(generation, slot % 2) != slot {
            return Slot::Bad;
        }
        let word = |at: usize| get_u64(page, at);
        let tree = |i: usize| {
            let at = AT_TREES + i * TREE_SIZE;
            let (page_number, height) = (get_u32(page, at), get_u32(page, at + 4));
            TreeRoot { page: page_number, height, birth: word(at + 8), count: word(at + 16) }
        };
        let root = Root {
            sequence: word(AT_SEQUENCE),
            applied: Applied { index: word(AT_APPLIED_INDEX), term: word(AT_APPLIED_TERM) },
            revision: word(AT_REVISION).cast_signed(),
            compacted: word(AT_COMPACTED).cast_signed(),
            finished: word(AT_FINISHED).cast_signed(),
            scanned_to: Revision { main: word(AT_SCANNED_MAIN).cast_signed(), sub: word(AT_SCANNED_SUB).cast_signed() },
            revisions: tree(0),
            current: tree(1),
            system: tree(2),
        };
        let meta = Meta {
            generation,
            cluster_id: word(AT_CLUSTER),
            member_id: word(AT_MEMBER),
            root,
            page_end: get_u32(page, AT_PAGE_END),
            file_bytes: word(AT_FILE_BYTES),
            spans: (0..spans).map(|i| Shadow::from_word(word(AT_SPANS + 8 * i))).collect(),
            anchor: Bytes::copy_from_slice(&page[AT_ANCHOR..AT_ANCHOR + anchor]),
            conf: Bytes::copy_from_slice(&page[AT_CONF..AT_CONF + conf]),
        };
        if meta.is_plausible() { Slot::Valid(Box::new(meta)) } else { Slot::Bad }
    }
}

/// Sets the checksum over everything behind it.
pub(crate) fn sign(page: &mut PageBytes) {
    let checksum = crc32c::crc32c(&page[AT_FORMAT..]);
    set_u32(page, AT_CHECKSUM, checksum);
}

/// The seed of the checksums of all other pages.
pub(crate) fn checksum_seed(cluster_id: u64, member_id: u64) -> u32 {
    let seed = crc32c::crc32c(&cluster_id.to_le_bytes());
    crc32c::crc32c_append(seed, &member_id.to_le_bytes())
}

/// The generation to open.
///
/// | newest valid generation G | the other pair of slots (G + 1 or G − 1) | verdict |
/// |---|---|---|
/// | none | | refuse |
/// | any copy valid | both copies unreadable | refuse: G + 1 may have been durable and rotted |
/// | any copy valid | at least one readable or blank | open G |
pub(crate) fn choose(slots: [Slot; META_SLOTS as usize]) -> Result<Meta, OpenError> {
    if let Some(found) = slots.iter().find_map(|slot| match slot {
        Slot::Foreign(found) => Some(*found),
        _ => None,
    }) {
        return Err(OpenError::Format { found, expected: FORMAT_VERSION });
    }
    let bad: [bool; META_SLOTS as usize] = std::array::from_fn(|i| slots[i] == Slot::Bad);
    let valid = slots.into_iter().filter_map(|slot| match slot {
        Slot::Valid(meta) => Some(*meta),
        _ => None,
    });
    let Some(newest) = valid.max_by_key(|meta| meta.generation) else {
        return Err(OpenError::NoMeta("no slot holds a valid one"));
    };
    let other = to_usize(slot_of(newest.generation + 1, 0));
    if bad[other] && bad[other + 1] {
        return Err(OpenError::NoMeta("both copies of a generation are unreadable, which may be the newest"));
    }
    Ok(newest)
}

const _: () = assert!(META_SLOTS == 4);

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(generation: u64) -> Meta {
        Meta {
            generation,
            cluster_id: 7,
            member_id: 8,
            root: Root { sequence: 100 + generation, ..Root::empty() },
            page_end: 8,
            file_bytes: 1 << 20,
            spans: vec![Shadow { birth: 3, copy: 1 }],
            anchor: Bytes::from_static(b"anchor"),
            conf: Bytes::from_static(b"conf"),
        }
    }

    #[test]
    fn a_slot_decodes_to_what_was_encoded_and_only_at_its_place() {
        let page = meta(5).encode(1);
        assert_eq!(Meta::decode(&page, 3), Slot::Valid(Box::new(meta(5))));
        assert_eq!(Meta::decode(&page, 2), Slot::Bad);
        let blank = [0; PAGE_SIZE];
        assert_eq!(Meta::decode(&blank, 0), Slot::Blank);
    }

    #[test]
    fn every_flipped_bit_of_a_slot_is_noticed() {
        let page = meta(4).encode(0);
        for bit in 0..PAGE_SIZE * 8 {
            let mut rotten = page.clone();
            rotten[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Meta::decode(&rotten, 0), Slot::Bad, "bit {bit}");
        }
    }

    /// Every combination of what the four slots can hold after generations 4 and 5, and 6 under way.
    #[test]
    fn the_generation_to_open_follows_the_table() {
        let states = |slot: u32| {
            let old = if slot < 2 { 4 } else { 5 };
            let mut states = vec![Slot::Bad, Slot::Blank, Slot::Valid(Box::new(meta(old)))];
            if slot < 2 {
                states.push(Slot::Valid(Box::new(meta(6))));
            }
            states
        };
        let mut cases = 0;
        for a in states(0) {
            for b in states(1) {
                for c in states(2) {
                    for d in states(3) {
                        let slots = [a.clone(), b.clone(), c.clone(), d.clone()];
                        let generation = |slot: &Slot| match slot {
                            Slot::Valid(meta) => meta.generation,
                            _ => 0,
                        };
                        let newest = slots.iter().map(generation).max().unwrap_or(0);
                        let rotten_pair = match newest {
                            5 => a == Slot::Bad && b == Slot::Bad,
                            _ => c == Slot::Bad && d == Slot::Bad,
                        };
                        let opened = choose(slots).map(|meta| meta.generation).ok();
                        assert_eq!(opened, (newest > 0 && !rotten_pair).then_some(newest));
                        cases += 1;
                    }
                }
            }
        }
        assert_eq!(cases, 4 * 4 * 3 * 3);
    }
}
