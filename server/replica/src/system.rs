//! Keys and values of the *system* tree that the replica writes. The first byte names the kind.
//!
//! ```text
//! lease       = 'L', id u64 BE              → version u8 (1), granted time to live i64 LE, in seconds
//! attachment  = 'A', lease id u64 BE, key   → nothing
//! alarm       = 'M', member id u64 BE, kind u8 → nothing
//! member      = 'N', member id u64 BE       → version u8 (1), flags u8 (1 learner), name, peer URLs, client URLs
//! removed     = 'R', member id u64 BE       → nothing: a member of that id was removed, and none ever has it again
//! session     = 'S', member id u64 BE   → version u8 (1), session u64 LE, last sequence number u64 LE
//! ```
//!
//! Identifiers are big-endian in keys, so that a scan by prefix finds a lease's keys in key order.

use bytes::Bytes;
use garboard_storage::{Paged, View};

use crate::request::{Alarm, AlarmKind};
use crate::sessions::Record;

/// First byte of a lease's key.
pub const LEASE: u8 = b'L';
/// First byte of an attachment's key.
pub const ATTACHMENT: u8 = b'A';
/// First byte of an alarm's key.
pub const ALARM: u8 = b'M';
/// First byte of a member's key.
pub const MEMBER: u8 = b'N';
/// First byte of the key of a member that was removed.
pub const REMOVED_MEMBER: u8 = b'R';
/// First byte of the record of a member's forwarded writes.
pub const SESSION: u8 = b'S';

const VALUE_VERSION: u8 = 1;
const ID_BYTES: usize = size_of::<u64>();

/// A value or key of the system tree that this code does not read: a newer version or damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an entry of kind {0:?} in the system tree cannot be read")]
pub struct SystemError(pub char);

/// A lease's key.
pub fn lease_key(id: i64) -> Vec<u8> {
    with_id(LEASE, id.to_be_bytes())
}

/// A lease's value.
pub fn lease_value(ttl_seconds: i64) -> Vec<u8> {
    let mut value = vec![VALUE_VERSION];
    value.extend(ttl_seconds.to_le_bytes());
    value
}

/// The key that says that `key` is attached to a lease.
pub fn attachment_key(lease: i64, key: &[u8]) -> Vec<u8> {
    let mut bytes = attachment_prefix(lease);
    bytes.extend_from_slice(key);
    bytes
}

/// What the keys of a lease's attachments begin with.
pub fn attachment_prefix(lease: i64) -> Vec<u8> {
    with_id(ATTACHMENT, lease.to_be_bytes())
}

/// An alarm's key; none for the kind that stands for all.
pub fn alarm_key(alarm: Alarm) -> Option<Vec<u8>> {
    let kind = match alarm.kind {
        AlarmKind::None => return None,
        AlarmKind::NoSpace => 1,
        AlarmKind::Corrupt => 2,
    };
    let mut key = with_id(ALARM, alarm.member_id.to_be_bytes());
    key.push(kind);
    Some(key)
}

/// The key of the record of a member's forwarded writes.
pub fn session_key(member_id: u64) -> Vec<u8> {
    with_id(SESSION, member_id.to_be_bytes())
}

/// Its value.
pub fn session_value(record: Record) -> Vec<u8> {
    let mut value = vec![VALUE_VERSION];
    value.extend(record.session.to_le_bytes());
    value.extend(record.last.to_le_bytes());
    value
}

pub(crate) fn with_id(kind: u8, id: [u8; ID_BYTES]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + ID_BYTES);
    key.push(kind);
    key.extend(id);
    key
}

/// All leases: id and granted time to live.
pub fn leases(view: &View<'_>) -> Paged<Result<Vec<(i64, i64)>, SystemError>> {
    let mut leases = Vec::new();
    let mut cursor = view.system_scan(&[LEASE]);
    while let Some((key, value)) = cursor.next()? {
        let Some(lease) = read_lease(&key, &value) else { return Ok(Err(SystemError('L'))) };
        leases.push(lease);
    }
    Ok(Ok(leases))
}

fn read_lease(key: &[u8], value: &[u8]) -> Option<(i64, i64)> {
    let id = key.get(1..)?.try_into().ok()?;
    let [VALUE_VERSION, ttl @ ..] = value else { return None };
    Some((i64::from_be_bytes(id), i64::from_le_bytes(ttl.try_into().ok()?)))
}

/// All records of forwarded writes, by member.
pub fn sessions(view: &View<'_>) -> Paged<Result<Vec<(u64, Record)>, SystemError>> {
    let mut sessions = Vec::new();
    let mut cursor = view.system_scan(&[SESSION]);
    while let Some((key, value)) = cursor.next()? {
        let Some(session) = read_session(&key, &value) else { return Ok(Err(SystemError('S'))) };
        sessions.push(session);
    }
    Ok(Ok(sessions))
}

fn read_session(key: &[u8], value: &[u8]) -> Option<(u64, Record)> {
    let id = key.get(1..)?.try_into().ok()?;
    let [VALUE_VERSION, rest @ ..] = value else { return None };
    let (session, last) = rest.split_first_chunk::<ID_BYTES>()?;
    let record = Record { session: u64::from_le_bytes(*session), last: u64::from_le_bytes(last.try_into().ok()?) };
    Some((u64::from_be_bytes(id), record))
}

/// The keys attached to a lease, in order.
pub fn attached_keys(view: &View<'_>, lease: i64) -> Paged<Vec<Bytes>> {
    let prefix = attachment_prefix(lease);
    let mut keys = Vec::new();
    let mut cursor = view.system_scan(&prefix);
    while let Some((key, _)) = cursor.next()? {
        keys.push(Bytes::from(key).slice(prefix.len()..));
    }
    Ok(keys)
}

/// All alarms, in order of member and kind.
pub fn alarms(view: &View<'_>) -> Paged<Result<Vec<Alarm>, SystemError>> {
    let mut alarms = Vec::new();
    let mut cursor = view.system_scan(&[ALARM]);
    while let Some((key, _)) = cursor.next()? {
        let Some(alarm) = read_alarm(&key) else { return Ok(Err(SystemError('M'))) };
        alarms.push(alarm);
    }
    Ok(Ok(alarms))
}

fn read_alarm(key: &[u8]) -> Option<Alarm> {
    let [ALARM, id @ .., kind] = key else { return None };
    let kind = match kind {
        1 => AlarmKind::NoSpace,
        2 => AlarmKind::Corrupt,
        _ => return None,
    };
    Some(Alarm { member_id: u64::from_be_bytes(id.try_into().ok()?), kind })
}
