//! The matrix file: what is to be measured, and the order of launches.
//!
//! ```toml
//! title = "Ring against Tree"
//! collectives = ["all_reduce"]
//! ranks = [2, 4]
//! algorithms = ["ring", "tree"]
//! protocols = ["simple", "ll"]
//! channels = [1, 4]                    # 0: automatic
//! sizes = { from = "4", to = "16M", factor = 2 }
//! warmup = 5
//! iterations = 20
//! cycles = 5                           # rows per size, placement and launch
//! repeats = 2                          # launches; every second one in mirrored order
//! launcher = "local"                   # or "mpirun -np {ranks}"
//! environment = { NCCL_HOSTID = "a" }
//! ```
//! Algorithms inside Open MPI are named as records name them, `ompi:ring`; they go with `backends = ["mpi"]` and an mpirun launcher.
//! `dtypes`, `operators`, `backends`, `arguments`, `programs` (folder of the programs), `interleave`, `[graph_log]` and `[[prediction]]`
//! are optional. `placements = ["out_of_place"]` keeps the rows of one placement; the programs measure both.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::format::parse_size;
use crate::launch;
use crate::record::{Placement, tuned};
use crate::sweep::predict::Prediction;

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matrix {
    /// What it is about.
    #[serde(default)]
    pub title: String,
    /// Collectives, as programs are named: `all_reduce`.
    pub collectives: Vec<String>,
    /// World sizes.
    pub ranks: Vec<u32>,
    /// Algorithms, or `auto`.
    #[serde(default = "automatic")]
    pub algorithms: Vec<String>,
    /// Protocols, or `auto`.
    #[serde(default = "automatic")]
    pub protocols: Vec<String>,
    /// Channel counts, 0 for automatic.
    #[serde(default = "automatic_channels")]
    pub channels: Vec<u32>,
    /// Sizes.
    pub sizes: Sizes,
    /// Element types.
    #[serde(default = "float")]
    pub dtypes: Vec<String>,
    /// Operators.
    #[serde(default = "sum")]
    pub operators: Vec<String>,
    /// Placements whose rows are recorded.
    #[serde(default = "both")]
    pub placements: Vec<Placement>,
    /// Back ends.
    #[serde(default = "engine")]
    pub backends: Vec<String>,
    /// Untimed calls.
    #[serde(default = "one")]
    pub warmup: u32,
    /// Timed calls behind a row; nothing lets the program choose.
    #[serde(default)]
    pub iterations: Option<u32>,
    /// Rows per size, placement and launch.
    #[serde(default = "one")]
    pub cycles: u32,
    /// Launches per configuration.
    #[serde(default = "one")]
    pub repeats: u32,
    /// Alternate algorithms inside everything else instead of mirroring whole repeats.
    #[serde(default)]
    pub interleave: bool,
    /// `local`, or the words before the program with `{ranks}` in them.
    #[serde(default = "local")]
    pub launcher: String,
    /// Folder of the programs; empty: beside this tool.
    #[serde(default)]
    pub programs: String,
    /// Further arguments of every launch.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Variables of every launch.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Whether small sizes may run on fewer channels than asked.
    #[serde(default)]
    pub fewer_channels: bool,
    /// One more launch per world that logs its graph.
    #[serde(default)]
    pub graph_log: Option<GraphLog>,
    /// What is expected; the report says whether it held.
    #[serde(default)]
    pub prediction: Vec<Prediction>,
}

/// Sizes as on command lines.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sizes {
    /// First.
    pub from: String,
    /// Last.
    pub to: String,
    /// Each over the one before.
    #[serde(default = "two")]
    pub factor: u32,
}

/// The launch that logs its graph.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphLog {
    /// Algorithm that is forced.
    pub algorithm: String,
    /// Variables of this launch only.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
}

