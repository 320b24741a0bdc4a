//! `all_gather_perf`: nccl-tests' program of that name over the Chorus engine.

fn main() {
    std::process::exit(chorus::perf::main(chorus::Collective::AllGather));
}
