use super::*;
use crate::envelope::Ticket;

const ELECTION: Duration = Duration::from_secs(1);
const HEARTBEAT: Duration = Duration::from_millis(100);
const ASKER: Asker = Asker::Client(Ticket { core: 0, sequence: 1 });

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn primary() -> Lessor {
    let mut lessor = Lessor::new(ELECTION, HEARTBEAT, []);
    lessor.promote(Duration::ZERO);
    lessor
}

fn grant(lessor: &mut Lessor, now: Duration, id: i64, ttl_seconds: i64) -> i64 {
    let ttl_seconds = lessor.check_grant(id, ttl_seconds).unwrap();
    lessor.insert(now, id, ttl_seconds);
    ttl_seconds
}

#[test]
fn the_smallest_time_to_live_follows_the_timeouts() {
    assert_eq!(min_ttl_seconds(ELECTION, HEARTBEAT), 2);
    assert_eq!(min_ttl_seconds(Duration::from_millis(5_000), Duration::from_millis(500)), 8);
    assert_eq!(min_ttl_seconds(Duration::from_millis(100), Duration::from_millis(10)), 1);
}

#[test]
fn grants_are_bounded_and_unique() {
    let mut lessor = primary();
    assert_eq!(grant(&mut lessor, seconds(0), -5, 1), 2, "negative ids are legal, small times to live are raised");
    assert_eq!(lessor.check_grant(-5, 1), Err(Error::LeaseExists));
    assert_eq!(lessor.check_grant(1, 9_000_000_001), Err(Error::LeaseTtlTooLarge));
    assert_eq!(lessor.check_grant(1, 9_000_000_000), Ok(9_000_000_000));
    assert_eq!(lessor.check_grant(1, -1), Ok(2));
    assert_eq!(lessor.check_grant(0, 1), Err(Error::LeaseNotFound));
}

#[test]
fn a_lease_expires_when_its_time_has_passed_and_not_before() {
    let mut lessor = primary();
    grant(&mut lessor, seconds(0), 1, 10);
    let almost = seconds(10) - Duration::from_nanos(1);
    assert!(lessor.take_expired(almost).is_empty());
    assert_eq!(lessor.poll_timeout(), Some(seconds(10)));
    assert_eq!(lessor.take_expired(seconds(10)), [1]);
    assert_eq!(lessor.time_to_live(seconds(11), 1), Some((0, 10)));
}

#[test]
fn a_renewal_moves_the_expiry() {
    let mut lessor = primary();
    grant(&mut lessor, seconds(0), 1, 10);
    assert_eq!(lessor.keep_alive(seconds(9), 1, ASKER), Ok(KeepAlive::Renewed(10)));
    assert!(lessor.take_expired(seconds(10)).is_empty());
    assert!(lessor.take_expired(seconds(18)).is_empty());
    assert_eq!(lessor.take_expired(seconds(19)), [1]);
    assert_eq!(lessor.keep_alive(seconds(19), 2, ASKER), Ok(KeepAlive::Unknown));
}

#[test]
fn a_keep_alive_of_an_expired_lease_waits_until_it_is_revoked() {
    let mut lessor = primary();
    grant(&mut lessor, seconds(0), 1, 10);
    assert_eq!(
        lessor.keep_alive(seconds(10), 1, ASKER),
        Ok(KeepAlive::Waits),
        "not proposed yet, expired all the same"
    );
    assert_eq!(lessor.take_expired(seconds(10)), [1]);
    let other = Asker::Client(Ticket { core: 1, sequence: 2 });
    assert_eq!(lessor.keep_alive(seconds(11), 1, other), Ok(KeepAlive::Waits));
    assert_eq!(lessor.remove(1), [ASKER, other]);
    assert_eq!(lessor.keep_alive(seconds(11), 1, ASKER), Ok(KeepAlive::Unknown));
}

