//! Signals: SIGTERM and SIGINT ask the server to stop.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::core::Shared;

/// Waits for a signal to stop, on the calling thread, and marks the server as stopping. A second signal ends the process
/// at once.
///
/// # Errors
/// Where handlers can't be installed.
pub fn wait_for_stop(shared: &Arc<Shared>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let mut seen = signals.forever();
    if let Some(signal) = seen.next() {
        tracing::info!("received signal {signal}; stopping");
        shared.stopping.store(true, Ordering::Relaxed);
    }
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        if signals.forever().next().is_some() {
            std::process::exit(1);
        }
    })?;
    Ok(())
}