fn automatic() -> Vec<String> {
    vec!["auto".into()]
}
fn automatic_channels() -> Vec<u32> {
    vec![0]
}
fn float() -> Vec<String> {
    vec!["float".into()]
}
fn sum() -> Vec<String> {
    vec!["sum".into()]
}
fn both() -> Vec<Placement> {
    vec![Placement::OutOfPlace, Placement::InPlace]
}
fn engine() -> Vec<String> {
    vec!["engine".into()]
}
fn local() -> String {
    "local".into()
}
fn one() -> u32 {
    1
}
fn two() -> u32 {
    2
}

/// One configuration: what a launch runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Setup {
    /// Collective.
    pub collective: String,
    /// Ranks.
    pub n_ranks: u32,
    /// Back end.
    pub backend: String,
    /// Algorithm asked for.
    pub algorithm: String,
    /// Protocol asked for.
    pub protocol: String,
    /// Channels asked for, 0 for automatic.
    pub n_channels: u32,
    /// Element type.
    pub dtype: String,
    /// Operator.
    pub operator: String,
}

impl Setup {
    /// Whether the algorithm is one inside Open MPI.
    fn is_open_mpi(&self) -> bool {
        self.algorithm.starts_with(tuned::PREFIX)
    }

    /// Variables that this setup needs beside the matrix's: Open MPI follows a choice only when told at its start.
    pub fn environment(&self) -> Option<(String, String)> {
        self.is_open_mpi().then(|| ("OMPI_MCA_coll_tuned_use_dynamic_rules".into(), "1".into()))
    }

    /// `all_reduce 4 ranks ring/simple/12`.
    pub fn label(&self) -> String {
        let mut more = String::new();
        for (word, usual) in [(&self.backend, "engine"), (&self.dtype, "float"), (&self.operator, "sum")] {
            if word != usual {
                more.push(' ');
                more.push_str(word);
            }
        }
        let channels = if self.n_channels == 0 { "auto".into() } else { self.n_channels.to_string() };
        format!(
            "{} {} ranks {}/{}/{channels}{more}",
            self.collective, self.n_ranks, self.algorithm, self.protocol
        )
    }
}

/// Whether a variable's name speaks of something that no record should hold.
fn looks_secret(name: &str) -> bool {
    let words = ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "AUTH", "CREDENTIAL", "CREDENTIALS"];
    name.split('_').any(|part| words.iter().any(|word| part.eq_ignore_ascii_case(word)))
}

impl Setup {
    /// The setup without choices that mean nothing: an MPI library's own collectives take no algorithm of ours, and collectives that
    /// only move data have no operator. Nothing for an algorithm of Open MPI behind another back end.
    fn meaningful(mut self) -> Option<Self> {
        let is_mpi = self.backend == "mpi";
        if self.is_open_mpi() && !is_mpi {
            return None;
        }
        if is_mpi {
            (self.protocol, self.n_channels) = ("auto".into(), 0);
        }
        if is_mpi && !self.is_open_mpi() {
            self.algorithm = "auto".into();
        }
        if ["all_gather", "broadcast", "all_to_all", "gather", "scatter", "sendrecv"]
            .contains(&&*self.collective)
        {
            self.operator = "sum".into();
        }
        Some(self)
    }
}

