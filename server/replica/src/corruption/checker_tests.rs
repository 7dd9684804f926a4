use super::*;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn checker(checks: CorruptionChecks) -> Checker {
    Checker::new(Duration::ZERO, 1, 77, 5, checks, false)
}

fn periodic() -> CorruptionChecks {
    CorruptionChecks { periodic: Some(MINUTE), ..CorruptionChecks::default() }
}

fn initial() -> CorruptionChecks {
    CorruptionChecks { initial: true, ..CorruptionChecks::default() }
}

fn compactions() -> CorruptionChecks {
    CorruptionChecks { compactions: Some(MINUTE), ..CorruptionChecks::default() }
}

/// A leader of `members`, at revision 100 with entry 50.
fn facts(members: u64) -> Facts {
    Facts {
        leads: true,
        others: (2..=members).map(|id| (id, Link::Up)).collect(),
        revision: 100,
        index: 50,
        kept: Vec::new(),
    }
}

fn hash(hash: u32) -> Finding {
    hash_at(hash, 10)
}

fn hash_at(hash: u32, compact_revision: i64) -> Finding {
    Finding::Hash { hash, compact_revision, newest: 100, index: 50 }
}

fn actions(checker: &mut Checker) -> Vec<Action> {
    std::iter::from_fn(|| checker.poll_action()).filter(|action| *action != Action::Cancel).collect()
}

/// Without what is for the operator.
fn deeds(checker: &mut Checker) -> Vec<Action> {
    actions(checker).into_iter().filter(|action| !matches!(action, Action::Note(_))).collect()
}

/// Lets a leader's check begin, up to the comparison. Returns when, and its number.
fn begin(checker: &mut Checker, facts: &Facts) -> (Duration, u64) {
    checker.handle_timeout(Duration::ZERO, facts);
    let due = checker.poll_timeout(true).unwrap();
    assert!(due <= 2 * MINUTE, "a leader checks within the interval");
    checker.handle_timeout(due, facts);
    let deeds = deeds(checker);
    let [Action::Prove { number }] = deeds[..] else { panic!("{deeds:?}") };
    checker.handle_proved(due, number, facts);
    (due, asked(checker, facts))
}

/// The number of the check whose questions were just asked.
fn asked(checker: &mut Checker, facts: &Facts) -> u64 {
    let mut deeds = deeds(checker);
    let Some(Action::Hash { number, revision, index }) = deeds.pop() else { panic!("{deeds:?}") };
    assert_eq!((revision, index), (facts.revision, facts.index));
    let what = HashWhat::History { revision, index };
    let ask = |(to, _): &(u64, Link)| Action::Ask { to: *to, question: HashQuestion { boot: 77, number, what } };
    assert_eq!(deeds, facts.others.iter().map(ask).collect::<Vec<_>>());
    number
}

fn tell(checker: &mut Checker, now: Duration, from: u64, number: u64, finding: Finding, facts: &Facts) {
    checker.handle_answer(now, from, HashAnswer { boot: 77, number, finding }, facts);
}

/// What follows from a leader's own finding and those of members 2, 3, …
fn outcome(own: Finding, others: &[Finding], facts: &Facts) -> Vec<Action> {
    let mut checker = checker(periodic());
    let (now, number) = begin(&mut checker, facts);
    for (id, finding) in (2..).zip(others) {
        tell(&mut checker, now, id, number, *finding, facts);
    }
    assert_eq!(deeds(&mut checker), [], "without this member's own hash nothing is known");
    checker.handle_own(now, number, own, facts);
    deeds(&mut checker)
}

#[test]
fn equal_states_raise_nothing_and_the_next_check_comes_in_its_time() {
    let mut checker = checker(periodic());
    let facts = facts(3);
    let (now, number) = begin(&mut checker, &facts);
    checker.handle_own(now, number, hash(7), &facts);
    tell(&mut checker, now, 2, number, hash(7), &facts);
    assert_eq!(deeds(&mut checker), []);
    tell(&mut checker, now + SECOND, 3, number, hash(7), &facts);
    let done = CheckNote::Done { kind: CheckKind::Periodic, revision: 100, equal: 2, skipped: 0 };
    assert_eq!(actions(&mut checker), [Action::Note(done)]);
    assert_eq!(checker.poll_timeout(true), Some(now + MINUTE));
}

