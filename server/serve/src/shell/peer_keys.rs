//! The member's own key towards its peers, and the peers' keys as they were at first contact. Both are files of the data
//! directory.
//!
//! `peer-key` is in lines of `name value`, the values in hex: `reset` (what signs this member's stateless resets), `key`,
//! `certificate`, and a checksum. `peer-pins` has a line `member fingerprint` for each peer; an operator who has moved a
//! member to a new data directory under its old id can take its line out.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use garboard_transport::link::Fingerprint;
use garboard_transport::link::tls::{OwnKey, TlsError};

use super::files;

const TITLE: &str = "garboard peer key 1";

/// What this member shows its peers.
pub struct PeerKey {
    /// Its key and certificate.
    pub own: OwnKey,
    /// Signs its stateless resets.
    pub reset_secret: [u8; 32],
}

/// Why the key can't be had.
#[derive(Debug, thiserror::Error)]
pub enum PeerKeyError {
    /// The file system refuses.
    #[error("{action} {path}")]
    File {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What came back.
        source: io::Error,
    },
    /// A file is damaged.
    #[error("{0} is damaged: restore it from a copy, or remove it and have the peers forget this member's old key")]
    DamagedKey(PathBuf),
    /// The file of pins is damaged.
    #[error("{0} is damaged in line {1}: a line is a member's id and its key's SHA-256, both in hex")]
    DamagedPins(PathBuf, usize),
    /// No key could be made.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl PeerKey {
    /// The key of a data directory; made if there is none.
    ///
    /// # Errors
    /// See [`PeerKeyError`].
    pub fn load_or_make(path: &Path, random: [u8; 32]) -> Result<PeerKey, PeerKeyError> {
        let failed = |action| move |source| PeerKeyError::File { action, path: path.to_path_buf(), source };
        match std::fs::read_to_string(path) {
            Ok(text) => decode(&text).ok_or_else(|| PeerKeyError::DamagedKey(path.to_path_buf())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = PeerKey { own: OwnKey::make()?, reset_secret: random };
                files::write_durably(path, encode(&made).as_bytes()).map_err(failed("writing"))?;
                Ok(made)
            }
            Err(error) => Err(failed("reading")(error)),
        }
    }
}

fn encode(key: &PeerKey) -> String {
    let body = format!(
        "{TITLE}\nreset {}\nkey {}\ncertificate {}\n",
        hex(&key.reset_secret),
        hex(&key.own.key),
        hex(&key.own.certificate)
    );
    let checksum = crc32fast::hash(body.as_bytes());
    format!("{body}crc {checksum:08x}\n")
}

fn decode(text: &str) -> Option<PeerKey> {
    let body = &text[..text.rfind("crc ")?];
    let mut lines = text.lines();
    if lines.next()? != TITLE {
        return None;
    }
    let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
    let (reset, key, certificate) = (field("reset")?, field("key")?, field("certificate")?);
    if u32::from_str_radix(field("crc")?, 16).ok()? != crc32fast::hash(body.as_bytes()) {
        return None;
    }
    let own = OwnKey { key: unhex(key)?, certificate: unhex(certificate)? };
    Some(PeerKey { own, reset_secret: unhex(reset)?.try_into().ok()? })
}

/// The peers' keys that are remembered.
///
/// # Errors
/// See [`PeerKeyError`].
pub fn load_pins(path: &Path) -> Result<BTreeMap<u64, Fingerprint>, PeerKeyError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(source) => return Err(PeerKeyError::File { action: "reading", path: path.to_path_buf(), source }),
    };
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let pins = lines.map(|(at, line)| {
        let damaged = || PeerKeyError::DamagedPins(path.to_path_buf(), at + 1);
        let (member, fingerprint) = line.trim().split_once(' ').ok_or_else(damaged)?;
        let member = u64::from_str_radix(member, 16).map_err(|_| damaged())?;
        let fingerprint = unhex(fingerprint).and_then(|bytes| bytes.try_into().ok()).ok_or_else(damaged)?;
        Ok((member, fingerprint))
    });
    pins.collect()
}

/// Writes the peers' keys, durably.
///
/// # Errors
/// What the file system answers.
pub fn save_pins(path: &Path, pins: &BTreeMap<u64, Fingerprint>) -> io::Result<()> {
    let lines = pins.iter().map(|(member, fingerprint)| format!("{member:016x} {}\n", hex(fingerprint)));
    files::write_durably(path, lines.collect::<String>().as_bytes())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let pairs = digits.chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("garboard-peer-keys-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_key_is_made_once_and_read_back() {
        let folder = folder("key");
        let path = folder.join("peer-key");
        let made = PeerKey::load_or_make(&path, [7; 32]).unwrap();
        let read = PeerKey::load_or_make(&path, [8; 32]).unwrap();
        assert_eq!((read.own, read.reset_secret), (made.own, [7; 32]));
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replacen("key 30", "key 31", 1)).unwrap();
        assert!(matches!(PeerKey::load_or_make(&path, [8; 32]), Err(PeerKeyError::DamagedKey(_))));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn pins_read_back_and_a_bad_line_is_named() {
        let folder = folder("pins");
        let path = folder.join("peer-pins");
        assert!(load_pins(&path).unwrap().is_empty());
        let pins = BTreeMap::from([(1, [1; 32]), (0xabc, [2; 32])]);
        save_pins(&path, &pins).unwrap();
        assert_eq!(load_pins(&path).unwrap(), pins);
        std::fs::write(&path, "1 00\n").unwrap();
        assert!(matches!(load_pins(&path), Err(PeerKeyError::DamagedPins(_, 1))));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
