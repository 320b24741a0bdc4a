//! What one row of the table holds, before anything is printed.

use analysis::record::Tuned;

use crate::engine::types::DataType;
use crate::perf::bandwidth::Bandwidth;
use crate::perf::statistic::Summary;
use crate::perf::sweep::Forcing;

/// One size: both placements.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The `size` column, bytes.
    pub bytes: u64,
    /// The `count` column, elements.
    pub count: u64,
    /// Element type.
    pub dtype: DataType,
    /// Operator's word, `none` where there is none.
    pub redop: &'static str,
    /// Root rank, -1 where there is none.
    pub root: i32,
    /// Separate buffers.
    pub out_of_place: Cell,
    /// Input inside the receive buffer.
    pub in_place: Cell,
    /// Which repetition of the sweep (`-N`), from 0.
    pub cycle: u32,
    /// What ran.
    pub ran: Ran,
}

impl Row {
    /// Both placements with the names records give them.
    pub fn cells(&self) -> [(analysis::record::Placement, &Cell); 2] {
        use analysis::record::Placement;
        [(Placement::OutOfPlace, &self.out_of_place), (Placement::InPlace, &self.in_place)]
    }
}

/// Algorithm, protocol and channels behind a row, as records spell them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Algorithm.
    pub algorithm: String,
    /// Protocol.
    pub protocol: String,
    /// Channels.
    pub n_channels: u32,
}

impl Ran {
    /// The words for what a library chose; a library that says nothing is one of MPI.
    pub fn of(choice: &Forcing) -> Self {
        if choice.algorithm.is_none() {
            let algorithm = choice.library.map_or_else(|| "mpi".into(), Tuned::word);
            return Self { algorithm, protocol: "mpi".into(), n_channels: 0 };
        }
        Self {
            algorithm: choice.algorithm.map_or(String::new(), |a| a.name().to_owned()),
            protocol: choice.protocol.map_or(String::new(), |p| p.name().to_owned()),
            n_channels: choice.n_channels.unwrap_or(0),
        }
    }
}

/// One placement of one size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// Time of one operation, combined over ranks, microseconds.
    pub time_us: f64,
    /// Time a call takes to return on rank 0, microseconds.
    pub cpu_time_us: f64,
    /// From `time_us`, also with -C.
    pub bandwidth: Bandwidth,
    /// Wrong elements, or nothing when unchecked.
    pub wrong: Option<u64>,
    /// Iterations timed.
    pub iterations: u32,
    /// With -I.
    pub per_iteration: Option<PerIteration>,
}

/// Times of the single iterations of a placement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PerIteration {
    /// Over the iterations after the skipped ones.
    pub summary: Summary,
    /// Leading iterations left out of the summary.
    pub skipped: u32,
    /// Every iteration: the slowest process of each.
    pub times_us: Vec<f64>,
    /// Every iteration of every process.
    pub per_process: Vec<Vec<f64>>,
}

impl PerIteration {
    /// From one list per process.
    pub fn of(per_process: Vec<Vec<f64>>, skip: u32) -> Self {
        let n = per_process.iter().map(Vec::len).min().unwrap_or(0);
        let slowest = |i: usize| per_process.iter().map(|times| times[i]).fold(0.0, f64::max);
        let times_us: Vec<f64> = (0..n).map(slowest).collect();
        let skipped = skip.min(n as u32);
        let summary = Summary::of(&times_us[skipped as usize..]);
        Self { summary, skipped, times_us, per_process }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iteration_takes_as_long_as_its_slowest_process() {
        let p = PerIteration::of(vec![vec![9.0, 1.0, 4.0], vec![2.0, 3.0, 2.0]], 1);
        assert_eq!(p.times_us, [9.0, 3.0, 4.0]);
        assert_eq!((p.summary.min, p.summary.max, p.skipped), (3.0, 4.0, 1));
        assert_eq!(PerIteration::of(vec![vec![]], 3).summary, Summary::default());
    }
}