#[test]
fn waiting_keep_alives_are_told_when_leadership_is_lost() {
    let mut lessor = primary();
    grant(&mut lessor, seconds(0), 1, 10);
    assert_eq!(lessor.keep_alive(seconds(10), 1, ASKER), Ok(KeepAlive::Waits));
    assert_eq!(lessor.demote(), [(1, ASKER)]);
    assert_eq!(lessor.keep_alive(seconds(10), 1, ASKER), Err(Error::LeaderChanged));
    assert!(lessor.take_expired(seconds(1_000)).is_empty(), "only a leader expires leases");
    assert_eq!(lessor.poll_timeout(), None);
}

#[test]
fn a_new_leader_gives_every_lease_its_full_time_and_an_election_timeout() {
    let mut lessor = Lessor::new(ELECTION, HEARTBEAT, [(1, 10), (2, 20)]);
    assert!(lessor.take_expired(seconds(1_000)).is_empty());
    lessor.promote(seconds(100));
    assert_eq!(lessor.keep_alive(seconds(100), 1, ASKER), Ok(KeepAlive::Renewed(10)));
    assert!(lessor.take_expired(seconds(111) - Duration::from_nanos(1)).is_empty(), "a renewal shortens nothing");
    assert_eq!(lessor.take_expired(seconds(111)), [1]);
    assert_eq!(lessor.take_expired(seconds(121)), [1, 2], "what was not revoked is proposed again");
}

#[test]
fn a_revocation_that_fails_is_proposed_again() {
    let mut lessor = primary();
    grant(&mut lessor, seconds(0), 1, 10);
    assert_eq!(lessor.take_expired(seconds(10)), [1]);
    assert!(lessor.take_expired(seconds(12)).is_empty());
    assert_eq!(lessor.poll_timeout(), Some(seconds(10) + REVOKE_RETRY));
    assert_eq!(lessor.take_expired(seconds(13)), [1]);
}

#[test]
fn a_lease_granted_anew_does_not_inherit_the_expiry_of_its_predecessor() {
    let mut lessor = primary();
    grant(&mut lessor, seconds(0), 1, 10);
    lessor.remove(1);
    grant(&mut lessor, seconds(5), 1, 10);
    assert!(lessor.take_expired(seconds(14)).is_empty());
    assert_eq!(lessor.take_expired(seconds(15)), [1]);
}

#[test]
fn expiries_are_proposed_at_a_bounded_rate() {
    let mut lessor = primary();
    for id in 1..=2_500 {
        grant(&mut lessor, seconds(0), id, 10);
    }
    let mut taken = 0;
    for step in 0..1_000 {
        let now = seconds(10) + Duration::from_millis(step);
        for id in lessor.take_expired(now) {
            taken += 1;
            lessor.remove(id);
        }
    }
    assert_eq!(taken, 1_000);
    assert_eq!(lessor.len(), 1_500);
}

#[test]
fn one_wakeup_is_kept_for_a_lease_however_often_it_is_renewed() {
    let mut lessor = primary();
    grant(&mut lessor, seconds(0), 1, 10);
    for second in 1..1_000 {
        assert_eq!(lessor.keep_alive(seconds(second), 1, ASKER), Ok(KeepAlive::Renewed(10)));
        assert!(lessor.take_expired(seconds(second)).is_empty());
        assert!(lessor.wakeups.len() <= 1);
    }
}

#[test]
fn leases_are_listed_by_expiry() {
    let mut lessor = primary();
    grant(&mut lessor, seconds(0), 1, 30);
    grant(&mut lessor, seconds(0), 2, 10);
    grant(&mut lessor, seconds(0), 3, 20);
    grant(&mut lessor, seconds(0), -9, 30);
    assert_eq!(lessor.list(), [2, 3, 1, -9], "of two that expire at once the older one comes first");
    assert_eq!(lessor.time_to_live(Duration::from_millis(1_500), 2), Some((8, 10)));
    assert_eq!(lessor.time_to_live(seconds(0), 9), None);
}
