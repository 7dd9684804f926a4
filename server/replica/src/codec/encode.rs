//! Commands to entry data.

use bytes::{BufMut, Bytes, BytesMut};

use super::{COUNT_OFFSET, HEADER_BYTES, SOURCE_BYTES, Source, VERSION, VERSION_SOURCED, tag};
use crate::request::{
    Alarm, AlarmKind, Command, Compare, CompareOperator, CompareTarget, DeleteRange, KeyRange, KeyspaceId, Operation,
    Principal, Put, Range, SortOrder, SortTarget, Txn,
};

/// Builds the data of one entry, command by command.
pub struct EntryBuilder {
    buffer: BytesMut,
    count: u32,
    sourced: bool,
}

impl EntryBuilder {
    /// Bytes before the first command of an entry that says where its commands come from.
    pub const SOURCED_HEADER_BYTES: usize = HEADER_BYTES + SOURCE_BYTES;

    /// An entry without commands for a keyspace.
    pub fn new(keyspace: KeyspaceId) -> EntryBuilder {
        let mut buffer = BytesMut::with_capacity(1_024);
        buffer.put_u8(VERSION);
        buffer.put_u32_le(keyspace.0);
        buffer.put_u32_le(0);
        debug_assert_eq!(buffer.len(), HEADER_BYTES);
        EntryBuilder { buffer, count: 0, sourced: false }
    }

    /// The same for an entry that will say where its commands come from.
    pub fn sourced(keyspace: KeyspaceId) -> EntryBuilder {
        let mut builder = EntryBuilder::new(keyspace);
        builder.buffer[0] = VERSION_SOURCED;
        builder.buffer.put_bytes(0, SOURCE_BYTES);
        EntryBuilder { sourced: true, ..builder }
    }

    /// Whether [`EntryBuilder::finish_with`] ends it.
    pub fn is_sourced(&self) -> bool {
        self.sourced
    }

    /// Appends a command.
    pub fn push(&mut self, principal: &Principal, command: &Command) {
        put_principal(&mut self.buffer, principal);
        put_command(&mut self.buffer, command);
        self.count += 1;
    }

