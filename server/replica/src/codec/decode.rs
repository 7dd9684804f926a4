//! Entry data to commands.

use bytes::Bytes;

use super::{Batch, DecodeError, Item, Source, VERSION, VERSION_SOURCED, tag};
use crate::limits::TXN_DEPTH_MAX;
use crate::members::{MemberChange, MembersError};
use crate::request::{
    Alarm, AlarmKind, Command, Compare, CompareOperator, CompareTarget, DeleteRange, KeyRange, KeyspaceId, Operation,
    Principal, Put, Range, SortOrder, SortTarget, Txn,
};

/// The shortest command, a deletion of every key: who asks, its kind, its flags, and its range.
const COMMAND_BYTES_MIN: usize = 4;

/// Room that a list within a transaction is given before its items are read.
const INNER_LIST_ROOM: usize = 8;

/// Reads the commands of an entry. Keys and values of the result are slices of `data`.
pub fn decode_entry(data: &Bytes) -> Result<Batch, DecodeError> {
    let mut reader = Reader { data, offset: 0 };
    let version = reader.u8()?;
    if version != VERSION && version != VERSION_SOURCED {
        return Err(DecodeError::UnknownVersion(version));
    }
    let keyspace = KeyspaceId(reader.u32()?);
    let count = reader.count()?;
    let source = if version == VERSION_SOURCED { Some(reader.source()?) } else { None };
    let mut items = reader.list(count, COMMAND_BYTES_MIN);
    for _ in 0..count {
        let principal = reader.principal()?;
        let command = reader.command()?;
        items.push(Item { principal, command });
    }
    match reader.remaining() {
        0 => Ok(Batch { keyspace, source, items }),
        bytes => Err(DecodeError::Trailing(bytes)),
    }
}

/// A position in an entry's data. Invariant: `offset <= data.len()`.
struct Reader<'a> {
    data: &'a Bytes,
    offset: usize,
}

