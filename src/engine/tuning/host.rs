//! The cost model of the host device: latency and bandwidth per algorithm and protocol on the CPUs of one machine.
//!
//! Two-shot moves every input and every result once, so it is the floor for anything large; one-shot has less to agree on, and its direct
//! kind saves the copy of the input. All need their ranks on one machine, and all but one-shot in rooms need everybody's memory mapped. Where they cannot run (peer access off, several hosts,
//! `NCCL_ALGO` set) ring and tree compete through FIFOs.

use crate::engine::tuning::constants::host as profile;
use crate::engine::tuning::filter::Filter;
use crate::engine::types::{Algorithm, Collective, Protocol};

/// What one call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Choice {
    /// How ranks are arranged.
    pub algorithm: Algorithm,
    /// How data are announced.
    pub protocol: Protocol,
    /// Parallel lanes (1 for one-shot and two-shot).
    pub n_channels: u32,
}

/// What the caller fixes; the rest is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Forced {
    /// Only this algorithm.
    pub algorithm: Option<Algorithm>,
    /// Only this protocol.
    pub protocol: Option<Protocol>,
    /// This many channels.
    pub n_channels: Option<u32>,
}

/// How two-shot work is cut and stored: what a calibration varies. Must be equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cut {
    /// Bytes of one chunk of two-shot work: least, most, and chunks a CPU should get.
    pub chunk: (u64, u64, u64),
    /// Sum of inputs and results from which results go past the caches, as a multiple of the last-level cache.
    pub non_temporal_factor: f64,
}

impl Default for Cut {
    fn default() -> Self {
        Self { chunk: profile::TWOSHOT_CHUNK, non_temporal_factor: profile::NON_TEMPORAL_FACTOR }
    }
}

impl Cut {
    /// The defaults, changed by `CHORUS_TWOSHOT_CHUNK` (`least,most,per_cpu`, bytes) and `CHORUS_NON_TEMPORAL_FACTOR`.
    ///
    /// # Errors
    /// Names the variable and what it should hold.
    pub fn from_lookup(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        let mut cut = Self::default();
        if let Some(text) = lookup("CHORUS_TWOSHOT_CHUNK") {
            let numbers: Result<Vec<u64>, _> = text.split(',').map(|word| word.trim().parse()).collect();
            cut.chunk = match numbers.as_deref() {
                Ok(&[least, most, per_cpu]) if 64 <= least && least <= most && per_cpu > 0 => {
                    (least, most, per_cpu)
                }
                _ => {
                    return Err(format!(
                        "CHORUS_TWOSHOT_CHUNK {text:?}: expected least,most,per_cpu with 64 <= least <= most and per_cpu > 0"
                    ));
                }
            };
        }
        if let Some(text) = lookup("CHORUS_NON_TEMPORAL_FACTOR") {
            cut.non_temporal_factor = match text.trim().parse() {
                Ok(factor) if factor >= 0.0 => factor,
                _ => return Err(format!("CHORUS_NON_TEMPORAL_FACTOR {text:?}: expected a number from 0")),
            };
        }
        Ok(cut)
    }
}

/// How data go from cache to cache: the index of [`profile::CACHE_GB_PER_S`].
#[derive(Clone, Copy, Debug)]
enum Way {
    Rooms,
    Direct,
    TwoShot,
}

/// What the choice depends on; equal on all ranks.
#[derive(Clone, Debug)]
pub struct HostModel {
    /// Ranks of the communicator.
    pub n_ranks: usize,
    /// Hosts they believe to be on.
    pub n_hosts: usize,
    /// CPUs the ranks of this machine may use together.
    pub n_cpus: usize,
    /// Last-level cache, bytes.
    pub cache_bytes: u64,
    /// Whether all ranks see each other's control pages.
    pub shares_control: bool,
    /// Whether all ranks can load from and store to each other's buffers.
    pub is_peer_mapped: bool,
    /// NCCL_ALGO and NCCL_PROTO.
    pub filter: Filter,
    /// Whether one-shot and two-shot may be chosen although NCCL_ALGO is set (NCCL_SYM_KERNEL).
    pub symmetric_anyway: bool,
    /// Channels of the graphs, after NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS.
    pub n_channels: u32,
    /// How two-shot work is cut.
    pub cut: Cut,
}

