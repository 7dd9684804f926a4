//! See `garboard_replica::fuzz::transfer`.
#![no_main]
#![expect(clippy::disallowed_methods, reason = "what the macro makes can write an input's form to a file")]

libfuzzer_sys::fuzz_target!(|data: &[u8]| garboard_replica_fuzz::TRANSFER.run(data));
