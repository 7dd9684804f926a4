//! Follows the chain from the anchor as far as it goes.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::scan::{Found, Scanned};
use super::table::{Beyond, Findings, ReadError};
use super::{Location, MetaFacts};
use crate::canary::{self, Canary};
use crate::format::{Anchor, BatchHeader, Kind, Link, decode_body};
use crate::limits::{ALIGNMENT, SEAL_SLOTS};
use crate::log::{Mark, Marks, Terms};
use crate::{Entry, HardState};

/// Everything that survived and counts.
struct Survey<'a> {
    /// Live headers beyond the anchor by sequence number, seals excluded.
    live: BTreeMap<u64, Vec<&'a Found>>,
    /// D.
    durable_sequence: u64,
    /// The hard state of whoever is furthest.
    newest_state: (u64, HardState),
}

/// The log as the chain gives it.
pub(crate) struct Chain {
    /// H.
    pub(crate) sequence: u64,
    pub(crate) link: Link,
    pub(crate) hard_state: HardState,
    /// Entries behind the anchor, in order.
    pub(crate) entries: Vec<Entry>,
    pub(crate) terms: Terms,
    pub(crate) marks: Marks,
    /// The last batch of the chain in each file: its sequence number, and where the batches of the chain end.
    pub(crate) ends: BTreeMap<(u16, u64), (u64, u64)>,
    pub(crate) durable_sequence: u64,
    pub(crate) findings: Findings,
    /// Where the first batch that is missing should be, or the one that contradicts is.
    pub(crate) damage_at: Location,
    /// The newest hard state of anything that survived, for a repair.
    pub(crate) newest_state: HardState,
    /// Batches beyond the end that the epoch start will kill.
    pub(crate) beyond_count: u64,
    epoch: u64,
}

/// Epoch starts that survived: what older epochs wrote beyond their cut is dead.
struct Cuts(Vec<(u64, u64)>);

impl Cuts {
    /// The last sequence number that batches of this epoch can have and be alive.
    fn limit(&self, epoch: u64) -> u64 {
        self.0.iter().filter(|(later, _)| *later > epoch).map(|(_, cut)| *cut).min().unwrap_or(u64::MAX)
    }
}

fn survey<'a>(scanned: &'a [Scanned], anchor: &Anchor) -> Survey<'a> {
    // In a file only the newest generation counts: it was opened when all before it was below the anchor.
    let current = scanned.iter().flat_map(|segment| {
        let generation = segment.found.iter().map(|found| found.header.generation).max();
        segment.found.iter().filter(move |found| Some(found.header.generation) == generation)
    });
    let current: Vec<&Found> = current.collect();
    let starts = current.iter().filter(|found| found.header.kind == Kind::EpochStart && found.body.is_some());
    let mut cuts = Cuts(starts.map(|found| (found.header.epoch, found.header.cut)).collect());
    cuts.0.push((anchor.epoch, anchor.sequence));

    let mut survey = Survey {
        live: BTreeMap::new(),
        durable_sequence: anchor.durable_sequence.min(cuts.limit(anchor.epoch)),
        newest_state: (anchor.sequence, anchor.hard_state),
    };
    for found in current {
        let BatchHeader { epoch, sequence, durable_sequence, kind, hard_state, .. } = found.header;
        let limit = cuts.limit(epoch);
        if !canary::is_on(Canary::DurableSequenceIgnored) {
            survey.durable_sequence = survey.durable_sequence.max(durable_sequence.min(limit));
        }
        if sequence > limit || sequence < anchor.sequence {
            continue;
        }
        if sequence > survey.newest_state.0 {
            survey.newest_state = (sequence, hard_state);
        }
        if kind != Kind::Seal && sequence > anchor.sequence {
            survey.live.entry(sequence).or_default().push(found);
        }
    }
    survey
}

/// The hard state of the newest batch or seal that survived, by epoch and sequence number; none where nothing survived, or
/// where anything says that a later batch was durable. A batch that was torn counts: it was never acknowledged, and what
/// it says was to be promised can be kept.
pub(crate) fn newest_state(scanned: &[Scanned], anchor: &Anchor) -> Option<HardState> {
    let headers = scanned.iter().flat_map(|segment| &segment.found).map(|found| &found.header);
    let newest = headers.max_by_key(|header| (header.epoch, header.sequence))?;
    let (sequence, state) = match (newest.epoch, newest.sequence) <= (anchor.epoch, anchor.sequence) {
        true => (anchor.sequence, anchor.hard_state),
        false => (newest.sequence, newest.hard_state),
    };
    (sequence >= survey(scanned, anchor).durable_sequence).then_some(state)
}

