//! Fuzz targets of the index.

#![forbid(unsafe_code)]

use garboard_fuzzing::Target;
use garboard_storage::fuzz;

/// A page of cells.
pub const PAGE: Target = Target::new("page", fuzz::page, |_| 1024);

/// The meta page's slots.
pub const META: Target = Target::new("meta", fuzz::meta, |_| 64 * 1024);

/// Whole indexes. A page that verifies and does not hold what its place in a tree promises stops the process.
pub const WALK: Target = Target { stops_with: Some(fuzz::STOPS_WITH), ..Target::new("walk", fuzz::walk, |_| 8 << 20) };

/// All of them.
pub const TARGETS: &[Target] = &[PAGE, META, WALK];
