//! What about the machine may spoil numbers, before the first of them.

use std::fs;

use crate::record::Machine;

/// One observation.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// What was seen.
    pub text: String,
    /// Whether it makes the machine too noisy for a strict sweep.
    pub is_noise: bool,
}

/// Looks at the machine for a sweep of up to `ranks` ranks that needs `bytes` of memory at once.
pub fn check(machine: &Machine, ranks: u32, bytes: u64) -> Vec<Note> {
    let load =
        fs::read_to_string("/proc/loadavg").ok().and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    judge(machine, (ranks, bytes), load, available(&meminfo))
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

fn judge(machine: &Machine, (ranks, bytes): (u32, u64), load: Option<f64>, free: Option<u64>) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut note = |is_noise: bool, text: String| notes.push(Note { text, is_noise });
    match machine.governor.as_deref() {
        Some("performance") => {}
        Some(other) => {
            note(true, format!("governor is {other}, not performance: the clock follows the load"))
        }
        None => note(false, "no frequency governor is visible".into()),
    }
    if let Some(load) = load {
        let cores = f64::from(machine.cores_allowed.max(1));
        let busy = load > 0.25 * cores;
        note(
            busy,
            format!(
                "load average {load:.2} on {cores} allowed cores{}",
                if busy { ": others are at work" } else { "" }
            ),
        );
    }
    if let Some(cpus) = machine.container_cpus {
        let tight = cpus < f64::from(ranks.min(machine.cores_allowed));
        note(tight, format!("the container may use {cpus} cores' worth of time"));
    }
    if ranks > machine.cores_allowed {
        note(
            false,
            format!(
                "{ranks} ranks on {} allowed cores: results say much about the scheduler",
                machine.cores_allowed
            ),
        );
    }
    if let Some(free) = free {
        let short = bytes > free;
        let text = format!(
            "{} of memory available, about {} needed",
            crate::format::about_size(free as f64),
            crate::format::about_size(bytes as f64)
        );
        note(short, text);
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::{available, judge};
    use crate::record::Machine;

    #[test]
    fn a_quiet_machine_has_no_noise_and_a_busy_one_says_why() {
        let machine =
            Machine { cores_allowed: 8, governor: Some("performance".into()), ..Machine::default() };
        assert!(judge(&machine, (4, 1 << 20), Some(0.1), Some(1 << 30)).iter().all(|note| !note.is_noise));
        let busy = Machine { governor: Some("powersave".into()), container_cpus: Some(1.5), ..machine };
        let noise: Vec<String> = judge(&busy, (4, 1 << 40), Some(7.5), Some(1 << 30))
            .into_iter()
            .filter(|n| n.is_noise)
            .map(|n| n.text)
            .collect();
        assert_eq!(noise.len(), 4);
        assert!(
            noise[0].contains("powersave")
                && noise[1].contains("7.50")
                && noise[2].contains("1.5")
                && noise[3].contains("needed")
        );
        assert_eq!(available("MemTotal: 5 kB\nMemAvailable:   2 kB\n"), Some(2048));
    }
}
