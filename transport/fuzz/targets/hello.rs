//! See `garboard_transport::fuzz::hello`.
#![no_main]
#![expect(clippy::disallowed_methods, reason = "what the macro makes can write an input's form to a file")]

libfuzzer_sys::fuzz_target!(|data: &[u8]| garboard_transport_fuzz::HELLO.run(data));
