//! Frames that peers exchange.
