//! The environment as far as the harness uses, records or doubts it.

use analysis::record::Placement;

use crate::env;
use crate::perf::cli::config::Settings;
use crate::perf::report::csv::Identity;

/// Every NCCL_TESTS variable that means something here.
const KNOWN: [&str; 8] = [
    "NCCL_TESTS_DEVICE",
    "NCCL_TESTS_MIN_BW",
    "NCCL_TESTS_SPLIT",
    "NCCL_TESTS_SPLIT_MASK",
    "NCCL_TESTS_ALLTOALLV_SPREAD",
    "NCCL_TESTS_ALLTOALLV_MATRIX_FILE",
    "NCCL_TESTS_ALLTOALLV_MATRIX_SCALE",
    "NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY",
];

/// What a report may hold: settings of the library and of the launch. Nothing else leaves this process.
const RECORDED: &[&str] = &[
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_CTAS",
    "NCCL_MAX_CTAS",
    "NCCL_BUFFSIZE",
    "NCCL_LL_BUFFSIZE",
    "NCCL_LL128_BUFFSIZE",
    "NCCL_NTHREADS",
    "NCCL_LL128_NTHREADS",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_SHM_DISABLE",
    "NCCL_SYM_KERNEL",
    "NCCL_CTA_POLICY",
    "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_FAMILY",
    "NCCL_COMM_ID",
    "NCCL_HOSTID",
    "NCCL_DEBUG",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_DEBUG_FILE",
    "NCCL_TOPO_FILE",
    "NCCL_GRAPH_FILE",
    "NCCL_NET_MERGE_LEVEL",
    "NCCL_NET_MERGE_POLICY",
    "NCCL_NET_FORCE_MERGE",
    "NCCL_TUNER_CONFIG_FILE",
    "NCCL_TESTS_DEVICE",
    "NCCL_TESTS_MIN_BW",
    "NCCL_TESTS_SPLIT",
    "NCCL_TESTS_SPLIT_MASK",
    "CHORUS_DEVICE_NAME",
    "CHORUS_TWOSHOT_CHUNK",
    "CHORUS_NON_TEMPORAL_FACTOR",
    "WORLD_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_MCA_mpi_yield_when_idle",
    "OMPI_MCA_coll_tuned_use_dynamic_rules",
    "OMPI_MCA_coll_tuned_dynamic_rules_filename",
    "PMI_SIZE",
    "SLURM_NTASKS",
];

/// nccl-tests' settings.
pub fn settings() -> Settings {
    Settings {
        device: env::text("NCCL_TESTS_DEVICE"),
        min_bw: env::text("NCCL_TESTS_MIN_BW"),
        split: env::text("NCCL_TESTS_SPLIT"),
        split_mask: env::text("NCCL_TESTS_SPLIT_MASK"),
        device_name: env::text("CHORUS_DEVICE_NAME"),
    }
}

/// Recorded variables that are set.
pub fn recorded() -> Vec<(String, String)> {
    RECORDED.iter().filter_map(|name| Some(((*name).to_owned(), env::text(name)?))).collect()
}

/// The run a sweep started this process for, if one did.
pub fn identity() -> Identity {
    let repeat = env::integer("CHORUS_REPEAT").and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    let given = env::text("CHORUS_RUN_ID").map(|id| (id, repeat));
    let wanted = env::text("CHORUS_PLACEMENTS").filter(|_| given.is_some()).unwrap_or_default();
    Identity { given, placements: wanted.split(',').filter_map(Placement::from_name).collect() }
}

/// Whether this process is the one to tell of a bad command line: the launcher's first, or one without a launcher.
pub fn speaks() -> bool {
    let ranks = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "RANK", "SLURM_PROCID"];
    ranks.iter().find_map(|name| env::integer(name)).is_none_or(|rank| rank == 0)
}

/// A warning for each variable that looks like one of nccl-tests' and is none.
pub fn warnings(names: &[String]) -> Vec<String> {
    let unknown = |name: &&String| name.starts_with("NCCL_TEST") && !KNOWN.contains(&name.as_str());
    names
        .iter()
        .filter(unknown)
        .map(|name| {
            format!("{name} is set but means nothing here; variables that do: {}", KNOWN[..4].join(", "))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_variables_are_warned_about_and_known_ones_are_not() {
        let names = ["NCCL_TEST_SPLIT", "NCCL_TESTS_SPLIT", "NCCL_TESTS_MINBW", "NCCL_ALGO", "HOME"]
            .map(str::to_owned);
        let lines = warnings(&names);
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("NCCL_TEST_SPLIT ") && lines[1].starts_with("NCCL_TESTS_MINBW "));
    }

    #[test]
    fn nothing_secret_is_on_the_list_of_recorded_variables() {
        for name in RECORDED {
            let upper = name.to_uppercase();
            assert!(
                !["KEY", "TOKEN", "SECRET", "PASS", "AUTH"].iter().any(|word| upper.contains(word)),
                "{name}"
            );
        }
    }
}
