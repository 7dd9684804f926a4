//! From committed entries to published state, answers and events.

use core::time::Duration;
use std::collections::VecDeque;

use garboard_storage::{Applied, NeedPage, PageId, Paged, Snapshot};
use garboard_wal as wal;

use super::forwarding::Refusee;
use super::writes::{Origin, Proposal};
use super::{Effect, Fatal, Member, Outgoing};
use crate::canary::{self, Canary};
use crate::codec::{Item, Source, decode_entry};
use crate::envelope::{Response, Ticket};
use crate::error::Error;
use crate::limits::{APPLY_BATCH_COMMANDS, APPLY_RETRY};
use crate::members::MemberChange;
use crate::request::{AlarmKind, Command, KeyspaceId, Reply};

/// What an entry asks for.
#[derive(Debug)]
enum Content {
    /// A leader's first entry.
    Empty,
    Commands(Option<Source>, Vec<Item>),
    Membership(MemberChange),
}

/// A committed entry.
#[derive(Debug)]
struct Entry {
    index: u64,
    term: u64,
    content: Content,
    /// Commands that are applied.
    done: usize,
    results: Vec<Result<Reply, Error>>,
    /// Pages that it will surely need are resident.
    prefetched: bool,
}

/// Entries on their way through the machine.
#[derive(Debug)]
pub(super) struct Applying {
    queue: VecDeque<Entry>,
    unapplied_commands: u64,
    /// What readers see.
    published: Applied,
    published_revision: i64,
    /// Pages that were asked for and are not resident. A pin of the root that reaches them keeps them from being
    /// reused before they are read.
    loading: Vec<(PageId, Snapshot)>,
    /// Of these nobody waits for any more: a snapshot took the place of the state that wanted them. They are still on
    /// their way, and must come as what they were asked for.
    unneeded: Vec<(PageId, Snapshot)>,
    to_load: VecDeque<PageId>,
    /// The page that physical compaction waits for. Nothing else waits for it.
    for_compaction: Option<(PageId, Snapshot)>,
    /// Pages that snapshots on their way out wait for, one each at most.
    for_transfers: Vec<(PageId, Snapshot)>,
    /// Entries that are applied and not published.
    applied: Vec<(Entry, Option<Proposal>)>,
}

impl Applying {
    pub(super) fn new(applied: Applied, revision: i64) -> Applying {
        Applying {
            queue: VecDeque::new(),
            unapplied_commands: 0,
            published: applied,
            published_revision: revision,
            loading: Vec::new(),
            unneeded: Vec::new(),
            to_load: VecDeque::new(),
            for_compaction: None,
            for_transfers: Vec::new(),
            applied: Vec::new(),
        }
    }

    pub(super) fn published(&self) -> Applied {
        self.published
    }

    pub(super) fn published_revision(&self) -> i64 {
        self.published_revision
    }

    /// Commands that are committed and not published.
    pub(super) fn unapplied_commands(&self) -> u64 {
        self.unapplied_commands
    }

    /// Takes a committed entry.
    pub(super) fn push(&mut self, entry: wal::Entry, keyspace: KeyspaceId) -> Result<(), Fatal> {
        let wal::Entry { index, term, kind, data, .. } = entry;
        let content = match kind {
            wal::EntryKind::Normal if data.is_empty() => Content::Empty,
            wal::EntryKind::Normal => {
                let batch = decode_entry(&data).map_err(|source| Fatal::Entry { index, source })?;
                if batch.keyspace != keyspace {
                    return Err(Fatal::Keyspace { index, found: batch.keyspace.0 });
                }
                self.unapplied_commands += count(&batch.items);
                Content::Commands(batch.source, batch.items)
            }
            wal::EntryKind::ConfChange | wal::EntryKind::ConfChangeV2 => {
                let change = MemberChange::from_bytes(&data);
                Content::Membership(change.map_err(|source| Fatal::Membership { index, source })?)
            }
        };
        self.queue.push_back(Entry { index, term, content, done: 0, results: Vec::new(), prefetched: false });
        Ok(())
    }

