use super::*;
use crate::codec::decode_entry;
use crate::request::{Command, Principal};

const NOW: Duration = Duration::from_secs(1);

fn outbox() -> Outbox {
    Outbox::new(7, KeyspaceId(0), 5)
}

/// Adds a batch of writes whose tickets are `tickets`, which show as the leases that they revoke.
fn push(outbox: &mut Outbox, tickets: impl IntoIterator<Item = u64>) {
    let mut builder = EntryBuilder::sourced(KeyspaceId(0));
    let mut ends = Vec::new();
    for sequence in tickets {
        builder.push(&Principal::Anonymous, &Command::LeaseRevoke { id: i64::try_from(sequence).unwrap() });
        ends.push((Ticket { core: 0, sequence }, builder.len()));
    }
    outbox.push(builder, &ends, Vec::new(), NOW);
}

/// The first number and the tickets of each batch that would go out.
fn parcels(outbox: &mut Outbox) -> Vec<(u64, Vec<i64>)> {
    let mut parcels = Vec::new();
    while let Some(parcel) = outbox.take_parcel() {
        let batch = decode_entry(&parcel.data).unwrap();
        assert_eq!(batch.source, Some(Source { member_id: 7, session: outbox.session(), first: parcel.first }));
        assert_eq!(u64::try_from(batch.items.len()).unwrap(), parcel.count);
        let ids = batch.items.iter().map(|item| match item.command {
            Command::LeaseRevoke { id } => id,
            _ => panic!("only revocations were pushed"),
        });
        parcels.push((parcel.first, ids.collect()));
    }
    assert!(!outbox.has_unsent());
    parcels
}

fn tickets(writes: &[Write]) -> Vec<u64> {
    writes.iter().map(|write| write.ticket.sequence).collect()
}

#[test]
fn new_batches_go_out_once_and_as_they_are() {
    let mut outbox = outbox();
    push(&mut outbox, [10, 11]);
    push(&mut outbox, [12]);
    assert!(outbox.has_unsent());
    assert_eq!(parcels(&mut outbox), [(1, vec![10, 11]), (3, vec![12])]);
    assert!(outbox.take_parcel().is_none());
}

#[test]
fn everything_unapplied_goes_out_again_oldest_first_in_few_batches() {
    let mut outbox = outbox();
    for ticket in 10..15 {
        push(&mut outbox, [ticket]);
    }
    parcels(&mut outbox);
    assert_eq!(tickets(&outbox.applied(1, 2)), [10, 11]);
    outbox.rewind();
    assert_eq!(parcels(&mut outbox), [(3, vec![12, 13, 14])]);
    outbox.rewind();
    push(&mut outbox, [15]);
    assert_eq!(parcels(&mut outbox), [(3, vec![12, 13, 14]), (6, vec![15])]);
}

#[test]
fn a_write_that_was_passed_over_gets_a_new_number() {
    let mut outbox = outbox();
    push(&mut outbox, [10, 11]);
    push(&mut outbox, [12]);
    parcels(&mut outbox);
    assert_eq!(tickets(&outbox.applied(3, 1)), [12]);
    assert_eq!(parcels(&mut outbox), [(4, vec![10, 11])]);
    assert_eq!(tickets(&outbox.applied(4, 2)), [10, 11]);
    assert!(outbox.is_empty() && outbox.bytes() == 0);
}

#[test]
fn what_was_answered_otherwise_is_not_sent() {
    let mut outbox = outbox();
    push(&mut outbox, [10, 11, 12, 13]);
    assert_eq!(tickets(&outbox.remove(2, 3)), [11, 12]);
    assert_eq!(outbox.remove(2, 3), []);
    assert_eq!(parcels(&mut outbox), [(1, vec![10]), (4, vec![13])]);
    assert_eq!(tickets(&outbox.applied(4, 1)), [13]);
    assert_eq!(outbox.expire(Duration::ZERO), []);
    assert_eq!(tickets(&outbox.expire(NOW)), [10]);
    assert!(outbox.is_empty() && outbox.bytes() == 0 && !outbox.has_unsent());
}

#[test]
fn a_new_session_sends_everything_anew() {
    let mut outbox = outbox();
    push(&mut outbox, [10]);
    push(&mut outbox, [11]);
    parcels(&mut outbox);
    outbox.renew(9);
    assert_eq!(parcels(&mut outbox), [(1, vec![10, 11])]);
    assert_eq!(tickets(&outbox.applied(1, 2)), [10, 11]);
}