/// Whether two different live batches have one epoch and sequence number.
fn two_batches<'a>(survey: &Survey<'a>) -> Option<&'a Found> {
    survey.live.values().find_map(|batches| {
        batches.iter().enumerate().find_map(|(at, one)| {
            batches[..at].iter().any(|other| other.header.epoch == one.header.epoch).then_some(*one)
        })
    })
}

/// Follows the chain and says what was found on the way.
pub(crate) fn follow(scanned: &[Scanned], meta: &MetaFacts, anchor: &Anchor, window: u64) -> Chain {
    let survey = survey(scanned, anchor);
    let mut chain = Chain::new(anchor, &survey);
    let twin = two_batches(&survey);
    let mut contradiction = None;
    while let Some(found) = survey.live.get(&(chain.sequence + 1)).and_then(|batches| chain.successor(batches)) {
        let Some(body) = &found.body else { break };
        match chain.extend(found, body) {
            Ok(()) => {}
            Err(Contradiction) => {
                contradiction = Some(found.location());
                break;
            }
        }
    }
    chain.judge(&survey, scanned, meta, window);
    chain.findings.two_batches = twin.is_some();
    chain.findings.broken_order |= contradiction.is_some();
    let at = twin.map(Found::location).or(contradiction);
    chain.damage_at = at.unwrap_or_else(|| locate_hole(&chain, &survey, scanned));
    chain
}

/// A whole batch that does not continue the chain.
struct Contradiction;

impl Chain {
    fn new(anchor: &Anchor, survey: &Survey<'_>) -> Chain {
        Chain {
            sequence: anchor.sequence,
            link: anchor.link,
            hard_state: anchor.hard_state,
            entries: Vec::new(),
            terms: Terms::new(anchor.last_index, anchor.last_term),
            marks: Marks::new(*anchor),
            ends: BTreeMap::new(),
            durable_sequence: survey.durable_sequence,
            findings: Findings {
                meta_valid: true,
                two_batches: false,
                broken_order: false,
                cut_beyond_end: false,
                read_error: ReadError::None,
                reaches_durable: true,
                applied_beyond_end: false,
                beyond: Beyond::Nothing,
            },
            damage_at: Location { shard: 0, segment: 0, offset: 0 },
            newest_state: survey.newest_state.1,
            beyond_count: 0,
            epoch: anchor.epoch,
        }
    }

    /// Of the live batches with the next sequence number, the one that says it follows.
    fn successor<'a>(&self, batches: &[&'a Found]) -> Option<&'a Found> {
        let follows = batches.iter().find(|found| found.header.previous.checksum == self.link.checksum);
        follows.or(batches.first()).copied()
    }

    fn extend(&mut self, found: &Found, body: &Bytes) -> Result<(), Contradiction> {
        let header = &found.header;
        let epoch_right = match header.kind {
            Kind::EpochStart => header.epoch > self.epoch && header.cut == self.sequence,
            _ => header.epoch == self.epoch,
        };
        let state = header.hard_state;
        let replaces = header.entry_count > 0 && header.first_index <= self.terms.last_index();
        let continues = header.previous == self.link
            && epoch_right
            && header.first_index <= self.terms.last_index() + 1
            && (header.entry_count > 0 || header.first_index == self.terms.last_index() + 1)
            && !(replaces && header.first_index <= self.hard_state.commit)
            && self.terms.at(header.first_index - 1) == Some(header.term_before)
            && state.term >= self.hard_state.term
            && state.commit >= self.hard_state.commit;
        if !continues {
            return Err(Contradiction);
        }
        let entries = decode_body(body, header.first_index, header.entry_count).ok_or(Contradiction)?;
        let mut term = header.term_before;
        for entry in &entries {
            if entry.term < term {
                return Err(Contradiction);
            }
            term = entry.term;
        }
        if term != header.last_term || term > state.term || state.commit > header.last_index() {
            return Err(Contradiction);
        }
        self.take(found, entries);
        Ok(())
    }

    /// Takes a batch that was checked.
    fn take(&mut self, found: &Found, entries: Vec<Entry>) {
        let header = &found.header;
        if let Some(first) = entries.first() {
            let kept = self.entries.partition_point(|entry| entry.index < first.index);
            self.entries.truncate(kept);
        }
        for entry in &entries {
            self.terms.put(entry.index, entry.term);
        }
        self.entries.extend(entries);
        self.sequence = header.sequence;
        self.epoch = header.epoch;
        self.link = header.link(found.checksum);
        self.hard_state = header.hard_state;
        let mark = Mark::new(header.epoch, header.sequence, header.hard_state, self.link);
        self.marks.push(mark, header.size());
        // Nothing that the chain holds is ever written over, wherever in the file its last batch is.
        let end = self.ends.entry((header.shard, header.segment)).or_default();
        *end = (header.sequence, end.1.max(header.offset + header.size()));
    }

    fn judge(&mut self, survey: &Survey<'_>, scanned: &[Scanned], meta: &MetaFacts, window: u64) {
        let end = self.sequence;
        let last = survey.live.keys().next_back().copied().filter(|last| *last > end);
        self.beyond_count = u64::try_from(survey.live.range(end + 1..).count()).expect("counts fit 64 bits");
        self.findings.beyond = match last {
            None => Beyond::Nothing,
            Some(last) if last <= self.durable_sequence.saturating_add(window) => Beyond::WithinWindow,
            Some(_) => Beyond::PastWindow,
        };
        self.findings.reaches_durable = end >= self.durable_sequence;
        let unreadable = scanned.iter().any(|segment| !segment.unreadable.is_empty());
        self.findings.read_error = match (unreadable, self.findings.reaches_durable) {
            (false, _) => ReadError::None,
            (true, false) => ReadError::AtOrBelowDurable,
            (true, true) => ReadError::BeyondDurable,
        };
        let mut beyond = survey.live.range(end + 1..).flat_map(|(_, batches)| batches);
        self.findings.cut_beyond_end =
            beyond.any(|found| found.header.kind == Kind::EpochStart && found.header.cut > end);
        self.findings.applied_beyond_end = meta.applied_index > self.terms.last_index();
        let applied_term = self.terms.at(meta.applied_index);
        self.findings.broken_order = applied_term.is_some_and(|term| term != meta.applied_term);
    }
}

