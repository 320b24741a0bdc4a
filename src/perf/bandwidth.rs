//! Algorithm and bus bandwidth of a row.

use crate::engine::types::{Collective, DataType};
use crate::perf::sweep::Shape;

/// Both bandwidths, 10^9 bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bandwidth {
    /// Bytes of the operation over its time.
    pub algorithm: f64,
    /// The same times the factor that makes it independent of the number of ranks.
    pub bus: f64,
}

impl Bandwidth {
    /// Of one operation of `shape` that took `time_us`. Nothing timed gives 0, not infinity.
    pub fn of(collective: Collective, shape: &Shape, dtype: DataType, n_ranks: usize, time_us: f64) -> Self {
        if time_us <= 0.0 {
            return Self::default();
        }
        let n = n_ranks as f64;
        let bytes = (shape.count * dtype.size() as u64) as f64;
        let (bytes, factor) = match collective {
            Collective::AllReduce => (bytes, 2.0 * (n - 1.0) / n),
            Collective::AllGather | Collective::ReduceScatter => (bytes * n, (n - 1.0) / n),
            Collective::Broadcast | Collective::Reduce => (bytes, 1.0),
        };
        let algorithm = bytes / 1e3 / time_us;
        Self { algorithm, bus: algorithm * factor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(collective: Collective, size: u64, n: usize, time_us: f64) -> Bandwidth {
        let shape = Shape::of(collective, size, DataType::Float, n);
        Bandwidth::of(collective, &shape, DataType::Float, n, time_us)
    }

    #[test]
    fn factors_are_those_of_the_contract() {
        assert_eq!(of(Collective::AllReduce, 8000, 4, 1.0), Bandwidth { algorithm: 8.0, bus: 12.0 });
        assert_eq!(of(Collective::AllGather, 8192, 4, 1.0), Bandwidth { algorithm: 8.192, bus: 6.144 });
    }

    #[test]
    fn one_rank_has_no_bus_bandwidth_and_no_time_has_none_at_all() {
        assert_eq!(of(Collective::AllReduce, 8000, 1, 1.0).bus, 0.0);
        assert_eq!(of(Collective::AllReduce, 8000, 4, 0.0), Bandwidth::default());
    }
}
