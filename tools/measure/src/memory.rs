//! What a container's memory would be counted as: a control group for one server.

use crate::Failure;
use std::fs;
use std::path::{Path, PathBuf};

/// A memory control group, of either version.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    unified: bool,
}

impl Group {
    /// Makes one. Needs root.
    pub fn new(name: &str) -> Result<Self, Failure> {
        let root = Path::new("/sys/fs/cgroup");
        let unified = root.join("cgroup.controllers").exists();
        let parent = if unified { root.to_owned() } else { root.join("memory") };
        let path = parent.join(format!("garboard-measure-{}-{name}", std::process::id()));
        fs::create_dir(&path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
        Ok(Self { path, unified })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the kubelet counts as a pod's memory: all that is charged to it, without the file pages that were not used
    /// of late.
    pub fn working_set_bytes(&self) -> Result<u64, Failure> {
        let (usage, inactive) = if self.unified {
            ("memory.current", "inactive_file")
        } else {
            ("memory.usage_in_bytes", "total_inactive_file")
        };
        let strange = || Failure::new("unexpected text in the control group's figures".into());
        let usage: u64 = fs::read_to_string(self.path.join(usage))?.trim().parse().map_err(|_| strange())?;
        let stat = fs::read_to_string(self.path.join("memory.stat"))?;
        let line = stat.lines().find_map(|line| line.strip_prefix(inactive)?.strip_prefix(' '));
        let inactive: u64 = line.and_then(|number| number.parse().ok()).ok_or_else(strange)?;
        Ok(usage.saturating_sub(inactive))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}
