//! How much memory a rank's buffers may take: what the machine and the control groups leave, shared by the ranks of the host.

use std::path::{Path, PathBuf};

const GIB: u64 = 1 << 30;

/// The largest buffer of a rank: (available − max(1 GiB, 5 %) − what the library itself holds) over two buffers a rank.
pub fn limit(available: u64, library: u64, ranks_on_host: usize) -> u64 {
    let reserve = GIB.max(available / 20);
    available.saturating_sub(reserve).saturating_sub(library) / (2 * ranks_on_host.max(1) as u64)
}

/// Bytes this process may still allocate, or nothing when the system does not say.
pub fn available() -> Option<u64> {
    available_under(Path::new("/"))
}

/// The same for a system whose files lie under `root`.
fn available_under(root: &Path) -> Option<u64> {
    let machine = meminfo(&std::fs::read_to_string(root.join("proc/meminfo")).ok()?);
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let of_groups = groups.lines().filter_map(|line| group_left(root, line));
    machine.into_iter().chain(of_groups).min()
}

fn meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// What one line of /proc/self/cgroup leaves: version 2 is `0::/path`, version 1 `n:memory:/path`.
fn group_left(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let (mount, names) = if controllers.is_empty() {
        (root.join("sys/fs/cgroup"), ["memory.max", "memory.current", "inactive_file"])
    } else if controllers.split(',').any(|c| c == "memory") {
        let names = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"];
        (root.join("sys/fs/cgroup/memory"), names)
    } else {
        return None;
    };
    // A container sees its own group at the mount point, whatever the path says: look at every level that exists.
    let mut folders: Vec<PathBuf> = vec![mount.clone()];
    for part in path.split('/').filter(|part| !part.is_empty() && *part != "..") {
        let next = folders.last().map_or_else(|| mount.join(part), |folder| folder.join(part));
        folders.push(next);
    }
    folders.iter().filter_map(|folder| folder_left(folder, names)).min()
}

fn folder_left(folder: &Path, [limit, usage, reclaimable]: [&str; 3]) -> Option<u64> {
    let number = |name: &str| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, used) = (number(limit)?, number(usage)?);
    // File cache that nobody used lately goes first when the group is short of memory.
    let stat = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let prefix = format!("{reclaimable} ");
    let cache =
        stat.lines().find_map(|line| line.strip_prefix(&prefix)?.trim().parse::<u64>().ok()).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cache)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_leaves_a_reserve_and_shares_the_rest() {
        assert_eq!(limit(17 * GIB, 0, 8), GIB);
        assert_eq!(limit(100 * GIB, 15 * GIB, 4), 10 * GIB);
        assert_eq!(limit(GIB / 2, 0, 1), 0);
        assert_eq!(limit(3 * GIB, 4 * GIB, 1), 0);
    }

    fn system(cgroup: &str, files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        let mut all = vec![
            ("proc/meminfo", "MemTotal: 1 kB\nMemAvailable:    8192 kB\n"),
            ("proc/self/cgroup", cgroup),
        ];
        all.extend(files);
        for (path, text) in all {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        available_under(root.path())
    }

    #[test]
    fn without_control_groups_the_machine_decides() {
        assert_eq!(system("", &[]), Some(8192 * 1024));
        assert_eq!(system("0::/\n", &[("sys/fs/cgroup/memory.max", "max\n")]), Some(8192 * 1024));
    }

    #[test]
    fn a_version_2_limit_counts_less_what_is_used_but_reclaimable_cache() {
        let files = [
            ("sys/fs/cgroup/a/b/memory.max", "1000000\n"),
            ("sys/fs/cgroup/a/b/memory.current", "700000\n"),
            ("sys/fs/cgroup/a/b/memory.stat", "anon 1\ninactive_file 200000\n"),
        ];
        assert_eq!(system("0::/a/b\n", &files), Some(500_000));
    }

    #[test]
    fn a_version_1_limit_and_a_limit_of_the_parent_count() {
        let files = [
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "900000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "100000\n"),
            ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "0\n"),
        ];
        assert_eq!(system("5:cpu:/x\n4:memory:/job\n", &files), Some(800_000));
    }
}
