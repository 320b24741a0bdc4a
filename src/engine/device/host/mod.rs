//! The host device: a rank plays one GPU on the CPUs of this machine. [`reduce`] is its arithmetic.

pub mod reduce;
