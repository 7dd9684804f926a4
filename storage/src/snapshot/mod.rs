//! A snapshot: everything that an index shows at one applied entry, as a stream of bytes in bounded chunks.
//!
//! [`Export`] makes it from views of ever newer roots, [`Index::begin_import`](crate::Index::begin_import) and
//! [`Index::import`](crate::Index::import) build new trees from it beside those in use, and
//! [`Index::start_install`](crate::Index::start_install) puts them in their place. What the stream holds is told in
//! `docs/index-format.md`.

mod export;
mod stream;

pub use export::{Chunk, Export, ExportStep, Position};
pub use stream::{ImportError, SnapshotFacts};
pub(crate) use stream::{Item, Parser, Totals};
