//! What clients ask: small keyspaces, few leases and near revisions, so that requests meet each other.

use bytes::Bytes;
use garboard_replica::request::{
    Alarm, AlarmKind, Command, Compare, CompareOperator, CompareTarget, DeleteRange, KeyRange, Operation, Put, Range,
    SortOrder, SortTarget, Txn,
};
use garboard_replica::validate;
use garboard_replica::watch::WatchCreate;
use garboard_simdisk::Rng;

use crate::model::Model;
use crate::plan::{MEMBER_ID, Plan};

/// Most writes that are submitted at once.
const BURST_MAX: usize = 8;
/// Largest value of many pages.
const HUGE_VALUE_MAX: u64 = 20_000;
const HUGE_VALUE_MIN: u64 = 3_000;

/// Draws requests.
pub struct Workload<'a> {
    /// Where they come from.
    pub rng: &'a mut Rng,
    /// What the seed is like.
    pub plan: &'a Plan,
    /// What is there, so that requests have to do with it.
    pub model: &'a Model,
}

impl Workload<'_> {
    fn key(&mut self) -> Bytes {
        let number = self.rng.below(self.plan.keys);
        // Shared beginnings and lengths that differ.
        Bytes::from(match number % 4 {
            0 => format!("k{number}"),
            1 => format!("registry/objects/kind-{}/name-{number}", number % 3),
            2 => format!("k{number}/longer/{}", "x".repeat(usize::try_from(number % 50).expect("small"))),
            _ => format!("{:03}", number * 7),
        })
    }

    fn value(&mut self) -> Bytes {
        let len = if self.rng.below(1_000) < self.plan.huge_values {
            HUGE_VALUE_MIN + self.rng.below(HUGE_VALUE_MAX - HUGE_VALUE_MIN)
        } else {
            self.rng.below(self.plan.value_max + 1)
        };
        let mut bytes = vec![0; usize::try_from(len).expect("small")];
        self.rng.fill(&mut bytes);
        Bytes::from(bytes)
    }

    fn keys(&mut self) -> KeyRange {
        match self.rng.below(12) {
            0..=6 => KeyRange::Point(self.key()),
            7..=9 => KeyRange::Span { start: self.key(), end: self.key() },
            10 => KeyRange::FromKey(self.key()),
            _ => KeyRange::All,
        }
    }

    /// The id of a lease: mostly none, sometimes one that exists.
    fn attached_lease(&mut self) -> i64 {
        if self.rng.chance(65) { 0 } else { self.lease() }
    }

    /// The id of a lease that may exist.
    pub fn lease(&mut self) -> i64 {
        let id = 1 + self.rng.below(self.plan.leases).cast_signed();
        if self.rng.chance(10) { -id } else { id }
    }

    fn put(&mut self) -> Put {
        let (ignore_value, ignore_lease) = (self.rng.chance(8), self.rng.chance(8));
        Put {
            key: self.key(),
            value: if ignore_value { Bytes::new() } else { self.value() },
            lease: if ignore_lease { 0 } else { self.attached_lease() },
            prev_kv: self.rng.chance(30),
            ignore_value,
            ignore_lease,
        }
    }

    fn delete(&mut self) -> DeleteRange {
        DeleteRange { keys: self.keys(), prev_kv: self.rng.chance(50) }
    }

    /// A revision: of the past mostly, seldom of the future.
    pub fn revision(&mut self) -> i64 {
        let newest = self.model.revision();
        match self.rng.below(10) {
            0 => newest + self.rng.below(3).cast_signed(),
            1 => self.rng.below(newest.unsigned_abs() + 1).cast_signed() - 1,
            2..=3 => self.model.compacted() + self.rng.below(3).cast_signed(),
            _ => (newest - self.rng.below(20).cast_signed()).max(-1),
        }
    }

    /// A range read.
    pub fn range(&mut self) -> Range {
        let bound = |workload: &mut Self| if workload.rng.chance(90) { 0 } else { workload.revision() };
        let orders = [SortOrder::None, SortOrder::Ascend, SortOrder::Descend];
        let targets = [SortTarget::Key, SortTarget::Version, SortTarget::Create, SortTarget::Mod, SortTarget::Value];
        let sorted = self.rng.chance(25);
        Range {
            keys: self.keys(),
            limit: if self.rng.chance(60) { 0 } else { self.rng.below(6).cast_signed() - 1 },
            revision: if self.rng.chance(60) { 0 } else { self.revision() },
            order: if sorted { orders[self.rng.index(3)] } else { SortOrder::None },
            target: if sorted { targets[self.rng.index(5)] } else { SortTarget::Key },
            serializable: self.rng.chance(40),
            keys_only: self.rng.chance(15),
            count_only: self.rng.chance(15),
            min_mod_revision: bound(self),
            max_mod_revision: bound(self),
            min_create_revision: bound(self),
            max_create_revision: bound(self),
        }
    }

    fn compare(&mut self) -> Compare {
        let operators =
            [CompareOperator::Equal, CompareOperator::NotEqual, CompareOperator::Greater, CompareOperator::Less];
        let keys = self.keys();
        // What is there is often what is compared with, so that conditions hold.
        let found = match &keys {
            KeyRange::Point(key) => self.model.get(key, i64::MAX).cloned(),
            _ => None,
        };
        let target = match (self.rng.below(5), found.filter(|_| self.rng.chance(60))) {
            (0, Some(pair)) => CompareTarget::Version(pair.version),
            (0, None) => CompareTarget::Version(self.rng.below(3).cast_signed()),
            (1, Some(pair)) => CompareTarget::Create(pair.create_revision),
            (1, None) => CompareTarget::Create(self.revision()),
            (2, Some(pair)) => CompareTarget::Mod(pair.mod_revision),
            (2, None) => CompareTarget::Mod(self.revision()),
            (3, Some(pair)) => CompareTarget::Value(pair.value),
            (3, None) => CompareTarget::Value(self.value()),
            _ => CompareTarget::Lease(self.attached_lease()),
        };
        Compare { keys, operator: operators[self.rng.index(operators.len())], target }
    }

    fn txn(&mut self, depth: u64) -> Txn {
        let compares = (0..self.rng.index(3)).map(|_| self.compare()).collect();
        let success = self.branch(depth);
        let failure = self.branch(depth);
        Txn { compares, success, failure }
    }

    fn branch(&mut self, depth: u64) -> Vec<Operation> {
        let count = self.rng.index(4);
        let operation = |workload: &mut Self| match workload.rng.below(if depth < 3 { 9 } else { 8 }) {
            0..=1 => Operation::Range(workload.range()),
            2..=5 => Operation::Put(workload.put()),
            6..=7 => Operation::DeleteRange(workload.delete()),
            _ => Operation::Txn(workload.txn(depth + 1)),
        };
        (0..count).map(|_| operation(self)).collect()
    }

    /// A transaction that only reads, as etcd draws the line.
    pub fn read_txn(&mut self) -> Txn {
        let compares = (0..self.rng.index(3)).map(|_| self.compare()).collect();
        let branch =
            |workload: &mut Self| (0..workload.rng.index(3)).map(|_| Operation::Range(workload.range())).collect();
        Txn { compares, success: branch(self), failure: branch(self) }
    }

    /// Writes to submit at once; what the edge would refuse is not among them.
    pub fn writes(&mut self) -> Vec<Command> {
        let count = if self.rng.chance(70) { 1 } else { 1 + self.rng.index(BURST_MAX) };
        (0..count).map(|_| self.valid(Self::any_write)).collect()
    }

    fn any_write(&mut self) -> Command {
        match self.rng.below(16) {
            0..=9 => Command::Put(self.put()),
            10..=11 => Command::DeleteRange(self.delete()),
            _ => Command::Txn(self.txn(0)),
        }
    }

    /// Draws until the edge would let it pass. Only transactions that write go through the log.
    fn valid(&mut self, mut draw: impl FnMut(&mut Self) -> Command) -> Command {
        loop {
            let command = draw(self);
            let reads = matches!(&command, Command::Txn(txn) if garboard_replica::read::txn::is_read_only(txn, true));
            if !reads && validate::check_command(&command, &validate::Limits::default()).is_ok() {
                return command;
            }
        }
    }

    /// A compaction.
    pub fn compact(&mut self) -> Command {
        let newest = self.model.revision();
        let revision = if self.rng.chance(25) { newest } else { self.revision() };
        Command::Compact { revision, physical: self.rng.chance(40) }
    }

    /// A grant. Short leases expire while the seed runs.
    pub fn grant(&mut self) -> Command {
        let ttl_seconds = match self.rng.below(12) {
            0 => self.rng.below(3).cast_signed() - 1,
            1 => 1_000_000,
            2 => 9_000_000_001,
            _ => 2 + self.rng.below(30).cast_signed(),
        };
        Command::LeaseGrant { id: self.lease(), ttl_seconds }
    }

    /// An alarm comes or goes.
    pub fn alarm(&mut self) -> Command {
        let raised = self.model.alarms();
        if !raised.is_empty() && self.rng.chance(80) {
            return Command::AlarmDeactivate(raised[self.rng.index(raised.len())]);
        }
        let kinds = [AlarmKind::None, AlarmKind::NoSpace, AlarmKind::Corrupt];
        let alarm = Alarm { member_id: MEMBER_ID + self.rng.below(2), kind: kinds[self.rng.index(kinds.len())] };
        if self.rng.chance(50) { Command::AlarmActivate(alarm) } else { Command::AlarmDeactivate(alarm) }
    }

    /// A watch.
    pub fn watch(&mut self) -> WatchCreate {
        WatchCreate {
            watch_id: if self.rng.chance(80) { 0 } else { self.rng.below(4).cast_signed() },
            keys: if self.rng.chance(30) { KeyRange::All } else { self.keys() },
            start_revision: if self.rng.chance(50) { 0 } else { self.revision() },
            progress_notify: self.rng.chance(30),
            prev_kv: self.rng.chance(40),
            fragment: self.rng.chance(40),
            no_put: self.rng.chance(10),
            no_delete: self.rng.chance(10),
        }
    }
}
