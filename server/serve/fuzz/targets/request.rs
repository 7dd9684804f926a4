//! See `garboard_server::api::fuzz::request`.
#![no_main]
#![expect(clippy::disallowed_methods, reason = "what the macro makes can write an input's form to a file")]

libfuzzer_sys::fuzz_target!(|data: &[u8]| garboard_server_fuzz::REQUEST.run(data));
