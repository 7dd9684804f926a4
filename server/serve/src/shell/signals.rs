//! Signals: SIGTERM and SIGINT ask the server to stop.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::StartError;
use crate::core::Shared;

/// How often the calling thread looks whether the server has ended by itself.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Waits, on the calling thread, until the server has ended; a signal marks it as stopping, a second one ends the process
/// at once.
///
/// # Errors
/// What the server ended with, or where handlers can't be installed.
pub fn wait_for(shared: &Arc<Shared>, finished: &Receiver<Result<(), StartError>>) -> Result<(), StartError> {
    let mut signals = Signals::new([SIGTERM, SIGINT])
        .map_err(|error| StartError::Machine(format!("installing signal handlers: {error}")))?;
    loop {
        match finished.recv_timeout(LOOK_INTERVAL) {
            Ok(outcome) => return outcome,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(StartError::Machine("the server ended without a word".to_owned()));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        for signal in signals.pending() {
            tracing::info!("received signal {signal}; stopping");
            if shared.stopping.swap(true, Ordering::Relaxed) {
                std::process::exit(1);
            }
        }
    }
}