    pub(super) fn page_loaded(&mut self, page: PageId) {
        self.loading.retain(|(loading, _)| *loading != page);
        self.unneeded.retain(|(loading, _)| *loading != page);
        self.for_compaction.take_if(|(loading, _)| *loading == page);
        self.for_transfers.retain(|(loading, _)| *loading != page);
    }

    pub(super) fn is_loading(&self) -> bool {
        !self.loading.is_empty()
    }

    pub(super) fn poll_load(&mut self) -> Option<PageId> {
        self.to_load.pop_front()
    }

    fn need(&mut self, NeedPage(page): NeedPage, pin: Snapshot) {
        let known = self.is_requested(page);
        if self.loading.iter().all(|(loading, _)| *loading != page) {
            self.loading.push((page, pin));
        }
        if !known {
            self.to_load.push_back(page);
        }
    }

    pub(super) fn need_for_compaction(&mut self, NeedPage(page): NeedPage, pin: Snapshot) {
        if !self.is_requested(page) {
            self.to_load.push_back(page);
        }
        self.for_compaction = Some((page, pin));
    }

    /// A snapshot that is being sent needs a page.
    pub(super) fn need_for_transfer(&mut self, page: PageId, pin: Snapshot) {
        if !self.is_requested(page) {
            self.to_load.push_back(page);
        }
        self.for_transfers.push((page, pin));
    }

    /// The state was replaced: what was to be applied is part of it.
    pub(super) fn restore(&mut self, applied: Applied, revision: i64) {
        self.queue.clear();
        self.applied.clear();
        self.unapplied_commands = 0;
        self.published = applied;
        self.published_revision = revision;
        // Pages that were asked for come all the same. Were their pins dropped now, the new state could use the pages before
        // they are read, and whoever reads them would find another version, which is what a lost write looks like.
        self.unneeded.append(&mut self.loading);
        if canary::is_on(Canary::LoadsUnpinned) {
            self.unneeded.clear();
        }
    }

    /// Whether the page is being loaded. It is asked for once: its pins end when it is there.
    fn is_requested(&self, page: PageId) -> bool {
        let waited_for = self.loading.iter().chain(&self.for_compaction).chain(&self.for_transfers);
        waited_for.chain(&self.unneeded).any(|(loading, _)| *loading == page)
    }

    pub(super) fn compaction_waits(&self) -> bool {
        self.for_compaction.is_some()
    }

    /// Whether the working state shows what is not published.
    pub(super) fn is_mid_batch(&self) -> bool {
        !self.applied.is_empty() || self.queue.front().is_some_and(|entry| entry.done > 0)
    }
}

fn count(items: &[Item]) -> u64 {
    u64::try_from(items.len()).expect("an entry's commands fit in memory")
}

impl Member {
    /// Applies a batch of committed entries and publishes it. False when there is nothing that can be done now.
    pub(super) fn apply_some(&mut self, now: Duration) -> bool {
        if self.stalled_until.is_some()
            || self.is_installing()
            || self.applying.is_loading()
            || (self.applying.queue.is_empty() && self.applying.applied.is_empty())
        {
            return false;
        }
        // The index has as many changed pages in memory as it may: a checkpoint must make room first.
        if self.machine.index().must_wait() && !self.applying.is_mid_batch() {
            self.start_checkpoint_if_wanted();
            self.stalled_until = Some(now + APPLY_RETRY);
            return false;
        }
        let result = self.apply_batch(now).and_then(|()| self.publish(now));
        if let Err(need) = result {
            self.applying.need(need, self.reader().pin());
        }
        // Pages to load, or answers.
        true
    }

    fn apply_batch(&mut self, now: Duration) -> Paged<()> {
        let mut commands = 0;
        while commands < APPLY_BATCH_COMMANDS {
            let Some(mut entry) = self.applying.queue.pop_front() else { break };
            // An entry that is begun is finished: a checkpoint can't hold a part of it.
            if entry.done == 0 && self.machine.index().must_wait() {
                self.applying.queue.push_front(entry);
                break;
            }
            self.pass_over_seen(&mut entry);
            if !self.prefetch(&mut entry) {
                self.applying.queue.push_front(entry);
                break;
            }
            if let Err(need) = self.apply_entry(now, &mut entry) {
                self.applying.queue.push_front(entry);
                return Err(need);
            }
            commands += entry.results.len().max(1);
            let proposal = self.take_proposal(now, entry.index, entry.term);
            self.applying.applied.push((entry, proposal));
        }
        Ok(())
    }

