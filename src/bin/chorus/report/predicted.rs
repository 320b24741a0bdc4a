//! The engine's cost model asked about the calls of a recording.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use analysis::dataset::{Config, Dataset, Scenario};
use analysis::report::model::{Predictor, compare as against};
use analysis::report::{Finding, Options as ReportOptions, Section};
use chorus::engine::tuning::filter::{ALGORITHM_NAMES, PROTOCOL_NAMES};
use chorus::engine::tuning::model::algorithms;
use chorus::engine::tuning::{Model, Request};
use chorus::engine::types::{Collective, DataType, Protocol, RedOp};

use crate::Failure;
use crate::machine::{Machine, Options, Source};

/// Models by ranks, hosts and channels; nothing where the machine cannot be that.
type Models = BTreeMap<(u32, u32, u32), Option<Model>>;

/// Section and sentences for the model of a topology file.
pub(super) fn compare(
    file: &Path,
    data: &Dataset,
    options: &ReportOptions,
) -> Result<(Section, Vec<Finding>), Failure> {
    // A file that cannot be read is the caller's mistake, not a silent model.
    Machine::open(file, &Options::with(Vec::new()))?;
    let models = RefCell::new(Models::new());
    let time_us = |scenario: &Scenario, config: &Config, bytes: u64| {
        let mut models = models.borrow_mut();
        let key = (scenario.n_ranks, scenario.n_hosts.max(1), config.n_channels);
        let model = models.entry(key).or_insert_with(|| match model(file, key) {
            Ok(model) => Some(model),
            Err(why) => {
                eprintln!("warning: --model: {} ranks on {} hosts: {why}", key.0, key.1);
                None
            }
        });
        time(model.as_ref()?, scenario, config, bytes)
    };
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let predictor = Predictor { name, time_us: &time_us };
    Ok(against(data, options, &predictor))
}

/// The model of so many ranks of a file's machine with exactly that many channels (0: as many as it finds).
fn model(file: &Path, (n_ranks, n_hosts, n_channels): (u32, u32, u32)) -> Result<Model, String> {
    if !n_ranks.is_multiple_of(n_hosts) {
        return Err("hosts of unequal size are not modelled".into());
    }
    let per_host = u16::try_from(n_ranks / n_hosts).map_err(|_| "too many ranks for one host".to_owned())?;
    let names = ["NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"].into_iter().filter(|_| n_channels > 0);
    let options = Options::with(names.map(|name| (name.to_owned(), n_channels.to_string())).collect());
    let source = Source::ranks_of(file.to_owned(), per_host);
    let joined = Machine::of(&source, &options).and_then(|machine| machine.joined(n_hosts as usize));
    joined.map(|joined| joined.model).map_err(|failure| match failure {
        Failure::Usage(text) | Failure::Input(text) | Failure::Internal(text) => text,
        Failure::Output(error) => error.to_string(),
    })
}

fn time(model: &Model, scenario: &Scenario, config: &Config, bytes: u64) -> Option<f64> {
    let plain = |word: &str| word.replace('_', "").to_ascii_lowercase();
    let collective =
        Collective::ALL.iter().copied().find(|c| plain(c.name()) == plain(&scenario.collective))?;
    let algorithm = algorithms().find(|&a| {
        ALGORITHM_NAMES.get(a as usize).is_some_and(|name| name.eq_ignore_ascii_case(&config.algorithm))
    })?;
    let protocol = Protocol::ALL
        .iter()
        .copied()
        .find(|&p| PROTOCOL_NAMES[p as usize].eq_ignore_ascii_case(&config.protocol))?;
    let ops = [RedOp::Sum, RedOp::Prod, RedOp::Min, RedOp::Max, RedOp::Avg];
    let plain = Request::plain(collective, bytes);
    let request = Request {
        dtype: DataType::from_name(&scenario.dtype)?,
        op: ops.into_iter().find(|op| op.name() == &*scenario.redop).unwrap_or(plain.op),
        ..plain
    };
    let time = model.cost_table(&request)[algorithm as usize][protocol as usize];
    (time > 0.0).then(|| f64::from(time))
}
