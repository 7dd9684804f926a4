//! Measures what the log costs a core without a disk: appends joined into batches, encoded into a buffer, completed.
//!
//! `cargo run --release -p garboard-wal --example batch_rate`

use core::time::Duration;
use std::time::Instant;

use bytes::Bytes;
use garboard_wal::{Append, Effect, Entry, EntryKind, HardState, Log, LogConfig};

/// Does every effect at once; returns how many bytes were encoded.
fn settle(log: &mut Log, buffer: &mut Vec<u8>) -> usize {
    let mut encoded = 0;
    while let Some(effect) = log.poll_effect(Duration::ZERO) {
        let op = match effect {
            Effect::WriteManifest { op, .. } | Effect::PrepareSegment { op, .. } | Effect::Remove { op, .. } => op,
            Effect::Write { op, len, .. } => {
                if buffer.len() < len {
                    buffer.resize(len, 0);
                }
                log.fill(op, &mut buffer[..len]);
                encoded += len;
                op
            }
        };
        log.handle_done(Duration::ZERO, op, Ok(())).expect("nothing fails here");
    }
    encoded
}

#[allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn measure(data_bytes: usize, appends_per_batch: u64) {
    let mut log = Log::create(LogConfig::default(), 7).expect("the default is valid");
    let (mut buffer, data) = (Vec::new(), Bytes::from(vec![7; data_bytes]));
    settle(&mut log, &mut buffer);
    let rounds = (1 << 30) / (u64::try_from(data_bytes).expect("small") + 64) / appends_per_batch / 4 + 1;
    let (mut index, mut encoded) = (0, 0);
    let started = Instant::now();
    for _ in 0..rounds {
        for _ in 0..appends_per_batch {
            index += 1;
            let entry = Entry { index, term: 1, kind: EntryKind::Normal, context: Bytes::new(), data: data.clone() };
            log.append(Append { entries: vec![entry], hard_state: HardState { term: 1, vote: 1, commit: index - 1 } });
        }
        encoded += settle(&mut log, &mut buffer);
        if index % 4096 < appends_per_batch {
            let anchor = log.anchor(index - 1);
            log.handle_checkpoint(&anchor);
        }
    }
    let elapsed = started.elapsed();
    let nanoseconds = elapsed.as_nanos() / u128::from(index);
    let rate = u128::try_from(encoded).expect("small") * 1_000 / elapsed.as_nanos();
    println!(
        "{data_bytes:>8} B entries, {appends_per_batch:>4} a batch: {nanoseconds:>8} ns an append, {rate:>6} MB/s"
    );
}

fn main() {
    for (data_bytes, appends_per_batch) in [(300, 1), (300, 16), (300, 200), (4_096, 16), (262_144, 1), (1_000_000, 1)]
    {
        measure(data_bytes, appends_per_batch);
    }
}
