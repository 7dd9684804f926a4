//! The decision table: what was found on the disk, and what follows. `docs/log-format.md` shows it.
//!
//! D is the highest sequence number that anything that survived says is durable; H is the end of the chain; W is the
//! most batches that were ever in flight.

/// What lies beyond the end of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beyond {
    /// No live batch.
    Nothing,
    /// Live batches, torn or whole, none further than D + W: they were in flight.
    WithinWindow,
    /// A live batch beyond D + W: it cannot have been written before more was durable than anything says.
    PastWindow,
}

/// Where the disk refused to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadError {
    /// Nowhere.
    None,
    /// Something at or below D may lie there.
    AtOrBelowDurable,
    /// Everything up to D was found elsewhere.
    BeyondDurable,
}

/// Everything the verdict depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Findings {
    /// The index's meta page holds an anchor.
    pub(crate) meta_valid: bool,
    /// Two different live batches have one epoch and sequence number.
    pub(crate) two_batches: bool,
    /// The batch behind the end of the chain is whole and contradicts it: another predecessor, an index gap, another
    /// term before, a falling term, a committed entry replaced.
    pub(crate) broken_order: bool,
    /// A live epoch start builds on batches beyond the end of the chain.
    pub(crate) cut_beyond_end: bool,
    /// Where the disk refused to read.
    pub(crate) read_error: ReadError,
    /// H ≥ D.
    pub(crate) reaches_durable: bool,
    /// The index has applied entries beyond the end of the chain, although nothing is applied before it is durable here.
    pub(crate) applied_beyond_end: bool,
    /// What lies beyond the end of the chain.
    pub(crate) beyond: Beyond,
}

/// What follows from the findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The log ends where the chain ends.
    Open,
    /// The log ends where the chain ends; what is beyond was never acknowledged, and the epoch start kills it.
    Cut,
    /// The log is not opened: it cannot be told what it was.
    Refuse(Why),
    /// The log is not opened: something acknowledged is damaged or gone.
    Corrupt(Why),
}

/// Why a log is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// No meta page of the index is valid.
    #[error("the index has no valid meta page, so the log has no start")]
    NoMeta,
    /// Two different batches with one epoch and sequence number.
    #[error("two different batches have one epoch and sequence number")]
    TwoBatches,
    /// A whole batch that does not continue the one before it.
    #[error("a batch does not continue the one before it")]
    BrokenOrder,
    /// An epoch start builds on batches that are not there.
    #[error("an epoch builds on batches that are missing")]
    CutBeyondEnd,
    /// A sector that holds something acknowledged cannot be read.
    #[error("the disk cannot read what was acknowledged")]
    Unreadable,
    /// Something acknowledged is missing or does not pass its checksum.
    #[error("something acknowledged is missing or does not pass its checksum")]
    Hole,
    /// The index is ahead of the log.
    #[error("the index has applied entries that the log does not have")]
    AppliedBeyondEnd,
    /// A batch too far beyond the end.
    #[error("a batch lies further beyond the end than any can have been in flight")]
    PastWindow,
}