#[test]
fn the_one_that_differs_is_blamed_be_it_the_leader() {
    let facts3 = facts(3);
    assert_eq!(outcome(hash(7), &[hash(7), hash(8)], &facts3), [Action::Raise { member: 3 }]);
    assert_eq!(outcome(hash(8), &[hash(7), hash(7)], &facts3), [Action::Raise { member: 1 }]);
    assert_eq!(outcome(hash(7), &[hash(8)], &facts(2)), [Action::Raise { member: 0 }]);
    let raised = outcome(hash(7), &[hash(7), hash(8), hash(7), hash(9)], &facts(5));
    assert_eq!(raised, [Action::Raise { member: 3 }], "one alarm a check");
}

#[test]
fn members_that_can_not_be_compared_are_not_blamed() {
    let facts = facts(3);
    for finding in [Finding::Unknown, Finding::Busy] {
        assert_eq!(outcome(hash(7), &[hash(7), finding], &facts), []);
    }
    for finding in [hash_at(9, 11), hash_at(9, -1), Finding::Lags, Finding::Compacted { compact_revision: 200 }] {
        assert_eq!(outcome(hash(7), &[hash(7), finding], &facts), [], "{finding:?}: tried again");
    }
    assert_eq!(outcome(Finding::Compacted { compact_revision: 200 }, &[hash(8), hash(9)], &facts), []);
}

#[test]
fn a_check_that_a_compaction_met_is_tried_again_at_a_newer_revision_and_then_given_up() {
    let mut checker = checker(periodic());
    let mut facts = facts(2);
    let (mut now, mut number) = begin(&mut checker, &facts);
    for attempt in 1.. {
        checker.handle_own(now, number, hash_at(7, 10), &facts);
        tell(&mut checker, now, 2, number, hash_at(8, 90), &facts);
        assert_eq!(deeds(&mut checker), []);
        now = checker.poll_timeout(true).unwrap();
        facts = Facts { revision: facts.revision + 10, index: facts.index + 10, ..facts };
        checker.handle_timeout(now, &facts);
        let next = deeds(&mut checker);
        if attempt == CHECK_ATTEMPTS_MAX {
            assert!(matches!(next[..], [Action::Prove { .. }]), "the next check, or the next attempt: {next:?}");
            break;
        }
        let [Action::Prove { number: proving }] = next[..] else { panic!("{next:?}") };
        tell(&mut checker, now, 2, number, hash_at(8, 10), &facts);
        checker.handle_proved(now, proving, &facts);
        let stale = number;
        number = asked(&mut checker, &facts);
        tell(&mut checker, now, 2, stale, hash_at(8, 10), &facts);
        checker.handle_own(now, stale, hash_at(7, 10), &facts);
        assert_eq!(deeds(&mut checker), [], "answers to an earlier attempt do not count");
    }
}

#[test]
fn a_member_that_lacks_a_revision_or_has_one_too_many_differs() {
    let facts3 = facts(3);
    let short = Finding::Short { newest: 99, index: 60 };
    let ahead = Finding::Hash { hash: 7, compact_revision: 10, newest: 101, index: 50 };
    let newer = Finding::Hash { hash: 7, compact_revision: 10, newest: 101, index: 51 };
    assert_eq!(outcome(hash(7), &[hash(7), short], &facts3), [Action::Raise { member: 3 }]);
    assert_eq!(outcome(hash(7), &[hash(7), ahead], &facts3), [Action::Raise { member: 3 }]);
    assert_eq!(outcome(hash(7), &[ahead, ahead], &facts3), [Action::Raise { member: 1 }]);
    assert_eq!(outcome(hash(7), &[newer, newer], &facts3), [], "they have applied more");
}

