//! Reads the index's file again in the background, slowly, so that rot in pages nobody reads is found while other copies
//! still exist.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use garboard_storage::Index;

use super::edge::stop_over_page;
use super::home::Inbox;

/// Pages of one step: 256 KiB.
const STEP_PAGES: usize = 64;
/// Time between steps: at most 1.3 MB/s are read.
const STEP_INTERVAL: Duration = Duration::from_millis(200);
/// Time between a pass's end and the next one's start.
const PASS_INTERVAL: Duration = Duration::from_secs(3600);

/// How far a pass over the file is.
pub struct Scrub {
    next_page: u32,
    due: Duration,
    under_way: Rc<Cell<bool>>,
}

impl Scrub {
    /// A scrub whose first pass begins one interval after `now`.
    pub fn new(now: Duration) -> Scrub {
        Scrub { next_page: 0, due: now + PASS_INTERVAL / 60, under_way: Rc::default() }
    }

    /// When [`Scrub::step`] wants to be called; not while a step is under way.
    pub fn poll_timeout(&self) -> Option<Duration> {
        (!self.under_way.get()).then_some(self.due)
    }

    /// Starts a step if it is time for one, and rings when it is done. A damaged page ends the process: it is never
    /// served.
    pub fn step(&mut self, now: Duration, index: &Index, inbox: &Inbox) {
        if now < self.due || self.under_way.get() {
            return;
        }
        let (pages, next) = index.pages_in_file(self.next_page, STEP_PAGES);
        self.next_page = next.unwrap_or(0);
        self.due = now + if next.is_some() { STEP_INTERVAL } else { PASS_INTERVAL };
        if pages.is_empty() {
            return;
        }
        let reader = index.reader();
        let (under_way, inbox) = (self.under_way.clone(), inbox.clone());
        under_way.set(true);
        garboard_executor::spawn(async move {
            let outcome = garboard_executor::blocking(move || reader.scrub(&pages)).await;
            under_way.set(false);
            inbox.ring();
            if let Err(error) = outcome {
                stop_over_page(&error);
            }
        });
    }
}
