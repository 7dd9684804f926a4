//! Panics inside a seed are caught, with their text and place.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::Once;

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    static TEXT: RefCell<String> = const { RefCell::new(String::new()) };
    /// Called with the panic's text where panics can't be caught, because they end the process.
    static LAST_WORDS: RefCell<Option<LastWords>> = const { RefCell::new(None) };
}

/// What a thread does with a panic that it can't survive.
pub(crate) type LastWords = Box<dyn FnOnce(String)>;

static HOOK: Once = Once::new();

/// Runs `body`; a panic gives its text.
pub(crate) fn catch<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| if CATCHING.get() { note(info) } else { before(info) }));
    });
    CATCHING.set(true);
    let result = catch_unwind(AssertUnwindSafe(body));
    CATCHING.set(false);
    result.map_err(|_| TEXT.take())
}

/// Says what this thread does with the next panic where the build ends the process at a panic.
pub(crate) fn set_last_words(words: LastWords) {
    LAST_WORDS.set(Some(words));
}

fn note(info: &PanicHookInfo<'_>) {
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
    let place = info.location().map(|place| format!(" ({}:{})", place.file(), place.line())).unwrap_or_default();
    let text = text + &place;
    if cfg!(panic = "abort")
        && let Some(words) = LAST_WORDS.take()
    {
        words(text.clone());
    }
    TEXT.set(text);
}
