//! What a process holds in memory.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of a process's anonymous resident memory.
pub fn anonymous_bytes(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10
}

/// Looks at a process's memory until it is asked for the most it saw.
pub struct Peak {
    stop: Arc<AtomicBool>,
    peak: Arc<AtomicU64>,
    start: u64,
    thread: Option<JoinHandle<()>>,
}

impl Peak {
    pub fn of(process: u32) -> Peak {
        let (stop, peak) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let start = anonymous_bytes(process);
        let (stopped, seen) = (stop.clone(), peak.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                seen.fetch_max(anonymous_bytes(process), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Peak { stop, peak, start, thread: Some(thread) }
    }

    /// How much more than at first it held at most.
    pub fn growth(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.peak.load(Ordering::Relaxed).saturating_sub(self.start)
    }
}
