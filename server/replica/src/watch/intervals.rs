//! Ranges of keys, found by a key that lies in them.
//!
//! A treap in the order of the ranges' starts, each node with the largest end below it: a lookup leaves out every
//! subtree that ends before the key or starts after it. Watchers of the same range share a node, so that hundreds of
//! watchers of one prefix cost one visit.

use std::cmp::Ordering;

use bytes::Bytes;

use super::slab::Key;

/// No node.
const NONE: usize = usize::MAX;

/// The end of a range; without one it reaches to the end of the keyspace.
type End = Option<Bytes>;

#[derive(Debug)]
struct Node {
    start: Bytes,
    end: End,
    watchers: Vec<Key>,
    /// Drawn at random; a parent's is never less than its children's.
    priority: u64,
    left: usize,
    right: usize,
    /// The largest end of this node and all below it.
    max_end: End,
}

/// The ranges.
#[derive(Debug)]
pub(super) struct Intervals {
    nodes: Vec<Node>,
    free: Vec<usize>,
    root: usize,
    /// State of the generator of priorities. The same calls build the same tree.
    random: u64,
}

impl Intervals {
    pub(super) fn new() -> Self {
        Self { nodes: Vec::new(), free: Vec::new(), root: NONE, random: 0x9e37_79b9_7f4a_7c15 }
    }

    pub(super) fn insert(&mut self, start: &Bytes, end: &End, watcher: Key) {
        if let Some(node) = self.find(start, end) {
            self.nodes[node].watchers.push(watcher);
            return;
        }
        let node = self.allocate(start, end, watcher);
        self.root = self.insert_below(self.root, node);
    }

    pub(super) fn remove(&mut self, start: &Bytes, end: &End, watcher: Key) {
        let node = self.find(start, end).expect("a watcher's range is in the tree");
        let watchers = &mut self.nodes[node].watchers;
        let position = watchers.iter().position(|other| *other == watcher).expect("the watcher is at its range");
        watchers.swap_remove(position);
        if watchers.is_empty() {
            self.root = self.remove_below(self.root, start, end);
            self.nodes[node].start = Bytes::new();
            self.nodes[node].end = None;
            self.nodes[node].max_end = None;
            self.free.push(node);
        }
    }

    /// Shows every watcher whose range holds `key`.
    pub(super) fn stab(&self, key: &[u8], visit: &mut dyn FnMut(Key)) {
        self.stab_below(self.root, key, visit);
    }

    fn stab_below(&self, mut at: usize, key: &[u8], visit: &mut dyn FnMut(Key)) {
        while at != NONE {
            let node = &self.nodes[at];
            if !is_before(key, &node.max_end) {
                return;
            }
            self.stab_below(node.left, key, visit);
            if key < &node.start[..] {
                return;
            }
            if is_before(key, &node.end) {
                node.watchers.iter().for_each(|watcher| visit(*watcher));
            }
            at = node.right;
        }
    }

    fn find(&self, start: &Bytes, end: &End) -> Option<usize> {
        let mut at = self.root;
        while at != NONE {
            let node = &self.nodes[at];
            at = match order(start, end, node) {
                Ordering::Less => node.left,
                Ordering::Greater => node.right,
                Ordering::Equal => return Some(at),
            };
        }
        None
    }

    fn allocate(&mut self, start: &Bytes, end: &End, watcher: Key) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let node = Node {
            start: start.clone(),
            end: end.clone(),
            watchers: vec![watcher],
            priority: self.random,
            left: NONE,
            right: NONE,
            max_end: end.clone(),
        };
        if let Some(free) = self.free.pop() {
            self.nodes[free] = node;
            return free;
        }
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Inserts `node` into the subtree at `at` and returns the subtree's root.
    fn insert_below(&mut self, at: usize, node: usize) -> usize {
        if at == NONE {
            return node;
        }
        let (start, end) = (self.nodes[node].start.clone(), self.nodes[node].end.clone());
        let less = order(&start, &end, &self.nodes[at]).is_lt();
        let child = if less { self.nodes[at].left } else { self.nodes[at].right };
        let child = self.insert_below(child, node);
        if less {
            self.nodes[at].left = child;
        } else {
            self.nodes[at].right = child;
        }
        if self.nodes[child].priority > self.nodes[at].priority {
            return self.rotate_up(at, child, less);
        }
        self.update(at);
        at
    }

    /// Makes `child`, on the left or the right of `at`, the root of the subtree.
    fn rotate_up(&mut self, at: usize, child: usize, left: bool) -> usize {
        if left {
            self.nodes[at].left = self.nodes[child].right;
            self.nodes[child].right = at;
        } else {
            self.nodes[at].right = self.nodes[child].left;
            self.nodes[child].left = at;
        }
        self.update(at);
        self.update(child);
        child
    }

