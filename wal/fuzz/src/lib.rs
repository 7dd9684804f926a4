//! Fuzz targets of the log.

#![forbid(unsafe_code)]

use garboard_fuzzing::Target;
use garboard_wal::fuzz;

/// A batch's header and body.
pub const RECORD: Target = Target::new("record", fuzz::record, |len| 8 * len + 4096);

/// The anchor in the index's meta page.
pub const ANCHOR: Target = Target::new("anchor", fuzz::anchor, |_| 64 * 1024);

/// The manifest.
pub const MANIFEST: Target = Target::new("manifest", fuzz::manifest, |_| 4096);

/// Whole recoveries. A body may claim 34 MiB, the files of a run hold less than one.
pub const RECOVERY: Target = Target::new("recovery", fuzz::recovery, |_| 8 << 20);

/// All of them.
pub const TARGETS: &[Target] = &[RECORD, ANCHOR, MANIFEST, RECOVERY];