    /// Looks for pages that the entry will surely need. False when some must be loaded first.
    fn prefetch(&mut self, entry: &mut Entry) -> bool {
        if entry.prefetched {
            return true;
        }
        let Content::Commands(_, items) = &entry.content else { return true };
        let mut missing = Vec::new();
        for item in items {
            self.machine.prefetch(&item.command, &mut missing);
        }
        entry.prefetched = missing.is_empty();
        for need in missing {
            self.applying.need(need, self.reader().pin());
        }
        entry.prefetched
    }

    /// Leaves the commands out that took effect before, or whose member was removed: the first ones of an entry.
    fn pass_over_seen(&mut self, entry: &mut Entry) {
        let Content::Commands(Some(source), items) = &mut entry.content else { return };
        if entry.done > 0 {
            return;
        }
        let all = count(items);
        // What the records say, and not Raft's membership: a member that is about to be the only one replays the others'
        // writes, too.
        let removed = self.machine.members().is_removed(source.member_id);
        let seen = if removed { all } else { self.machine.sessions().seen(source, all) };
        items.drain(..usize::try_from(seen).expect("no more than there are"));
        source.first = source.first.saturating_add(seen);
        self.applying.unapplied_commands -= seen;
    }

    fn apply_entry(&mut self, now: Duration, entry: &mut Entry) -> Paged<()> {
        match &entry.content {
            Content::Empty => {}
            Content::Membership(change) => {
                let result = self.apply_member_change(entry.index, change);
                if self.machine.members().is_removed(change.member_id) {
                    self.machine.sessions_mut().remove(change.member_id);
                }
                entry.results.push(result);
            }
            Content::Commands(source, items) => {
                while let Some(item) = items.get(entry.done) {
                    let result = match &item.command {
                        Command::Compact { .. } => self.apply_compaction(now, entry.index, &item.command)?,
                        command => self.machine.apply(now, command)?,
                    };
                    if matches!(&item.command, Command::AlarmDeactivate(alarm) if alarm.kind == AlarmKind::NoSpace) {
                        self.alarm_disarmed = entry.index;
                    }
                    entry.results.push(result);
                    entry.done += 1;
                }
                if let Some(source) = source.filter(|_| !items.is_empty()) {
                    self.machine.sessions_mut().advance(&source, count(items));
                }
            }
        }
        Ok(())
    }

    /// Publishes what is applied and sends its events and answers on their way.
    fn publish(&mut self, now: Duration) -> Paged<()> {
        let Some((last, _)) = self.applying.applied.last() else { return Ok(()) };
        let mut applied = Applied { index: last.index, term: last.term };
        if canary::is_on(Canary::SavedIndexBehind)
            && matches!(last.content, Content::Commands(..))
            && self.applying.published.term == last.term
        {
            applied.index -= 1;
        }
        let published = self.machine.publish(applied)?;
        self.applying.published = applied;
        self.applying.published_revision = self.machine.revision();
        if let Some(events) = published.events {
            self.out.push_back(Outgoing { effect: Effect::Events(events), published: None });
        }
        self.watch_quota(now);
        self.follow_alarm();
        for (entry, proposal) in std::mem::take(&mut self.applying.applied) {
            self.answer_entry(now, entry, proposal);
        }
        self.announce_members();
        for asker in self.machine.take_revoked_waiters() {
            self.answer_asker(asker, Ok(Response::LeaseKeepAlive { ttl_seconds: 0 }));
        }
        self.raft.handle_applied(applied.index, self.sender.oldest_index());
        if self.is_ready() {
            self.machine.lessor_mut().promote(now);
            self.take_held(now);
        }
        self.serve_confirmed(now);
        self.pump(now);
        self.force_if_due();
        self.start_checkpoint_if_wanted();
        Ok(())
    }

