//! Fuzz targets of what peers send.

#![forbid(unsafe_code)]

use garboard_fuzzing::Target;
use garboard_transport::{fuzz, limits};

/// Frames and the messages in them. The first step of a body's buffer is taken on the word of its length.
pub const FRAME: Target = Target::new("frame", fuzz::frame, |len| limits::BODY_FIRST_STEP_BYTES + 24 * len + 16 * 1024);

/// The first bytes of a connection.
pub const HELLO: Target = Target::new("hello", fuzz::hello, |_| 16 * 1024);

/// All of them.
pub const TARGETS: &[Target] = &[FRAME, HELLO];
