//! A small file system of its own, in a file: it can be filled, and shut down under load.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::{Folder, eventually, is_root, run};

/// ext4's ioctl that stops a mounted file system: `_IOR('X', 125, u32)`.
const SHUTDOWN: libc::c_ulong = 0x8004_587d;
/// Its argument: nothing that waits in memory is written, as if the power had failed.
const WITHOUT_FLUSHING: u32 = 2;

/// A mounted ext4 file system.
pub struct Mount {
    image: PathBuf,
    at: PathBuf,
    folder: Folder,
}

impl Mount {
    /// Makes and mounts one; the reason where that is not permitted or a tool is missing.
    pub fn new(size_bytes: u64) -> Result<Mount, String> {
        if !is_root() {
            return Err("only root can mount".to_owned());
        }
        let folder = Folder::new();
        let (image, at) = (folder.path().join("image"), folder.path().join("mounted"));
        fs::create_dir(&at).unwrap();
        File::create(&image).unwrap().set_len(size_bytes).unwrap();
        run("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), "-m".as_ref(), "0".as_ref(), image.as_os_str()])?;
        let mount = Mount { image, at, folder };
        mount.mount()?;
        Ok(mount)
    }

    fn mount(&self) -> Result<(), String> {
        run("mount", &["-o".as_ref(), "loop".as_ref(), self.image.as_os_str(), self.at.as_os_str()])
    }

    /// A place in it that does not exist yet.
    pub fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    /// A place beside it, on the file system that holds the image.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Fills it to the last block, and gives the file that does; removing that makes room again.
    pub fn fill(&self) -> PathBuf {
        let path = self.path("filler");
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path).unwrap();
        let (mut len, mut piece) = (0, 64 << 20);
        while piece >= 4096 {
            match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), len, piece) {
                Ok(()) => len += piece,
                Err(_) => piece /= 2,
            }
        }
        path
    }

    /// Stops the file system: from now on every write and sync fails, and what was not durable is gone.
    #[allow(unsafe_code)]
    pub fn shut_down(&self) {
        let root = File::open(&self.at).unwrap();
        let how = WITHOUT_FLUSHING;
        // SAFETY: the descriptor is open, and the argument points to a number that outlives the call.
        let answer = unsafe { libc::ioctl(root.as_raw_fd(), SHUTDOWN, &raw const how) };
        assert_eq!(answer, 0, "shutting down: {}", std::io::Error::last_os_error());
    }

    /// Mounts it anew, which replays the file system's journal.
    pub fn remount(&self) {
        self.unmount();
        self.mount().unwrap();
    }

    /// A killed server's ring goes after its process, and holds on to its files until then.
    fn unmount(&self) {
        eventually("it can be unmounted", || run("umount", &[self.at.as_os_str()]).ok());
    }
}

/// A mounted file system in memory that refuses O_DIRECT.
pub struct Ramfs(Folder);

impl Ramfs {
    /// Mounts one; the reason where that is not permitted.
    pub fn new() -> Result<Ramfs, String> {
        if !is_root() {
            return Err("only root can mount".to_owned());
        }
        let folder = Folder::new();
        run("mount", &["-t".as_ref(), "ramfs".as_ref(), "none".as_ref(), folder.path().as_os_str()])?;
        Ok(Ramfs(folder))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Ramfs {
    fn drop(&mut self) {
        // A killed server may hold on to it for a moment; it goes with its last user.
        let _ = run("umount", &["-l".as_ref(), self.0.path().as_os_str()]);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        if !mounts.contains(self.at.to_str().unwrap_or_default()) {
            return;
        }
        if std::thread::panicking() {
            let _ = run("umount", &["-l".as_ref(), self.at.as_os_str()]);
        } else {
            self.unmount();
        }
    }
}

/// Where a path's file system is mounted is all a test needs to name it in a message.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
