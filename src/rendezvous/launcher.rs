//! What launchers leave in the environment: who started this process, as which one of how many. Pure: reads through a closure.

/// Who started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Open MPI's mpirun.
    OpenMpi,
    /// MPICH's hydra or another launcher with the PMI variables.
    Pmi,
    /// PMIx without Open MPI's own variables (srun --mpi=pmix).
    Pmix,
    /// torchrun, or anybody who sets its variables.
    Torch,
    /// srun without an MPI plugin.
    Slurm,
}

impl Kind {
    /// Whether an MPI library started by it would find its peers.
    pub fn can_start_mpi(self) -> bool {
        matches!(self, Self::OpenMpi | Self::Pmi | Self::Pmix)
    }

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "Open MPI's mpirun",
            Self::Pmi => "mpiexec (PMI)",
            Self::Pmix => "a PMIx launcher",
            Self::Torch => "torchrun's variables",
            Self::Slurm => "srun",
        }
    }
}

/// What a launcher announced to this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// Who.
    pub kind: Kind,
    /// This process.
    pub process: usize,
    /// How many there are.
    pub n_processes: usize,
    /// How many of them are on this host, when it said so.
    pub n_local_processes: Option<usize>,
    /// Where process 0 is to be met, when it said so.
    pub address: Option<String>,
    /// The port there.
    pub port: Option<u16>,
    /// Text that only this job has: its processes know each other by it.
    pub job: String,
}

/// A setting that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value}: expected {expected}")]
pub struct BadVariable {
    name: String,
    value: String,
    expected: String,
}

