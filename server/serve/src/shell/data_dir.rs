//! The data directory: who owns it, and what it holds.
//!
//! ```text
//! <data-dir>/
//!   LOCK                  held (flock) by the server that uses the directory
//!   identity              format version, cluster, member; written first, so that nothing is ever taken for ours
//!   peer-key              this member's key towards its peers
//!   peer-pins             the peers' keys as they were at first contact
//!   repair                while the member is repaired from its peers, how far that is (`repair.rs`)
//!   keyspace-0/index      the MVCC index
//!   wal/manifest          the log's shape; `--wal-dir` puts this folder elsewhere
//!   wal/shard-0000/…      the log's segments
//! ```
//!
//! Whatever else lies in it (`lost+found`, an operator's notes) is left alone.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::files;

/// The version of the directory's layout.
pub const FORMAT_VERSION: u32 = 1;

const IDENTITY_TITLE: &str = "garboard data directory";

/// Why a data directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// The file system refused.
    #[error("{action} {path}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What came back.
        source: io::Error,
    },
    /// Another process holds the lock.
    #[error("{0} is in use by another server; stop that one, or give this one a --data-dir of its own")]
    InUse(PathBuf),
    /// Others can read it and `--strict-permissions` is on.
    #[error(
        "{path} can be read by others (mode {mode:04o}); run `chmod 0700 {path}`, or start without --strict-permissions"
    )]
    OpenToOthers {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Written by a version with another layout.
    #[error(
        "{path} has layout version {found}, this server reads version {FORMAT_VERSION}; start the server that wrote it"
    )]
    OtherVersion {
        /// The identity file.
        path: PathBuf,
        /// The version it names.
        found: u32,
    },
    /// The identity file is damaged.
    #[error("{0} is damaged; restore it from a copy of this directory, or restore the member from a snapshot")]
    DamagedIdentity(PathBuf),
    /// A log or an index lies there without an identity.
    #[error(
        "{0} holds data but no identity file; it is incomplete: restore the file `identity`, or give another --data-dir"
    )]
    MissingIdentity(PathBuf),
    /// An etcd member's directory.
    #[error("{0} holds an etcd member's data; give Garboard a --data-dir of its own")]
    EtcdData(PathBuf),
}

/// Whether a directory's creation was finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Creation was under way; nothing was ever acknowledged from it.
    Creating,
    /// It has served.
    Ready,
}

/// What the identity file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// The cluster.
    pub cluster_id: u64,
    /// The member.
    pub member_id: u64,
    /// Whether creation was finished.
    pub stage: Stage,
}

/// A data directory, locked.
#[derive(Debug)]
pub struct DataDir {
    root: PathBuf,
    wal: PathBuf,
    /// Whether others can read it: the permission bits, if wider than they should be.
    pub open_to_others: Option<u32>,
    _lock: File,
}

impl DataDir {
    /// Makes the directory if need be and locks it.
    ///
    /// # Errors
    /// See [`DataDirError`].
    pub fn lock(root: &Path, wal: Option<&Path>, strict_permissions: bool) -> Result<DataDir, DataDirError> {
        let wal = wal.map_or_else(|| root.join("wal"), Path::to_path_buf);
        if root.join("member").join("snap").exists() {
            return Err(DataDirError::EtcdData(root.to_path_buf()));
        }
        for folder in [root, &wal] {
            files::create_folder(folder).map_err(|source| failed("creating", folder, source))?;
        }
        let mode = fs::metadata(root).map_err(|source| failed("reading", root, source))?.permissions().mode() & 0o7777;
        let open_to_others = (mode & 0o077 != 0).then_some(mode);
        if strict_permissions && open_to_others.is_some() {
            return Err(DataDirError::OpenToOthers { path: root.to_path_buf(), mode });
        }
        let lock = take_lock(root)?;
        Ok(DataDir { root: root.to_path_buf(), wal, open_to_others, _lock: lock })
    }

