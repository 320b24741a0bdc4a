//! Facts about the machine that a reader of numbers needs: processor, caches, memory, kernel, governor, container limits, devices.
//!
//! Whatever the system does not tell stays empty. Nothing here is a secret: no addresses, no user names, no environment.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// One machine as seen at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Host name up to its first dot.
    pub host: String,
    /// Processor name.
    pub cpu: String,
    /// Logical cores of the machine.
    pub cores: u32,
    /// Cores this process may use.
    pub cores_allowed: u32,
    /// `L1d 32K, L2 512K, L3 32768K` of core 0.
    pub caches: String,
    /// NUMA nodes.
    pub numa_nodes: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Kernel release.
    pub kernel: String,
    /// Frequency governor of core 0, when there is one.
    pub governor: Option<String>,
    /// Cores' worth of time that the container allows, when it is limited.
    pub container_cpus: Option<f64>,
    /// Bytes of memory that the container allows, when it is limited.
    pub container_memory_bytes: Option<u64>,
    /// Graphics processors that the driver lists.
    pub gpus: Vec<String>,
    /// Network devices with their speed in Mbit/s where known, loopback left out.
    pub nics: Vec<String>,
}

impl Machine {
    /// Looks at this machine.
    pub fn probe() -> Self {
        Self::probe_under(Path::new("/"))
    }

    /// Looks at a tree of recorded system files.
    pub fn probe_under(root: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(root.join(path)).ok().map(|text| text.trim().to_owned());
        let cpuinfo = read("proc/cpuinfo").unwrap_or_default();
        let names = ["model name", "Model", "Processor"];
        let cpu = names.iter().find_map(|name| colon_value(&cpuinfo, name)).unwrap_or_default();
        let status = read("proc/self/status").unwrap_or_default();
        let allowed = colon_value(&status, "Cpus_allowed_list").map_or(0, |list| count_list(&list));
        let memory = read("proc/meminfo").unwrap_or_default();
        let kib =
            colon_value(&memory, "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        let host = read("proc/sys/kernel/hostname").unwrap_or_default();
        Self {
            host: host.split('.').next().unwrap_or_default().to_owned(),
            cpu,
            cores: read("sys/devices/system/cpu/online").map_or(0, |list| count_list(&list)),
            cores_allowed: allowed,
            caches: caches(root),
            numa_nodes: read("sys/devices/system/node/online").map_or(0, |list| count_list(&list)),
            memory_bytes: kib.unwrap_or(0) * 1024,
            kernel: read("proc/sys/kernel/osrelease").unwrap_or_default(),
            governor: read("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            container_cpus: container_cpus(root),
            container_memory_bytes: container_memory(root),
            gpus: gpus(root),
            nics: nics(root),
        }
    }

    /// What makes numbers of the two incomparable, one line each; empty for the same machine. Two hosts of one kind are two machines:
    /// one of them may have a slow memory module. Names that a container runtime draws for every start say nothing.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let mut note = |what: &str, a: String, b: String| {
            if a != b {
                found.push(format!("{what}: {a} against {b}"));
            }
        };
        let is_named = |machine: &Self| !machine.host.is_empty() && !is_drawn(&machine.host);
        if is_named(self) && is_named(other) {
            note("host", self.host.clone(), other.host.clone());
        }
        note("processor", self.cpu.clone(), other.cpu.clone());
        note("cores", self.cores.to_string(), other.cores.to_string());
        note("cores allowed", self.cores_allowed.to_string(), other.cores_allowed.to_string());
        note("caches", self.caches.clone(), other.caches.clone());
        let gib = |bytes: u64| format!("{} GiB", (bytes + (1 << 29)) >> 30);
        note("memory", gib(self.memory_bytes), gib(other.memory_bytes));
        let limit = |cpus: Option<f64>| cpus.map_or("none".into(), |cpus| format!("{cpus}"));
        note("container's processor limit", limit(self.container_cpus), limit(other.container_cpus));
        note("graphics processors", self.gpus.join("; "), other.gpus.join("; "));
        found
    }

    /// What an administrator may have changed on one machine, one line each: worth a warning.
    pub fn changes(&self, other: &Self) -> Vec<String> {
        let word = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".into());
        let pairs = [
            ("kernel", self.kernel.clone(), other.kernel.clone()),
            ("governor", word(&self.governor), word(&other.governor)),
            ("network devices", self.nics.join("; "), other.nics.join("; ")),
        ];
        let differ = pairs.into_iter().filter(|(_, a, b)| a != b);
        differ.map(|(what, a, b)| format!("{what}: {a} against {b}")).collect()
    }
}

/// Whether a host name is the number of a container.
fn is_drawn(host: &str) -> bool {
    host.len() == 12 && host.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The value of the first `name : value` line.
fn colon_value(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.split_whitespace().collect::<Vec<_>>().join(" "))
    })
}

/// Members of a kernel list such as `0-3,8`.
fn count_list(list: &str) -> u32 {
    let part = |part: &str| match part.trim().split_once('-') {
        Some((low, high)) => {
            let (low, high): (u32, u32) = (low.parse().ok()?, high.parse().ok()?);
            high.checked_sub(low)?.checked_add(1)
        }
        None => part.trim().parse::<u32>().ok().map(|_| 1),
    };
    list.split(',').filter_map(part).fold(0, u32::saturating_add)
}