impl Reader<'_> {
    fn remaining(&self) -> usize {
        self.data.len() - self.offset
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let bytes = self.data[self.offset..].first_chunk::<N>().ok_or(DecodeError::Truncated(self.offset))?;
        self.offset += N;
        Ok(*bytes)
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.take().map(u64::from_le_bytes)
    }

    fn i64(&mut self) -> Result<i64, DecodeError> {
        self.take().map(i64::from_le_bytes)
    }

    fn count(&mut self) -> Result<usize, DecodeError> {
        let offset = self.offset;
        usize::try_from(self.u32()?).map_err(|_| DecodeError::Truncated(offset))
    }

    /// An empty list for `count` items of at least `item_bytes` each, so that a count beyond the data allocates no more
    /// than the data could hold.
    fn list<T>(&self, count: usize, item_bytes: usize) -> Vec<T> {
        Vec::with_capacity(count.min(self.remaining() / item_bytes))
    }

    /// An empty list for `count` items of a transaction. Lists within lists would each make room for what only one of
    /// them can hold, so a long one grows as it is read.
    fn inner_list<T>(&self, count: usize) -> Vec<T> {
        self.list(count.min(INNER_LIST_ROOM), 1)
    }

    fn bytes(&mut self) -> Result<Bytes, DecodeError> {
        let offset = self.offset;
        let length = self.count()?;
        if length > self.remaining() {
            return Err(DecodeError::Truncated(offset));
        }
        let bytes = self.data.slice(self.offset..self.offset + length);
        self.offset += length;
        Ok(bytes)
    }

    fn unknown<T>(&self, field: &'static str, value: u8) -> Result<T, DecodeError> {
        Err(DecodeError::UnknownValue { field, value, offset: self.offset - 1 })
    }

    /// A byte whose set bits all lie within `known`.
    fn flags(&mut self, field: &'static str, known: u8) -> Result<u8, DecodeError> {
        match self.u8()? {
            flags if flags & !known == 0 => Ok(flags),
            flags => self.unknown(field, flags),
        }
    }

    fn source(&mut self) -> Result<Source, DecodeError> {
        Ok(Source { member_id: self.u64()?, session: self.u64()?, first: self.u64()? })
    }

    fn principal(&mut self) -> Result<Principal, DecodeError> {
        match self.u8()? {
            tag::PRINCIPAL_ANONYMOUS => Ok(Principal::Anonymous),
            tag::PRINCIPAL_SERVER => Ok(Principal::Server),
            tag::PRINCIPAL_USER => Ok(Principal::User { name: self.bytes()?, auth_revision: self.u64()? }),
            other => self.unknown("principal", other),
        }
    }

    fn command(&mut self) -> Result<Command, DecodeError> {
        Ok(match self.u8()? {
            tag::COMMAND_PUT => Command::Put(self.put()?),
            tag::COMMAND_DELETE_RANGE => Command::DeleteRange(self.delete_range()?),
            tag::COMMAND_TXN => Command::Txn(self.txn(0)?),
            tag::COMMAND_COMPACT => {
                Command::Compact { revision: self.i64()?, physical: self.flags("physical", 1)? != 0 }
            }
            tag::COMMAND_LEASE_GRANT => Command::LeaseGrant { id: self.i64()?, ttl_seconds: self.i64()? },
            tag::COMMAND_LEASE_REVOKE => Command::LeaseRevoke { id: self.i64()? },
            tag::COMMAND_ALARM_ACTIVATE => Command::AlarmActivate(self.alarm()?),
            tag::COMMAND_ALARM_DEACTIVATE => Command::AlarmDeactivate(self.alarm()?),
            tag::COMMAND_MEMBER => Command::Member(self.member()?),
            other => return self.unknown("command", other),
        })
    }

    fn member(&mut self) -> Result<MemberChange, DecodeError> {
        let change = MemberChange::from_bytes(&self.bytes()?).map_err(DecodeError::Member)?;
        match change.of_raft() {
            None => Ok(change),
            // It would change the record and not Raft's membership.
            Some(_) => Err(DecodeError::Member(MembersError::UnknownKind(0))),
        }
    }

    fn alarm(&mut self) -> Result<Alarm, DecodeError> {
        let member_id = self.u64()?;
        let kind = match self.u8()? {
            0 => AlarmKind::None,
            1 => AlarmKind::NoSpace,
            2 => AlarmKind::Corrupt,
            other => return self.unknown("alarm", other),
        };
        Ok(Alarm { member_id, kind })
    }

    fn key_range(&mut self) -> Result<KeyRange, DecodeError> {
        Ok(match self.u8()? {
            tag::RANGE_POINT => KeyRange::Point(self.bytes()?),
            tag::RANGE_SPAN => KeyRange::Span { start: self.bytes()?, end: self.bytes()? },
            tag::RANGE_FROM_KEY => KeyRange::FromKey(self.bytes()?),
            tag::RANGE_ALL => KeyRange::All,
            other => return self.unknown("key range", other),
        })
    }

    fn put(&mut self) -> Result<Put, DecodeError> {
        let known = tag::PUT_PREV_KV | tag::PUT_IGNORE_VALUE | tag::PUT_IGNORE_LEASE;
        let flags = self.flags("put flags", known)?;
        let lease = self.i64()?;
        Ok(Put {
            key: self.bytes()?,
            value: self.bytes()?,
            lease,
            prev_kv: flags & tag::PUT_PREV_KV != 0,
            ignore_value: flags & tag::PUT_IGNORE_VALUE != 0,
            ignore_lease: flags & tag::PUT_IGNORE_LEASE != 0,
        })
    }

    fn delete_range(&mut self) -> Result<DeleteRange, DecodeError> {
        let prev_kv = self.flags("delete flags", 1)? != 0;
        Ok(DeleteRange { keys: self.key_range()?, prev_kv })
    }

    fn range(&mut self) -> Result<Range, DecodeError> {
        let known = tag::RANGE_SERIALIZABLE | tag::RANGE_KEYS_ONLY | tag::RANGE_COUNT_ONLY;
        let flags = self.flags("range flags", known)?;
        let order = match self.u8()? {
            0 => SortOrder::None,
            1 => SortOrder::Ascend,
            2 => SortOrder::Descend,
            other => return self.unknown("sort order", other),
        };
        let target = match self.u8()? {
            0 => SortTarget::Key,
            1 => SortTarget::Version,
            2 => SortTarget::Create,
            3 => SortTarget::Mod,
            4 => SortTarget::Value,
            other => return self.unknown("sort target", other),
        };
        Ok(Range {
            order,
            target,
            serializable: flags & tag::RANGE_SERIALIZABLE != 0,
            keys_only: flags & tag::RANGE_KEYS_ONLY != 0,
            count_only: flags & tag::RANGE_COUNT_ONLY != 0,
            limit: self.i64()?,
            revision: self.i64()?,
            min_mod_revision: self.i64()?,
            max_mod_revision: self.i64()?,
            min_create_revision: self.i64()?,
            max_create_revision: self.i64()?,
            keys: self.key_range()?,
        })
    }

    fn compare(&mut self) -> Result<Compare, DecodeError> {
        let operator = match self.u8()? {
            0 => CompareOperator::Equal,
            1 => CompareOperator::Greater,
            2 => CompareOperator::Less,
            3 => CompareOperator::NotEqual,
            other => return self.unknown("compare operator", other),
        };
        let target = match self.u8()? {
            tag::TARGET_VERSION => CompareTarget::Version(self.i64()?),
            tag::TARGET_CREATE => CompareTarget::Create(self.i64()?),
            tag::TARGET_MOD => CompareTarget::Mod(self.i64()?),
            tag::TARGET_VALUE => CompareTarget::Value(self.bytes()?),
            tag::TARGET_LEASE => CompareTarget::Lease(self.i64()?),
            other => return self.unknown("compare target", other),
        };
        Ok(Compare { keys: self.key_range()?, operator, target })
    }

    fn txn(&mut self, depth: usize) -> Result<Txn, DecodeError> {
        if depth >= TXN_DEPTH_MAX {
            return Err(DecodeError::TooDeep);
        }
        let count = self.count()?;
        let mut compares = self.inner_list(count);
        for _ in 0..count {
            compares.push(self.compare()?);
        }
        Ok(Txn { compares, success: self.branch(depth)?, failure: self.branch(depth)? })
    }

    fn branch(&mut self, depth: usize) -> Result<Vec<Operation>, DecodeError> {
        let count = self.count()?;
        let mut operations = self.inner_list(count);
        for _ in 0..count {
            operations.push(match self.u8()? {
                tag::OPERATION_RANGE => Operation::Range(self.range()?),
                tag::OPERATION_PUT => Operation::Put(self.put()?),
                tag::OPERATION_DELETE_RANGE => Operation::DeleteRange(self.delete_range()?),
                tag::OPERATION_TXN => Operation::Txn(self.txn(depth + 1)?),
                other => return self.unknown("operation", other),
            });
        }
        Ok(operations)
    }
}
