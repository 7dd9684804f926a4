//! Walks over an index whose pages have right checksums and wrong content: an input lists what to change.

use std::sync::Arc;

use super::image::{Changes, config, sound};
use crate::codec::get_u16;
use crate::map::PAGE_SIZE;
use crate::meta::{checksum_seed, sign};
use crate::page;
use crate::space::META_SLOTS;
use crate::types::{Bounds, Paged, Revision};
use crate::{Index, PageError, PageFile, Reader};

/// Most changes of one run.
const CHANGES_MAX: usize = 16;
/// Steps that a walk takes at most: the sound index has fewer of anything.
const STEPS_MAX: usize = 100;

/// An input, read from its front; zeros follow its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }
}

/// Opens a changed index and walks all of it. Opening refuses, walks go on or say that a page is damaged, or the
/// process stops with [`STOPS_WITH`](super::STOPS_WITH). Nothing else panics, no walk goes round for ever, and nothing
/// takes memory for what is only claimed.
pub fn walk(data: &[u8]) {
    let sound = sound();
    let mut input = Input(data);
    let mut changes = Changes::new();
    for _ in 0..CHANGES_MAX {
        if input.0.is_empty() {
            break;
        }
        change(&mut changes, &mut input);
    }
    let unchanged = changes.is_empty();
    sound.file.change(changes);
    let Ok((index, facts)) = Index::open(config(), Arc::clone(&sound.file) as Arc<dyn PageFile>) else {
        assert!(!unchanged, "a sound index opens");
        return;
    };
    assert!(!unchanged || (facts.revision == sound.revision && index.check().is_ok()), "a sound index is sound");
    let reader = index.reader();
    let walked = walk_views(&reader);
    assert!(!unchanged || walked.is_ok(), "a sound index can be walked");
    let _ = index.check();
}

/// Repeats a walk, loading what it needs.
fn settle<T>(reader: &Reader, mut walk: impl FnMut() -> Paged<T>) -> Result<T, PageError> {
    loop {
        match walk() {
            Ok(found) => return Ok(found),
            Err(need) => reader.load(need.0)?,
        }
    }
}

/// Walks keys, versions, revisions, counts and the system tree, at the newest revision and at older ones.
fn walk_views(reader: &Reader) -> Result<(), PageError> {
    let sound = sound();
    let snapshot = reader.pin();
    let view = snapshot.view();
    for at in [i64::MAX, sound.revision - 20] {
        let mut cursor = view.cursor(Bounds::ALL, at);
        for _ in 0..STEPS_MAX {
            let next = settle(reader, || cursor.next().map(|next| next.map(|(_, version)| version.modified)))?;
            let Some(modified) = next else { break };
            let mut value = Vec::new();
            settle(reader, || view.value(modified, &mut value))?;
        }
        let bounds = Bounds { start: &sound.keys[2], end: Some(&sound.keys[15]) };
        let mut counter = view.counter(bounds, at);
        for _ in 0..STEPS_MAX {
            if settle(reader, || counter.step(8))?.is_some() {
                break;
            }
        }
        for key in sound.keys.iter().step_by(7) {
            settle(reader, || view.find(key, at))?;
        }
    }
    let mut events = view.events(Revision { main: 2, sub: 0 });
    for _ in 0..STEPS_MAX {
        if settle(reader, || events.next())?.is_none() {
            break;
        }
    }
    let mut entries = view.system_scan(b"s");
    for _ in 0..STEPS_MAX {
        if settle(reader, || entries.next())?.is_none() {
            break;
        }
    }
    Ok(())
}

/// Changes some bytes of a page and makes its checksum right. All of a sound file's pages come in question, the meta
/// slots among them.
fn change(changes: &mut Changes, input: &mut Input<'_>) {
    let sound = sound();
    let number = sound.pages[usize::from(input.u8()) % sound.pages.len()];
    let kind = input.u8() % 8;
    let page = changes.entry(number).or_insert_with(|| sound.file.sound_page(number));
    let slots = get_u16(page.as_slice(), 18).max(1);
    let prefix = get_u16(page.as_slice(), 24);
    // Where to: the header, the slots, a cell, or anywhere.
    let at = match kind {
        0 | 1 => usize::from(input.u8()) % 200,
        2 => 32 + prefix + 2 * (usize::from(input.u8()) % slots),
        3..=5 => {
            let slot = 32 + prefix + 2 * (usize::from(input.u8()) % slots);
            get_u16(page.as_slice(), slot.min(PAGE_SIZE - 2)) + usize::from(input.u8() % 64)
        }
        6 => usize::from(input.u16()) % PAGE_SIZE,
        _ => {
            // Another page's content, as if it belonged here.
            let other = sound.pages[usize::from(input.u8()) % sound.pages.len()];
            let birth = page::birth(page);
            **page = *sound.file.sound_page(other);
            page::set_identity(page, crate::PageId { number, birth });
            16
        }
    };
    let width = 1 + usize::from(input.u8() % 4);
    for at in (at..at + width).take_while(|at| *at < PAGE_SIZE) {
        page[at] = match kind {
            1 | 4 => page[at].wrapping_add(input.u8()),
            7 => page[at],
            _ => input.u8(),
        };
    }
    if number < META_SLOTS {
        sign(page);
    } else {
        page::seal(page, checksum_seed(config().cluster_id, config().member_id));
    }
}
