//! How members and their changes are written down: in the system tree, and as the data of an entry.

use super::{Attributes, ChangeAction, ChangeOrigin, MemberChange, MemberMessage, MemberRecord};
use crate::error::Error;
use crate::limits::{URL_BYTES_MAX, URLS_PER_MEMBER_MAX};
use crate::system::{MEMBER, REMOVED_MEMBER};

/// The version of a record's encoding.
const RECORD_VERSION: u8 = 1;
/// The version of a change's encoding. Changes of version 1 had no URLs; no release ever wrote one.
const CHANGE_VERSION: u8 = 2;

const FLAG_LEARNER: u8 = 1;

const _: () = assert!(URLS_PER_MEMBER_MAX <= u8::MAX as usize);
const _: () = assert!(URL_BYTES_MAX <= u16::MAX as usize);

mod action {
    //! Values of the byte that says what happens.
    pub const ADD_VOTER: u8 = 0;
    pub const ADD_LEARNER: u8 = 1;
    pub const REMOVE: u8 = 2;
    pub const PROMOTE: u8 = 3;
    pub const UPDATE: u8 = 4;
    pub const PUBLISH: u8 = 5;
}

/// Why bytes are no change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembersError {
    /// The version is none this code knows.
    #[error("member change encoding version {0} is unknown")]
    UnknownVersion(u8),
    /// The length does not fit the content.
    #[error("member change encoding has a wrong length")]
    Length,
    /// A change of unknown kind.
    #[error("member change kind {0} is unknown")]
    UnknownKind(u8),
    /// A name or URL is no text.
    #[error("a text in a member change is not UTF-8")]
    Text,
}

impl MemberChange {
    /// The encoding.
    ///
    /// ```text
    /// change = version u8 (2), action u8, member id u64 LE, origin, content
    /// origin = member id u64 LE, boot u64 LE, sequence u64 LE
    /// content of action 0 add voter, 1 add learner, 4 update: peer URLs
    ///                   2 remove, 3 promote: nothing
    ///                   5 publish: name (text), client URLs, peer URLs
    /// URLs   = count u8, text…
    /// text   = length u16 LE, bytes
    /// ```
    pub fn to_bytes(&self) -> Vec<u8> {
        let action = match self.action {
            ChangeAction::AddVoter { .. } => action::ADD_VOTER,
            ChangeAction::AddLearner { .. } => action::ADD_LEARNER,
            ChangeAction::Remove => action::REMOVE,
            ChangeAction::Promote => action::PROMOTE,
            ChangeAction::Update { .. } => action::UPDATE,
            ChangeAction::Publish(_) => action::PUBLISH,
        };
        let mut bytes = vec![CHANGE_VERSION, action];
        for number in [self.member_id, self.origin.member_id, self.origin.boot, self.origin.sequence] {
            bytes.extend(number.to_le_bytes());
        }
        match &self.action {
            ChangeAction::AddVoter { peer_urls }
            | ChangeAction::AddLearner { peer_urls }
            | ChangeAction::Update { peer_urls } => put_texts(&mut bytes, peer_urls),
            ChangeAction::Remove | ChangeAction::Promote => {}
            ChangeAction::Publish(Attributes { name, client_urls, peer_urls }) => {
                put_text(&mut bytes, name);
                put_texts(&mut bytes, client_urls);
                put_texts(&mut bytes, peer_urls);
            }
        }
        bytes
    }

    /// Reads the encoding.
    ///
    /// # Errors
    /// When the bytes are no change that this code knows.
    pub fn from_bytes(bytes: &[u8]) -> Result<MemberChange, MembersError> {
        let mut reader = Reader { bytes };
        let version = reader.u8()?;
        if version != CHANGE_VERSION {
            return Err(MembersError::UnknownVersion(version));
        }
        let action = reader.u8()?;
        let member_id = reader.u64()?;
        let origin = ChangeOrigin { member_id: reader.u64()?, boot: reader.u64()?, sequence: reader.u64()? };
        let action = match action {
            action::ADD_VOTER => ChangeAction::AddVoter { peer_urls: reader.texts()? },
            action::ADD_LEARNER => ChangeAction::AddLearner { peer_urls: reader.texts()? },
            action::REMOVE => ChangeAction::Remove,
            action::PROMOTE => ChangeAction::Promote,
            action::UPDATE => ChangeAction::Update { peer_urls: reader.texts()? },
            action::PUBLISH => ChangeAction::Publish(Attributes {
                name: reader.text()?,
                client_urls: reader.texts()?,
                peer_urls: reader.texts()?,
            }),
            other => return Err(MembersError::UnknownKind(other)),
        };
        reader.end()?;
        Ok(MemberChange { origin, member_id, action })
    }
}

