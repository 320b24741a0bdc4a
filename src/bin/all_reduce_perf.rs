//! `all_reduce_perf`: nccl-tests' program of that name over the Chorus engine.
fn main() {}
