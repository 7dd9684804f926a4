//! When a member checks states, and what follows from what it finds.
//!
//! The calling order: any `handle_*`, then [`Checker::poll_action`] until it has nothing more, then sleep until
//! [`Checker::poll_timeout`] or the next input.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use garboard_storage::hash::HashKv;

use super::{
    CheckKind, CheckNote, CorruptionChecks, Finding, HashAnswer, HashQuestion, HashWhat, Mismatch, Seen, judge,
};
use crate::limits::{
    CHECK_AGAIN, CHECK_ATTEMPTS_MAX, CHECK_PROOF_MAX, CHECK_RETRY_PAUSE, CHECK_TIME_MAX, INITIAL_CHECK_JOIN_MAX,
    INITIAL_CHECK_LINK_MAX, INITIAL_CHECK_MAX,
};

/// What is known of the way to another member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// It works.
    Up,
    /// It does not.
    Down,
    /// Nothing was said of it yet.
    Unknown,
}

/// What a check looks at in its member.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Whether it leads, and has applied what earlier leaders left.
    pub leads: bool,
    /// The other members, learners included.
    pub others: Vec<(u64, Link)>,
    /// The newest revision that it shows.
    pub revision: i64,
    /// The entry with which it shows that.
    pub index: u64,
    /// The hashes of compactions that it keeps, in order of revision.
    pub kept: Vec<HashKv>,
}

/// What a check wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// To know that this member shows all that others have shown by now: [`Checker::handle_proved`].
    Prove {
        /// The check's number.
        number: u64,
    },
    /// The hash of this member's own history: [`Checker::handle_own`].
    Hash {
        /// The check's number.
        number: u64,
        /// Up to this revision.
        revision: i64,
        /// Which was shown with this entry.
        index: u64,
    },
    /// Nothing of what it wanted of this member.
    Cancel,
    /// A question to another member.
    Ask {
        /// To whom.
        to: u64,
        /// What.
        question: HashQuestion,
    },
    /// The CORRUPT alarm for a member; 0: for all.
    Raise {
        /// For whom.
        member: u64,
    },
    /// This member serves: nothing was found that speaks against it.
    Serve,
    /// This member must not serve.
    Refuse(Mismatch),
    /// The operator should know.
    Note(CheckNote),
}

#[derive(Debug)]
enum Phase {
    /// The next attempt begins at this time.
    Resting(Duration),
    /// It is asked what others may have shown, until this time.
    Proving(Duration),
    /// States are compared.
    Comparing(Comparing),
}

#[derive(Debug)]
struct Comparing {
    what: HashWhat,
    since: Duration,
    own: Option<Finding>,
    /// By member; none while it has not answered.
    others: BTreeMap<u64, Option<Finding>>,
    /// When those that have not answered are asked again.
    again_at: Duration,
}

/// A check under way.
#[derive(Debug)]
struct Pass {
    kind: CheckKind,
    number: u64,
    /// Who has not answered then is passed over.
    by: Duration,
    attempts: u32,
    /// Older hashes of compactions, in order of revision, for which it is the turn if not everybody has the newer one.
    older: Vec<HashKv>,
    phase: Phase,
}

/// The checks of one member.
#[derive(Debug)]
pub struct Checker {
    id: u64,
    boot: u64,
    checks: CorruptionChecks,
    random: u64,
    began: Duration,
    /// The initial check is still to be made.
    initial: bool,
    /// It found that this member differs: there is no other one.
    refused: bool,
    led: bool,
    next_periodic: Duration,
    next_compaction: Duration,
    pass: Option<Pass>,
    last_number: u64,
    /// The newest revision of a compaction of which all members have the same hash.
    checked_compaction: i64,
    actions: VecDeque<Action>,
}

impl Checker {
    /// The checks of a member's process. One that has nothing, or nobody to compare it with, `skips_initial`.
    pub fn new(now: Duration, id: u64, boot: u64, seed: u64, checks: CorruptionChecks, skips_initial: bool) -> Checker {
        Checker {
            id,
            boot,
            checks,
            random: seed,
            began: now,
            initial: checks.initial && !skips_initial,
            refused: false,
            led: false,
            next_periodic: now + checks.periodic.unwrap_or_default(),
            next_compaction: now + checks.compactions.unwrap_or_default(),
            pass: None,
            last_number: 0,
            checked_compaction: 0,
            actions: VecDeque::new(),
        }
    }

    /// Whether this member may serve, as far as the initial check goes.
    pub fn may_serve(&self) -> bool {
        !self.initial
    }

