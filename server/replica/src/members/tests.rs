use core::time::Duration;
use std::collections::BTreeMap;

use super::rules::{self, Connectivity};
use super::*;

fn url(n: u64) -> String {
    format!("http://10.0.0.{n}:2380")
}

/// Started members with the ids from 1 on.
fn started(count: u64) -> Members {
    Members::founding((1..=count).map(|id| MemberRecord {
        id,
        name: format!("m{id}"),
        peer_urls: vec![url(id)],
        client_urls: vec![format!("http://10.0.0.{id}:2379")],
        is_learner: false,
    }))
}

fn change(member_id: u64, action: ChangeAction) -> MemberChange {
    MemberChange { origin: ChangeOrigin { member_id: 1, boot: 2, sequence: 3 }, member_id, action }
}

fn voter(n: u64) -> ChangeAction {
    ChangeAction::AddVoter { peer_urls: vec![url(n)] }
}

fn learner(n: u64) -> ChangeAction {
    ChangeAction::AddLearner { peer_urls: vec![url(n)] }
}

fn made(mut members: Members, changes: &[MemberChange]) -> Members {
    for change in changes {
        members.check(change).unwrap();
        members.apply(change);
    }
    members
}

#[test]
fn changes_that_do_not_fit_are_refused_for_etcds_reasons_in_etcds_order() {
    let members = made(started(3), &[change(4, learner(4)), change(3, ChangeAction::Remove)]);
    let update = |n| ChangeAction::Update { peer_urls: vec![url(n)] };
    let publish = ChangeAction::Publish(Attributes::default());
    let table = [
        (3, voter(9), Err(Error::MemberNotFound)),
        (3, ChangeAction::Remove, Err(Error::MemberNotFound)),
        (3, ChangeAction::Promote, Err(Error::MemberNotFound)),
        (3, update(9), Err(Error::MemberNotFound)),
        (3, publish.clone(), Err(Error::MemberNotFound)),
        (1, voter(1), Err(Error::MemberExists)),
        (9, voter(1), Err(Error::PeerUrlExists)),
        (9, learner(4), Err(Error::PeerUrlExists)),
        (9, voter(3), Ok(())),
        (9, learner(9), Ok(())),
        (9, ChangeAction::Promote, Err(Error::MemberNotFound)),
        (1, ChangeAction::Promote, Err(Error::MemberNotLearner)),
        (4, ChangeAction::Promote, Ok(())),
        (9, ChangeAction::Remove, Err(Error::MemberNotFound)),
        (4, ChangeAction::Remove, Ok(())),
        (1, ChangeAction::Remove, Ok(())),
        (9, update(9), Err(Error::MemberNotFound)),
        (1, update(2), Err(Error::PeerUrlExists)),
        (1, update(1), Ok(())),
        (9, publish.clone(), Err(Error::MemberNotFound)),
        (4, publish, Ok(())),
    ];
    for (id, action, expected) in table {
        assert_eq!(members.check(&change(id, action.clone())), expected, "{id}: {action:?}");
    }
    assert_eq!(
        started(1).check(&change(1, ChangeAction::Remove)),
        Err(Error::NotEnoughStarted),
        "the last voter stays"
    );
}

#[test]
fn a_member_goes_from_learner_to_voter_to_removed_for_ever() {
    let members = made(started(2), &[change(7, learner(7))]);
    let added = MemberRecord { id: 7, peer_urls: vec![url(7)], is_learner: true, ..MemberRecord::default() };
    assert_eq!(members.get(7), Some(&added));
    let attributes =
        Attributes { name: "seven".into(), client_urls: vec!["http://c:1".into()], peer_urls: vec![url(99)] };
    let members = made(members, &[change(7, ChangeAction::Publish(attributes)), change(7, ChangeAction::Promote)]);
    let expected = MemberRecord {
        id: 7,
        name: "seven".into(),
        peer_urls: vec![url(7)],
        client_urls: vec!["http://c:1".into()],
        is_learner: false,
    };
    assert_eq!(members.get(7), Some(&expected), "its peer URLs stay those it was added with");
    let members = made(members, &[change(7, ChangeAction::Remove)]);
    assert!(members.is_removed(7) && members.get(7).is_none());
    assert_eq!(members.check(&change(7, learner(7))), Err(Error::MemberNotFound));
}