fn caches(root: &Path) -> String {
    let folder = root.join("sys/devices/system/cpu/cpu0/cache");
    let mut found = Vec::new();
    for index in 0..8 {
        let read = |file: &str| fs::read_to_string(folder.join(format!("index{index}/{file}")));
        let (Ok(level), Ok(kind), Ok(size)) = (read("level"), read("type"), read("size")) else { continue };
        let kind = match kind.trim() {
            "Data" => "d",
            "Instruction" => continue,
            _ => "",
        };
        found.push(format!("L{}{kind} {}", level.trim(), size.trim()));
    }
    found.join(", ")
}

/// cgroup v2 folder of this process, then v1's fixed places.
fn container_cpus(root: &Path) -> Option<f64> {
    let read = |path: String| fs::read_to_string(root.join(path)).ok();
    for folder in cgroup_folders(root) {
        if let Some(text) = read(format!("sys/fs/cgroup{folder}/cpu.max")) {
            let mut words = text.split_whitespace();
            let (quota, period) = (words.next()?.parse::<f64>().ok(), words.next()?.parse::<f64>().ok()?);
            if let Some(quota) = quota {
                return Some(quota / period);
            }
        }
    }
    let quota: f64 = read("sys/fs/cgroup/cpu/cpu.cfs_quota_us".into())?.trim().parse().ok()?;
    let period: f64 = read("sys/fs/cgroup/cpu/cpu.cfs_period_us".into())?.trim().parse().ok()?;
    (quota > 0.0).then(|| quota / period)
}

fn container_memory(root: &Path) -> Option<u64> {
    let read = |path: String| fs::read_to_string(root.join(path)).ok()?.trim().parse::<u64>().ok();
    let mut limits: Vec<u64> = cgroup_folders(root)
        .into_iter()
        .filter_map(|folder| read(format!("sys/fs/cgroup{folder}/memory.max")))
        .collect();
    limits.extend(read("sys/fs/cgroup/memory/memory.limit_in_bytes".into()).filter(|&limit| limit < 1 << 60));
    limits.into_iter().min()
}

/// This process's v2 group and its ancestors, innermost first.
fn cgroup_folders(root: &Path) -> Vec<String> {
    let text = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let Some(path) = text.lines().find_map(|line| line.strip_prefix("0::")) else {
        return vec![String::new()];
    };
    let mut path = path.trim_end_matches('/').to_owned();
    let mut folders = Vec::new();
    while let Some(cut) = path.rfind('/') {
        folders.push(path.clone());
        path.truncate(cut);
    }
    folders.push(String::new());
    folders
}

fn gpus(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in sorted_names(&root.join("proc/driver/nvidia/gpus")) {
        let file = root.join("proc/driver/nvidia/gpus").join(&entry).join("information");
        let text = fs::read_to_string(file).unwrap_or_default();
        found.push(format!("{entry} {}", colon_value(&text, "Model").unwrap_or_default()).trim().to_owned());
    }
    found
}

fn nics(root: &Path) -> Vec<String> {
    let folder = root.join("sys/class/net");
    let names = sorted_names(&folder).into_iter().filter(|name| name != "lo");
    names
        .map(|name| {
            let speed = fs::read_to_string(folder.join(&name).join("speed")).ok();
            match speed.and_then(|text| text.trim().parse::<i64>().ok()).filter(|&speed| speed > 0) {
                Some(speed) => format!("{name} {speed} Mbit/s"),
                None => name,
            }
        })
        .collect()
}

fn sorted_names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Machine, count_list};

    #[test]
    fn lists_are_counted() {
        assert_eq!(count_list("0-3,8,10-11"), 7);
        assert_eq!(count_list(""), 0);
        assert_eq!(count_list("5-2"), 0);
    }

    #[test]
    fn a_recorded_machine_is_read_and_limits_of_ancestors_count() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/cpuinfo", "processor : 0\nmodel name\t: AMD  EPYC 7B13\n");
        write("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-1\n");
        write("proc/meminfo", "MemTotal:       1048576 kB\n");
        write("proc/self/cgroup", "0::/a/b\n");
        write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
        write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
        write("sys/fs/cgroup/a/memory.max", "4096\n");
        write("sys/devices/system/cpu/online", "0-3\n");
        write("sys/class/net/eth0/speed", "25000\n");
        write("sys/class/net/lo/speed", "-1\n");
        let machine = Machine::probe_under(dir.path());
        assert_eq!(machine.cpu, "AMD EPYC 7B13");
        assert_eq!((machine.cores, machine.cores_allowed, machine.memory_bytes), (4, 2, 1 << 30));
        assert_eq!((machine.container_cpus, machine.container_memory_bytes), (Some(1.5), Some(4096)));
        assert_eq!(machine.nics, ["eth0 25000 Mbit/s"]);
        let other = Machine { cores: 8, host: "elsewhere".into(), ..machine.clone() };
        assert_eq!(machine.differences(&other), ["cores: 4 against 8"], "a host without a name is no other");
        let named = |host: &str| Machine { host: host.into(), ..machine.clone() };
        assert_eq!(named("node1").differences(&named("node2")), ["host: node1 against node2"]);
        assert!(named("4f0e1d2c3b4a").differences(&named("aaaaaaaaaaaa")).is_empty());
        let updated = Machine { kernel: "6.2".into(), ..machine.clone() };
        assert_eq!((machine.differences(&updated).len(), machine.changes(&updated).len()), (0, 1));
    }
}
