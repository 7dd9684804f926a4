//! The mark that a shell keeps on disk for as long as a member is under repair.

use super::Loss;

/// How far a repair is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The index was found damaged while it was served from. Nothing was changed yet.
    Found,
    /// What was there is being set aside; what else is there was never relied on.
    Clearing,
    /// What is there is sound, and lacks something.
    Filling,
}

/// What a shell keeps of a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// How far it is.
    pub stage: Stage,
    /// What the member knows of itself; whom it knows is not kept.
    pub loss: Loss,
}

/// Text that is no mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no mark of a repair, or a damaged one")]
pub struct MarkError;

const TITLE: &str = "garboard repair";
const FORMAT_VERSION: u32 = 1;

impl Mark {
    /// The mark of a repair that begins, or that began before this was found.
    pub fn begin(stage: Stage, before: Option<Mark>) -> Mark {
        let nothing_lost = Loss { is_state_known: true, ..Loss::default() };
        Mark { stage, loss: before.map_or(nothing_lost, |before| before.loss) }
    }

    /// The same, with what was found of the log's newest state; nothing if that can't be told.
    #[must_use]
    pub fn with_state(self, state: Option<garboard_wal::HardState>) -> Mark {
        let found = state.unwrap_or_default();
        Mark { loss: self.loss.and_state(found.term, found.vote, state.is_some()), ..self }
    }

    /// As text, with its checksum.
    pub fn encode(&self) -> String {
        let stage = match self.stage {
            Stage::Found => "found",
            Stage::Clearing => "clearing",
            Stage::Filling => "filling",
        };
        let Loss { term, vote, is_state_known, .. } = self.loss;
        let state = if is_state_known { "known" } else { "lost" };
        let body =
            format!("{TITLE}\nformat {FORMAT_VERSION}\nstage {stage}\nterm {term}\nvote {vote:016x}\nstate {state}\n");
        let checksum = crc32c::crc32c(body.as_bytes());
        format!("{body}crc {checksum:08x}\n")
    }

    /// Reads the text.
    ///
    /// # Errors
    /// It is no mark of this version.
    pub fn decode(text: &str) -> Result<Mark, MarkError> {
        let body_len = text.rfind("crc ").ok_or(MarkError)?;
        let field =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).ok_or(MarkError);
        let checksum = u32::from_str_radix(field("crc")?, 16).map_err(|_| MarkError)?;
        let is_ours = text.lines().next() == Some(TITLE) && field("format")?.parse() == Ok(FORMAT_VERSION);
        if !is_ours || checksum != crc32c::crc32c(&text.as_bytes()[..body_len]) {
            return Err(MarkError);
        }
        let stage = match field("stage")? {
            "found" => Stage::Found,
            "clearing" => Stage::Clearing,
            "filling" => Stage::Filling,
            _ => return Err(MarkError),
        };
        let term = field("term")?.parse().map_err(|_| MarkError)?;
        let vote = u64::from_str_radix(field("vote")?, 16).map_err(|_| MarkError)?;
        let is_state_known = match field("state")? {
            "known" => true,
            "lost" => false,
            _ => return Err(MarkError),
        };
        Ok(Mark { stage, loss: Loss { term, vote, is_state_known, peers: Vec::new() } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_reads_back_as_it_was_written_and_no_other_text_is_one() {
        for stage in [Stage::Found, Stage::Clearing, Stage::Filling] {
            let loss = Loss { term: 7, vote: u64::MAX, is_state_known: stage == Stage::Found, peers: Vec::new() };
            let mark = Mark { stage, loss };
            let text = mark.encode();
            assert_eq!(Mark::decode(&text), Ok(mark));
            assert_eq!(Mark::decode(&text.replace("term 7", "term 6")), Err(MarkError));
            assert_eq!(Mark::decode(&text[..text.len() / 2]), Err(MarkError));
        }
        assert_eq!(Mark::decode(""), Err(MarkError));
    }

    #[test]
    fn what_two_sources_know_is_the_newer_state_and_known_only_if_both_know_it() {
        let state = |term, vote| garboard_wal::HardState { term, vote, commit: 3 };
        let begun = Mark::begin(Stage::Clearing, None);
        let known = begun.clone().with_state(Some(state(5, 2)));
        assert_eq!((known.loss.term, known.loss.vote, known.loss.is_state_known), (5, 2, true));
        let later = Mark::begin(Stage::Filling, Some(known.clone())).with_state(Some(state(5, 0)));
        assert_eq!((later.loss.vote, later.loss.is_state_known), (2, true), "a vote is not forgotten");
        let lost = known.with_state(None);
        assert_eq!((lost.loss.term, lost.loss.is_state_known), (5, false));
        assert!(!lost.with_state(Some(state(9, 1))).loss.is_state_known);
    }
}
