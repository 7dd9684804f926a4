//! Reads the log's segments at a start, several at once: so the device has more than one read to do, and every core takes
//! part in checking what comes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Mutex;

use garboard_wal::{Recovery, SegmentScan};
use rustix::thread::{sched_getaffinity, sched_setaffinity};

use super::home::log_error;
use super::log_files::LogFiles;

/// Threads that read: each holds a chunk and a batch.
const THREADS: usize = 4;

/// Reads everything that recovery wants.
pub fn read_log(recovery: &mut Recovery, log_files: &LogFiles) {
    let mut segments: Vec<(SegmentScan, PathBuf)> = Vec::new();
    while let Some(scan) = recovery.take_segment() {
        let path = log_files.path(scan.file().shard, scan.file().segment);
        segments.push((scan, path));
    }
    let threads = THREADS.min(segments.len());
    let waiting = Mutex::new(segments.into_iter());
    let next = || waiting.lock().ok().and_then(|mut waiting| waiting.next());
    let read_some = || {
        // Threads start where the one that started them is pinned.
        if let Ok(all) = sched_getaffinity(Some(rustix::process::getpid())) {
            let _ = sched_setaffinity(None, &all);
        }
        let mut read = Vec::new();
        let mut buffer = Vec::new();
        while let Some((mut scan, path)) = next() {
            read_segment(&mut scan, &File::open(path), &mut buffer);
            read.push(scan);
        }
        read
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..threads).map(|_| scope.spawn(read_some)).collect();
        for reader in readers {
            let read = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            read.into_iter().for_each(|scan| recovery.handle_segment(scan));
        }
    });
}

fn read_segment(scan: &mut SegmentScan, file: &io::Result<File>, buffer: &mut Vec<u8>) {
    while let Some(read) = scan.poll_read() {
        buffer.resize(read.len, 0);
        let outcome = match file {
            Ok(file) => file.read_exact_at(buffer, read.offset),
            Err(error) => Err(error.kind().into()),
        };
        match outcome {
            Ok(()) => scan.handle_read(read, Ok(buffer)),
            Err(error) => scan.handle_read(read, Err(log_error(error))),
        }
    }
}
