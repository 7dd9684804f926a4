//! Lagging watchers catch up, all of a stream together, in bounded steps.

use std::rc::Rc;

use garboard_storage::{Paged, View};

use super::blocks::{Block, Builder};
use super::hub::WatchHub;
use super::index::MatchIndex;
use super::limits::DIRECT_MATCH_WATCHERS;
use super::response::WatchResponse;
use super::slab::Key;
use super::state::{Position, StreamId};
use crate::canary::{self, Canary};

impl WatchHub {
    /// Brings the stream's lagging watchers one step further: the one furthest behind, and all others that the same
    /// events serve. A watcher behind the floor is canceled instead.
    ///
    /// On a missing page the step is to be made again; nothing is lost.
    pub(super) fn catch_up(&mut self, id: StreamId, view: &View<'_>) -> Paged<()> {
        let stream = self.streams.get_mut(id.0).expect("the caller found it");
        stream.served = 0;
        let Some(&(cursor, key)) = stream.lagging.first() else {
            return Ok(());
        };
        assert!(cursor <= self.revision, "a watcher beyond the hub's revision does not lag");
        if cursor < view.compacted() && canary::is_on(Canary::CompactedWatchSkips) {
            self.place(key, view.compacted());
            return Ok(());
        }
        if cursor < view.compacted() {
            self.cancel_compacted(id, key, cursor, view.compacted());
            return Ok(());
        }
        let run = match self.recent.run_from(cursor, self.config.catch_up) {
            run if !run.is_empty() => run,
            _ => match self.read_block(id, cursor, view)? {
                Some(block) => vec![block],
                None => return Ok(()),
            },
        };
        self.offer_run(id, &run);
        Ok(())
    }

    /// Tells the client that a watcher fell behind the floor; first it is sent what was pending, which it did not miss.
    fn cancel_compacted(&mut self, id: StreamId, key: Key, cursor: i64, compacted: i64) {
        let stream = self.streams.get_mut(id.0).expect("the caller found it");
        let watcher = self.watchers.get_mut(key).expect("a lagging watcher exists");
        if !watcher.pending.is_empty() {
            return;
        }
        assert!(stream.lagging.remove(&(cursor, key)), "it was the first in the list");
        self.lagging_count -= 1;
        watcher.position = Position::Compacted;
        self.index.remove(&watcher.keys, key);
        stream.compacted += 1;
        stream.builder = None;
        // Not a reply to a request: the bound on those is not for it, and there is at most one for each watcher.
        stream.control.push_back(WatchResponse {
            watch_id: watcher.watch_id,
            canceled: true,
            compact_revision: compacted,
            ..WatchResponse::default()
        });
    }

    /// A block of the history that covers a revision; `None` when reading it takes another step.
    fn read_block(&mut self, id: StreamId, cursor: i64, view: &View<'_>) -> Paged<Option<Rc<Block>>> {
        if let Some(block) = self.history.covering(cursor) {
            return Ok(Some(block));
        }
        let stream = self.streams.get_mut(id.0).expect("the caller found it");
        if !stream.builder.as_ref().is_some_and(|builder| builder.serves(cursor)) {
            stream.builder = Some(Builder::new(cursor));
        }
        let builder = stream.builder.as_mut().expect("just made");
        let Some(block) = builder.step(view, self.revision, self.config.catch_up)? else {
            return Ok(None);
        };
        stream.builder = None;
        self.history.push(Rc::clone(&block));
        self.let_go();
        assert!(block.first <= cursor && cursor <= block.last, "a block covers what it was read for");
        Ok(Some(block))
    }

    /// Offers blocks, in a row, to the stream's lagging watchers that are not beyond them.
    fn offer_run(&mut self, id: StreamId, run: &[Rc<Block>]) {
        let first = run.first().expect("a run has a block").first;
        let reached = run.last().expect("a run has a block").last;
        let stream = self.streams.get_mut(id.0).expect("the caller found it");
        let behind = stream.lagging.iter().take_while(|(cursor, _)| *cursor <= reached);
        let takers: Vec<Key> = behind.filter(|(cursor, _)| *cursor >= first).map(|(_, key)| *key).collect();
        // Room for the run may have been made at the cost of the very watcher it was read for, if it had more pending:
        // then that watcher stands before the run again, and takes what it lost first.
        // The hub's index would show every other stream's watchers too.
        let mut takers_by_key = MatchIndex::new();
        for &key in takers.iter().filter(|_| takers.len() > DIRECT_MATCH_WATCHERS) {
            takers_by_key.insert(&self.watchers.get(key).expect("a lagging watcher exists").keys, key);
        }
        for block in run {
            for (index, event) in block.batch.events.iter().enumerate() {
                let mut offer = |key: Key| {
                    let watcher = self.watchers.get_mut(key).expect("a lagging watcher exists");
                    let Position::Lagging { cursor } = watcher.position else { unreachable!("it lags") };
                    if cursor <= event.revision.main && watcher.admits(event) && watcher.keys.contains(&event.kv.key) {
                        watcher.offer(key, stream, block, index);
                    }
                };
                if takers.len() <= DIRECT_MATCH_WATCHERS {
                    takers.iter().for_each(|key| offer(*key));
                } else {
                    takers_by_key.find(&event.kv.key, &mut offer);
                }
            }
        }
        for key in takers {
            self.settle(key, Some(reached + 1));
        }
    }
}