/// What is announced, MPI launchers first: their processes may inherit other launchers' variables from the job around them.
pub(super) fn detect(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Option<Announced>, BadVariable> {
    let reader = Reader { lookup };
    let found = [
        reader.launcher(
            Kind::OpenMpi,
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        )?,
        reader.launcher(Kind::Pmi, "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS")?,
        reader.launcher(Kind::Pmix, "PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE")?,
        reader.launcher(Kind::Torch, "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")?,
        reader.launcher(Kind::Slurm, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE")?,
    ];
    let Some(mut announced) = found.into_iter().flatten().next() else {
        reader.rank_beside("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")?;
        reader.rank_beside("PMI_SIZE", "PMI_RANK")?;
        reader.rank_beside("WORLD_SIZE", "RANK")?;
        return Ok(None);
    };
    announced.address = (lookup)("MASTER_ADDR").filter(|text| !text.is_empty());
    announced.port = reader.number("MASTER_PORT", 1, 65535)?.map(|port| port as u16);
    if announced.address.is_none() && matches!(announced.kind, Kind::Slurm | Kind::Pmix) {
        announced.address = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"]
            .iter()
            .find_map(|name| lookup(name))
            .and_then(|list| first_host(&list));
    }
    Ok(Some(announced))
}

struct Reader<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl Reader<'_> {
    fn number(&self, name: &str, low: usize, high: usize) -> Result<Option<usize>, BadVariable> {
        let Some(value) = (self.lookup)(name).filter(|text| !text.is_empty()) else { return Ok(None) };
        match value.trim().parse::<usize>() {
            Ok(number) if (low..=high).contains(&number) => Ok(Some(number)),
            _ => {
                let expected = if high == usize::MAX {
                    format!("a number from {low}")
                } else {
                    format!("{low} to {high}")
                };
                Err(BadVariable { name: name.into(), value, expected })
            }
        }
    }

    fn launcher(
        &self,
        kind: Kind,
        rank: &str,
        size: &str,
        local: &str,
    ) -> Result<Option<Announced>, BadVariable> {
        if (self.lookup)(rank).is_none() || (self.lookup)(size).is_none() {
            return Ok(None);
        }
        let Some(n_processes) = self.number(size, 1, 1 << 20)? else { return Ok(None) };
        let Some(process) = self.number(rank, 0, n_processes - 1)? else { return Ok(None) };
        // Slurm spells it `4(x2),3`; only a plain number says something here.
        let n_local_processes = (self.lookup)(local).and_then(|text| text.trim().parse().ok());
        let job = JOB_VARIABLES
            .iter()
            .filter_map(|name| (self.lookup)(name).map(|value| format!("{name}={value};")))
            .collect();
        Ok(Some(Announced { kind, process, n_processes, n_local_processes, address: None, port: None, job }))
    }

    /// A number of processes without a rank, from a launcher that sets both: N processes would each run a job of their own.
    /// (Slurm gives batch scripts sizes without ranks, and a rank without a size is somebody else's variable.)
    fn rank_beside(&self, size: &str, rank: &str) -> Result<(), BadVariable> {
        match (self.lookup)(size).and_then(|text| text.trim().parse::<usize>().ok()) {
            Some(n) if n > 1 && (self.lookup)(rank).is_none() => Err(BadVariable {
                name: size.into(),
                value: n.to_string(),
                expected: format!(
                    "{rank} beside it: {n} processes are announced, and not which of them this is; start the program with \
                     the launcher, or unset {size}"
                ),
            }),
            _ => Ok(()),
        }
    }
}

/// Variables that have one value in all processes of a job and another one in the next job.
const JOB_VARIABLES: [&str; 10] = [
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "PMI_ID",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
];

/// The first host of a Slurm list: `node[03-05,9],other` starts at `node03`.
fn first_host(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (prefix, rest) = list.split_at(end);
    let host = match rest.strip_prefix('[') {
        None => prefix.to_owned(),
        Some(inside) => {
            let (ranges, tail) = inside.split_once(']')?;
            let first = ranges.split([',', '-']).next()?;
            let tail_end = tail.find(',').unwrap_or(tail.len());
            format!("{prefix}{first}{}", &tail[..tail_end])
        }
    };
    (!host.is_empty()).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pairs: &[(&str, &str)]) -> Result<Option<Announced>, BadVariable> {
        detect(&|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
    }

    #[test]
    fn no_variables_mean_no_launcher() {
        assert_eq!(found(&[]), Ok(None));
        assert_eq!(found(&[("RANK", "0")]), Ok(None), "a rank without a size is somebody else's variable");
        assert_eq!(
            found(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]),
            Ok(None),
            "a batch script, not srun"
        );
    }

    #[test]
    fn a_number_of_processes_without_a_rank_is_no_world_of_one() {
        for (size, rank) in [
            ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
            ("PMI_SIZE", "PMI_RANK"),
            ("WORLD_SIZE", "RANK"),
        ] {
            let error = found(&[(size, "4")]).expect_err("four processes").to_string();
            assert!(error.starts_with(&format!("{size}=4: expected {rank} beside it")), "{error}");
            assert_eq!(found(&[(size, "1")]), Ok(None));
            assert_eq!(found(&[(size, "")]), Ok(None));
            assert_eq!(found(&[(size, "large")]), Ok(None), "somebody else's variable");
        }
        let under_mpirun =
            [("WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
        assert_eq!(found(&under_mpirun).expect("valid").expect("a launcher").n_processes, 2);
    }

    #[test]
    fn torchruns_variables_name_rank_size_and_meeting_place() {
        let all = [("RANK", "3"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "29500")];
        let announced = found(&all).expect("valid").expect("a launcher");
        assert_eq!((announced.kind, announced.process, announced.n_processes), (Kind::Torch, 3, 4));
        assert_eq!((announced.address.as_deref(), announced.port), (Some("10.0.0.1"), Some(29500)));
    }

    #[test]
    fn mpi_launchers_come_before_variables_inherited_from_around() {
        let all = [
            ("RANK", "0"),
            ("WORLD_SIZE", "1"),
            ("OMPI_COMM_WORLD_RANK", "5"),
            ("OMPI_COMM_WORLD_SIZE", "8"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "8"),
        ];
        let announced = found(&all).expect("valid").expect("a launcher");
        assert_eq!(
            (announced.kind, announced.process, announced.n_local_processes),
            (Kind::OpenMpi, 5, Some(8))
        );
        let hydra = found(&[("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2")]);
        assert_eq!(hydra.expect("valid").expect("a launcher").kind, Kind::Pmi);
    }

    #[test]
    fn srun_gives_the_first_host_of_its_list() {
        let all = [
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_STEP_NODELIST", "gpu[07-09,12]"),
            ("SLURM_JOB_ID", "99"),
        ];
        let announced = found(&all).expect("valid").expect("a launcher");
        assert_eq!((announced.kind, announced.address.as_deref()), (Kind::Slurm, Some("gpu07")));
        assert!(announced.job.contains("SLURM_JOB_ID=99;"));
    }

    #[test]
    fn host_lists_start_with_their_first_host() {
        for (list, first) in [
            ("a", "a"),
            ("a,b", "a"),
            ("n[1-4]", "n1"),
            ("n[003,7]-ib,m1", "n003-ib"),
            ("rack1-n[10-12],x", "rack1-n10"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(first));
        }
        assert_eq!(first_host(""), None);
        assert_eq!(first_host("n[1"), None);
    }

    #[test]
    fn numbers_that_contradict_each_other_are_named() {
        let error = found(&[("RANK", "4"), ("WORLD_SIZE", "4")]).expect_err("rank 4 of 4").to_string();
        assert_eq!(error, "RANK=4: expected 0 to 3");
        let error = found(&[("RANK", "x"), ("WORLD_SIZE", "4")]).expect_err("no number").to_string();
        assert!(error.starts_with("RANK=x"), "{error}");
        let all = [("RANK", "0"), ("WORLD_SIZE", "4"), ("MASTER_PORT", "99999")];
        assert_eq!(found(&all).expect_err("no port").to_string(), "MASTER_PORT=99999: expected 1 to 65535");
    }
}
