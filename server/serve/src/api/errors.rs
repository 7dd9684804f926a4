//! The one place where refusals become gRPC codes and texts.
//!
//! Clients tell refusals apart by their text, so each is exactly etcd's.

use garboard_proto::lenient::DecodeFailure;
use garboard_replica::Error;
use tonic::{Code, Status};

/// Why the edge refuses a request: the domain's reasons, and those that only the wire knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The domain's reason.
    Replica(Error),
    /// The metadata's `client-api-version` is no text.
    InvalidClientApiVersion,
    /// A stream of a range can't be in another order than that of keys.
    RangeStreamSorted,
    /// A stream of a range can't be filtered.
    RangeStreamFiltered,
    /// An alarm's action is none of the known ones. etcd crashes here.
    UnknownAlarmAction,
    /// Nothing by that name has a health of its own.
    UnknownHealthService,
    /// The client of a watch stream is gone.
    WatchCanceled,
    /// The method exists and does nothing yet.
    NotImplemented(&'static str),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Replica(error)
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        let (code, text) = match refusal {
            Refusal::Replica(error) => code_and_text(error),
            Refusal::InvalidClientApiVersion => (Code::InvalidArgument, "etcdserver: invalid client api version"),
            Refusal::RangeStreamSorted => (Code::Unimplemented, "RangeStream does not support custom sort orders"),
            Refusal::RangeStreamFiltered => (Code::Unimplemented, "RangeStream does not support revision filters"),
            Refusal::UnknownAlarmAction => (Code::InvalidArgument, "etcdserver: unknown alarm action"),
            Refusal::UnknownHealthService => (Code::NotFound, "unknown service"),
            Refusal::WatchCanceled => (Code::Cancelled, "etcdserver: watch canceled"),
            Refusal::NotImplemented(method) => {
                return Status::unimplemented(format!("{method} is not implemented by Garboard yet"));
            }
        };
        Status::new(code, text)
    }
}

/// The status of a call whose client no longer waits.
pub fn deadline_exceeded() -> Status {
    Status::deadline_exceeded("context deadline exceeded")
}

/// The status of a domain error.
pub fn status(error: Error) -> Status {
    Refusal::Replica(error).into()
}

/// The status of a request that does not decode, in a call of one request and one response.
pub fn undecodable_in_unary(failure: DecodeFailure) -> Status {
    Status::internal(format!("grpc: error unmarshalling request: {}", decode_text(failure)))
}

/// The status of a request that does not decode, in a call with a stream on either side.
pub fn undecodable_in_stream(failure: DecodeFailure) -> Status {
    Status::internal(format!("grpc: failed to unmarshal the received message: {}", decode_text(failure)))
}

fn decode_text(failure: DecodeFailure) -> &'static str {
    match failure {
        DecodeFailure::WireFormat => "proto: cannot parse invalid wire-format data",
        DecodeFailure::Utf8 => "string field contains invalid UTF-8",
    }
}

