//! What happened, in order, for an engineer to read, and a digest of it, for a machine to compare.

use std::time::Duration;

/// Tells what happens.
#[derive(Debug)]
pub struct Story {
    digest: u64,
    printing: bool,
}

impl Story {
    /// A story that is printed as it unfolds, or only digested.
    pub fn new(printing: bool) -> Story {
        Story { digest: 0xcbf2_9ce4_8422_2325, printing }
    }

    /// Something happened. `tag` says what and `number` which; both go into the digest, the text does not: it is made
    /// only where somebody reads it.
    pub fn tell(&mut self, now: Duration, tag: &'static str, number: u64, text: impl FnOnce() -> String) {
        let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        for byte in tag.bytes() {
            self.mix(u64::from(byte));
        }
        self.mix(nanos);
        self.mix(number);
        if self.printing {
            println!("{:>14.6} s  {tag:<9} {}", now.as_secs_f64(), text());
        }
    }

    fn mix(&mut self, value: u64) {
        self.digest = (self.digest ^ value).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    }

    /// The same for the same story.
    pub fn digest(&self) -> u64 {
        self.digest
    }
}