#[test]
fn whoever_can_not_be_reached_is_passed_over_and_who_is_silent_is_asked_again() {
    let mut checker = checker(periodic());
    let mut facts = facts(3);
    let (now, number) = begin(&mut checker, &facts);
    checker.handle_own(now, number, hash(7), &facts);
    let again = checker.poll_timeout(true).unwrap();
    checker.handle_timeout(again, &facts);
    let to = deeds(&mut checker).into_iter().map(|action| match action {
        Action::Ask { to, question } if question.number == number => to,
        other => panic!("{other:?}"),
    });
    assert_eq!(to.collect::<Vec<_>>(), [2, 3]);
    tell(&mut checker, again, 2, number, hash(7), &facts);
    facts.others[1].1 = Link::Down;
    let later = checker.poll_timeout(true).unwrap();
    checker.handle_timeout(later, &facts);
    let done = CheckNote::Done { kind: CheckKind::Periodic, revision: 100, equal: 1, skipped: 1 };
    assert_eq!(actions(&mut checker), [Action::Note(done)]);
}

#[test]
fn a_leader_that_leads_no_more_blames_nobody() {
    let mut checker = checker(periodic());
    let mut facts = facts(3);
    let (now, number) = begin(&mut checker, &facts);
    tell(&mut checker, now, 2, number, hash(8), &facts);
    tell(&mut checker, now, 3, number, hash(8), &facts);
    facts.leads = false;
    checker.handle_timeout(now, &facts);
    checker.handle_own(now, number, hash(7), &facts);
    assert_eq!(deeds(&mut checker), []);
    assert_eq!(checker.poll_timeout(false), None, "only a leader checks");
    facts.leads = true;
    assert_eq!(checker.poll_timeout(true), Some(Duration::ZERO));
    checker.handle_timeout(now + SECOND, &facts);
    let next = checker.poll_timeout(true).unwrap();
    assert!(next >= now + MINUTE && next <= now + SECOND + MINUTE);
}

#[test]
fn answers_of_another_process_s_check_do_not_count() {
    let mut checker = checker(periodic());
    let facts = facts(2);
    let (now, number) = begin(&mut checker, &facts);
    checker.handle_own(now, number, hash(7), &facts);
    checker.handle_answer(now, 2, HashAnswer { boot: 76, number, finding: hash(8) }, &facts);
    checker.handle_answer(now, 9, HashAnswer { boot: 77, number, finding: hash(8) }, &facts);
    assert_eq!(deeds(&mut checker), []);
}

#[test]
fn a_member_serves_once_it_was_compared_and_refuses_where_it_differs() {
    for (finding, serves) in [(hash(7), true), (hash(8), false), (hash_at(8, 99), true), (Finding::Unknown, true)] {
        let mut checker = checker(initial());
        let facts = Facts { leads: false, ..facts(2) };
        assert!(!checker.may_serve());
        let mut now = Duration::ZERO;
        checker.handle_timeout(now, &facts);
        let [Action::Prove { number }] = deeds(&mut checker)[..] else { panic!() };
        checker.handle_proved(now, number, &facts);
        let mut number = asked(&mut checker, &facts);
        let mut end = Vec::new();
        for _ in 0..CHECK_ATTEMPTS_MAX {
            checker.handle_own(now, number, hash(7), &facts);
            tell(&mut checker, now, 2, number, finding, &facts);
            end = deeds(&mut checker);
            if !end.is_empty() {
                break;
            }
            now = checker.poll_timeout(false).unwrap();
            checker.handle_timeout(now, &facts);
            number = asked(&mut checker, &facts);
        }
        if serves {
            assert_eq!(end, [Action::Serve]);
        } else {
            assert!(matches!(end[..], [Action::Refuse(Mismatch { member: 2, revision: 100, .. })]));
            assert_eq!(checker.poll_timeout(false), None);
        }
        assert_eq!(checker.may_serve(), serves);
    }
}

#[test]
fn a_member_waits_a_bounded_time_for_others_before_it_serves() {
    let mut checker = checker(initial());
    let mut facts = Facts { leads: false, ..facts(3) };
    facts.others = vec![(2, Link::Unknown), (3, Link::Unknown)];
    let mut now = Duration::ZERO;
    while !checker.may_serve() {
        now = checker.poll_timeout(false).unwrap().max(now + Duration::from_millis(1));
        checker.handle_timeout(now, &facts);
        for action in deeds(&mut checker) {
            if let Action::Hash { number, .. } = action {
                checker.handle_own(now, number, hash(7), &facts);
            }
        }
        assert!(now < Duration::from_secs(10), "nobody is there");
    }
    assert!(now >= INITIAL_CHECK_JOIN_MAX);
}