/// Whether the combination exists for a collective at all.
pub fn exists(collective: Collective, algorithm: Algorithm, protocol: Protocol) -> bool {
    use Algorithm::{OneShot, Ring, Tree, TwoShot};
    match (collective, algorithm) {
        (Collective::AllReduce, Ring | Tree) | (Collective::AllGather, Ring) => true,
        (Collective::AllReduce | Collective::AllGather, OneShot) => protocol != Protocol::LL128,
        (Collective::AllReduce | Collective::AllGather, TwoShot) => protocol == Protocol::Simple,
        _ => false,
    }
}

/// All combinations that exist for a collective, as users write them.
pub fn list(collective: Collective) -> String {
    let mut words = Vec::new();
    for &algorithm in Algorithm::ALL {
        let protocols: Vec<_> =
            Protocol::ALL.iter().filter(|&&p| exists(collective, algorithm, p)).map(|p| p.name()).collect();
        if !protocols.is_empty() {
            words.push(format!("{algorithm} with {}", protocols.join(", ")));
        }
    }
    words.join("; ")
}

impl HostModel {
    /// Ranks per CPU beyond the first.
    fn excess(&self) -> f64 {
        (self.n_ranks as f64 / self.n_cpus.max(1) as f64 - 1.0).max(0.0)
    }

    /// Why the combination cannot run here, although it exists.
    fn obstacle(&self, algorithm: Algorithm, protocol: Protocol, input_bytes: u64) -> Option<String> {
        match algorithm {
            Algorithm::OneShot | Algorithm::TwoShot if self.n_hosts > 1 || !self.shares_control => {
                Some(format!("{algorithm} needs all ranks on one host"))
            }
            Algorithm::OneShot | Algorithm::TwoShot
                if protocol == Protocol::Simple && !self.is_peer_mapped =>
            {
                Some(format!(
                    "{algorithm} with simple needs peer access to every rank's buffers (NCCL_P2P_DISABLE, or descriptors could not be passed)"
                ))
            }
            Algorithm::OneShot if input_bytes > profile::ONESHOT_MAX => Some(format!(
                "oneshot carries at most {} bytes a rank, not {input_bytes}",
                profile::ONESHOT_MAX
            )),
            _ => None,
        }
    }

    /// Predicted time, µs. `input_bytes` is one rank's input, `collective` AllReduce or AllGather.
    pub fn time_us(&self, collective: Collective, choice: Choice, input_bytes: u64) -> f64 {
        let n = self.n_ranks as f64;
        let cpus = (self.n_cpus.min(self.n_ranks)).max(1) as f64;
        let bytes = input_bytes as f64;
        let gather = collective == Collective::AllGather;
        let wait = |(base, excess): (f64, f64)| base + excess * self.excess() * cpus;
        let results = if gather { n } else { 1.0 };
        match (choice.algorithm, choice.protocol) {
            // Every rank loads all inputs and stores its result.
            (Algorithm::OneShot, Protocol::Simple) => {
                let traffic = n * bytes * (n + results);
                wait(profile::DIRECT_LATENCY) + self.move_us(Way::Direct, traffic, 2.0 * n * bytes)
            }
            // Before that every rank copies its input to where the others read it.
            (Algorithm::OneShot, _) => {
                let traffic = n * bytes * (2.0 + n + results);
                wait(profile::ONESHOT_LATENCY) + self.move_us(Way::Rooms, traffic, 2.0 * n * bytes)
            }
            (Algorithm::TwoShot, _) => {
                let traffic = bytes * (n + n * results);
                wait(profile::TWOSHOT_LATENCY) + self.move_us(Way::TwoShot, traffic, traffic)
            }
            (algorithm, _) => self.fifo_time_us(collective, algorithm, choice, bytes),
        }
    }

