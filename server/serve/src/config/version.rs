//! Which versions this server names, and to whom.

/// The version of etcd whose protocol is spoken. Clients decide by it what they may ask for, so it stands wherever etcd
/// has its own.
pub const ETCD_VERSION: &str = "3.7.3";

/// The version of etcd whose stored state this would be.
pub const STORAGE_VERSION: &str = "3.7.0";

/// Garboard's own version.
pub const GARBOARD_VERSION: &str = env!("CARGO_PKG_VERSION");

/// What `--version` prints: etcd's lines, then our own.
pub fn version_text() -> String {
    let git_sha = option_env!("GARBOARD_GIT_SHA").unwrap_or("Not provided");
    format!(
        "etcd Version: {ETCD_VERSION}\nGit SHA: {git_sha}\nGo Version: none\nGo OS/Arch: {}/{}\n\
         Garboard Version: {GARBOARD_VERSION}\n",
        std::env::consts::OS,
        go_architecture(std::env::consts::ARCH),
    )
}

/// Go's name of an architecture.
fn go_architecture(architecture: &str) -> &str {
    match architecture {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}
