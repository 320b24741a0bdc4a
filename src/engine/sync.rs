//! Atomics, cells and threads: the standard library's, or loom's when models run (`--cfg loom`).
//! Lock-free code imports from here only, so that the shipped types are the modelled ones.

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// One turn of a spin loop.
#[inline]
pub fn spin_hint() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}
