//! Deliberate bugs, planted one at a time, with which tests prove that their nets catch.
//!
//! A crate lists its bugs in an enum `Canary`, calls [`switch!`] behind it, and asks `is_on(Canary::…)` where a bug would
//! be. Only the feature `canaries` of that crate brings them in, which tests alone turn on: without it `is_on` is a constant
//! `false`, and nothing of a bug is left in the program.

#![forbid(unsafe_code)]

/// `is_on`, and with the feature `canaries` of the crate that calls this `plant` and `Planted`. A bug that was planted is in
/// the calling thread alone.
#[macro_export]
macro_rules! switch {
    () => {
        #[cfg(not(feature = "canaries"))]
        pub(crate) const fn is_on(_: Canary) -> bool {
            false
        }

        #[cfg(feature = "canaries")]
        mod switch {
            use std::cell::Cell;

            use super::Canary;

            thread_local! {
                static PLANTED: Cell<Option<Canary>> = const { Cell::new(None) };
            }

            pub(crate) fn is_on(canary: Canary) -> bool {
                PLANTED.get() == Some(canary)
            }

            /// Keeps a bug in this thread until it is dropped.
            #[derive(Debug)]
            #[must_use = "the bug is gone with it"]
            pub struct Planted(());

            /// Plants a bug in this thread.
            pub fn plant(canary: Canary) -> Planted {
                assert!(PLANTED.replace(Some(canary)).is_none(), "one bug at a time");
                Planted(())
            }

            impl Drop for Planted {
                fn drop(&mut self) {
                    PLANTED.set(None);
                }
            }
        }

        #[cfg(feature = "canaries")]
        pub(crate) use switch::is_on;
        #[cfg(feature = "canaries")]
        pub use switch::{Planted, plant};
    };
}