    /// Who the directory belongs to; `None` for one that is new.
    ///
    /// # Errors
    /// A damaged file, another layout version, or data without an identity.
    pub fn ownership(&self) -> Result<Option<Ownership>, DataDirError> {
        let path = self.identity_path();
        let text = match fs::read(&path) {
            Ok(bytes) => String::from_utf8(bytes).map_err(|_| DataDirError::DamagedIdentity(path.clone()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if self.index_path().exists() || self.manifest_path().exists() {
                    return Err(DataDirError::MissingIdentity(self.root.clone()));
                }
                return Ok(None);
            }
            Err(source) => return Err(failed("reading", &path, source)),
        };
        decode_identity(&text, &path).map(Some)
    }

    /// Writes the identity file, durably.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn set_ownership(&self, ownership: &Ownership) -> Result<(), DataDirError> {
        let path = self.identity_path();
        files::write_durably(&path, encode_identity(ownership).as_bytes())
            .map_err(|source| failed("writing", &path, source))
    }

    /// Removes what an unfinished creation left of our own files.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn remove_unfinished(&self) -> Result<(), DataDirError> {
        let mut leftovers = vec![self.index_path(), self.manifest_path()];
        for (_, _, path) in self.segments()? {
            leftovers.push(path);
        }
        for path in leftovers {
            match fs::remove_file(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(failed("removing", &path, source)),
            }
        }
        Ok(())
    }

    /// The index's file.
    pub fn index_path(&self) -> PathBuf {
        self.root.join("keyspace-0").join("index")
    }

    /// The mark of a repair.
    pub fn repair_path(&self) -> PathBuf {
        self.root.join("repair")
    }

    /// The member's own key towards its peers.
    pub fn peer_key_path(&self) -> PathBuf {
        self.root.join("peer-key")
    }

    /// What is remembered of the peers' keys.
    pub fn peer_pins_path(&self) -> PathBuf {
        self.root.join("peer-pins")
    }

    /// The log's manifest.
    pub fn manifest_path(&self) -> PathBuf {
        self.wal.join("manifest")
    }

    /// The log's folder.
    pub fn wal_path(&self) -> &Path {
        &self.wal
    }

    /// A segment's file.
    pub fn segment_path(&self, shard: u16, segment: u64) -> PathBuf {
        segment_path(&self.wal, shard, segment)
    }

    /// The segments that lie in the log's folder, as (shard, number, path); names that are not ours are passed over.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn segments(&self) -> Result<Vec<(u16, u64, PathBuf)>, DataDirError> {
        let mut found = Vec::new();
        for (shard, folder) in numbered(&self.wal, "shard-")? {
            let Ok(shard) = u16::try_from(shard) else { continue };
            for (segment, path) in numbered(&folder, "segment-")? {
                found.push((shard, segment, path));
            }
        }
        found.sort();
        Ok(found)
    }

    fn identity_path(&self) -> PathBuf {
        self.root.join("identity")
    }
}

/// A segment's file within a log's folder.
pub fn segment_path(wal: &Path, shard: u16, segment: u64) -> PathBuf {
    wal.join(format!("shard-{shard:04}")).join(format!("segment-{segment:08}"))
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> DataDirError {
    DataDirError::Io { action, path: path.to_path_buf(), source }
}

fn take_lock(root: &Path) -> Result<File, DataDirError> {
    let path = root.join("LOCK");
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(files::FILE_MODE)
        .open(&path)
        .map_err(|source| failed("opening", &path, source))?;
    match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(DataDirError::InUse(root.to_path_buf())),
        Err(error) => Err(failed("locking", &path, error.into())),
    }
}

fn numbered(folder: &Path, prefix: &str) -> Result<Vec<(u64, PathBuf)>, DataDirError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(failed("listing", folder, source)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|source| failed("listing", folder, source))?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(prefix)).and_then(|digits| digits.parse().ok());
        if let Some(number) = number {
            found.push((number, entry.path()));
        }
    }
    Ok(found)
}

fn encode_identity(ownership: &Ownership) -> String {
    let stage = match ownership.stage {
        Stage::Creating => "creating",
        Stage::Ready => "ready",
    };
    let body = format!(
        "{IDENTITY_TITLE}\nformat {FORMAT_VERSION}\ncluster {:016x}\nmember {:016x}\nstage {stage}\n",
        ownership.cluster_id, ownership.member_id
    );
    let checksum = crc32fast::hash(body.as_bytes());
    format!("{body}crc {checksum:08x}\n")
}

