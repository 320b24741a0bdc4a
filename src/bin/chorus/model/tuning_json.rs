//! Tables and choices of the cost model as JSON: every collective from 8 B to 8 GiB in powers of two.

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use chorus::engine::tuning::constants::nccl::PerKernel;
use chorus::engine::tuning::filter::{ALGORITHM_NAMES, COLLECTIVE_NAMES, PROTOCOL_NAMES};
use chorus::engine::tuning::tuner::Rules;
use chorus::engine::tuning::{Choice, Model, Request};
use chorus::engine::types::{Collective, DataType};

/// Powers of two of the sizes.
const SIZES: std::ops::RangeInclusive<u32> = 3..=33;

/// A model in its schema.
pub(super) struct Tuned<'a>(pub(super) &'a Model, pub(super) Option<&'a Rules>);

impl Serialize for Tuned<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let model = self.0;
        let facts = &model.facts;
        let nvls = facts.nvls_channels > 0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("nRanks", &facts.n_ranks)?;
        map.serialize_entry("nNodes", &facts.n_hosts)?;
        map.serialize_entry("nChannels", &facts.n_channels)?;
        map.serialize_entry("nvlsSupport", &u8::from(nvls))?;
        map.serialize_entry("nvlsChannels", &facts.nvls_channels)?;
        map.serialize_entry("collNetSupport", &u8::from(facts.collnet.is_some()))?;
        map.serialize_entry("minCompCap", &facts.min_compute_cap)?;
        map.serialize_entry("maxCompCap", &facts.max_compute_cap)?;
        map.serialize_entry("cpuArch", &facts.cpu_arch.map_or(-1, |arch| arch as i32))?;
        map.serialize_entry("cpuVendor", &facts.cpu_vendor.map_or(-1, |vendor| vendor as i32))?;
        map.serialize_entry("maxThreads", &model.max_threads)?;
        map.serialize_entry("threadThresholds", &model.thread_thresholds)?;
        map.serialize_entry("latencies", &ByFunction(&model.latencies))?;
        map.serialize_entry("bandwidths", &ByFunction(&model.bandwidths))?;
        let (choices, warnings) = choices(model, self.1);
        map.serialize_entry("choices", &choices)?;
        if !warnings.is_empty() {
            map.serialize_entry("warnings", &warnings)?;
        }
        map.end()
    }
}

/// A table per collective, by name.
struct ByFunction<'a>(&'a [PerKernel<f32>; 5]);

impl Serialize for ByFunction<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(COLLECTIVE_NAMES.iter().zip(self.0))
    }
}

/// One row: collective, count, bytes, algorithm, protocol, channels, threads, µs, cost table.
struct Row {
    request: Request,
    count: u64,
    choice: Choice,
    table: PerKernel<f32>,
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut row = serializer.serialize_seq(Some(9))?;
        row.serialize_element(COLLECTIVE_NAMES[self.request.collective as usize])?;
        row.serialize_element(&self.count)?;
        row.serialize_element(&self.request.bytes)?;
        row.serialize_element(ALGORITHM_NAMES.get(self.choice.algorithm as usize).unwrap_or(&""))?;
        row.serialize_element(PROTOCOL_NAMES[self.choice.protocol as usize])?;
        row.serialize_element(&self.choice.n_channels)?;
        row.serialize_element(&self.choice.n_threads)?;
        row.serialize_element(&self.choice.time_us)?;
        row.serialize_element(self.table.as_flattened())?;
        row.end()
    }
}

/// The rows of all collectives and sizes, and a warning for each collective that nothing can run.
fn choices(model: &Model, rules: Option<&Rules>) -> (Vec<Row>, Vec<String>) {
    let mut rows = Vec::new();
    let mut warnings = Vec::new();
    for &collective in Collective::ALL {
        for power in SIZES {
            let (dtype, blocks) = match collective {
                Collective::AllGather => (DataType::Int8, model.facts.n_ranks as u64),
                Collective::Broadcast => (DataType::Int8, 1),
                Collective::ReduceScatter => (DataType::Float, model.facts.n_ranks as u64),
                Collective::AllReduce | Collective::Reduce => (DataType::Float, 1),
            };
            let unit = dtype.size() as u64 * blocks;
            let count = (1_u64 << power) / unit;
            if count == 0 {
                continue;
            }
            let request = Request { dtype, ..Request::plain(collective, count * unit) };
            let table = model.cost_table(&request);
            match model.choose(&request, rules) {
                Ok(choice) => rows.push(Row { request, count, choice, table }),
                Err(error) => {
                    warnings.push(error.to_string());
                    break;
                }
            }
        }
    }
    (rows, warnings)
}