    /// Time to load and store `traffic` bytes, all ranks together, when `footprint` bytes are touched, µs.
    fn move_us(&self, way: Way, traffic: f64, footprint: f64) -> f64 {
        if footprint > self.cache_bytes as f64 * self.cut.non_temporal_factor {
            traffic / 1e3 / profile::MEMORY_GB_PER_S
        } else {
            let cpus = self.n_cpus.min(self.n_ranks).max(1) as f64;
            traffic / 1e3 / (profile::CACHE_GB_PER_S[way as usize] * cpus)
        }
    }

    fn fifo_time_us(&self, collective: Collective, algorithm: Algorithm, choice: Choice, bytes: f64) -> f64 {
        let n = self.n_ranks as f64;
        let p = choice.protocol as usize;
        let (base, excess) = profile::FIFO_LATENCY[p];
        let step = base + excess * self.excess();
        let (steps, wire) = match (algorithm, collective) {
            (Algorithm::Tree, _) => (2.0 * n.log2().ceil().max(1.0) + n - 1.0, 2.0 * bytes),
            (_, Collective::AllGather) => (n - 1.0, (n - 1.0) * bytes),
            _ => (2.0 * (n - 1.0), 2.0 * (n - 1.0) / n * bytes),
        };
        // All ranks move their share at the same time over the CPUs there are.
        let sharing = n / self.n_cpus.clamp(1, self.n_ranks) as f64;
        // Through the FIFO, and beside that input to slot, slot to result or next slot.
        let through = wire * sharing / 1e3 / profile::FIFO_GB_PER_S[p]
            + self.move_us(Way::TwoShot, 3.0 * wire * n, 2.0 * n * bytes);
        steps * step + through
    }

    /// The channels a classic call of this size uses: at least a slot's worth of bytes for each.
    fn channels(&self, input_bytes: u64, forced: Option<u32>) -> u32 {
        forced.unwrap_or_else(|| self.n_channels.min(1 + (input_bytes >> 22) as u32).max(1))
    }

    /// Chooses for a call of `input_bytes` a rank. The error lists what exists, or says why nothing that exists can run.
    pub fn choose(&self, collective: Collective, input_bytes: u64, forced: Forced) -> Result<Choice, String> {
        let mut best: Option<(f64, Choice)> = None;
        let mut obstacles = Vec::new();
        let mut any_exists = false;
        for &algorithm in Algorithm::ALL {
            for &protocol in Protocol::ALL {
                if !exists(collective, algorithm, protocol)
                    || forced.algorithm.is_some_and(|a| a != algorithm)
                    || forced.protocol.is_some_and(|p| p != protocol)
                {
                    continue;
                }
                any_exists = true;
                let symmetric = matches!(algorithm, Algorithm::OneShot | Algorithm::TwoShot);
                let named = forced.algorithm == Some(algorithm);
                if !named && !self.is_allowed(collective, algorithm, protocol, symmetric) {
                    continue;
                }
                if let Some(obstacle) = self.obstacle(algorithm, protocol, input_bytes) {
                    obstacles.push(obstacle);
                    continue;
                }
                let n_channels = if symmetric { 1 } else { self.channels(input_bytes, forced.n_channels) };
                let choice = Choice { algorithm, protocol, n_channels };
                let time = self.time_us(collective, choice, input_bytes);
                if best.is_none_or(|(t, _)| time < t) {
                    best = Some((time, choice));
                }
            }
        }
        best.map(|(_, choice)| choice).ok_or_else(|| self.refusal(collective, any_exists, &obstacles, forced))
    }

    fn is_allowed(
        &self,
        collective: Collective,
        algorithm: Algorithm,
        protocol: Protocol,
        symmetric: bool,
    ) -> bool {
        if symmetric {
            self.symmetric_anyway || !self.filter.is_restricted()
        } else {
            self.filter.allowed(collective, algorithm, protocol)
        }
    }

