//! The bar on stderr, when stderr is a terminal; nothing otherwise.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// Where the sweep is.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar over `n_rows` rows.
    pub fn new(n_rows: u64) -> Self {
        let bar = ProgressBar::new(n_rows);
        if !std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len} {msg} {elapsed}");
        bar.set_style(style.expect("invariant: the template is valid"));
        Self { bar }
    }

    /// Shows what is measured now.
    pub fn show(&self, what: String) {
        self.bar.set_message(what);
        self.bar.tick();
    }

    /// One row is done.
    pub fn advance(&self) {
        self.bar.inc(1);
    }

    /// Runs `print` with the bar out of the way.
    pub fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    /// Takes the bar off the screen.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
