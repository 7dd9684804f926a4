//! What a member keeps on disk while it is repaired from its peers: a mark, and what was there, set aside.
//!
//! ```text
//! <data-dir>/repair                      the mark: how far the repair is, and what is known of the last vote
//! <data-dir>/keyspace-0/index.damaged    the index as it was found, until the member is repaired
//! <wal>/manifest.damaged                 the log likewise
//! <wal>/shard-0000.damaged/…
//! ```
//!
//! `docs/rfd/0009-repair-from-peers.md` has the reasons.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use garboard_replica::repair::{Mark, Stage};

use super::data_dir::DataDir;
use super::files;
use super::start::StartError;

const ASIDE: &str = "damaged";

/// The files of a repair.
#[derive(Clone, Debug)]
pub struct RepairFiles {
    mark: PathBuf,
    index: PathBuf,
    wal: PathBuf,
}

impl RepairFiles {
    /// Those of a data directory.
    pub fn of(dir: &DataDir) -> RepairFiles {
        RepairFiles { mark: dir.repair_path(), index: dir.index_path(), wal: dir.wal_path().to_path_buf() }
    }

    /// The mark, if the member is under repair.
    ///
    /// # Errors
    /// It can't be read, or is damaged.
    pub fn mark(&self) -> Result<Option<Mark>, StartError> {
        match fs::read_to_string(&self.mark) {
            Ok(text) => match Mark::decode(&text) {
                Ok(mark) => Ok(Some(mark)),
                Err(error) => Err(StartError::Setting(format!("{}: {error}", self.mark.display()))),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(self.failed("reading", source)),
        }
    }

    /// Writes the mark, durably.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn set_mark(&self, mark: &Mark) -> Result<(), StartError> {
        files::write_durably(&self.mark, mark.encode().as_bytes()).map_err(|source| self.failed("writing", source))
    }

    /// Sets aside what is there, for a member that begins anew. What else is there when this was begun before is of an
    /// unfinished beginning, and is removed.
    ///
    /// # Errors
    /// What the file system answers. It is tried again at the next start.
    pub fn set_aside(&self, mark: &Mark) -> Result<(), StartError> {
        let failed = |source| self.failed("setting aside what is damaged, for", source);
        if self.mark()?.is_none_or(|before| before.stage != Stage::Clearing) {
            self.remove_aside().map_err(failed)?;
            self.set_mark(mark)?;
        }
        let mut found = vec![self.index.clone(), self.wal.join("manifest")];
        found.extend(self.shards("").map_err(failed)?);
        for path in found {
            let aside = with_suffix(&path);
            let outcome = if aside.exists() { remove(&path) } else { fs::rename(&path, &aside) };
            match outcome {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
        }
        self.sync_folders().map_err(failed)
    }

    /// The member is repaired: from now on it is as any other.
    ///
    /// # Errors
    /// What the file system answers; the member is under repair once more after its next start then.
    pub fn remove_mark(&self) -> io::Result<()> {
        match fs::remove_file(&self.mark) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome.and_then(|()| files::sync_folder(self.mark.parent().unwrap_or(Path::new(".")))),
        }
    }

    /// Removes what was set aside.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn remove_aside(&self) -> io::Result<()> {
        let mut aside = vec![with_suffix(&self.index), with_suffix(&self.wal.join("manifest"))];
        aside.extend(self.shards(&format!(".{ASIDE}"))?);
        for path in aside.iter().filter(|path| path.exists()) {
            remove(path)?;
        }
        self.sync_folders()
    }

    /// The folders of the log's shards whose name ends like this.
    fn shards(&self, suffix: &str) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.wal)? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("shard-")?.strip_suffix(suffix));
            if number.is_some_and(|number| number.parse::<u16>().is_ok()) {
                found.push(entry.path());
            }
        }
        Ok(found)
    }

    fn sync_folders(&self) -> io::Result<()> {
        if let Some(folder) = self.index.parent().filter(|folder| folder.exists()) {
            files::sync_folder(folder)?;
        }
        files::sync_folder(&self.wal)
    }

    fn failed(&self, action: &'static str, source: io::Error) -> StartError {
        StartError::File { action, path: self.mark.display().to_string(), source }
    }
}

fn with_suffix(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{ASIDE}"));
    path.with_file_name(name)
}

fn remove(path: &Path) -> io::Result<()> {
    if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// A mark that is ready to be written where a page of the index turns out to be damaged, by whoever touches it.
#[derive(Debug)]
pub struct Prepared {
    /// Where it is written first.
    pub temporary: CString,
    /// Its name.
    pub path: CString,
    /// What it says.
    pub text: Vec<u8>,
}

static PREPARED: OnceLock<Prepared> = OnceLock::new();
static HAS_PEERS: AtomicBool = AtomicBool::new(false);

/// Gets ready for a damaged page. `before` is the mark of the repair that is under way.
pub fn prepare(repair: &RepairFiles, before: Option<Mark>) {
    let name = |path: &Path| CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
    let text = Mark::begin(Stage::Found, before).encode().into_bytes();
    let temporary = name(&repair.mark.with_extension("found"));
    let _ = PREPARED.set(Prepared { temporary, path: name(&repair.mark), text });
}

/// Whether there are others that can refill this member.
pub fn note_peers(has_peers: bool) {
    HAS_PEERS.store(has_peers, Ordering::Relaxed);
}

/// The mark that is to be left where a page is damaged; none where no peer can help. Takes no lock.
pub fn prepared() -> Option<&'static Prepared> {
    PREPARED.get().filter(|_| HAS_PEERS.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_damaged_is_set_aside_once_and_an_unfinished_beginning_is_removed() {
        let root = std::env::temp_dir().join(format!("garboard-repair-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let dir = DataDir::lock(&root, None, false).unwrap();
        let repair = RepairFiles::of(&dir);
        let fill = |text: &str| {
            fs::create_dir_all(root.join("keyspace-0")).unwrap();
            fs::create_dir_all(root.join("wal/shard-0000")).unwrap();
            for name in ["keyspace-0/index", "wal/manifest", "wal/shard-0000/segment-00000001"] {
                fs::write(root.join(name), text).unwrap();
            }
        };
        let mark = Mark::begin(Stage::Clearing, None);
        fill("damaged");
        assert_eq!(repair.mark().unwrap(), None);
        repair.set_aside(&mark).unwrap();
        assert_eq!(repair.mark().unwrap(), Some(mark.clone()));
        assert!(!dir.index_path().exists() && !dir.manifest_path().exists() && dir.segments().unwrap().is_empty());
        // The process dies and begins anew.
        fill("unfinished");
        repair.set_aside(&mark).unwrap();
        assert!(!dir.index_path().exists() && dir.segments().unwrap().is_empty());
        for name in ["keyspace-0/index.damaged", "wal/manifest.damaged", "wal/shard-0000.damaged/segment-00000001"] {
            assert_eq!(fs::read_to_string(root.join(name)).unwrap(), "damaged", "{name}");
        }
        // It is repaired.
        fill("sound");
        repair.remove_mark().unwrap();
        repair.remove_aside().unwrap();
        assert_eq!(repair.mark().unwrap(), None);
        assert!(!root.join("wal/shard-0000.damaged").exists() && !root.join("keyspace-0/index.damaged").exists());
        assert_eq!(fs::read_to_string(dir.index_path()).unwrap(), "sound");
        fs::remove_dir_all(&root).unwrap();
    }
}
