//! Replays what the fuzzer found worth keeping.

use std::path::Path;

#[test]
fn no_input_of_the_corpus_breaks_a_promise() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let count = garboard_fuzzing::replay(&corpus, garboard_server_fuzz::TARGETS);
    assert!(count > 0);
}