    /// What was applied took more than the quota, on this member: every member raises its own alarm.
    fn watch_quota(&mut self, now: Duration) {
        if !self.machine.take_over_quota() || self.machine.alarms().is_raised(AlarmKind::NoSpace) {
            return;
        }
        // What a member that lags or starts applies late says nothing of today.
        let is_current = self.applying.published.index > self.replayed_to && self.applying.queue.is_empty();
        if self.leads() || is_current {
            self.raise_no_space(now);
        }
    }

    fn answer_entry(&mut self, now: Duration, entry: Entry, proposal: Option<Proposal>) {
        let (source, items) = match entry.content {
            Content::Empty => return,
            Content::Membership(change) => {
                let result = entry.results.into_iter().next().expect("an applied change has its result");
                self.change_applied(change.origin, result);
                return;
            }
            Content::Commands(source, items) => (source, items),
        };
        if self.waits_for_changes() {
            self.answer_changes(&items, &entry.results);
        }
        self.applying.unapplied_commands -= count(&items);
        assert_eq!(items.len(), entry.results.len(), "every command of an applied entry has its result");
        if let Some(committed) = proposal.as_ref().and_then(|proposal| proposal.committed) {
            self.stages.apply.record(now.saturating_sub(committed));
        }
        if let Some(source) = source {
            self.answer_own(now, &source, &items, entry.results);
        } else if let Some(proposal) = proposal {
            self.answer_proposal(now, proposal, &items, entry.results);
        }
    }

    /// Answers those of this member's clients whose writes an entry held, whoever proposed it.
    fn answer_own(&mut self, now: Duration, source: &Source, items: &[Item], results: Vec<Result<Reply, Error>>) {
        let mut waiting = self.take_own(now, source, count(items)).into_iter().peekable();
        for ((sequence, item), result) in (source.first..).zip(items).zip(results) {
            if let Some(write) = waiting.next_if(|write| write.sequence == sequence) {
                self.answer_write(now, write.ticket, &item.command, result);
            }
        }
    }

    fn answer_proposal(
        &mut self,
        now: Duration,
        proposal: Proposal,
        items: &[Item],
        results: Vec<Result<Reply, Error>>,
    ) {
        assert_eq!(items.len(), proposal.origins.len(), "every command of a proposal has its origin");
        for ((item, result), origin) in items.iter().zip(results).zip(proposal.origins) {
            match origin {
                Origin::Client(ticket) => self.answer_write(now, ticket, &item.command, result),
                Origin::Expiry | Origin::Member | Origin::Check => {}
                Origin::AutoCompaction => {
                    let compacted = matches!(result, Ok(_) | Err(Error::Compacted));
                    self.auto_compactor.handle_result(now, compacted);
                }
                Origin::Alarm => self.finish_alarm(),
            }
        }
    }

    /// Answers changes of members' records, which may have been proposed elsewhere.
    fn answer_changes(&mut self, items: &[Item], results: &[Result<Reply, Error>]) {
        for (item, result) in items.iter().zip(results) {
            if let Command::Member(change) = &item.command {
                self.change_applied(change.origin, result.clone());
            }
        }
    }

    /// Answers a client's write, or keeps its refusal until the alarm about it shows.
    fn answer_write(&mut self, now: Duration, ticket: Ticket, command: &Command, result: Result<Reply, Error>) {
        if result == Err(Error::NoSpace) && self.alarm_proposed {
            self.refused.push(Refusee::Client(ticket));
        } else {
            self.answer_client(now, ticket, command, result);
        }
    }

    fn answer_client(&mut self, now: Duration, ticket: Ticket, command: &Command, result: Result<Reply, Error>) {
        let result = result.map(Response::Write);
        // A physical compaction that was done before is refused only once the work is done: a barrier, as in etcd.
        let waits = matches!(command, Command::Compact { physical: true, .. })
            && matches!(result, Ok(_) | Err(Error::Compacted))
            && self.machine.index().compaction_pending();
        if waits {
            let floor = self.machine.index().view().compacted();
            self.compactions.entry(floor).or_default().push((ticket, result));
            self.next_compaction = self.next_compaction.min(now);
            return;
        }
        self.out.push_back(Outgoing { effect: Effect::Answer { ticket, result }, published: Some(now) });
    }
}
