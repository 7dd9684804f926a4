//! Durable changes of file-system metadata: the few operations on names that must survive a crash.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Permissions of what the server creates: nobody else reads a control plane's data.
pub const FILE_MODE: u32 = 0o600;
/// Permissions of the folders the server creates.
pub const FOLDER_MODE: u32 = 0o700;

/// Makes a folder and its parents, and their names durable.
///
/// # Errors
/// What the file system answers.
pub fn create_folder(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)?;
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_folder(parent),
        _ => sync_folder(Path::new(".")),
    }
}

/// Makes the names in a folder durable.
///
/// # Errors
/// What the file system answers.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Replaces a file's content as a whole: after a crash it holds either the old bytes or the new ones.
///
/// # Errors
/// What the file system answers; the old content stands then.
pub fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = folder.join(format!("{name}.tmp"));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    sync_folder(folder)
}
