//! What can go wrong, in words that say what to do.

use std::error::Error as _;
use std::time::Duration;

/// Why a run could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// An option's value makes no sense, alone or with the others.
    #[error("{0}")]
    Argument(String),
    /// No connection to the endpoint.
    #[error("cannot connect to {endpoint}")]
    Connect {
        /// The endpoint's address.
        endpoint: String,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// Something listens at the endpoint, and it does not speak HTTP/2 without TLS.
    #[error("{endpoint} accepts connections but does not speak plain HTTP/2: {reason}")]
    Protocol {
        /// The endpoint's address.
        endpoint: String,
        /// What the HTTP library said.
        reason: String,
    },
    /// The endpoint answered a call that the run cannot do without with an error.
    #[error("{endpoint} answered {call} with {code}: {message}")]
    Call {
        /// The endpoint's address.
        endpoint: String,
        /// The gRPC method.
        call: &'static str,
        /// The gRPC status code in words.
        code: String,
        /// The server's message.
        message: String,
    },
    /// Watchers were not sent what was put.
    #[error("{endpoint} sent wrong events: {what}")]
    WrongEvents {
        /// The endpoint's address.
        endpoint: String,
        /// What was seen.
        what: String,
    },
    /// A connection broke during the run.
    #[error("the connection to {endpoint} broke during the run: {reason}")]
    ConnectionLost {
        /// The endpoint's address.
        endpoint: String,
        /// What the HTTP library said.
        reason: String,
    },
    /// Nothing finished for a long time.
    #[error("{endpoint} finished nothing for {} s, with {finished} of {total} operations done", waited.as_secs())]
    Stalled {
        /// The endpoint's address.
        endpoint: String,
        /// How long nothing happened.
        waited: Duration,
        /// Operations that had finished.
        finished: u64,
        /// Operations in the round.
        total: u64,
    },
    /// Every operation of a round failed.
    #[error("every one of {total} operations on {endpoint} failed; the first with: {first_error}")]
    AllFailed {
        /// The endpoint's address.
        endpoint: String,
        /// Operations in the round.
        total: u64,
        /// The first failure.
        first_error: String,
    },
    /// The figures of a process cannot be read.
    #[error("cannot read the figures of process {pid}")]
    Process {
        /// The process.
        pid: u32,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The disk cannot be measured.
    #[error("{action} {path} failed")]
    Disk {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        path: String,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The generator itself could not get a thread, a timer or an executor.
    #[error("the load generator could not start")]
    Generator(#[source] std::io::Error),
}

impl BenchError {
    /// What whoever runs the load can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Connect { .. } => {
                Some("start a server there, or name the one to measure with --endpoints HOST:PORT (--vs for a second)")
            }
            Self::Protocol { .. } => {
                Some("name the client port of a server that listens without TLS (etcd's default is 2379)")
            }
            Self::ConnectionLost { .. } => Some("is the server still alive? its log should say why it hung up"),
            Self::Stalled { .. } => Some("--stall-seconds sets how long the load waits"),
            Self::Process { .. } => Some("--pid and --vs-pid name running server processes on this machine"),
            Self::Disk { .. } => {
                Some("--dir names a writable directory on a file system with O_DIRECT, which one in memory lacks")
            }
            Self::Generator(_) => Some("a raised limit of open files or threads (ulimit -n, -u) may help"),
            Self::Argument(_) | Self::Call { .. } | Self::WrongEvents { .. } | Self::AllFailed { .. } => None,
        }
    }

    /// The message with all its causes and the hint, as a terminal should show it.
    pub fn explain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        if let Some(hint) = self.hint() {
            text.push_str(&format!("\nhint: {hint}"));
        }
        text
    }
}
