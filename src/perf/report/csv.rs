//! `--csv`: every measurement as a row of a record, through the crate that also reads them.

use std::io;
use std::path::{Path, PathBuf};

use analysis::record::{Manifest, Placement, Row as Record, RowWriter, RunStatus, manifest};

use crate::perf::report::row::Row;

/// What is the same in all rows of a run.
#[derive(Clone, Debug, Default)]
pub struct Common {
    /// `engine` or `mpi`.
    pub backend: String,
    /// Device kind and name.
    pub device: String,
    /// Hosts the ranks believe they are on.
    pub n_hosts: u32,
    /// Ranks of the group that is timed.
    pub n_ranks: u32,
    /// Collective's name.
    pub collective: String,
}

/// Who keeps the manifest and names the run.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// Run id and repeat number given by a sweep that started this process and keeps the manifest itself.
    pub given: Option<(String, u32)>,
    /// The only placements whose rows that sweep wants; empty: all.
    pub placements: Vec<Placement>,
}

/// A record being written.
#[derive(Debug)]
pub struct Csv {
    writer: RowWriter,
    manifest: Option<(Manifest, PathBuf)>,
    template: Record,
    placements: Vec<Placement>,
}

impl Csv {
    /// Appends to `path` under a run id of its own and notes the run in the manifest beside it.
    pub fn open(path: &str, args: &[String], identity: Identity, details: Details) -> io::Result<Self> {
        let path = Path::new(path);
        let writer = RowWriter::append(path)?;
        let own = identity.given.is_none();
        let placements = identity.placements;
        let (run_id, repeat) = identity.given.unwrap_or_else(|| (manifest::new_run_id(), 0));
        let manifest = if own {
            let beside = Manifest::path_beside(path);
            let mut manifest = Manifest::load(&beside)?.unwrap_or_else(|| Manifest::new(args.to_vec()));
            manifest.versions.insert("chorus".into(), env!("CARGO_PKG_VERSION").into());
            manifest.launcher = Some(details.launcher);
            manifest.environment = details.environment.into_iter().collect();
            manifest.begin(&run_id).command_line = args.to_vec();
            manifest.save(&beside)?;
            Some((manifest, beside))
        } else {
            None
        };
        let common = details.common;
        let template = Record {
            run_id,
            repeat,
            cycle: 0,
            timestamp: String::new(),
            backend: common.backend,
            device: common.device,
            n_hosts: common.n_hosts,
            n_ranks: common.n_ranks,
            collective: common.collective,
            algorithm: String::new(),
            protocol: String::new(),
            n_channels: 0,
            dtype: String::new(),
            redop: String::new(),
            root: -1,
            bytes: 0,
            count: 0,
            placement: Placement::OutOfPlace,
            iterations: 0,
            time_us: 0.0,
            algbw: 0.0,
            busbw: 0.0,
            wrong: None,
        };
        Ok(Self { writer, manifest, template, placements })
    }

    /// The wanted placements of a row. A placement that timed nothing is no measurement and is left out.
    pub fn row(&mut self, row: &Row) -> io::Result<()> {
        for (placement, cell) in row.cells() {
            if !(self.placements.is_empty() || self.placements.contains(&placement)) {
                continue;
            }
            if !(cell.time_us.is_finite() && cell.time_us > 0.0) {
                continue;
            }
            let record = &mut self.template;
            record.cycle = row.cycle;
            record.timestamp = manifest::now();
            record.algorithm.clone_from(&row.ran.algorithm);
            record.protocol.clone_from(&row.ran.protocol);
            record.n_channels = row.ran.n_channels;
            record.dtype = row.dtype.name().into();
            record.redop = row.redop.into();
            record.root = row.root;
            record.bytes = row.bytes;
            record.count = row.count;
            record.placement = placement;
            record.iterations = cell.iterations;
            record.time_us = cell.time_us;
            record.algbw = cell.bandwidth.algorithm;
            record.busbw = cell.bandwidth.bus;
            record.wrong = cell.wrong;
            self.writer.write(&self.template)?;
        }
        Ok(())
    }

    /// Notes how the run ended.
    pub fn finish(&mut self, status: RunStatus) -> io::Result<()> {
        if let Some((manifest, path)) = &mut self.manifest {
            manifest.finish(&self.template.run_id, status);
            manifest.save(path)?;
        }
        Ok(())
    }
}

/// What the manifest and the rows say about the job.
#[derive(Clone, Debug, Default)]
pub struct Details {
    /// Launch mode.
    pub launcher: String,
    /// Allow-listed variables that are set.
    pub environment: Vec<(String, String)>,
    /// The same in all rows.
    pub common: Common,
}