impl Matrix {
    /// Reads and checks a matrix file.
    ///
    /// # Errors
    /// A sentence that names the key.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut matrix: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        matrix.placements.sort_unstable();
        matrix.placements.dedup();
        let lists = [
            ("collectives", matrix.collectives.len()),
            ("ranks", matrix.ranks.len()),
            ("algorithms", matrix.algorithms.len()),
            ("protocols", matrix.protocols.len()),
            ("channels", matrix.channels.len()),
            ("dtypes", matrix.dtypes.len()),
            ("operators", matrix.operators.len()),
            ("backends", matrix.backends.len()),
            ("placements", matrix.placements.len()),
        ];
        if let Some((name, _)) = lists.iter().find(|(_, length)| *length == 0) {
            return Err(format!("{name}: the list is empty"));
        }
        if matrix.ranks.contains(&0) {
            return Err("ranks: a world of 0 ranks does not exist".into());
        }
        if matrix.cycles == 0 || matrix.repeats == 0 {
            return Err("cycles and repeats must be at least 1".into());
        }
        if matrix.sizes.factor < 2 {
            return Err("sizes.factor must be at least 2".into());
        }
        let word =
            |word: &String| !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if let Some(bad) = matrix.collectives.iter().find(|name| !word(name)) {
            return Err(format!("collectives: `{bad}` is no program's name such as all_reduce"));
        }
        let graph = matrix.graph_log.as_ref().map(|log| &log.environment);
        let names = matrix.environment.keys().chain(graph.into_iter().flat_map(BTreeMap::keys));
        if let Some(secret) = names.into_iter().find(|name| looks_secret(name)) {
            return Err(format!(
                "environment: {secret} looks like a secret, and a record keeps its matrix; export it in the shell instead"
            ));
        }
        let sizes = matrix.byte_sizes()?;
        if sizes.is_empty() {
            return Err(format!("sizes: from {} is above to {}", matrix.sizes.from, matrix.sizes.to));
        }
        if matrix.launches().is_empty() {
            return Err("algorithms: those of Open MPI (ompi:) need \"mpi\" among the backends".into());
        }
        Ok(matrix)
    }

    /// The sizes that are asked for.
    ///
    /// # Errors
    /// When a size cannot be read.
    pub fn byte_sizes(&self) -> Result<Vec<u64>, String> {
        let (from, to) = (parse_size(&self.sizes.from)?, parse_size(&self.sizes.to)?);
        let next = |bytes: &u64| bytes.checked_mul(u64::from(self.sizes.factor)).filter(|_| *bytes > 0);
        Ok(std::iter::successors(Some(from), next).take_while(|bytes| *bytes <= to).collect())
    }

    /// Every launch as (repeat, setup), in the order they run, each once.
    pub fn launches(&self) -> Vec<(u32, Setup)> {
        let mut seen = BTreeSet::new();
        let all = self.every_combination().into_iter();
        all.filter_map(|(repeat, setup)| Some((repeat, setup.meaningful()?)))
            .filter(|launch| seen.insert(launch.clone()))
            .collect()
    }

    fn every_combination(&self) -> Vec<(u32, Setup)> {
        let mut all = Vec::new();
        if self.interleave {
            for setups in self.rounds(&self.ranks) {
                for repeat in 0..self.repeats {
                    let mut order = setups.clone();
                    if repeat % 2 == 1 {
                        order.reverse();
                    }
                    all.extend(order.into_iter().map(|setup| (repeat, setup)));
                }
            }
            return all;
        }
        for repeat in 0..self.repeats {
            let mut ranks = self.ranks.clone();
            if repeat % 2 == 1 {
                ranks.reverse();
            }
            for mut setups in self.rounds(&ranks) {
                if repeat % 2 == 1 {
                    setups.reverse();
                }
                all.extend(setups.into_iter().map(|setup| (repeat, setup)));
            }
        }
        all
    }

    /// Setups that differ in algorithm only, for every combination of the rest.
    fn rounds(&self, ranks: &[u32]) -> Vec<Vec<Setup>> {
        let mut rounds = Vec::new();
        for collective in &self.collectives {
            for &n_ranks in ranks {
                for backend in &self.backends {
                    for dtype in &self.dtypes {
                        for operator in &self.operators {
                            for protocol in &self.protocols {
                                for &n_channels in &self.channels {
                                    let setup = |algorithm: &String| Setup {
                                        collective: collective.clone(),
                                        n_ranks,
                                        backend: backend.clone(),
                                        algorithm: algorithm.clone(),
                                        protocol: protocol.clone(),
                                        n_channels,
                                        dtype: dtype.clone(),
                                        operator: operator.clone(),
                                    };
                                    rounds.push(self.algorithms.iter().map(setup).collect());
                                }
                            }
                        }
                    }
                }
            }
        }
        rounds
    }

    /// The command of one launch, without its record: launcher, program, arguments.
    pub fn command(&self, setup: &Setup, programs: &str) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        let local = self.launcher.trim() == "local";
        if !local {
            let ranks = setup.n_ranks.to_string();
            words.extend(self.launcher.split_whitespace().map(|word| word.replace("{ranks}", &ranks)));
        }
        words.push(format!("{programs}/{}_perf", setup.collective));
        let mut put = |name: &str, value: &str| words.extend([name.to_owned(), value.to_owned()]);
        if local {
            put("-g", &setup.n_ranks.to_string());
            put("--launch", "local");
        }
        put("-d", &setup.dtype);
        put("-o", &setup.operator);
        put("-w", &self.warmup.to_string());
        if let Some(iterations) = self.iterations {
            put("-n", &iterations.to_string());
        }
        put("--backend", &setup.backend);
        if setup.algorithm != "auto" {
            put("--algo", &setup.algorithm);
        }
        if setup.protocol != "auto" {
            put("--proto", &setup.protocol);
        }
        if setup.n_channels != 0 {
            put("--channels", &setup.n_channels.to_string());
        }
        words.extend(self.arguments.iter().cloned());
        words
    }

    /// Variables of a launch: the matrix's, and which placements it shall record.
    pub fn launch_environment(&self) -> Vec<(String, String)> {
        let mut all: Vec<(String, String)> =
            self.environment.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        if let [only] = self.placements.as_slice() {
            all.push((launch::PLACEMENTS.to_owned(), only.name().to_owned()));
        }
        all
    }

    /// The arguments that choose sizes and cycles of a normal launch.
    pub fn size_arguments(&self) -> Vec<String> {
        let sizes = &self.sizes;
        let words = ["-b", &sizes.from, "-e", &sizes.to, "-f"].map(str::to_owned);
        words.into_iter().chain([sizes.factor.to_string(), "-N".into(), self.cycles.to_string()]).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::Matrix;

    pub(crate) const SMALL: &str = "collectives = [\"all_reduce\"]\nranks = [2, 3]\nalgorithms = [\"ring\", \"tree\"]\n\
                                    protocols = [\"simple\"]\nchannels = [1]\nsizes = { from = \"4\", to = \"64\" }\n\
                                    cycles = 2\nrepeats = 2\n";

    #[test]
    fn the_second_repeat_is_mirrored() {
        let matrix = Matrix::parse(SMALL).unwrap();
        let order: Vec<(u32, u32, String)> = matrix
            .launches()
            .into_iter()
            .map(|(repeat, setup)| (repeat, setup.n_ranks, setup.algorithm))
            .collect();
        let expected = [
            (0, 2, "ring"),
            (0, 2, "tree"),
            (0, 3, "ring"),
            (0, 3, "tree"),
            (1, 3, "tree"),
            (1, 3, "ring"),
            (1, 2, "tree"),
            (1, 2, "ring"),
        ];
        assert_eq!(order, expected.map(|(repeat, ranks, name)| (repeat, ranks, name.to_owned())));
    }

    #[test]
    fn interleaving_alternates_algorithms_within_each_world() {
        let matrix = Matrix::parse(&format!("{SMALL}interleave = true\n")).unwrap();
        let order: Vec<(u32, u32, String)> = matrix
            .launches()
            .into_iter()
            .map(|(repeat, setup)| (repeat, setup.n_ranks, setup.algorithm))
            .collect();
        assert_eq!(
            order[..4],
            [(0, 2, "ring"), (0, 2, "tree"), (1, 2, "tree"), (1, 2, "ring")].map(|(r, n, a)| (
                r,
                n,
                a.to_owned()
            ))
        );
    }

    #[test]
    fn commands_name_everything_that_is_asked() {
        let matrix = Matrix::parse(SMALL).unwrap();
        let (_, setup) = &matrix.launches()[0];
        let local = matrix.command(setup, "bin").join(" ");
        assert_eq!(
            local,
            "bin/all_reduce_perf -g 2 --launch local -d float -o sum -w 1 --backend engine --algo ring --proto simple --channels 1"
        );
        let mpi =
            Matrix::parse(&format!("{SMALL}launcher = \"mpirun -np {{ranks}} --bind-to none\"\n")).unwrap();
        assert!(
            mpi.command(setup, "bin")
                .join(" ")
                .starts_with("mpirun -np 2 --bind-to none bin/all_reduce_perf -d float")
        );
        assert_eq!(matrix.size_arguments().join(" "), "-b 4 -e 64 -f 2 -N 2");
        assert_eq!(matrix.byte_sizes().unwrap(), [4, 8, 16, 32, 64]);
    }

    #[test]
    fn choices_that_mean_nothing_are_no_launches_of_their_own() {
        let lists = "backends = [\"engine\", \"mpi\"]\noperators = [\"sum\", \"max\"]\n";
        let text = SMALL.replace("\"all_reduce\"", "\"all_reduce\", \"all_gather\"");
        let matrix = Matrix::parse(&format!("{text}{lists}")).unwrap();
        let launches = matrix.launches();
        let of = |collective: &str, backend: &str| {
            launches.iter().filter(|(_, s)| s.collective == collective && s.backend == backend).count()
        };
        // Two repeats, two worlds, two algorithms, two operators; fewer where those are none.
        assert_eq!([of("all_reduce", "engine"), of("all_gather", "engine")], [16, 8]);
        assert_eq!([of("all_reduce", "mpi"), of("all_gather", "mpi")], [8, 4]);
    }

    #[test]
    fn open_mpi_algorithms_go_with_the_mpi_back_end_and_ours_with_the_engine() {
        let text = SMALL
            .replace("\"tree\"]", "\"ompi:ring\", \"ompi:rabenseifner\"]\nbackends = [\"engine\", \"mpi\"]")
            .replace("channels = [1]", "channels = [1, 4]");
        let launches = Matrix::parse(&text).unwrap().launches();
        let labels: Vec<String> = launches.iter().take(6).map(|(_, setup)| setup.label()).collect();
        let expected = [
            "all_reduce 2 ranks ring/simple/1",
            "all_reduce 2 ranks ring/simple/4",
            "all_reduce 2 ranks auto/auto/auto mpi",
            "all_reduce 2 ranks ompi:ring/auto/auto mpi",
            "all_reduce 2 ranks ompi:rabenseifner/auto/auto mpi",
            "all_reduce 3 ranks ring/simple/1",
        ];
        assert_eq!(labels, expected);
        assert_eq!(launches[3].1.environment().unwrap().0, "OMPI_MCA_coll_tuned_use_dynamic_rules");
        assert_eq!(launches[2].1.environment(), None);
        let none = SMALL.replace("\"ring\", \"tree\"", "\"ompi:ring\"");
        assert!(Matrix::parse(&none).unwrap_err().contains("backends"));
    }

    #[test]
    fn mistakes_are_named() {
        for (change, word) in [
            (("ranks = [2, 3]", "ranks = []"), "ranks"),
            (("ranks = [2, 3]", "ranks = [0]"), "ranks"),
            (("to = \"64\"", "to = \"2\""), "sizes"),
            (("to = \"64\"", "to = \"64Q\""), "64Q"),
            (("cycles = 2", "cycle = 2"), "cycle"),
            (("all_reduce", "../x"), "../x"),
            (("cycles = 2", "placements = [\"sideways\"]"), "sideways"),
            (("cycles = 2", "placements = []"), "placements"),
            (("cycles = 2", "environment = { MY_TOKEN = \"x\" }"), "MY_TOKEN"),
        ] {
            let error = Matrix::parse(&SMALL.replace(change.0, change.1)).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