#[test]
fn a_store_of_before_there_were_records_gets_its_peer_urls_by_the_first_publish() {
    let mut members = Members::default();
    members.complete(&Membership::single(5));
    let attributes = Attributes { name: "old".into(), client_urls: vec![], peer_urls: vec![url(5)] };
    let members = made(members, &[change(5, ChangeAction::Publish(attributes))]);
    assert_eq!(members.get(5).unwrap().peer_urls, [url(5)]);
}

#[test]
fn forcing_a_new_cluster_leaves_one_voter_and_the_ids_of_the_others() {
    let mut members = made(started(2), &[change(4, learner(4))]);
    assert_eq!(members.keep_only(4), [1, 2]);
    assert_eq!(members.iter().map(|member| (member.id, member.is_learner)).collect::<Vec<_>>(), [(4, false)]);
    assert_eq!(members.removed().collect::<Vec<_>>(), [1, 2]);
}

const NOW: Duration = Duration::from_secs(60);

/// Who has been connected for how many seconds.
fn connected(ages: &[(u64, u64)]) -> BTreeMap<u64, Duration> {
    ages.iter().map(|(id, age)| (*id, NOW - Duration::from_secs(*age))).collect()
}

fn seen(since: &BTreeMap<u64, Duration>) -> Connectivity<'_> {
    Connectivity { own_id: 1, since, now: NOW }
}

/// Who has been connected for how many seconds.
type Ages = &'static [(u64, u64)];

/// Marks members as never started.
fn unstarted(mut members: Members, ids: &[u64]) -> Members {
    for id in ids {
        members.known(*id).name.clear();
    }
    members
}

#[test]
fn a_member_joins_only_where_the_larger_cluster_has_its_quorum_without_it() {
    let table: [(Members, Ages, bool, Result<(), Error>); 13] = [
        // A lone member may always get company.
        (started(1), &[], false, Ok(())),
        (started(1), &[], true, Ok(())),
        (unstarted(started(1), &[1]), &[], false, Err(Error::NotEnoughStarted)),
        // Two voters with a third that is down: both must be connected.
        (started(2), &[(2, 6)], false, Ok(())),
        (started(2), &[(2, 5)], false, Err(Error::Unhealthy)),
        (started(2), &[], true, Err(Error::Unhealthy)),
        (unstarted(started(2), &[2]), &[(2, 9)], false, Err(Error::NotEnoughStarted)),
        (unstarted(started(2), &[2]), &[(2, 9)], true, Ok(())),
        // Three voters with a fourth that is down: all three.
        (started(3), &[(2, 9), (3, 9)], false, Ok(())),
        (started(3), &[(2, 9)], false, Err(Error::Unhealthy)),
        (started(3), &[(2, 9), (3, 4)], true, Err(Error::Unhealthy)),
        // Four voters and a fifth: three of them.
        (started(4), &[(2, 9), (3, 9)], false, Ok(())),
        (started(4), &[(2, 9)], false, Err(Error::Unhealthy)),
    ];
    for (members, ages, is_learner, expected) in table {
        let since = connected(ages);
        assert_eq!(rules::may_add(&members, is_learner, &seen(&since)), expected, "{members:?} {ages:?} {is_learner}");
    }
}

