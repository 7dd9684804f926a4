//! Key ranges as the index walks them.

use bytes::Bytes;
use garboard_storage::Bounds;

use crate::request::KeyRange;

impl KeyRange {
    /// Whether `key` belongs to the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::Point(point) => point == key,
            Self::Span { start, end } => &start[..] <= key && key < &end[..],
            Self::FromKey(start) => &start[..] <= key,
            Self::All => true,
        }
    }

    /// Whether no key can belong to the range.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Span { start, end } => end <= start,
            Self::Point(_) | Self::FromKey(_) | Self::All => false,
        }
    }

    /// The half-open bounds of a range of many keys; `None` for a point, which is looked up and not walked.
    pub(crate) fn span(&self) -> Option<Bounds<'_>> {
        match self {
            Self::Point(_) => None,
            Self::Span { start, end } => Some(Bounds { start, end: Some(end) }),
            Self::FromKey(start) => Some(Bounds { start, end: None }),
            Self::All => Some(Bounds { start: &[], end: None }),
        }
    }

    /// The first key that could belong to the range.
    pub(crate) fn first_key(&self) -> Bytes {
        match self {
            Self::Point(key) | Self::FromKey(key) => key.clone(),
            Self::Span { start, .. } => start.clone(),
            Self::All => Bytes::new(),
        }
    }

    /// The first key beyond the range; `None` when it reaches to the end of the keyspace.
    pub(crate) fn end_key(&self) -> Option<Bytes> {
        match self {
            Self::Point(key) => Some(successor(key)),
            Self::Span { end, .. } => Some(end.clone()),
            Self::FromKey(_) | Self::All => None,
        }
    }
}

/// The smallest key greater than `key`.
pub(crate) fn successor(key: &[u8]) -> Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    Bytes::from(next)
}