#[test]
fn a_member_that_is_alone_or_new_serves_at_once() {
    let mut alone = checker(initial());
    alone.handle_timeout(Duration::ZERO, &facts(1));
    assert!(alone.may_serve());
    assert!(Checker::new(Duration::ZERO, 1, 77, 5, initial(), true).may_serve());
    assert!(checker(periodic()).may_serve());
}

fn kept(revision: i64, compact_revision: i64, hash: u32) -> HashKv {
    HashKv { hash, compact_revision, revision }
}

/// The question about a compaction that was just asked.
fn asked_for(checker: &mut Checker) -> Option<(u64, i64)> {
    deeds(checker).into_iter().find_map(|action| match action {
        Action::Ask { question: HashQuestion { number, what: HashWhat::Compaction { revision }, .. }, .. } => {
            Some((number, revision))
        }
        _ => None,
    })
}

#[test]
fn hashes_of_compactions_are_compared_once_the_newest_first() {
    let mut checker = checker(compactions());
    let mut facts = facts(3);
    facts.kept = vec![kept(20, 10, 1), kept(30, 20, 2), kept(40, 30, 3)];
    checker.handle_timeout(Duration::ZERO, &facts);
    let now = checker.poll_timeout(true).unwrap();
    checker.handle_timeout(now, &facts);
    let (number, revision) = asked_for(&mut checker).unwrap();
    assert_eq!(revision, 40);
    tell(&mut checker, now, 2, number, hash_at(3, 30), &facts);
    tell(&mut checker, now, 3, number, Finding::Unknown, &facts);
    let (number, revision) = asked_for(&mut checker).expect("not all have the newest one");
    assert_eq!((revision, checker.checked_compaction()), (30, 0));
    tell(&mut checker, now, 2, number, hash_at(2, 20), &facts);
    tell(&mut checker, now, 3, number, hash_at(2, 20), &facts);
    assert_eq!((asked_for(&mut checker), checker.checked_compaction()), (None, 30));
    let next = checker.poll_timeout(true).unwrap();
    checker.handle_timeout(next, &facts);
    let (number, revision) = asked_for(&mut checker).unwrap();
    assert_eq!(revision, 40);
    tell(&mut checker, next, 2, number, hash_at(3, 30), &facts);
    tell(&mut checker, next, 3, number, hash_at(3, 30), &facts);
    let after = checker.poll_timeout(true).unwrap();
    checker.handle_timeout(after, &facts);
    assert_eq!((asked_for(&mut checker), checker.checked_compaction()), (None, 40));
}

#[test]
fn all_that_differ_in_a_compaction_are_blamed_and_others_floors_are_passed_over() {
    let found = |findings: &[Finding]| {
        let mut checker = checker(compactions());
        let mut facts = facts(5);
        facts.kept = vec![kept(40, 30, 3)];
        checker.handle_timeout(Duration::ZERO, &facts);
        let now = checker.poll_timeout(true).unwrap();
        checker.handle_timeout(now, &facts);
        let (number, _) = asked_for(&mut checker).unwrap();
        for (id, finding) in (2..).zip(findings) {
            tell(&mut checker, now, id, number, *finding, &facts);
        }
        (deeds(&mut checker), checker.checked_compaction())
    };
    let equal = hash_at(3, 30);
    let (blamed, checked) = found(&[equal, hash_at(4, 30), equal, hash_at(5, 30)]);
    assert_eq!((blamed, checked), (vec![Action::Raise { member: 3 }, Action::Raise { member: 5 }], 0));
    assert_eq!(found(&[equal, hash_at(4, 20), equal, equal]), (vec![], 0));
    assert_eq!(found(&[equal, hash_at(4, 30), Finding::Unknown, Finding::Busy]).0, [Action::Raise { member: 0 }]);
    assert_eq!(found(&[equal; 4]), (vec![], 40));
}