    /// Appends a command as another entry held it, with its principal.
    pub fn push_encoded(&mut self, encoded: &[u8]) {
        self.buffer.put_slice(encoded);
        self.count += 1;
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether it holds no command.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Commands so far.
    pub fn count(&self) -> usize {
        usize::try_from(self.count).expect("an entry's command count is small")
    }

    /// The entry's data.
    ///
    /// # Panics
    /// If the entry must say where its commands come from.
    pub fn finish(self) -> Bytes {
        assert!(!self.sourced, "an entry of this version has a source");
        self.close()
    }

    /// The entry's data, with where its commands come from.
    ///
    /// # Panics
    /// If the entry has no place for it.
    pub fn finish_with(mut self, source: Source) -> Bytes {
        assert!(self.sourced, "an entry of this version has no source");
        let numbers = [source.member_id, source.session, source.first].map(u64::to_le_bytes);
        self.buffer[HEADER_BYTES..Self::SOURCED_HEADER_BYTES].copy_from_slice(&numbers.concat());
        self.close()
    }

    fn close(mut self) -> Bytes {
        self.buffer[COUNT_OFFSET..HEADER_BYTES].copy_from_slice(&self.count.to_le_bytes());
        self.buffer.freeze()
    }
}

fn put_length(buffer: &mut BytesMut, length: usize) {
    buffer.put_u32_le(u32::try_from(length).expect("a request is far smaller than 4 GiB"));
}

fn put_bytes(buffer: &mut BytesMut, bytes: &[u8]) {
    put_length(buffer, bytes.len());
    buffer.put_slice(bytes);
}

fn put_principal(buffer: &mut BytesMut, principal: &Principal) {
    match principal {
        Principal::Anonymous => buffer.put_u8(tag::PRINCIPAL_ANONYMOUS),
        Principal::Server => buffer.put_u8(tag::PRINCIPAL_SERVER),
        Principal::User { name, auth_revision } => {
            buffer.put_u8(tag::PRINCIPAL_USER);
            put_bytes(buffer, name);
            buffer.put_u64_le(*auth_revision);
        }
    }
}

fn put_command(buffer: &mut BytesMut, command: &Command) {
    match command {
        Command::Put(put) => {
            buffer.put_u8(tag::COMMAND_PUT);
            put_put(buffer, put);
        }
        Command::DeleteRange(delete) => {
            buffer.put_u8(tag::COMMAND_DELETE_RANGE);
            put_delete_range(buffer, delete);
        }
        Command::Txn(txn) => {
            buffer.put_u8(tag::COMMAND_TXN);
            put_txn(buffer, txn);
        }
        Command::Compact { revision, physical } => {
            buffer.put_u8(tag::COMMAND_COMPACT);
            buffer.put_i64_le(*revision);
            buffer.put_u8(u8::from(*physical));
        }
        Command::LeaseGrant { id, ttl_seconds } => {
            buffer.put_u8(tag::COMMAND_LEASE_GRANT);
            buffer.put_i64_le(*id);
            buffer.put_i64_le(*ttl_seconds);
        }
        Command::LeaseRevoke { id } => {
            buffer.put_u8(tag::COMMAND_LEASE_REVOKE);
            buffer.put_i64_le(*id);
        }
        Command::AlarmActivate(alarm) => {
            buffer.put_u8(tag::COMMAND_ALARM_ACTIVATE);
            put_alarm(buffer, alarm);
        }
        Command::AlarmDeactivate(alarm) => {
            buffer.put_u8(tag::COMMAND_ALARM_DEACTIVATE);
            put_alarm(buffer, alarm);
        }
        Command::Member(change) => {
            buffer.put_u8(tag::COMMAND_MEMBER);
            put_bytes(buffer, &change.to_bytes());
        }
    }
}

fn put_alarm(buffer: &mut BytesMut, alarm: &Alarm) {
    buffer.put_u64_le(alarm.member_id);
    buffer.put_u8(match alarm.kind {
        AlarmKind::None => 0,
        AlarmKind::NoSpace => 1,
        AlarmKind::Corrupt => 2,
    });
}

fn put_key_range(buffer: &mut BytesMut, keys: &KeyRange) {
    match keys {
        KeyRange::Point(key) => {
            buffer.put_u8(tag::RANGE_POINT);
            put_bytes(buffer, key);
        }
        KeyRange::Span { start, end } => {
            buffer.put_u8(tag::RANGE_SPAN);
            put_bytes(buffer, start);
            put_bytes(buffer, end);
        }
        KeyRange::FromKey(key) => {
            buffer.put_u8(tag::RANGE_FROM_KEY);
            put_bytes(buffer, key);
        }
        KeyRange::All => buffer.put_u8(tag::RANGE_ALL),
    }
}

fn put_put(buffer: &mut BytesMut, put: &Put) {
    let mut flags = 0;
    for (set, flag) in [
        (put.prev_kv, tag::PUT_PREV_KV),
        (put.ignore_value, tag::PUT_IGNORE_VALUE),
        (put.ignore_lease, tag::PUT_IGNORE_LEASE),
    ] {
        if set {
            flags |= flag;
        }
    }
    buffer.put_u8(flags);
    buffer.put_i64_le(put.lease);
    put_bytes(buffer, &put.key);
    put_bytes(buffer, &put.value);
}

fn put_delete_range(buffer: &mut BytesMut, delete: &DeleteRange) {
    buffer.put_u8(u8::from(delete.prev_kv));
    put_key_range(buffer, &delete.keys);
}

fn put_range(buffer: &mut BytesMut, range: &Range) {
    let mut flags = 0;
    for (set, flag) in [
        (range.serializable, tag::RANGE_SERIALIZABLE),
        (range.keys_only, tag::RANGE_KEYS_ONLY),
        (range.count_only, tag::RANGE_COUNT_ONLY),
    ] {
        if set {
            flags |= flag;
        }
    }
    buffer.put_u8(flags);
    buffer.put_u8(match range.order {
        SortOrder::None => 0,
        SortOrder::Ascend => 1,
        SortOrder::Descend => 2,
    });
    buffer.put_u8(match range.target {
        SortTarget::Key => 0,
        SortTarget::Version => 1,
        SortTarget::Create => 2,
        SortTarget::Mod => 3,
        SortTarget::Value => 4,
    });
    for number in [
        range.limit,
        range.revision,
        range.min_mod_revision,
        range.max_mod_revision,
        range.min_create_revision,
        range.max_create_revision,
    ] {
        buffer.put_i64_le(number);
    }
    put_key_range(buffer, &range.keys);
}

fn put_compare(buffer: &mut BytesMut, compare: &Compare) {
    buffer.put_u8(match compare.operator {
        CompareOperator::Equal => 0,
        CompareOperator::Greater => 1,
        CompareOperator::Less => 2,
        CompareOperator::NotEqual => 3,
    });
    match &compare.target {
        CompareTarget::Value(value) => {
            buffer.put_u8(tag::TARGET_VALUE);
            put_bytes(buffer, value);
        }
        CompareTarget::Version(number) => put_target(buffer, tag::TARGET_VERSION, *number),
        CompareTarget::Create(number) => put_target(buffer, tag::TARGET_CREATE, *number),
        CompareTarget::Mod(number) => put_target(buffer, tag::TARGET_MOD, *number),
        CompareTarget::Lease(number) => put_target(buffer, tag::TARGET_LEASE, *number),
    }
    put_key_range(buffer, &compare.keys);
}

fn put_target(buffer: &mut BytesMut, target: u8, number: i64) {
    buffer.put_u8(target);
    buffer.put_i64_le(number);
}

fn put_txn(buffer: &mut BytesMut, txn: &Txn) {
    put_length(buffer, txn.compares.len());
    for compare in &txn.compares {
        put_compare(buffer, compare);
    }
    for branch in [&txn.success, &txn.failure] {
        put_length(buffer, branch.len());
        for operation in branch {
            put_operation(buffer, operation);
        }
    }
}

fn put_operation(buffer: &mut BytesMut, operation: &Operation) {
    match operation {
        Operation::Range(range) => {
            buffer.put_u8(tag::OPERATION_RANGE);
            put_range(buffer, range);
        }
        Operation::Put(put) => {
            buffer.put_u8(tag::OPERATION_PUT);
            put_put(buffer, put);
        }
        Operation::DeleteRange(delete) => {
            buffer.put_u8(tag::OPERATION_DELETE_RANGE);
            put_delete_range(buffer, delete);
        }
        Operation::Txn(txn) => {
            buffer.put_u8(tag::OPERATION_TXN);
            put_txn(buffer, txn);
        }
    }
}