    fn refusal(
        &self,
        collective: Collective,
        any_exists: bool,
        obstacles: &[String],
        forced: Forced,
    ) -> String {
        let word = |w: Option<&'static str>| w.unwrap_or("any");
        let asked = format!(
            "algorithm {} with protocol {}",
            word(forced.algorithm.map(Algorithm::name)),
            word(forced.protocol.map(Protocol::name))
        );
        if any_exists && !obstacles.is_empty() {
            format!("{collective}: {asked} cannot run here: {}", obstacles.join("; "))
        } else if any_exists {
            format!(
                "{collective}: NCCL_ALGO and NCCL_PROTO leave nothing to run; there is {}",
                list(collective)
            )
        } else {
            format!("{collective}: {asked} does not exist; there is {}", list(collective))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(n_ranks: usize) -> HostModel {
        HostModel {
            n_ranks,
            n_hosts: 1,
            n_cpus: 2,
            cache_bytes: 32 << 20,
            shares_control: true,
            is_peer_mapped: true,
            filter: Filter::parse(None, None).unwrap(),
            symmetric_anyway: false,
            n_channels: 2,
            cut: Cut::default(),
        }
    }

    #[test]
    fn tiny_calls_take_one_shot_and_large_ones_two_shot() {
        for n in [2, 3, 8] {
            let m = model(n);
            assert_eq!(
                m.choose(Collective::AllReduce, 8, Forced::default()).unwrap().algorithm,
                Algorithm::OneShot
            );
            assert_eq!(
                m.choose(Collective::AllReduce, 64 << 20, Forced::default()).unwrap().algorithm,
                Algorithm::TwoShot
            );
        }
    }

    #[test]
    fn a_calibration_changes_the_cut_and_nonsense_is_refused() {
        let read = |name: &'static str, text: &'static str| {
            Cut::from_lookup(&move |asked| (asked == name).then(|| text.to_owned()))
        };
        assert_eq!(read("CHORUS_TWOSHOT_CHUNK", "64, 128,2").unwrap().chunk, (64, 128, 2));
        assert_eq!(read("CHORUS_NON_TEMPORAL_FACTOR", "1.5").unwrap().non_temporal_factor, 1.5);
        assert_eq!(read("ANOTHER", "x").unwrap(), Cut::default());
        for text in ["", "64", "64,32,1", "64,128,0", "1,2,3", "64,128,1,1"] {
            assert!(read("CHORUS_TWOSHOT_CHUNK", text).unwrap_err().contains("least,most,per_cpu"), "{text}");
        }
        assert!(read("CHORUS_NON_TEMPORAL_FACTOR", "-1").is_err());
        assert!(read("CHORUS_NON_TEMPORAL_FACTOR", "NaN").is_err());
    }

    #[test]
    fn nccl_algo_turns_the_symmetric_kernels_off() {
        let m = HostModel { filter: Filter::parse(Some("Ring,Tree"), None).unwrap(), ..model(4) };
        let choice = m.choose(Collective::AllReduce, 8, Forced::default()).unwrap();
        assert!(matches!(choice.algorithm, Algorithm::Ring | Algorithm::Tree));
        let m = HostModel { symmetric_anyway: true, ..m };
        assert_eq!(
            m.choose(Collective::AllReduce, 8, Forced::default()).unwrap().algorithm,
            Algorithm::OneShot
        );
    }

    #[test]
    fn what_does_not_exist_is_refused_with_the_list_of_what_does() {
        let forced = Forced { algorithm: Some(Algorithm::Tree), ..Forced::default() };
        let text = model(4).choose(Collective::AllGather, 8, forced).unwrap_err();
        assert!(text.contains("does not exist") && text.contains("ring with ll, ll128, simple"), "{text}");
    }

    #[test]
    fn several_hosts_leave_the_classic_algorithms() {
        let m = HostModel { n_hosts: 2, ..model(4) };
        let choice = m.choose(Collective::AllReduce, 8, Forced::default()).unwrap();
        assert!(matches!(choice.algorithm, Algorithm::Ring | Algorithm::Tree));
        let forced = Forced { algorithm: Some(Algorithm::TwoShot), ..Forced::default() };
        assert!(m.choose(Collective::AllReduce, 8, forced).unwrap_err().contains("one host"));
    }
}