fn decode_identity(text: &str, path: &Path) -> Result<Ownership, DataDirError> {
    let damaged = || DataDirError::DamagedIdentity(path.to_path_buf());
    let field =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).ok_or_else(damaged);
    if text.lines().next() != Some(IDENTITY_TITLE) {
        return Err(damaged());
    }
    // The version is looked at before the checksum: a later layout may place that elsewhere.
    let found: u32 = field("format")?.parse().map_err(|_| damaged())?;
    if found != FORMAT_VERSION {
        return Err(DataDirError::OtherVersion { path: path.to_path_buf(), found });
    }
    let body_len = text.rfind("crc ").ok_or_else(damaged)?;
    let checksum = u32::from_str_radix(field("crc")?, 16).map_err(|_| damaged())?;
    if checksum != crc32fast::hash(&text.as_bytes()[..body_len]) {
        return Err(damaged());
    }
    let id = |name: &str| u64::from_str_radix(field(name)?, 16).map_err(|_| damaged());
    let stage = match field("stage")? {
        "creating" => Stage::Creating,
        "ready" => Stage::Ready,
        _ => return Err(damaged()),
    };
    Ok(Ownership { cluster_id: id("cluster")?, member_id: id("member")?, stage })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Ownership = Ownership { cluster_id: 7, member_id: 9, stage: Stage::Ready };

    fn fresh(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("garboard-data-dir-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn a_new_directory_is_empty_and_closed_to_others() {
        let root = fresh("new");
        let dir = DataDir::lock(&root, None, true).unwrap();
        assert_eq!(dir.open_to_others, None);
        assert_eq!(dir.ownership().unwrap(), None);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn ownership_reads_back_as_written() {
        let root = fresh("owner");
        let dir = DataDir::lock(&root, None, false).unwrap();
        for stage in [Stage::Creating, Stage::Ready] {
            let owner = Ownership { stage, ..OWNER };
            dir.set_ownership(&owner).unwrap();
            assert_eq!(dir.ownership().unwrap(), Some(owner));
        }
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_directory_in_use_is_refused() {
        let root = fresh("lock");
        let _held = DataDir::lock(&root, None, false).unwrap();
        assert!(matches!(DataDir::lock(&root, None, false), Err(DataDirError::InUse(_))));
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_directory_open_to_others_is_reported_and_refused_when_strict() {
        let root = fresh("mode");
        drop(DataDir::lock(&root, None, false).unwrap());
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(DataDir::lock(&root, None, false).unwrap().open_to_others, Some(0o755));
        assert!(matches!(DataDir::lock(&root, None, true), Err(DataDirError::OpenToOthers { mode: 0o755, .. })));
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn another_version_another_member_and_damage_are_told_apart() {
        let path = Path::new("identity");
        let text = encode_identity(&OWNER);
        assert_eq!(decode_identity(&text, path).unwrap(), OWNER);
        let later = text.replace("format 1", "format 2");
        assert!(matches!(decode_identity(&later, path), Err(DataDirError::OtherVersion { found: 2, .. })));
        let flipped = text.replace("member 0000000000000009", "member 0000000000000008");
        assert!(matches!(decode_identity(&flipped, path), Err(DataDirError::DamagedIdentity(_))));
        assert!(matches!(decode_identity("", path), Err(DataDirError::DamagedIdentity(_))));
    }

    #[test]
    fn data_without_an_identity_is_refused() {
        let root = fresh("missing");
        let dir = DataDir::lock(&root, None, false).unwrap();
        fs::write(dir.manifest_path(), b"x").unwrap();
        assert!(matches!(dir.ownership(), Err(DataDirError::MissingIdentity(_))));
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn foreign_files_are_left_alone() {
        let root = fresh("foreign");
        let dir = DataDir::lock(&root, None, false).unwrap();
        fs::create_dir(root.join("lost+found")).unwrap();
        fs::create_dir_all(root.join("wal/shard-0000")).unwrap();
        fs::write(root.join("wal/shard-0000/notes"), b"x").unwrap();
        fs::write(root.join("wal/shard-0000/segment-00000003"), b"x").unwrap();
        assert_eq!(dir.ownership().unwrap(), None);
        let segments = dir.segments().unwrap();
        assert_eq!(segments.iter().map(|(shard, segment, _)| (*shard, *segment)).collect::<Vec<_>>(), [(0, 3)]);
        dir.remove_unfinished().unwrap();
        assert!(root.join("lost+found").exists() && root.join("wal/shard-0000/notes").exists());
        fs::remove_dir_all(&root).unwrap();
    }
}
