use proptest::prelude::*;

use super::*;
use crate::corruption::{Finding, HashAnswer, HashQuestion, HashWhat};

fn any_refusal() -> impl Strategy<Value = Refusal> {
    prop::sample::select(vec![Refusal::NotLeader, Refusal::NoSpace, Refusal::TooManyRequests])
}

fn any_hash_message() -> impl Strategy<Value = HashMessage> {
    let what = prop_oneof![
        any::<(i64, u64)>().prop_map(|(revision, index)| HashWhat::History { revision, index }),
        any::<i64>().prop_map(|revision| HashWhat::Compaction { revision }),
    ];
    let finding = prop_oneof![
        any::<(u32, i64, i64, u64)>().prop_map(|(hash, compact_revision, newest, index)| Finding::Hash {
            hash,
            compact_revision,
            newest,
            index
        }),
        any::<(i64, u64)>().prop_map(|(newest, index)| Finding::Short { newest, index }),
        any::<i64>().prop_map(|compact_revision| Finding::Compacted { compact_revision }),
        prop::sample::select(vec![Finding::Lags, Finding::Unknown, Finding::Busy]),
    ];
    let question = |([boot, number], what): ([u64; 2], _)| HashMessage::Question(HashQuestion { boot, number, what });
    let answer = |([boot, number], finding): ([u64; 2], _)| HashMessage::Answer(HashAnswer { boot, number, finding });
    prop_oneof![(any::<[u64; 2]>(), what).prop_map(question), (any::<[u64; 2]>(), finding).prop_map(answer)]
}

fn any_message() -> impl Strategy<Value = PeerMessage> {
    let range =
        (any::<[u64; 2]>(), any_refusal()).prop_map(|([first, last], reason)| RefusedRange { first, last, reason });
    let what = (any::<bool>(), any::<i64>())
        .prop_map(|(renew, id)| if renew { What::KeepAlive { id } } else { What::TimeToLive { id } });
    let content = prop_oneof![
        any::<i64>().prop_map(|ttl_seconds| AnswerContent::KeepAlive { ttl_seconds }),
        any::<[i64; 2]>().prop_map(|[ttl_seconds, granted_ttl_seconds]| AnswerContent::TimeToLive {
            ttl_seconds,
            granted_ttl_seconds
        }),
        any_refusal().prop_map(AnswerContent::Refused),
    ];
    prop_oneof![
        any_hash_message().prop_map(PeerMessage::Hash),
        any::<u64>().prop_map(|index| PeerMessage::Full { index }),
        prop::collection::vec(any::<u8>(), 0..50).prop_map(|data| PeerMessage::Forward(Bytes::from(data))),
        (any::<[u64; 2]>(), prop::collection::vec(range, 0..5))
            .prop_map(|([session, term], ranges)| PeerMessage::Refused(Refused { session, term, ranges })),
        (any::<[u64; 2]>(), what).prop_map(|([boot, number], what)| PeerMessage::Question(Question {
            boot,
            number,
            what
        })),
        (any::<[u64; 2]>(), content).prop_map(|([boot, number], content)| PeerMessage::Answer(Answer {
            boot,
            number,
            content
        })),
    ]
}

proptest! {
    #[test]
    fn every_message_reads_back_as_it_was_written(message in any_message()) {
        let body = message.encode().expect("not one of Raft's");
        prop_assert_eq!(PeerMessage::decode(&body), Ok(message));
    }

    #[test]
    fn every_truncated_message_is_refused_but_for_a_forward_whose_data_has_its_own_end(
        message in any_message(),
        cut: prop::sample::Index,
    ) {
        let body = message.encode().expect("not one of Raft's");
        let cut = cut.index(body.len());
        let decoded = PeerMessage::decode(&body.slice(..cut));
        prop_assert!(decoded.is_err() || matches!(message, PeerMessage::Forward(_)));
    }

    #[test]
    fn arbitrary_bytes_are_read_or_refused_without_a_panic(kind in 0..9_u8, content in prop::collection::vec(any::<u8>(), 0..60)) {
        let mut body = vec![VERSION, kind];
        body.extend(content);
        let body = Bytes::from(body);
        if let Ok(message) = PeerMessage::decode(&body) {
            prop_assert_eq!(message.encode(), Some(body));
        }
    }
}

#[test]
fn a_newer_version_and_an_unknown_kind_are_named_and_refused() {
    assert_eq!(PeerMessage::decode(&Bytes::from_static(&[2, 1])), Err(PeerDecodeError::UnknownVersion(2)));
    assert_eq!(PeerMessage::decode(&Bytes::from_static(&[1, 99])), Err(PeerDecodeError::UnknownKind(99)));
    assert_eq!(PeerMessage::decode(&Bytes::new()), Err(PeerDecodeError::Length));
}

#[test]
fn a_count_beyond_the_bound_makes_no_room() {
    let mut body = vec![VERSION, tag::REFUSED];
    body.extend([7; 2].map(u64::to_le_bytes).concat());
    body.extend(u32::MAX.to_le_bytes());
    assert_eq!(PeerMessage::decode(&Bytes::from(body)), Err(PeerDecodeError::TooLarge));
}

#[test]
fn raft_s_own_messages_have_no_body_here_and_every_message_has_a_lane() {
    let heartbeat =
        PeerMessage::Raft(Message { msg_type: raft::eraftpb::MessageType::MsgHeartbeat, ..Message::default() });
    assert_eq!((heartbeat.encode(), heartbeat.lane()), (None, Some(Lane::Control)));
    assert_eq!(PeerMessage::Forward(Bytes::new()).lane(), Some(Lane::Log));
}
