//! The MVCC index: a copy-on-write B+tree in one mapped file.
