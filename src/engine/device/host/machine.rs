//! What this machine lends us: CPUs, caches, memory, and who it is.

use std::fs;

/// CPUs this thread may run on.
pub fn allowed_cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None);
    match set {
        Ok(set) => (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
        Err(_) => (0..std::thread::available_parallelism().map_or(1, usize::from)).collect(),
    }
}

/// Lets the calling thread run on `cpus`; a refusal changes nothing.
pub fn run_on(cpus: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| cpu < rustix::thread::CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// CPUs' worth of time the cgroup grants (v2 `cpu.max`, v1 `cpu.cfs_quota_us`); nothing when unlimited.
pub fn cpu_quota() -> Option<f64> {
    if let Ok(text) = fs::read_to_string("/sys/fs/cgroup/cpu.max") {
        let mut words = text.split_whitespace();
        let quota: f64 = words.next()?.parse().ok()?;
        let period: f64 = words.next()?.parse().ok()?;
        return Some(quota / period);
    }
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<f64>().ok();
    let quota = number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").filter(|&q| q > 0.0)?;
    Some(quota / number("/sys/fs/cgroup/cpu/cpu.cfs_period_us")?)
}

/// Bytes of CPU 0's largest cache; 8 MiB when the system does not say.
pub fn last_level_cache() -> u64 {
    let sizes = (0..8).filter_map(|i| {
        let text = fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{i}/size")).ok()?;
        let text = text.trim();
        let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let factor = match unit {
            "K" => 1 << 10,
            "M" => 1 << 20,
            _ => 1,
        };
        Some(digits.parse::<u64>().ok()? * factor)
    });
    sizes.max().unwrap_or(8 << 20)
}

/// The running kernel's identity: equal for all containers of one machine.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_or_else(|_| "unknown".into(), |id| id.trim().to_string())
}

/// Host name up to the first dot.
pub fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.split('.').next().unwrap_or_default().to_string()
}

/// The processor's name as the system gives it.
pub fn cpu_name() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |key: &str| {
        text.lines()
            .find(|line| line.starts_with(key))
            .and_then(|line| line.split(':').nth(1))
            .map(|v| v.trim().to_string())
    };
    field("model name")
        .or_else(|| field("Model"))
        .unwrap_or_else(|| format!("{} CPU", std::env::consts::ARCH))
}

/// Bytes of memory in the machine.
pub fn total_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text
        .lines()
        .find(|l| l.starts_with("MemTotal"))
        .and_then(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(16 << 20) << 10
}

/// Proportional share of resident memory of this process's mappings whose name holds one of `names`, bytes.
pub fn pss_of(names: &[&str]) -> u64 {
    let text = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let (mut inside, mut kib) = (false, 0);
    for line in text.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if first.contains('-') && !first.ends_with(':') {
            inside = names.iter().any(|name| line.contains(name));
        } else if inside && first == "Pss:" {
            kib += line.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    kib << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_answers() {
        assert!(!allowed_cpus().is_empty());
        assert!(last_level_cache() >= 32 << 10);
        assert!(total_memory() > 64 << 20);
        assert!(!host_name().contains('.'));
    }

    #[test]
    fn own_mappings_are_counted() {
        let region = crate::engine::device::host::region::Region::create("pss-probe", 1 << 30).unwrap();
        region.alloc(1 << 20).unwrap();
        let pss = pss_of(&["memfd:pss-probe"]);
        assert!(((1 << 20)..(2 << 20)).contains(&pss), "{pss}");
    }
}
