//! A control group with a bound on memory, in either of the kernel's forms.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A control group whose processes may use so much memory, page cache and all.
pub struct MemoryGroup {
    path: PathBuf,
    is_unified: bool,
}

impl MemoryGroup {
    /// Makes one below the group that this process is in; the reason where that is not possible.
    pub fn new(limit_bytes: u64) -> Result<MemoryGroup, String> {
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let name = format!("garboard-bounds-{}", std::process::id());
        for line in groups.lines() {
            let mut parts = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
            let is_unified = controllers.is_empty();
            if !is_unified && !controllers.split(',').any(|name| name == "memory") {
                continue;
            }
            let mount = Path::new(if is_unified { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/memory" });
            for parent in [mount.join(path.trim_start_matches('/')), mount.to_path_buf()] {
                let group = MemoryGroup { path: parent.join(&name), is_unified };
                if fs::create_dir(&group.path).is_ok() && group.limit(limit_bytes) {
                    return Ok(group);
                }
            }
        }
        Err("no control group with a bound on memory can be made".to_owned())
    }

    fn limit(&self, bytes: u64) -> bool {
        let file = if self.is_unified { "memory.max" } else { "memory.limit_in_bytes" };
        let file = self.path.join(file);
        file.exists() && fs::write(file, bytes.to_string()).is_ok()
    }

    /// A command that puts itself into the group and becomes the program.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg("echo $$ > \"$0\"/cgroup.procs && exec \"$@\"").arg(&self.path).arg(program);
        command
    }

    /// How often the kernel killed a process of the group for want of memory.
    pub fn oom_kills(&self) -> u64 {
        let file = if self.is_unified { "memory.events" } else { "memory.oom_control" };
        self.figure(file, &["oom_kill"])
    }

    /// The most that the group has used.
    pub fn peak_bytes(&self) -> u64 {
        let file = if self.is_unified { "memory.peak" } else { "memory.max_usage_in_bytes" };
        fs::read_to_string(self.path.join(file)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    /// Anonymous memory and page cache, now.
    pub fn anonymous_and_cached_bytes(&self) -> (u64, u64) {
        (self.figure("memory.stat", &["anon", "rss"]), self.figure("memory.stat", &["file", "cache"]))
    }

    fn figure(&self, file: &str, names: &[&str]) -> u64 {
        let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
        let figure = text.lines().find_map(|line| {
            let (name, value) = line.split_once(' ')?;
            names.contains(&name).then(|| value.trim().parse().ok())?
        });
        figure.unwrap_or(0)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A group that still holds a process that is going can't be removed yet.
        for _ in 0..250 {
            if fs::remove_dir(&self.path).is_ok() || !self.path.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