    fn remove_below(&mut self, at: usize, start: &Bytes, end: &End) -> usize {
        assert_ne!(at, NONE, "the range is in the tree");
        let (left, right) = (self.nodes[at].left, self.nodes[at].right);
        match order(start, end, &self.nodes[at]) {
            Ordering::Equal => return self.merge(left, right),
            Ordering::Less => self.nodes[at].left = self.remove_below(left, start, end),
            Ordering::Greater => self.nodes[at].right = self.remove_below(right, start, end),
        }
        self.update(at);
        at
    }

    /// Joins two subtrees, all of the left before all of the right.
    fn merge(&mut self, left: usize, right: usize) -> usize {
        if left == NONE {
            return right;
        }
        if right == NONE {
            return left;
        }
        if self.nodes[left].priority > self.nodes[right].priority {
            self.nodes[left].right = self.merge(self.nodes[left].right, right);
            self.update(left);
            left
        } else {
            self.nodes[right].left = self.merge(left, self.nodes[right].left);
            self.update(right);
            right
        }
    }

    fn update(&mut self, at: usize) {
        let node = &self.nodes[at];
        let mut max_end = node.end.clone();
        for child in [node.left, node.right] {
            if child != NONE && compare_ends(&self.nodes[child].max_end, &max_end).is_gt() {
                max_end = self.nodes[child].max_end.clone();
            }
        }
        self.nodes[at].max_end = max_end;
    }
}

fn order(start: &Bytes, end: &End, node: &Node) -> Ordering {
    start.cmp(&node.start).then_with(|| compare_ends(end, &node.end))
}

fn compare_ends(a: &End, b: &End) -> Ordering {
    match (a, b) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(a), Some(b)) => a.cmp(b),
    }
}

fn is_before(key: &[u8], end: &End) -> bool {
    end.as_ref().is_none_or(|end| key < &end[..])
}

#[cfg(test)]
mod tests {
    use super::super::slab::Slab;
    use super::*;
    use crate::read::fixture::{Dice, seeds};

    impl Intervals {
        /// Checks order, priorities and ends of a subtree; returns its depth.
        fn check(&self, at: usize) -> usize {
            if at == NONE {
                return 0;
            }
            let node = &self.nodes[at];
            let mut max_end = node.end.clone();
            for (child, side) in [(node.left, Ordering::Less), (node.right, Ordering::Greater)] {
                if child != NONE {
                    let below = &self.nodes[child];
                    assert_eq!(order(&below.start, &below.end, node), side);
                    assert!(below.priority <= node.priority);
                    max_end =
                        if compare_ends(&below.max_end, &max_end).is_gt() { below.max_end.clone() } else { max_end };
                }
            }
            assert_eq!(compare_ends(&node.max_end, &max_end), Ordering::Equal);
            1 + self.check(node.left).max(self.check(node.right))
        }
    }

    #[test]
    fn a_key_finds_exactly_the_ranges_that_hold_it_after_any_insertions_and_removals() {
        seeds(20, |seed| {
            let mut dice = Dice::new(seed);
            let (mut intervals, mut names) = (Intervals::new(), Slab::new());
            let mut model: Vec<(Bytes, End, Key)> = Vec::new();
            let text = |number: u64| Bytes::from(format!("{number:02}"));
            for _ in 0..400 {
                if !model.is_empty() && dice.one_in(3) {
                    let victim = usize::try_from(dice.below(u64::try_from(model.len()).unwrap())).unwrap();
                    let (start, end, watcher) = model.swap_remove(victim);
                    intervals.remove(&start, &end, watcher);
                } else {
                    let start = dice.below(60);
                    let end = if dice.one_in(6) { None } else { Some(text(start + 1 + dice.below(30))) };
                    let watcher = names.insert(());
                    intervals.insert(&text(start), &end, watcher);
                    model.push((text(start), end, watcher));
                }
                intervals.check(intervals.root);
                let key = text(dice.below(95));
                let mut found = Vec::new();
                intervals.stab(&key, &mut |watcher| found.push(watcher));
                let holds = |(start, end, _): &&(Bytes, End, Key)| *start <= key && is_before(&key, end);
                let mut expected: Vec<Key> = model.iter().filter(holds).map(|(_, _, watcher)| *watcher).collect();
                found.sort();
                expected.sort();
                assert_eq!(found, expected);
            }
        });
    }

    #[test]
    fn ranges_inserted_in_order_make_no_deep_tree() {
        let (mut intervals, mut names) = (Intervals::new(), Slab::new());
        for number in 0..10_000 {
            let start = Bytes::from(format!("{number:05}"));
            intervals.insert(&start, &None, names.insert(()));
        }
        assert!(intervals.check(intervals.root) < 60);
    }
}
