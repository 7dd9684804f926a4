//! What the fuzzer calls, one function for each target; `docs/fuzzing.md` says what they promise. They are here because
//! they reach what the crate doesn't show, and behind a feature because only tests need them.

mod image;
mod walk;

pub use walk::walk;

use crate::map::{PAGE_SIZE, PageBytes};
use crate::meta::{Meta, Slot, choose, sign, slot_of};
use crate::page::{self, Kind};
use crate::types::PageId;

/// What a panic says when a walk meets a page that verifies and does not hold what it must: the process stops rather
/// than serve it.
pub const STOPS_WITH: &str = crate::entry::SOUND;

/// The page that the inputs of [`page()`] claim to be.
const ID: PageId = PageId { number: 9, birth: 4 };
const SEED: u32 = 7;

/// A page whose checksum and identity are right: the first byte says how much of the input stands at its front, behind
/// the header's first sixteen bytes; the rest stands at its end, where the cells are.
///
/// Either the page is refused, or its prefix, keys, values and pointers lie inside it.
pub fn page(data: &[u8]) {
    let (front_len, rest) = data.split_first().map_or((0, data), |(first, rest)| (usize::from(*first), rest));
    let rest = &rest[..rest.len().min(PAGE_SIZE - 16)];
    let (front, back) = rest.split_at(front_len.min(rest.len()));
    let mut bytes: PageBytes = [0; PAGE_SIZE];
    bytes[16..16 + front.len()].copy_from_slice(front);
    bytes[PAGE_SIZE - back.len()..].copy_from_slice(back);
    page::set_identity(&mut bytes, ID);
    page::seal(&mut bytes, SEED);
    if page::verify(&bytes, ID, SEED).is_err() {
        return;
    }
    if page::is_kind(&bytes, Kind::Extent) {
        assert!(page::extent_pages_after(&bytes) < u32::MAX);
    }
    let branch = page::is_kind(&bytes, Kind::Branch);
    if !branch && !page::is_kind(&bytes, Kind::Leaf) {
        return;
    }
    assert!(page::used(&bytes) <= page::CAPACITY, "a page has room for what it uses");
    let prefix_len = page::prefix(&bytes).len();
    let mut entries = 0u64;
    for slot in 0..page::slot_count(&bytes) {
        let cell = page::cell(&bytes, slot);
        assert!(prefix_len + cell.suffix.len() + cell.value.len() < 2 * PAGE_SIZE);
        assert!(page::suffix(&bytes, slot) == (cell.suffix, cell.key_extent.is_some()), "a cell has one key");
        if branch {
            // Sums of a page's counts never overflow.
            entries += page::child(&bytes, slot).count;
        }
    }
    assert!(entries < u64::MAX / 2);
}

/// A meta slot whose checksum is right, and the choice between four slots. The first byte names the slot, the second
/// what the others hold; the rest is the slot's content behind its checksum.
///
/// A slot that is accepted encodes to one that is read as the same; no choice ever opens what no slot holds.
pub fn meta(data: &[u8]) {
    let Some(([place, others], content)) = data.split_first_chunk::<2>() else { return };
    let number = u32::from(place % 4);
    let mut bytes: PageBytes = [0; PAGE_SIZE];
    let len = content.len().min(PAGE_SIZE - 4);
    bytes[4..4 + len].copy_from_slice(&content[..len]);
    if place & 4 == 0 {
        // What is most often in the way of everything else.
        Meta::claim(&mut bytes, number);
    }
    sign(&mut bytes);
    let slot = Meta::decode(&bytes, number);
    if let Slot::Valid(meta) = &slot {
        let copy = number % 2;
        assert!(slot_of(meta.generation, copy) == number, "a generation has its slots");
        assert!(Meta::decode(&meta.encode(copy), number) == slot, "a slot is its fields");
    }
    let slots = std::array::from_fn(|at| match (u32::try_from(at) == Ok(number), others >> (2 * at) & 3) {
        (true, _) => slot.clone(),
        (false, 0) => Slot::Blank,
        (false, 1) => slot.clone(),
        (false, _) => Slot::Bad,
    });
    if let Ok(chosen) = choose(slots) {
        assert!(slot == Slot::Valid(Box::new(chosen)), "what is opened is what a slot holds");
    }
}
