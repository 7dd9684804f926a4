//! Fuzz targets of the client API.

#![forbid(unsafe_code)]

use garboard_fuzzing::Target;
use garboard_server::api::fuzz;

/// Request messages of every method. A list's element takes a hundred times the two bytes that an empty one is on the
/// wire, while lists grow by doubling, and each message is read twice.
pub const REQUEST: Target = Target::new("request", fuzz::request, |len| 1024 * len + 512 * 1024);

/// All of them.
pub const TARGETS: &[Target] = &[REQUEST];
