//! Which processors this process may use: its affinity mask, cut to its cgroup's quota.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::thread::{CpuSet, sched_getaffinity};

/// The processors to run on, in ascending order; at least one.
///
/// `wanted` is what the configuration asks for; `None` takes all that are allowed.
pub fn usable(wanted: Option<usize>) -> Vec<usize> {
    let mut allowed = allowed_by_affinity();
    let quota = quota_cores().unwrap_or(allowed.len());
    let most = wanted.unwrap_or(usize::MAX).min(quota).max(1);
    allowed.truncate(most);
    allowed
}

fn allowed_by_affinity() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect(),
        Err(_) => vec![0],
    }
}

/// The cgroup's processor quota in whole cores, rounded up; `None` when there is none.
fn quota_cores() -> Option<usize> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut smallest: Option<usize> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let cores = if controllers.is_empty() {
            ancestors(Path::new("/sys/fs/cgroup"), path).filter_map(|folder| unified_quota(&folder)).min()
        } else if controllers.split(',').any(|name| name == "cpu") {
            ancestors(Path::new("/sys/fs/cgroup/cpu"), path).filter_map(|folder| legacy_quota(&folder)).min()
        } else {
            None
        };
        smallest = match (smallest, cores) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
    smallest
}

/// A group's folder and those of the groups above it, whose limits hold as well.
pub fn ancestors(mount: &Path, path: &str) -> impl Iterator<Item = PathBuf> {
    let mount = mount.to_path_buf();
    Path::new(path)
        .ancestors()
        .map(|group| mount.join(group.strip_prefix("/").unwrap_or(group)))
        .collect::<Vec<_>>()
        .into_iter()
}

fn unified_quota(folder: &Path) -> Option<usize> {
    parse_unified(&fs::read_to_string(folder.join("cpu.max")).ok()?)
}

fn parse_unified(text: &str) -> Option<usize> {
    let (quota, period) = text.trim().split_once(' ')?;
    whole_cores(quota.parse().ok()?, period.parse().ok()?)
}

fn legacy_quota(folder: &Path) -> Option<usize> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<i64>().ok();
    whole_cores(read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?)
}

fn whole_cores(quota_us: i64, period_us: i64) -> Option<usize> {
    if quota_us <= 0 || period_us <= 0 {
        return None;
    }
    usize::try_from((quota_us + period_us - 1) / period_us).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_least_one_core_is_used_and_never_more_than_wanted() {
        assert!(!usable(None).is_empty());
        assert_eq!(usable(Some(1)).len(), 1);
        assert_eq!(usable(Some(0)).len(), 1);
    }

    #[test]
    fn quotas_are_rounded_up_to_whole_cores() {
        assert_eq!(parse_unified("150000 100000\n"), Some(2));
        assert_eq!(parse_unified("max 100000\n"), None);
        assert_eq!(whole_cores(50_000, 100_000), Some(1));
        assert_eq!(whole_cores(-1, 100_000), None);
    }
}