/// The table. The first row that matches decides.
///
/// | row | finding | verdict |
/// |---|---|---|
/// | a | no valid meta page | refuse |
/// | b | two live batches with one epoch and sequence number | refuse |
/// | c | index gap, wrong term before, falling term, wrong predecessor | corrupt |
/// | d | an epoch start whose cut is beyond H | corrupt |
/// | e | read error at or below D | corrupt |
/// | f | H < D | corrupt |
/// | g | applied beyond the end | corrupt |
/// | h | a live batch beyond D + W | corrupt |
/// | i | live batches up to D + W beyond H, or a read error beyond D | cut |
/// | j | nothing beyond | open |
pub(crate) fn verdict(findings: &Findings) -> Verdict {
    match findings {
        Findings { meta_valid: false, .. } => Verdict::Refuse(Why::NoMeta),
        Findings { two_batches: true, .. } => Verdict::Refuse(Why::TwoBatches),
        Findings { broken_order: true, .. } => Verdict::Corrupt(Why::BrokenOrder),
        Findings { cut_beyond_end: true, .. } => Verdict::Corrupt(Why::CutBeyondEnd),
        Findings { read_error: ReadError::AtOrBelowDurable, .. } => Verdict::Corrupt(Why::Unreadable),
        Findings { reaches_durable: false, .. } => Verdict::Corrupt(Why::Hole),
        Findings { applied_beyond_end: true, .. } => Verdict::Corrupt(Why::AppliedBeyondEnd),
        Findings { beyond: Beyond::PastWindow, .. } => Verdict::Corrupt(Why::PastWindow),
        Findings { beyond: Beyond::WithinWindow, .. } => Verdict::Cut,
        Findings { read_error: ReadError::BeyondDurable, .. } => Verdict::Cut,
        Findings { read_error: ReadError::None, beyond: Beyond::Nothing, .. } => Verdict::Open,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every combination of the inputs.
    fn all() -> Vec<Findings> {
        let mut all = Vec::new();
        for bits in 0..64u32 {
            let bit = |at: u32| bits >> at & 1 == 1;
            for read_error in [ReadError::None, ReadError::AtOrBelowDurable, ReadError::BeyondDurable] {
                for beyond in [Beyond::Nothing, Beyond::WithinWindow, Beyond::PastWindow] {
                    all.push(Findings {
                        meta_valid: bit(0),
                        two_batches: bit(1),
                        broken_order: bit(2),
                        cut_beyond_end: bit(3),
                        read_error,
                        reaches_durable: bit(4),
                        applied_beyond_end: bit(5),
                        beyond,
                    });
                }
            }
        }
        assert_eq!(all.len(), 576);
        all
    }

    #[test]
    fn a_log_opens_only_when_everything_durable_is_there_and_nothing_contradicts() {
        for findings in all() {
            let sound = findings.meta_valid
                && !findings.two_batches
                && !findings.broken_order
                && !findings.cut_beyond_end
                && findings.read_error != ReadError::AtOrBelowDurable
                && findings.reaches_durable
                && !findings.applied_beyond_end
                && findings.beyond != Beyond::PastWindow;
            let opens = matches!(verdict(&findings), Verdict::Open | Verdict::Cut);
            assert_eq!(opens, sound, "{findings:?}");
        }
    }

    #[test]
    fn a_torn_tail_is_cut_and_a_clean_end_is_opened() {
        for findings in all() {
            let clean = findings.beyond == Beyond::Nothing && findings.read_error == ReadError::None;
            match verdict(&findings) {
                Verdict::Open => assert!(clean, "{findings:?}"),
                Verdict::Cut => assert!(!clean, "{findings:?}"),
                Verdict::Refuse(_) | Verdict::Corrupt(_) => {}
            }
        }
    }

    #[test]
    fn every_reason_matches_its_own_finding_and_what_cannot_be_told_is_refused_first() {
        for findings in all() {
            let reason = match verdict(&findings) {
                Verdict::Open | Verdict::Cut => continue,
                Verdict::Refuse(why) | Verdict::Corrupt(why) => why,
            };
            let found = match reason {
                Why::NoMeta => !findings.meta_valid,
                Why::TwoBatches => findings.two_batches,
                Why::BrokenOrder => findings.broken_order,
                Why::CutBeyondEnd => findings.cut_beyond_end,
                Why::Unreadable => findings.read_error == ReadError::AtOrBelowDurable,
                Why::Hole => !findings.reaches_durable,
                Why::AppliedBeyondEnd => findings.applied_beyond_end,
                Why::PastWindow => findings.beyond == Beyond::PastWindow,
            };
            assert!(found, "{findings:?} gave {reason:?}");
            let refused = matches!(verdict(&findings), Verdict::Refuse(_));
            assert_eq!(refused, !findings.meta_valid || findings.two_batches, "{findings:?}");
        }
    }
}