    /// The newest revision of a compaction of which all members have the same hash.
    pub fn checked_compaction(&self) -> i64 {
        self.checked_compaction
    }

    /// What it wants next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Checker::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self, leads: bool) -> Option<Duration> {
        if self.checks == CorruptionChecks::default() {
            return None;
        }
        if leads != self.led {
            return Some(Duration::ZERO);
        }
        if let Some(pass) = &self.pass {
            let next = match &pass.phase {
                Phase::Resting(until) | Phase::Proving(until) => *until,
                Phase::Comparing(comparing) => comparing.again_at,
            };
            return Some(next.min(pass.by));
        }
        if self.initial {
            return Some(self.began).filter(|_| !self.refused);
        }
        let periodic = self.checks.periodic.map(|_| self.next_periodic);
        let compaction = self.checks.compactions.map(|_| self.next_compaction);
        periodic.into_iter().chain(compaction).min().filter(|_| leads)
    }

    /// Time has passed, or something that the facts say has changed.
    pub fn handle_timeout(&mut self, now: Duration, facts: &Facts) {
        self.note_leadership(now, facts.leads);
        self.go_on(now, facts);
        if self.pass.is_none() {
            self.begin_due(now, facts);
        }
    }

    /// This member shows what was committed when it asked.
    pub fn handle_proved(&mut self, now: Duration, number: u64, facts: &Facts) {
        let Some(pass) = self.pass.as_ref().filter(|pass| pass.number == number) else { return };
        if matches!(pass.phase, Phase::Proving(_)) && (facts.leads || pass.kind == CheckKind::Initial) {
            self.compare_history(now, facts);
        }
    }

    /// This member's own hash.
    pub fn handle_own(&mut self, now: Duration, number: u64, finding: Finding, facts: &Facts) {
        let Some(pass) = self.pass.as_mut().filter(|pass| pass.number == number) else { return };
        if let Phase::Comparing(comparing) = &mut pass.phase {
            comparing.own = Some(finding);
            self.go_on(now, facts);
        }
    }

    /// Another member's answer.
    pub fn handle_answer(&mut self, now: Duration, from: u64, answer: HashAnswer, facts: &Facts) {
        let HashAnswer { boot, number, finding } = answer;
        let Some(pass) = self.pass.as_mut().filter(|pass| pass.number == number && boot == self.boot) else { return };
        if let Phase::Comparing(comparing) = &mut pass.phase
            && let Some(open @ None) = comparing.others.get_mut(&from)
        {
            *open = Some(finding);
            self.go_on(now, facts);
        }
    }

    /// What a leader had under way ends with its leadership. A new leader makes its first checks some time within the
    /// interval, or, if leaders changed often, none would ever be made.
    fn note_leadership(&mut self, now: Duration, leads: bool) {
        if leads == self.led {
            return;
        }
        self.led = leads;
        if self.pass.as_ref().is_some_and(|pass| pass.kind != CheckKind::Initial) {
            self.end_pass();
        }
        if leads {
            let share = f64::from(u32::try_from(self.draw() >> 32).expect("32 bits")) / f64::from(u32::MAX);
            let soonest = |interval: Option<Duration>| now + interval.unwrap_or_default().mul_f64(share);
            self.next_periodic = self.next_periodic.max(soonest(self.checks.periodic));
            self.next_compaction = self.next_compaction.max(soonest(self.checks.compactions));
        }
    }

    /// The next number of SplitMix64.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn begin_due(&mut self, now: Duration, facts: &Facts) {
        if self.initial {
            if !self.refused {
                self.begin_initial(now, facts);
            }
        } else if facts.leads && self.checks.compactions.is_some() && now >= self.next_compaction {
            self.next_compaction = now + self.checks.compactions.unwrap_or_default();
            let mut kept: Vec<HashKv> =
                facts.kept.iter().filter(|kept| kept.revision > self.checked_compaction).copied().collect();
            if let Some(newest) = kept.pop().filter(|_| !facts.others.is_empty()) {
                self.compare_compaction(now, newest, kept, facts);
            }
        } else if facts.leads && self.checks.periodic.is_some() && now >= self.next_periodic {
            self.next_periodic = now + self.checks.periodic.unwrap_or_default();
            if !facts.others.is_empty() {
                self.begin_pass(now, CheckKind::Periodic, CHECK_TIME_MAX);
                self.prove(now, CHECK_PROOF_MAX);
            }
        }
    }

    fn begin_initial(&mut self, now: Duration, facts: &Facts) {
        if facts.others.is_empty() {
            self.serve();
        } else {
            self.begin_pass(now, CheckKind::Initial, INITIAL_CHECK_MAX);
            self.prove(now, INITIAL_CHECK_JOIN_MAX);
        }
    }

    fn serve(&mut self) {
        self.initial = false;
        self.actions.push_back(Action::Serve);
    }

    fn begin_pass(&mut self, now: Duration, kind: CheckKind, lasts: Duration) {
        let phase = Phase::Resting(now);
        self.pass = Some(Pass { kind, number: 0, by: now + lasts, attempts: 0, older: Vec::new(), phase });
    }

    /// The next question: answers to earlier ones do not count any more.
    fn next_number(&mut self) -> (&mut Pass, u64) {
        self.last_number += 1;
        let pass = self.pass.as_mut().expect("a check is under way");
        pass.number = self.last_number;
        (pass, self.last_number)
    }

    fn prove(&mut self, now: Duration, patience: Duration) {
        let (pass, number) = self.next_number();
        pass.phase = Phase::Proving(now + patience);
        self.actions.push_back(Action::Prove { number });
    }

    /// Compares histories up to the newest revision that this member shows.
    fn compare_history(&mut self, now: Duration, facts: &Facts) {
        let (revision, index) = (facts.revision, facts.index);
        let (pass, number) = self.next_number();
        pass.attempts += 1;
        self.compare(now, HashWhat::History { revision, index }, None, facts);
        self.actions.push_back(Action::Hash { number, revision, index });
    }

    fn compare_compaction(&mut self, now: Duration, kept: HashKv, older: Vec<HashKv>, facts: &Facts) {
        self.begin_pass(now, CheckKind::Compaction, CHECK_TIME_MAX);
        let (pass, _) = self.next_number();
        pass.older = older;
        let HashKv { hash, compact_revision, revision } = kept;
        let own = Finding::Hash { hash, compact_revision, newest: facts.revision, index: facts.index };
        self.compare(now, HashWhat::Compaction { revision }, Some(own), facts);
    }

    fn compare(&mut self, now: Duration, what: HashWhat, own: Option<Finding>, facts: &Facts) {
        let others = facts.others.iter().map(|(id, _)| (*id, None)).collect();
        let pass = self.pass.as_mut().expect("a check is under way");
        pass.phase = Phase::Comparing(Comparing { what, since: now, own, others, again_at: now + CHECK_AGAIN });
        self.ask();
    }

    /// Asks those that have not answered.
    fn ask(&mut self) {
        let Some(Pass { number, phase: Phase::Comparing(comparing), .. }) = &self.pass else { return };
        let question = HashQuestion { boot: self.boot, number: *number, what: comparing.what };
        let open = comparing.others.iter().filter(|(_, finding)| finding.is_none());
        self.actions.extend(open.map(|(to, _)| Action::Ask { to: *to, question }));
    }

    fn go_on(&mut self, now: Duration, facts: &Facts) {
        let Some(pass) = &mut self.pass else { return };
        match &mut pass.phase {
            Phase::Resting(until) if *until <= now => match pass.kind {
                CheckKind::Initial => self.compare_history(now, facts),
                CheckKind::Periodic | CheckKind::Compaction => self.prove(now, CHECK_PROOF_MAX),
            },
            Phase::Proving(until) if *until <= now => match pass.kind {
                // It compares what there is.
                CheckKind::Initial => self.compare_history(now, facts),
                CheckKind::Periodic | CheckKind::Compaction => self.end_pass(),
            },
            Phase::Resting(_) | Phase::Proving(_) => {}
            Phase::Comparing(comparing) => {
                let over = pass.by <= now;
                let open = |id: &u64| comparing.others.get(id).is_some_and(Option::is_none);
                let may_come = |link: &Link| match link {
                    Link::Up => true,
                    Link::Down => false,
                    Link::Unknown => pass.kind != CheckKind::Initial || now < comparing.since + INITIAL_CHECK_LINK_MAX,
                };
                let waits = facts.others.iter().any(|(id, link)| open(id) && may_come(link));
                if over || (comparing.own.is_some() && !waits) {
                    self.conclude(now, facts);
                } else if comparing.again_at <= now {
                    comparing.again_at = now + CHECK_AGAIN;
                    self.ask();
                }
            }
        }
    }

    /// All answers that can be had are there.
    fn conclude(&mut self, now: Duration, facts: &Facts) {
        let pass = self.pass.as_ref().expect("a check is under way");
        let Phase::Comparing(comparing) = &pass.phase else { return };
        let Some(Finding::Hash { hash: own, compact_revision, .. }) = comparing.own else {
            return self.conclude_nothing(now);
        };
        let revision = comparing.what.revision();
        let is_history = matches!(comparing.what, HashWhat::History { .. });
        let mut states = vec![(self.id, Seen::Hash(own))];
        let mut moved = false;
        for (id, finding) in &comparing.others {
            match finding {
                Some(Finding::Hash { hash, compact_revision: floor, newest, index }) if *floor == compact_revision => {
                    // With a newer entry this member may show more, which then says nothing.
                    let ahead = is_history && *index <= facts.index && *newest > facts.revision;
                    states.push((*id, if ahead { Seen::Ahead } else { Seen::Hash(*hash) }));
                }
                Some(Finding::Short { .. }) if is_history => states.push((*id, Seen::Short)),
                Some(Finding::Hash { .. } | Finding::Compacted { .. } | Finding::Lags) => moved = true,
                Some(Finding::Short { .. } | Finding::Unknown | Finding::Busy) | None => {}
            }
        }
        let mismatch = |(id, other): &(u64, Seen)| {
            let differs = *other != Seen::Hash(own);
            differs.then_some(Mismatch { member: *id, revision, compact_revision, own, other: *other })
        };
        let mismatches: Vec<Mismatch> = states.iter().filter_map(mismatch).collect();
        let (kind, members) = (pass.kind, comparing.others.len() + 1);
        if mismatches.is_empty() && moved && is_history && self.can_retry(now) {
            return self.rest(now);
        }
        for mismatch in &mismatches {
            self.actions.push_back(Action::Note(CheckNote::Differs { kind, mismatch: *mismatch }));
        }
        let (equal, skipped) = (states.len() - 1 - mismatches.len(), members - states.len());
        self.actions.push_back(Action::Note(CheckNote::Done { kind, revision, equal, skipped }));
        match kind {
            CheckKind::Initial => self.conclude_initial(mismatches.first().copied()),
            CheckKind::Periodic => {
                // As etcd, one a time: where the next one is as bad, the next check says so.
                self.raise(judge(&states, members).into_iter().take(1));
                self.end_pass();
            }
            CheckKind::Compaction if !mismatches.is_empty() => {
                self.raise(judge(&states, members));
                self.end_pass();
            }
            CheckKind::Compaction if skipped == 0 => {
                self.checked_compaction = revision;
                self.end_pass();
            }
            CheckKind::Compaction => {
                let mut older = std::mem::take(&mut self.pass.as_mut().expect("a check is under way").older);
                self.end_pass();
                if let Some(kept) = older.pop() {
                    self.compare_compaction(now, kept, older, facts);
                }
            }
        }
    }

    fn conclude_initial(&mut self, mismatch: Option<Mismatch>) {
        self.end_pass();
        match mismatch {
            Some(mismatch) => {
                self.refused = true;
                self.actions.push_back(Action::Refuse(mismatch));
            }
            None => self.serve(),
        }
    }

    /// This member's own hash could not be had: the floor has passed the revision, or time is over.
    fn conclude_nothing(&mut self, now: Duration) {
        if self.can_retry(now) {
            self.rest(now);
        } else if self.pass.as_ref().is_some_and(|pass| pass.kind == CheckKind::Initial) {
            self.conclude_initial(None);
        } else {
            self.end_pass();
        }
    }

    fn can_retry(&self, now: Duration) -> bool {
        self.pass.as_ref().is_some_and(|pass| pass.attempts < CHECK_ATTEMPTS_MAX && now + CHECK_RETRY_PAUSE < pass.by)
    }

    fn rest(&mut self, now: Duration) {
        let pass = self.pass.as_mut().expect("a check is under way");
        pass.phase = Phase::Resting(now + CHECK_RETRY_PAUSE);
        self.actions.push_back(Action::Cancel);
    }

    fn raise(&mut self, blamed: impl IntoIterator<Item = u64>) {
        for member in blamed {
            self.actions.push_back(Action::Note(CheckNote::Raised { member }));
            self.actions.push_back(Action::Raise { member });
        }
    }

    fn end_pass(&mut self) {
        self.pass = None;
        self.actions.push_back(Action::Cancel);
    }
}

#[cfg(test)]
#[path = "checker_tests.rs"]
mod tests;