/// Where the batch behind the end of the chain should be, as well as what is around tells.
fn locate_hole(chain: &Chain, survey: &Survey<'_>, scanned: &[Scanned]) -> Location {
    let missing = chain.sequence + 1;
    // Its header may be there.
    if let Some(found) = survey.live.get(&missing).and_then(|batches| batches.first()) {
        return found.location();
    }
    if let Some(location) = unreadable_location(scanned) {
        return location;
    }
    // What comes after it shows a gap before itself.
    let mut after = survey.live.range(missing + 1..).flat_map(|(_, batches)| batches);
    if let Some(gap) = after.find_map(|found| gap_before(found, scanned)) {
        return gap;
    }
    let end = chain.ends.iter().max_by_key(|(_, (sequence, _))| *sequence);
    let end_of_chain = end.map(|((shard, segment), (_, offset))| (*shard, *segment, *offset));
    // Something unknown begins where a batch would: in the file the chain ends in, or at the start of another.
    let unknown = |segment: &&Scanned| {
        let here =
            end_of_chain.filter(|(shard, number, _)| (*shard, *number) == (segment.file.shard, segment.file.segment));
        segment.first_unknown.is_some_and(|offset| here.map_or(offset == 0, |(_, _, end)| offset == end))
    };
    if let Some(segment) = scanned.iter().find(unknown) {
        let offset = segment.first_unknown.expect("just found");
        return Location { shard: segment.file.shard, segment: segment.file.segment, offset };
    }
    let (shard, segment, offset) = end_of_chain
        .or_else(|| scanned.first().map(|segment| (segment.file.shard, segment.file.segment, 0)))
        .unwrap_or((0, 0, 0));
    Location { shard, segment, offset }
}

fn unreadable_location(scanned: &[Scanned]) -> Option<Location> {
    let segment = scanned.iter().find(|segment| !segment.unreadable.is_empty())?;
    Some(Location { shard: segment.file.shard, segment: segment.file.segment, offset: segment.unreadable[0] })
}

/// Where the gap right before a batch begins, if there is one.
fn gap_before(after: &Found, scanned: &[Scanned]) -> Option<Location> {
    let Location { shard, segment, offset } = after.location();
    let file = scanned.iter().find(|scanned| (scanned.file.shard, scanned.file.segment) == (shard, segment))?;
    let earlier = file
        .found
        .iter()
        .filter(|found| found.header.generation == after.header.generation && found.header.offset < offset);
    // Batches start behind the seal slots of a segment that was sealed in.
    let end = |found: &Found| match found.header.kind {
        Kind::Seal => SEAL_SLOTS * ALIGNMENT,
        _ => found.header.offset + found.header.size(),
    };
    let start = earlier.map(end).max().unwrap_or(0);
    (start < offset).then_some(Location { shard, segment, offset: start })
}
