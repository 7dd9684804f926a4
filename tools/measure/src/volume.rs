//! A file system of its own for one server: what the device below it counts is everything that the server, its file
//! system's journal and metadata included, had written.

use crate::Failure;
use crate::servers;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An ext4 file system in a file.
#[derive(Debug)]
pub struct Volume {
    mount: PathBuf,
    image: PathBuf,
    /// The device's name below `/sys/block`.
    device: String,
}

impl Volume {
    /// Makes one of so many bytes below `folder`. Needs root and loop devices.
    pub fn new(folder: &Path, bytes: u64) -> Result<Self, Failure> {
        let (image, mount) = (folder.join("volume.img"), folder.join("volume"));
        fs::create_dir_all(&mount)?;
        run(Command::new("fallocate").arg("--length").arg(bytes.to_string()).arg(&image))?;
        // Nothing may be left to be initialised in the background: it would be counted.
        let eager = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-E", eager]).arg(&image))?;
        let output = run(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(&image))?;
        let node = output.trim().to_owned();
        let mounted = run(Command::new("mount").arg(&node).arg(&mount));
        if mounted.is_ok() {
            servers::unmount_at_end(&mount);
        }
        // It goes away with its last user, which is the mount.
        run(Command::new("losetup").arg("--detach").arg(&node))?;
        mounted?;
        let device = node.strip_prefix("/dev/").unwrap_or(&node).to_owned();
        Ok(Self { mount, image, device })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.mount
    }

    /// Bytes written to the device so far, once everything that waits is written.
    pub fn written_bytes(&self) -> Result<u64, Failure> {
        const SECTORS_WRITTEN: usize = 6;
        run(Command::new("sync").arg("--file-system").arg(&self.mount))?;
        let stat = fs::read_to_string(format!("/sys/block/{}/stat", self.device))?;
        let sectors = stat.split_ascii_whitespace().nth(SECTORS_WRITTEN).and_then(|text| text.parse::<u64>().ok());
        sectors
            .map(|sectors| sectors * 512)
            .ok_or_else(|| Failure::new("unexpected text in the device's figures".into()))
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.mount).status();
        servers::unmounted(&self.mount);
        let _ = fs::remove_file(&self.image);
    }
}

fn run(command: &mut Command) -> Result<String, Failure> {
    let name = command_name(command);
    let output = command.output().map_err(|error| Failure::new(format!("{name}: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Failure::new(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

fn command_name(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}
