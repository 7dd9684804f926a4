//! Generates the message types from the `.proto` files, without needing `protoc`.

use std::path::PathBuf;

use prost::Message;

#[allow(clippy::disallowed_methods, reason = "a build script writes files")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = ["rpc.proto", "lock.proto", "election.proto", "health.proto", "diagnostics.proto"];
    let descriptors = protox::compile(files, ["proto"])?;
    let out_dir = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    std::fs::write(out_dir.join("descriptors.bin"), descriptors.encode_to_vec())?;
    let mut config = prost_build::Config::new();
    config.bytes(["."]).enable_type_names();
    // A transaction's operation that says nothing is two bytes on the wire. So that a request of many takes no hundred
    // times its length before it is refused, what an operation says stands apart.
    for operation in ["range", "put", "delete_range", "txn"] {
        config.boxed(format!(".etcdserverpb.RequestOp.request.request_{operation}"));
    }
    config.compile_fds(descriptors)?;
    Ok(())
}
