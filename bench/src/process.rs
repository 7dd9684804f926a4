//! What processes use, from `/proc/PID`: CPU time, bytes written, anonymous memory.

use crate::error::BenchError;
use std::time::Duration;

/// User and system time, in clock ticks, from the text of `/proc/PID/stat`. None if the text has another shape.
///
/// The second field is the process' name in parentheses, and the name may hold blanks and parentheses itself: fields
/// are counted from the last closing one.
pub fn parse_stat_ticks(stat: &str) -> Option<u64> {
    const UTIME_AFTER_NAME: usize = 11;
    let after_name = &stat[stat.rfind(')')? + 1..];
    let mut fields = after_name.split_ascii_whitespace().skip(UTIME_AFTER_NAME);
    let utime: u64 = fields.next()?.parse().ok()?;
    let stime: u64 = fields.next()?.parse().ok()?;
    utime.checked_add(stime)
}

/// The CPU time that a process has used since it started, all its threads together. The kernel tells it in clock
/// ticks, usually of 10 ms, so a difference over a short run is coarse.
pub fn process_cpu(pid: u32) -> Result<Duration, BenchError> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).map_err(|source| BenchError::Process { pid, source })?;
    let ticks = parse_stat_ticks(&text).ok_or_else(|| BenchError::Process {
        pid,
        source: std::io::Error::new(std::io::ErrorKind::InvalidData, "unexpected text in /proc/PID/stat"),
    })?;
    let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
    Ok(Duration::from_secs_f64(ticks as f64 / ticks_per_second as f64))
}

/// The CPU time of several processes together: the members of a cluster.
pub fn processes_cpu(pids: &[u32]) -> Result<Duration, BenchError> {
    pids.iter().map(|&pid| process_cpu(pid)).sum()
}

/// Bytes that several processes together have had written to block devices since they started.
///
/// The kernel counts a write that goes around the page cache when it is submitted, and one that goes through it when
/// it makes a page dirty: a page that is made dirty again before it is written back is counted once. What the file
/// system writes for itself, its journal and its metadata, is not in it.
pub fn written_bytes(pids: &[u32]) -> Result<u64, BenchError> {
    pids.iter().map(|&pid| read_number(pid, "io", "write_bytes")).sum()
}

/// Resident memory of several processes together that belongs to no file: heap, stacks, private copies.
pub fn anonymous_bytes(pids: &[u32]) -> Result<u64, BenchError> {
    pids.iter().map(|&pid| read_number(pid, "status", "RssAnon").map(|kib| kib * 1024)).sum()
}

/// Resident memory of several processes together that belongs to files, which the kernel can take back.
pub fn file_bytes(pids: &[u32]) -> Result<u64, BenchError> {
    pids.iter().map(|&pid| read_number(pid, "status", "RssFile").map(|kib| kib * 1024)).sum()
}

fn read_number(pid: u32, file: &str, name: &str) -> Result<u64, BenchError> {
    let path = format!("/proc/{pid}/{file}");
    let text = std::fs::read_to_string(path).map_err(|source| BenchError::Process { pid, source })?;
    parse_number(&text, name).ok_or_else(|| BenchError::Process {
        pid,
        source: std::io::Error::new(std::io::ErrorKind::InvalidData, format!("no {name} in /proc/PID/{file}")),
    })
}

/// The number behind `name:`, whatever unit follows it.
fn parse_number(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_ticks_are_added() {
        let stat = "4242 (etcd) S 1 4242 4242 0 -1 4194560 900 0 3 0 1234 766 0 0 20 0 12 0 99 1 2 3";
        assert_eq!(parse_stat_ticks(stat), Some(2_000));
    }

    #[test]
    fn a_name_with_blanks_and_parentheses_does_not_shift_the_fields() {
        let stat = "7 (a ) S 1 (b) R 1 7 7 0 -1 0 0 0 0 0 5 6 0 0 20 0 1 0 9 1 2 3";
        assert_eq!(parse_stat_ticks(stat), Some(11));
    }

    #[test]
    fn a_short_or_strange_text_is_refused() {
        for stat in [
            "",
            "7",
            "7 (x",
            "7 (x) S 1 2 3",
            "7 (x) S 1 7 7 0 -1 0 0 0 0 0 five 6 0",
            "7 (x) S 1 7 7 0 -1 0 0 0 0 0 5",
        ] {
            assert_eq!(parse_stat_ticks(stat), None, "{stat:?}");
        }
    }

    #[test]
    fn numbers_are_found_by_their_whole_names() {
        let text = "rchar: 7\nxwrite_bytes: 1\nwrite_bytes: 4096\nRssAnon:\t    1234 kB\n";
        assert_eq!(parse_number(text, "write_bytes"), Some(4096));
        assert_eq!(parse_number(text, "RssAnon"), Some(1234));
        assert_eq!(parse_number(text, "Rss"), None);
    }

    #[test]
    fn this_process_has_a_cpu_time_and_a_dead_one_is_an_error() {
        let own = std::process::id();
        assert!(process_cpu(own).is_ok());
        assert!(anonymous_bytes(&[own]).unwrap() > 0 && file_bytes(&[own]).unwrap() > 0);
        assert!(written_bytes(&[own]).is_ok());
        assert!(matches!(process_cpu(u32::MAX), Err(BenchError::Process { .. })));
    }
}
