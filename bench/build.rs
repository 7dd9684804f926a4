//! Generates the messages and the client that the load needs, and the service of the stub that the tests run against.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let descriptors = protox::compile(["bench.proto", "health.proto", "diagnostics.proto"], ["proto"])?;
    for (folder, client, server) in [("client", true, false), ("stub", false, true)] {
        let folder = out.join(folder);
        std::fs::create_dir_all(&folder)?;
        tonic_prost_build::configure()
            .build_client(client)
            .build_server(server)
            .build_transport(false)
            .bytes(".")
            .out_dir(folder)
            .compile_fds(descriptors.clone())?;
    }
    Ok(())
}
