//! What every fuzz target shares: a bound on the memory that one input may take, and the replay of a target's corpus.
//!
//! `docs/fuzzing.md` lists the targets and says how to run one. A target is a plain function of bytes; it lives in the
//! crate that it exercises, and a small crate beside that one ties it to libFuzzer and to `cargo test`.

#![forbid(unsafe_code)]

use std::alloc::System;
use std::any::Any;
use std::path::Path;
use std::sync::{Mutex, Once};

use cap::Cap;

/// Everything that a program with a target allocates. libFuzzer's own memory is not counted: it is not Rust's.
#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// A target: what is done with an input, and what that may cost.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of its program and of its folder in the corpus.
    pub name: &'static str,
    /// Panics when the input breaks a promise.
    pub run: fn(&[u8]),
    /// The most memory, in bytes, that an input of this length may take at any moment of its run. Beyond it the process
    /// aborts.
    pub memory_bytes: fn(usize) -> usize,
    /// What the text of a panic contains by which the code stops on purpose, if it ever does: such a run ends as one
    /// that was refused does.
    pub stops_with: Option<&'static str>,
}

impl Target {
    /// A target whose inputs never panic.
    pub const fn new(name: &'static str, run: fn(&[u8]), memory_bytes: fn(usize) -> usize) -> Target {
        Target { name, run, memory_bytes, stops_with: None }
    }

    /// Runs one input within its memory bound.
    pub fn run(&self, data: &[u8]) {
        self.prepare();
        let bound = ALLOCATOR.allocated().saturating_add((self.memory_bytes)(data.len()));
        ALLOCATOR.set_limit(bound).expect("a bound above what is allocated");
        if self.stops_with.is_none() {
            (self.run)(data);
        } else if let Err(panic) = std::panic::catch_unwind(|| (self.run)(data))
            && !is_stop(&*panic, self.stops_with)
        {
            std::panic::resume_unwind(panic);
        }
        ALLOCATOR.set_limit(usize::MAX).expect("no bound");
    }

    /// Before a target's first input comes a run of no bytes and without a bound: it makes what the target keeps.
    fn prepare(&self) {
        static HOOK: Once = Once::new();
        let mut current = CURRENT.lock().expect("nothing panics while it is held");
        if current.is_some_and(|target| target.name == self.name) {
            return;
        }
        *current = Some(*self);
        drop(current);
        HOOK.call_once(|| {
            let hook = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                // What tells of a panic may need memory.
                ALLOCATOR.set_limit(usize::MAX).expect("no bound");
                let current = *CURRENT.lock().expect("nothing panics while it is held");
                if !is_stop(panic.payload(), current.and_then(|target| target.stops_with)) {
                    hook(panic);
                }
            }));
        });
        (self.run)(&[]);
    }
}

/// The target that was run last.
static CURRENT: Mutex<Option<Target>> = Mutex::new(None);

/// Whether a panic's text says that it is a stop on purpose.
fn is_stop(panic: &(dyn Any + Send), stops_with: Option<&str>) -> bool {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    stops_with.is_some_and(|stop| text.is_some_and(|text| text.contains(stop)))
}

/// Runs every input under `corpus/`, which has a folder for each target. Returns how many there were.
///
/// # Panics
/// When an input breaks a promise, a target has no inputs, or a folder has no target.
#[expect(clippy::disallowed_methods, reason = "a corpus is files, and only tests read it")]
pub fn replay(corpus: &Path, targets: &[Target]) -> usize {
    let entries = |folder: &Path| {
        let read = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut paths: Vec<_> = read.map(|entry| entry.expect("a readable folder").path()).collect();
        paths.sort();
        paths
    };
    let mut count = 0;
    for folder in entries(corpus) {
        let name = folder.file_name().expect("folders have names");
        let target = targets.iter().find(|target| target.name == name);
        let target = target.unwrap_or_else(|| panic!("{} belongs to no target", folder.display()));
        for path in entries(&folder) {
            let data = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            // The last of these lines names the input that fails; a test that passes doesn't show them.
            println!("{}", path.display());
            target.run(&data);
            count += 1;
        }
    }
    for target in targets {
        assert!(corpus.join(target.name).is_dir(), "target {} has no corpus", target.name);
    }
    count
}