/// The code and text of each of the domain's reasons.
fn code_and_text(error: Error) -> (Code, &'static str) {
    use Code::{DataLoss, FailedPrecondition, InvalidArgument, NotFound, OutOfRange, ResourceExhausted, Unavailable};
    match error {
        Error::EmptyKey => (InvalidArgument, "etcdserver: key is not provided"),
        Error::KeyNotFound => (InvalidArgument, "etcdserver: key not found"),
        Error::ValueProvided => (InvalidArgument, "etcdserver: value is provided"),
        Error::LeaseProvided => (InvalidArgument, "etcdserver: lease is provided"),
        Error::TooManyOperations => (InvalidArgument, "etcdserver: too many operations in txn request"),
        Error::DuplicateKey => (InvalidArgument, "etcdserver: duplicate key given in txn request"),
        Error::InvalidSortOption => (InvalidArgument, "etcdserver: invalid sort option"),
        Error::RequestTooLarge => (InvalidArgument, "etcdserver: request is too large"),
        Error::Compacted => (OutOfRange, "etcdserver: mvcc: required revision has been compacted"),
        Error::FutureRevision => (OutOfRange, "etcdserver: mvcc: required revision is a future revision"),
        Error::LeaseTtlTooLarge => (OutOfRange, "etcdserver: too large lease TTL"),
        Error::LeaseNotFound => (NotFound, "etcdserver: requested lease not found"),
        Error::LeaseExists => (FailedPrecondition, "etcdserver: lease already exists"),
        Error::NoSpace => (ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
        Error::Corrupt => (DataLoss, "etcdserver: corrupt cluster"),
        // etcd maps this one to an error of its client library, which carries no status: its code gets lost.
        Error::TooManyRequests => (Code::Unknown, "etcdserver: too many requests"),
        Error::NoLeader => (Unavailable, "etcdserver: no leader"),
        Error::LeaderChanged => (Unavailable, "etcdserver: leader changed"),
        Error::MemberNotFound => (NotFound, "etcdserver: member not found"),
        Error::MemberExists => (FailedPrecondition, "etcdserver: member ID already exist"),
        Error::PeerUrlExists => (FailedPrecondition, "etcdserver: Peer URLs already exists"),
        Error::BadMemberUrls => (InvalidArgument, "etcdserver: given member URLs are invalid"),
        // As for too many requests, the code gets lost.
        Error::NotEnoughStarted => {
            (Code::Unknown, "etcdserver: re-configuration failed due to not enough started members")
        }
        Error::Unhealthy => (Unavailable, "etcdserver: unhealthy cluster"),
        Error::MemberNotLearner => (FailedPrecondition, "etcdserver: can only promote a learner member"),
        Error::LearnerNotReady => {
            (FailedPrecondition, "etcdserver: can only promote a learner member which is in sync with leader")
        }
        Error::TooManyLearners => (FailedPrecondition, "etcdserver: too many learner members in cluster"),
        Error::TooManyMembers => (ResourceExhausted, "etcdserver: too many members in cluster"),
        Error::NotForLearner => (FailedPrecondition, "etcdserver: rpc not supported for learner"),
        Error::NotLeader => (FailedPrecondition, "etcdserver: not leader"),
        Error::BadLeaderTransferee => (FailedPrecondition, "etcdserver: bad leader transferee"),
        Error::LeaderTransferTimeout => (Code::Unknown, "etcdserver: request timed out, leader transfer took too long"),
        Error::LeaderFailedTimeout => {
            (Unavailable, "etcdserver: request timed out, possibly due to previous leader failure")
        }
        Error::ConnectionLostTimeout => (Unavailable, "etcdserver: request timed out, possibly due to connection lost"),
        Error::Stopped => (Unavailable, "etcdserver: server stopped"),
        Error::Timeout => (Unavailable, "etcdserver: request timed out"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every refusal with its code's number and text, as a client of etcd sees them.
    const TABLE: &[(Refusal, i32, &str)] = &[
        (Refusal::Replica(Error::EmptyKey), 3, "etcdserver: key is not provided"),
        (Refusal::Replica(Error::KeyNotFound), 3, "etcdserver: key not found"),
        (Refusal::Replica(Error::ValueProvided), 3, "etcdserver: value is provided"),
        (Refusal::Replica(Error::LeaseProvided), 3, "etcdserver: lease is provided"),
        (Refusal::Replica(Error::TooManyOperations), 3, "etcdserver: too many operations in txn request"),
        (Refusal::Replica(Error::DuplicateKey), 3, "etcdserver: duplicate key given in txn request"),
        (Refusal::Replica(Error::InvalidSortOption), 3, "etcdserver: invalid sort option"),
        (Refusal::Replica(Error::RequestTooLarge), 3, "etcdserver: request is too large"),
        (Refusal::Replica(Error::Compacted), 11, "etcdserver: mvcc: required revision has been compacted"),
        (Refusal::Replica(Error::FutureRevision), 11, "etcdserver: mvcc: required revision is a future revision"),
        (Refusal::Replica(Error::LeaseTtlTooLarge), 11, "etcdserver: too large lease TTL"),
        (Refusal::Replica(Error::LeaseNotFound), 5, "etcdserver: requested lease not found"),
        (Refusal::Replica(Error::LeaseExists), 9, "etcdserver: lease already exists"),
        (Refusal::Replica(Error::NoSpace), 8, "etcdserver: mvcc: database space exceeded"),
        (Refusal::Replica(Error::Corrupt), 15, "etcdserver: corrupt cluster"),
        (Refusal::Replica(Error::TooManyRequests), 2, "etcdserver: too many requests"),
        (Refusal::Replica(Error::NoLeader), 14, "etcdserver: no leader"),
        (Refusal::Replica(Error::LeaderChanged), 14, "etcdserver: leader changed"),
        (Refusal::Replica(Error::MemberNotFound), 5, "etcdserver: member not found"),
        (Refusal::Replica(Error::MemberExists), 9, "etcdserver: member ID already exist"),
        (Refusal::Replica(Error::PeerUrlExists), 9, "etcdserver: Peer URLs already exists"),
        (Refusal::Replica(Error::BadMemberUrls), 3, "etcdserver: given member URLs are invalid"),
        (
            Refusal::Replica(Error::NotEnoughStarted),
            2,
            "etcdserver: re-configuration failed due to not enough started members",
        ),
        (Refusal::Replica(Error::Unhealthy), 14, "etcdserver: unhealthy cluster"),
        (Refusal::Replica(Error::MemberNotLearner), 9, "etcdserver: can only promote a learner member"),
        (
            Refusal::Replica(Error::LearnerNotReady),
            9,
            "etcdserver: can only promote a learner member which is in sync with leader",
        ),
        (Refusal::Replica(Error::TooManyLearners), 9, "etcdserver: too many learner members in cluster"),
        (Refusal::Replica(Error::NotForLearner), 9, "etcdserver: rpc not supported for learner"),
        (Refusal::Replica(Error::NotLeader), 9, "etcdserver: not leader"),
        (Refusal::Replica(Error::BadLeaderTransferee), 9, "etcdserver: bad leader transferee"),
        (
            Refusal::Replica(Error::LeaderTransferTimeout),
            2,
            "etcdserver: request timed out, leader transfer took too long",
        ),
        (
            Refusal::Replica(Error::LeaderFailedTimeout),
            14,
            "etcdserver: request timed out, possibly due to previous leader failure",
        ),
        (
            Refusal::Replica(Error::ConnectionLostTimeout),
            14,
            "etcdserver: request timed out, possibly due to connection lost",
        ),
        (Refusal::Replica(Error::Stopped), 14, "etcdserver: server stopped"),
        (Refusal::Replica(Error::Timeout), 14, "etcdserver: request timed out"),
        (Refusal::InvalidClientApiVersion, 3, "etcdserver: invalid client api version"),
        (Refusal::RangeStreamSorted, 12, "RangeStream does not support custom sort orders"),
        (Refusal::RangeStreamFiltered, 12, "RangeStream does not support revision filters"),
        (Refusal::UnknownAlarmAction, 3, "etcdserver: unknown alarm action"),
        (Refusal::UnknownHealthService, 5, "unknown service"),
        (Refusal::WatchCanceled, 1, "etcdserver: watch canceled"),
        (Refusal::NotImplemented("Snapshot"), 12, "Snapshot is not implemented by Garboard yet"),
    ];

    #[test]
    fn every_refusal_has_the_code_and_text_that_clients_match() {
        for (refusal, code, text) in TABLE {
            let status = Status::from(*refusal);
            assert_eq!((i32::from(status.code()), status.message()), (*code, *text), "{refusal:?}");
        }
    }
}
