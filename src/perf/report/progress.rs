//! The bar on stderr, when stderr is a terminal; nothing otherwise.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// Where the sweep is.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Nothing to show yet.
    pub fn none() -> Self {
        Self { bar: ProgressBar::hidden() }
    }

    /// A bar over `n_rows` rows; without a bar when there is no end (0).
    pub fn new(n_rows: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::none();
        }
        let bar = ProgressBar::with_draw_target(Some(n_rows), ProgressDrawTarget::stderr());
        let template =
            if n_rows == 0 { "row {pos} {msg} {elapsed}" } else { "{bar:24} {pos}/{len} {msg} {elapsed}" };
        let style = ProgressStyle::with_template(template);
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
