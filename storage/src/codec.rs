//! Little-endian fields and variable-length integers, as pages and entries hold them.

/// The 16-bit field at `at`, as a size.
pub(crate) fn get_u16(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

/// Sets the 16-bit field at `at`.
pub(crate) fn set_u16(bytes: &mut [u8], at: usize, value: usize) {
    let value = u16::try_from(value).expect("a field of a page fits 16 bits");
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// The 32-bit field at `at`.
pub(crate) fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Sets the 32-bit field at `at`.
pub(crate) fn set_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// The 64-bit field at `at`.
pub(crate) fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Sets the 64-bit field at `at`.
pub(crate) fn set_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// A size or an index that is known to fit 32 bits.
pub(crate) fn to_u32(value: usize) -> u32 {
    u32::try_from(value).expect("fits 32 bits")
}

/// A 32-bit number as a size.
pub(crate) fn to_usize(value: u32) -> usize {
    usize::try_from(value).expect("usize has at least 32 bits")
}

/// A size as 64 bits.
pub(crate) fn to_u64(value: usize) -> u64 {
    u64::try_from(value).expect("usize has at most 64 bits")
}

/// Appends `value`, seven bits a byte, the lowest first.
pub(crate) fn put_varint(into: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        into.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    into.push(value.to_le_bytes()[0]);
}

/// Takes a varint off the front of `bytes`. Bytes that end early or run too long give `None`.
pub(crate) fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let (&first, rest) = bytes.split_first()?;
    if first < 0x80 {
        *bytes = rest;
        return Some(u64::from(first));
    }
    let mut value = 0u64;
    for (i, &byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            *bytes = &bytes[i + 1..];
            return Some(value);
        }
    }
    None
}

/// Folds the sign into the lowest bit, so that small negative numbers are short too.
pub(crate) fn zigzag(value: i64) -> u64 {
    (value.cast_unsigned() << 1) ^ (value >> 63).cast_unsigned()
}

/// Undoes [`zigzag`].
pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -((value & 1).cast_signed())
}

/// How many leading bytes two strings share.
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}
