//! A disk of its own for each line of rounds: an image behind a loop device, with ext4 or XFS on it.
//!
//! The loop device reads and writes its image with direct I/O, so that nothing between the file system under test and the
//! real disk holds writes back or hides that they were lost. What the kernel caches of the file system itself goes when
//! it is unmounted.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{self, Folder, eventually};

/// The ioctl that stops a mounted file system, the same on ext4 and XFS: `_IOR('X', 125, u32)`.
const SHUTDOWN: libc::c_ulong = 0x8004_587d;
/// Room for the log, the index and what grows: the smallest that mkfs.xfs makes is 300 MiB.
const IMAGE_BYTES: u64 = 768 << 20;

/// What lies on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    Ext4,
    Xfs,
}

impl FileSystem {
    /// Its name for mount(2), and of its mkfs.
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
        }
    }
}

/// How a file system is shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Everything is written back first; then nothing more is taken.
    Synced,
    /// The file system's own journal is flushed, data in memory is lost.
    JournalFlushed,
    /// Nothing that waits in memory is written, as if the power had failed.
    AsIs,
}

/// A mounted file system on a loop device.
pub struct Disk {
    file_system: FileSystem,
    device: PathBuf,
    image: PathBuf,
    at: PathBuf,
    /// Whether the image is kept after a failure.
    kept: bool,
    _folder: Folder,
}

impl Disk {
    /// Makes and mounts one; the reason where that is not permitted or a tool is missing.
    pub fn new(file_system: FileSystem) -> Result<Disk, String> {
        if !common::is_root() {
            return Err("only root can mount".to_owned());
        }
        let mkfs = format!("mkfs.{}", file_system.name());
        let tool = common::tool(&mkfs).ok_or_else(|| format!("{mkfs} is not installed"))?;
        let folder = Folder::new();
        let (image, at) = (folder.path().join("image"), folder.path().join("mounted"));
        fs::create_dir(&at).unwrap();
        let file = File::create(&image).unwrap();
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, IMAGE_BYTES).map_err(|e| e.to_string())?;
        let made = Command::new(tool)
            .args(match file_system {
                FileSystem::Ext4 => &["-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=0"][..],
                FileSystem::Xfs => &["-q", "-f", "-K"][..],
            })
            .arg(&image)
            .output()
            .unwrap();
        assert!(made.status.success(), "{mkfs}: {}", String::from_utf8_lossy(&made.stderr));
        let device = attach(&image)?;
        let disk = Disk { file_system, device, image, at, kept: true, _folder: folder };
        disk.mount().map_err(|error| format!("mounting {}: {error}", file_system.name()))?;
        Ok(disk)
    }

    /// The same, but its image is not kept when a test over it fails.
    #[cfg(feature = "canaries")]
    pub fn discarded(self) -> Disk {
        let mut disk = self;
        disk.kept = false;
        disk
    }

    /// A place in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    fn mount(&self) -> std::io::Result<()> {
        let [device, at, kind] = [c_path(&self.device), c_path(&self.at), c_path(Path::new(self.file_system.name()))];
        // SAFETY: the three texts end in zero and outlive the call; no data is passed.
        #[allow(unsafe_code)]
        let answer = unsafe { libc::mount(device.as_ptr(), at.as_ptr(), kind.as_ptr(), 0, std::ptr::null()) };
        if answer == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }

    /// Stops the file system: from now on every write and sync fails.
    pub fn shut_down(&self, cut: Cut) {
        let root = File::open(&self.at).unwrap();
        let how: u32 = match cut {
            Cut::Synced => 0,
            Cut::JournalFlushed => 1,
            Cut::AsIs => 2,
        };
        // SAFETY: the descriptor is open, and the argument points to a number that outlives the call.
        #[allow(unsafe_code)]
        let answer = unsafe { libc::ioctl(root.as_raw_fd(), SHUTDOWN, &raw const how) };
        assert_eq!(answer, 0, "shutting down: {}", std::io::Error::last_os_error());
    }

    /// Mounts it anew, which replays the file system's journal and reads everything from the disk again.
    pub fn remount(&self) {
        self.unmount();
        self.mount().unwrap_or_else(|error| panic!("mounting {} again: {error}", self.device.display()));
    }

    /// A killed server's ring goes after its process, and holds on to its files until then.
    fn unmount(&self) {
        let at = c_path(&self.at);
        eventually("it can be unmounted", || {
            // SAFETY: the text ends in zero and outlives the call.
            #[allow(unsafe_code)]
            let answer = unsafe { libc::umount2(at.as_ptr(), 0) };
            (answer == 0).then_some(())
        });
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The device goes with its last user.
            let _ = common::run("umount", &["-l".as_ref(), self.at.as_os_str()]);
            if self.kept {
                let name = self.image.parent().and_then(Path::file_name).unwrap_or_default();
                let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name).with_extension(self.file_system.name());
                let _ = fs::rename(&self.image, &kept);
                println!("the image is kept at {}", kept.display());
            }
        } else {
            self.unmount();
        }
        let _ = common::run("losetup", &["-d".as_ref(), self.device.as_os_str()]);
    }
}

/// Puts a loop device with direct I/O over an image.
fn attach(image: &Path) -> Result<PathBuf, String> {
    let tool = common::tool("losetup").ok_or("losetup is not installed")?;
    let output = Command::new(tool)
        .args(["--find", "--show", "--direct-io=on"])
        .arg(image)
        .output()
        .map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Err(format!("losetup: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let device = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let name = device.file_name().unwrap().to_str().unwrap().to_owned();
    let direct = fs::read_to_string(format!("/sys/block/{name}/loop/dio")).unwrap_or_default();
    if direct.trim() != "1" {
        let _ = common::run("losetup", &["-d".as_ref(), device.as_os_str()]);
        return Err(format!("{name} refuses direct I/O"));
    }
    Ok(device)
}

fn c_path(path: &Path) -> CString {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_os_str().as_bytes()).expect("a path without a zero byte")
}
