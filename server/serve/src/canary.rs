//! Deliberate bugs of the shell, with which the crashes of a real kernel prove that they catch.
//!
//! Only the feature `canaries` brings them in, which tests alone turn on: without it [`is_on`] is a constant `false`, and
//! nothing of a bug is left in the program. With it the variable `GARBOARD_CANARY` plants one for the whole process.

/// A deliberate bug of the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// A write of the log is reported as done when it is submitted.
    DoneBeforeWritten,
    /// A failed write of the log is reported as done, and the server goes on.
    FailurePassedOver,
    /// Pages of the index stay in the kernel's cache, but the meta page that points to them does not.
    PagesLeftInCache,
}

#[cfg(not(feature = "canaries"))]
pub(crate) const fn is_on(_: Canary) -> bool {
    false
}

#[cfg(feature = "canaries")]
pub(crate) fn is_on(canary: Canary) -> bool {
    static PLANTED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let planted = PLANTED.get_or_init(|| std::env::var("GARBOARD_CANARY").ok());
    planted.as_ref().is_some_and(|name| *name == format!("{canary:?}"))
}
