//! The edge: everything that touches files, sockets, clocks, threads and signals.
pub mod cores;
pub mod data_dir;
pub mod edge;
pub mod files;
pub mod index_file;
pub mod log_files;
pub mod probe;
pub mod signals;
