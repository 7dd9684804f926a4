//! Where a read could miss a page.
//!
//! Every call into a view that a read makes stands behind [`may_miss`]. It costs nothing, except in this crate's tests,
//! where it misses pages at random, so that every place of resumption is walked over and over.

/// Passes.
#[cfg(not(test))]
#[inline]
pub(crate) fn may_miss() -> garboard_storage::Paged<()> {
    Ok(())
}

#[cfg(test)]
pub(crate) use injected::{may_miss, miss_one_in, whole};

#[cfg(test)]
mod injected {
    use std::cell::Cell;

    use garboard_storage::{NeedPage, PageId, Paged};

    thread_local! {
        /// One call in so many misses; 0: none does.
        static ONE_IN: Cell<u64> = const { Cell::new(0) };
        static STATE: Cell<u64> = const { Cell::new(0) };
    }

    /// From now on one call in `one_in` misses its page, as `seed` decides; 0: none does.
    pub(crate) fn miss_one_in(one_in: u64, seed: u64) {
        ONE_IN.set(one_in);
        STATE.set(seed | 1);
    }

    pub(crate) fn may_miss() -> Paged<()> {
        let one_in = ONE_IN.get();
        if one_in == 0 {
            return Ok(());
        }
        let mut state = STATE.get();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        STATE.set(state);
        if (state >> 11).is_multiple_of(one_in) {
            return Err(NeedPage(PageId { number: u32::MAX, birth: u64::MAX }));
        }
        Ok(())
    }

    /// Calls again until no page is missing.
    pub(crate) fn whole<T>(mut read: impl FnMut() -> Paged<T>) -> T {
        for _ in 0..1_000_000 {
            if let Ok(value) = read() {
                return value;
            }
        }
        panic!("a read that goes on where it missed a page comes to an end");
    }
}