#[test]
fn a_member_leaves_only_where_the_others_are_a_quorum_of_what_is_left() {
    let with_learner = made(started(3), &[change(4, learner(4))]);
    let table: [(Members, u64, Ages, Result<(), Error>); 13] = [
        (started(1), 1, &[], Err(Error::NotEnoughStarted)),
        (started(2), 2, &[(2, 9)], Ok(())),
        (started(2), 1, &[(2, 9)], Ok(())),
        (started(2), 2, &[], Ok(())),
        (started(2), 1, &[], Err(Error::Unhealthy)),
        (unstarted(started(2), &[1]), 2, &[(2, 9)], Err(Error::NotEnoughStarted)),
        (started(3), 3, &[(2, 9), (3, 9)], Ok(())),
        (started(3), 3, &[(2, 9)], Ok(())),
        (started(3), 3, &[(3, 9)], Err(Error::Unhealthy)),
        (started(3), 3, &[(2, 2), (3, 9)], Err(Error::Unhealthy)),
        (started(3), 1, &[(2, 9)], Err(Error::Unhealthy)),
        // A learner may always go, and an id that is unknown is found out later.
        (with_learner, 4, &[], Ok(())),
        (started(3), 9, &[], Ok(())),
    ];
    for (members, id, ages, expected) in table {
        let since = connected(ages);
        assert_eq!(rules::may_remove(&members, id, &seen(&since)), expected, "{members:?} {id} {ages:?}");
    }
}

#[test]
fn a_learner_gets_a_vote_once_it_holds_nine_tenths_of_the_log_and_enough_have_started() {
    assert_eq!(rules::is_caught_up(90, 100), Ok(()));
    assert_eq!(rules::is_caught_up(89, 100), Err(Error::LearnerNotReady));
    assert_eq!(rules::is_caught_up(u64::MAX, u64::MAX), Ok(()));
    assert_eq!(rules::is_caught_up(0, 1), Err(Error::LearnerNotReady));
    assert_eq!(rules::may_promote(&started(1)), Ok(()));
    assert_eq!(rules::may_promote(&unstarted(started(2), &[1, 2])), Err(Error::NotEnoughStarted));
    assert_eq!(rules::may_promote(&unstarted(started(2), &[2])), Ok(()));
}

#[test]
fn there_is_room_for_as_many_learners_as_are_allowed() {
    let members = made(started(3), &[change(4, learner(4))]);
    assert_eq!(rules::has_room_for_learner(&members, 1), Err(Error::TooManyLearners));
    assert_eq!(rules::has_room_for_learner(&members, 2), Ok(()));
}

#[test]
fn changes_records_and_messages_read_back_as_they_were_written_and_no_shorter() {
    let attributes = Attributes { name: "näme".into(), client_urls: vec![url(1), url(2)], peer_urls: vec![url(3)] };
    let actions = [
        voter(1),
        ChangeAction::AddLearner { peer_urls: vec![url(1), url(2)] },
        ChangeAction::Promote,
        ChangeAction::Remove,
        ChangeAction::Update { peer_urls: vec![] },
        ChangeAction::Publish(attributes),
    ];
    for action in actions {
        let change = change(0x0102_0304_0506_0708, action);
        let bytes = change.to_bytes();
        assert_eq!(MemberChange::from_bytes(&bytes), Ok(change.clone()));
        for length in 0..bytes.len() {
            assert!(MemberChange::from_bytes(&bytes[..length]).is_err(), "{change:?} {length}");
        }
        let message = MemberMessage::Change(change);
        assert_eq!(MemberMessage::from_bytes(&message.to_bytes()), Ok(message));
    }
    let refused = MemberMessage::Refused { boot: 1, sequence: 2, error: Error::LearnerNotReady };
    assert_eq!(MemberMessage::from_bytes(&refused.to_bytes()), Ok(refused));
    assert_eq!(MemberChange::from_bytes(&[1]), Err(MembersError::UnknownVersion(1)));
    let members = made(started(1), &[change(2, learner(2))]);
    for record in members.iter() {
        let read = codec::read_record(&record_key(record.id), &record_value(record));
        assert_eq!(read.as_ref(), Some(record));
    }
    assert_eq!(codec::read_removed(&removed_key(7)), Some(7));
}
