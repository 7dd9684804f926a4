//! How much memory this process may use, and how much of it changed pages of the index may take.

use std::fs;
use std::path::Path;

use garboard_replica::limits::PENDING_BYTES_MAX;
use garboard_storage::{IndexConfig, limits};

use super::cores::ancestors;

/// Changed pages take at most one part in so many of the memory that there is: the rest is for requests, for what waits
/// to be applied, and for the page cache, without which reads would wait for the disk.
const DIRTY_SHARE: u64 = 8;
/// Proposals that wait to be applied take at most one part in so many.
const PENDING_SHARE: u64 = 16;
/// They may always take this much: a few requests of the usual largest size.
const PENDING_BYTES_MIN: u64 = 8 << 20;
/// Changed pages may always take this much: with less, checkpoints would follow each other without a rest.
const DIRTY_BYTES_MIN: u64 = 16 << 20;

/// The index's configuration on this machine.
pub fn index_config(cluster_id: u64, member_id: u64) -> IndexConfig {
    let memory_bytes = usable_bytes();
    let dirty_bytes_max = dirty_budget(memory_bytes);
    let checkpoint_bytes = (dirty_bytes_max / 2).min(limits::CHECKPOINT_BYTES);
    tracing::debug!(?memory_bytes, dirty_bytes_max, "bounded the index's changed pages");
    IndexConfig { checkpoint_bytes, dirty_bytes_max, ..IndexConfig::new(cluster_id, member_id) }
}

/// Bytes of proposals that may wait to be applied.
pub fn pending_bytes_max() -> u64 {
    let share = usable_bytes().map_or(PENDING_BYTES_MAX, |memory| memory / PENDING_SHARE);
    share.clamp(PENDING_BYTES_MIN, PENDING_BYTES_MAX)
}

fn dirty_budget(memory_bytes: Option<u64>) -> u64 {
    let share = memory_bytes.map_or(limits::DIRTY_BYTES_MAX, |memory| memory / DIRTY_SHARE);
    share.clamp(DIRTY_BYTES_MIN, limits::DIRTY_BYTES_MAX) / 4096 * 4096
}

/// The smallest of the machine's memory and the limits of this process's cgroup and those above it; `None` when nothing
/// can be told.
pub fn usable_bytes() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| machine_bytes(&text));
    smallest_limit(&groups, Path::new("/sys/fs/cgroup")).into_iter().chain(machine).min()
}

/// The smallest memory limit of the groups that a process is in, as `/proc/PID/cgroup` lists them.
fn smallest_limit(groups: &str, mount: &Path) -> Option<u64> {
    let limits = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next(), parts.next().unwrap_or_default(), parts.next().unwrap_or("/"));
        let (mount, file) = if controllers.is_empty() {
            (mount.to_path_buf(), "memory.max")
        } else if controllers.split(',').any(|name| name == "memory") {
            (mount.join("memory"), "memory.limit_in_bytes")
        } else {
            return Vec::new();
        };
        ancestors(&mount, path).filter_map(|folder| limit_bytes(&folder.join(file))).collect()
    });
    limits.min()
}

/// What a limit's file says; "max" is none.
fn limit_bytes(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn machine_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_limit_on_the_way_up_counts_in_both_kinds_of_groups() {
        let mount = std::env::temp_dir().join(format!("garboard-memory-{}", std::process::id()));
        for (folder, file, text) in [
            ("a/b", "memory.max", "max\n"),
            ("a", "memory.max", "536870912\n"),
            ("memory/c/d", "memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/c", "memory.limit_in_bytes", "268435456\n"),
        ] {
            fs::create_dir_all(mount.join(folder)).unwrap();
            fs::write(mount.join(folder).join(file), text).unwrap();
        }
        assert_eq!(smallest_limit("0::/a/b\n", &mount), Some(536_870_912));
        assert_eq!(smallest_limit("4:memory:/c/d\n0::/a/b\n", &mount), Some(268_435_456));
        assert_eq!(smallest_limit("4:cpu:/c/d\n0::/\n", &mount), None);
        fs::remove_dir_all(&mount).unwrap();
    }

    #[test]
    fn changed_pages_take_a_bounded_share_of_small_memory() {
        assert_eq!(dirty_budget(None), limits::DIRTY_BYTES_MAX);
        assert_eq!(dirty_budget(Some(64 << 30)), limits::DIRTY_BYTES_MAX);
        assert_eq!(dirty_budget(Some(512 << 20)), 64 << 20);
        assert_eq!(dirty_budget(Some(1 << 20)), DIRTY_BYTES_MIN);
        assert_eq!(machine_bytes("MemTotal:       24603940 kB\nMemFree: 1 kB\n"), Some(24_603_940 * 1024));
    }
}