/// The errors that a leader refuses a change with; the position is the code, and none ever moves.
const REFUSALS: [Error; 12] = [
    Error::NoLeader,
    Error::TooManyRequests,
    Error::MemberNotFound,
    Error::MemberExists,
    Error::PeerUrlExists,
    Error::BadMemberUrls,
    Error::NotEnoughStarted,
    Error::Unhealthy,
    Error::MemberNotLearner,
    Error::LearnerNotReady,
    Error::TooManyLearners,
    Error::TooManyMembers,
];

mod message {
    //! Values of the byte that says what a message is.
    pub const CHANGE: u8 = 0;
    pub const REFUSED: u8 = 1;
}

impl MemberMessage {
    /// The encoding.
    ///
    /// ```text
    /// message = 0 u8, change
    ///         | 1 u8, boot u64 LE, sequence u64 LE, reason u8
    /// ```
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            MemberMessage::Change(change) => {
                let mut bytes = vec![message::CHANGE];
                bytes.extend(change.to_bytes());
                bytes
            }
            MemberMessage::Refused { boot, sequence, error } => {
                let mut bytes = vec![message::REFUSED];
                bytes.extend(boot.to_le_bytes());
                bytes.extend(sequence.to_le_bytes());
                let code = REFUSALS.iter().position(|known| known == error).unwrap_or(0);
                bytes.push(u8::try_from(code).expect("there are few"));
                bytes
            }
        }
    }

    /// Reads the encoding.
    ///
    /// # Errors
    /// When the bytes are no message that this code knows.
    pub fn from_bytes(bytes: &[u8]) -> Result<MemberMessage, MembersError> {
        let mut reader = Reader { bytes };
        match reader.u8()? {
            message::CHANGE => MemberChange::from_bytes(reader.bytes).map(MemberMessage::Change),
            message::REFUSED => {
                let (boot, sequence, code) = (reader.u64()?, reader.u64()?, reader.u8()?);
                let error = *REFUSALS.get(usize::from(code)).ok_or(MembersError::UnknownKind(code))?;
                reader.end()?;
                Ok(MemberMessage::Refused { boot, sequence, error })
            }
            other => Err(MembersError::UnknownKind(other)),
        }
    }
}

/// A record's key in the system tree.
pub(crate) fn record_key(id: u64) -> Vec<u8> {
    crate::system::with_id(MEMBER, id.to_be_bytes())
}

/// The key that says that a member was removed.
pub(crate) fn removed_key(id: u64) -> Vec<u8> {
    crate::system::with_id(REMOVED_MEMBER, id.to_be_bytes())
}

/// A record's value.
pub(crate) fn record_value(record: &MemberRecord) -> Vec<u8> {
    let mut bytes = vec![RECORD_VERSION, if record.is_learner { FLAG_LEARNER } else { 0 }];
    put_text(&mut bytes, &record.name);
    put_texts(&mut bytes, &record.peer_urls);
    put_texts(&mut bytes, &record.client_urls);
    bytes
}

pub(super) fn read_record(key: &[u8], value: &[u8]) -> Option<MemberRecord> {
    let id = read_id(MEMBER, key)?;
    let [RECORD_VERSION, flags @ (0 | FLAG_LEARNER), rest @ ..] = value else { return None };
    let mut reader = Reader { bytes: rest };
    let record = MemberRecord {
        id,
        name: reader.text().ok()?,
        peer_urls: reader.texts().ok()?,
        client_urls: reader.texts().ok()?,
        is_learner: *flags == FLAG_LEARNER,
    };
    reader.end().ok()?;
    Some(record)
}

pub(super) fn read_removed(key: &[u8]) -> Option<u64> {
    read_id(REMOVED_MEMBER, key)
}

fn read_id(kind: u8, key: &[u8]) -> Option<u64> {
    let (first, id) = key.split_first()?;
    if *first != kind {
        return None;
    }
    id.try_into().ok().map(u64::from_be_bytes)
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend(u16::try_from(text.len()).expect("names and URLs are bounded").to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

fn put_texts(bytes: &mut Vec<u8>, texts: &[String]) {
    bytes.push(u8::try_from(texts.len()).expect("lists of URLs are bounded"));
    for text in texts {
        put_text(bytes, text);
    }
}

/// What is left to read.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], MembersError> {
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or(MembersError::Length)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MembersError> {
        self.take(N).map(|bytes| bytes.try_into().expect("exactly so many were taken"))
    }

    fn u8(&mut self) -> Result<u8, MembersError> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u64(&mut self) -> Result<u64, MembersError> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<String, MembersError> {
        let length = u16::from_le_bytes(self.array()?);
        let bytes = self.take(usize::from(length))?;
        String::from_utf8(bytes.to_vec()).map_err(|_| MembersError::Text)
    }

    fn texts(&mut self) -> Result<Vec<String>, MembersError> {
        let count = self.u8()?;
        (0..count).map(|_| self.text()).collect()
    }

    fn end(self) -> Result<(), MembersError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(MembersError::Length) }
    }
}
