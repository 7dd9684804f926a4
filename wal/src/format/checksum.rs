//! CRC-32 that starts from the log's identity.

/// Computes checksums that only this log's bytes pass: each starts from the random log id, so that a value which looks
/// like a header, or a batch of another log, never verifies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checksum {
    seed: u32,
}

impl Checksum {
    pub(crate) fn new(log_id: u128) -> Checksum {
        Checksum { seed: crc32fast::hash(&log_id.to_le_bytes()) }
    }

    /// The checksum of `bytes`. Never zero, so that a zeroed field never verifies zeroed bytes.
    pub(crate) fn of(&self, bytes: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.seed);
        hasher.update(bytes);
        hasher.finalize().max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_with_different_ids_do_not_accept_each_others_bytes() {
        assert_ne!(Checksum::new(1).of(b"batch"), Checksum::new(2).of(b"batch"));
        assert_eq!(Checksum::new(1).of(b"batch"), Checksum::new(1).of(b"batch"));
    }
}
