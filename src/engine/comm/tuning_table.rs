//! What the choice of algorithm and protocol rests on, as the library's table: latency in µs and bandwidth in GB/s of every
//! combination, three algorithms a block.

use crate::engine::tuning::host::{Choice, HostModel, exists};
use crate::engine::types::{Algorithm, Collective, Protocol};

/// Algorithms that run on the host, in blocks; those of the library first.
const BLOCKS: [&[Algorithm]; 2] =
    [&[Algorithm::Tree, Algorithm::Ring], &[Algorithm::OneShot, Algorithm::TwoShot]];
const COLLECTIVES: [(&str, Collective); 2] =
    [("AllGather", Collective::AllGather), ("AllReduce", Collective::AllReduce)];
/// A call whose time is all bandwidth, bytes of one rank's input.
const LARGE: u64 = 256 << 20;

/// The table's lines.
pub(super) fn lines(model: &HostModel) -> Vec<String> {
    BLOCKS.iter().flat_map(|block| block_lines(model, block)).collect()
}

fn block_lines(model: &HostModel, block: &[Algorithm]) -> Vec<String> {
    let mut head = "  Algorithm   |".to_owned();
    let mut protocols = "  Protocol    |".to_owned();
    let mut threads = " Max NThreads |".to_owned();
    for algorithm in block {
        head += &format!(" {:14}   {:>14}   {:14} |", "", algorithm.name().to_uppercase(), "");
        for protocol in Protocol::ALL {
            protocols += &format!(" {:>14} |", protocol.name().to_uppercase());
            // A channel is a task: one thread runs it at a time.
            threads += &format!(" {:>14} |", 1);
        }
    }
    let mut lines = vec![head, protocols, threads];
    for (name, collective) in COLLECTIVES {
        let mut line = format!("{name:>13} |");
        for &algorithm in block {
            for &protocol in Protocol::ALL {
                let (latency_us, gb_per_s) = cost(model, collective, algorithm, protocol);
                line += &format!("{latency_us:8.1}/{gb_per_s:6.1} |");
            }
        }
        lines.push(line);
    }
    lines
}

/// Latency and bandwidth as the model has them; zeros for what does not exist.
fn cost(model: &HostModel, collective: Collective, algorithm: Algorithm, protocol: Protocol) -> (f64, f64) {
    if !exists(collective, algorithm, protocol) {
        return (0.0, 0.0);
    }
    let is_classic = matches!(algorithm, Algorithm::Tree | Algorithm::Ring);
    let n_channels = if is_classic { model.n_channels } else { 1 };
    let time_us = |bytes| model.time_us(collective, Choice { algorithm, protocol, n_channels }, bytes);
    let latency_us = time_us(0);
    let inputs = if collective == Collective::AllGather { model.n_ranks as u64 } else { 1 };
    (latency_us, (LARGE * inputs) as f64 / 1e3 / (time_us(LARGE) - latency_us))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tuning::filter::Filter;
    use crate::engine::tuning::host::Cut;

    #[test]
    fn the_table_has_the_librarys_columns_and_zeros_for_what_does_not_exist() {
        let model = HostModel {
            n_ranks: 4,
            n_hosts: 1,
            n_cpus: 2,
            cache_bytes: 32 << 20,
            shares_control: true,
            is_peer_mapped: true,
            filter: Filter::parse(None, None).expect("no filter"),
            symmetric_anyway: false,
            n_channels: 2,
            cut: Cut::default(),
        };
        let lines = lines(&model);
        assert_eq!(lines.len(), 10);
        for block in lines.chunks(5) {
            assert!(block.iter().all(|line| line.len() == 15 + 2 * 3 * 17), "{block:#?}");
            assert!(
                block[1].starts_with("  Protocol    |             LL |          LL128 |"),
                "{}",
                block[1]
            );
        }
        assert!(lines[3].starts_with("    AllGather |     0.0/   0.0 |"), "{}", lines[3]);
        assert!(!lines[4].contains(" 0.0/") && !lines[4].contains("/   0.0"), "{}", lines[4]);
    }
}
