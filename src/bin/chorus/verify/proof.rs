//! Whether a library that has loaded the file follows a rule; a rule that never acts is not worth measuring.
//!
//! Our engine says what it would run. Open MPI says nothing about its rules, not even that it could not read them; but its monitoring
//! component counts the messages between ranks, and those of one call are the same with the file as with the rule's algorithm forced,
//! or the file does not do what it says.

use std::collections::BTreeMap;
use std::path::Path;

use analysis::launch::Ended;

use super::measure::{command, failed, start};
use super::subject::{File, Subject};
use super::{Args, Place};
use crate::Failure;

/// Messages and bytes by sender and receiver.
type Traffic = BTreeMap<(String, String), (u64, u64)>;

/// Why a rule does not act, or nothing when it does.
pub(super) fn idle(
    args: &Args,
    file: &File,
    subject: &Subject,
    place: &Place,
) -> Result<Option<String>, Failure> {
    if subject.min_bytes > args.max_size {
        return Ok(Some("lies above --max-size".into()));
    }
    if file.is_open_mpi() { open_mpi(args, file, subject, place) } else { engine(args, file, subject, place) }
}

fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

fn engine(args: &Args, file: &File, subject: &Subject, place: &Place) -> Result<Option<String>, Failure> {
    let mut command = command(args, file, subject)?;
    command.push("--plan".into());
    let (ended, printed) = start(command, &[("NCCL_TUNER_CONFIG_FILE", absolute(&args.file))], place)?;
    if ended != Ended::Status(0) {
        return Err(failed(subject, ended, place));
    }
    let runs = planned(&printed);
    let wanted: Vec<&str> = subject.choice.split('/').take(2).collect();
    match runs.iter().find(|(algorithm, protocol, _)| [algorithm, protocol] != [wanted[0], wanted[1]]) {
        _ if runs.is_empty() => Err(Failure::Input(format!("{subject}: the engine tells no plan"))),
        None => Ok(None),
        Some((algorithm, protocol, bytes)) => Ok(Some(format!(
            "the engine, with the file loaded, runs {algorithm}/{protocol} at {bytes} bytes"
        ))),
    }
}

/// Algorithm, protocol and size of each line of a plan.
fn planned(printed: &str) -> Vec<(String, String, u64)> {
    let row = |line: &str| {
        let words: Vec<&str> = line.strip_prefix('#')?.split_whitespace().collect();
        let [bytes, _, _, _, algorithm, protocol, _] = words.as_slice() else { return None };
        Some(((*algorithm).to_owned(), (*protocol).to_owned(), bytes.parse().ok()?))
    };
    printed.lines().filter_map(row).collect()
}

fn open_mpi(args: &Args, file: &File, subject: &Subject, place: &Place) -> Result<Option<String>, Failure> {
    let with_file = of_calls(args, file, subject, (&absolute(&args.file), &[]), place)?;
    let forced = of_calls(args, file, subject, ("", &["--algo", &subject.choice]), place)?;
    if with_file.is_empty() || forced.is_empty() {
        eprintln!(
            "note: this Open MPI counts no messages (no monitoring component): that it follows the file is not proven"
        );
        return Ok(None);
    }
    if is_alike(&with_file, &forced) {
        return Ok(None);
    }
    let total = |traffic: &Traffic| {
        let messages: u64 = traffic.values().map(|(messages, _)| messages).sum();
        format!("{messages} messages over {} pairs of ranks", traffic.len())
    };
    Ok(Some(format!(
        "Open MPI, with the file loaded, sends {} where {} sends {}",
        total(&with_file),
        subject.choice,
        total(&forced)
    )))
}

/// The same messages between the same ranks. Launches exchange names and numbers of processes as well, whose length varies a little.
fn is_alike(one: &Traffic, other: &Traffic) -> bool {
    const NAMES_BYTES: u64 = 1024;
    one.len() == other.len()
        && one.iter().zip(other).all(
            |((pair, (messages, bytes)), (other_pair, (other_messages, other_bytes)))| {
                (pair, messages) == (other_pair, other_messages)
                    && bytes.abs_diff(*other_bytes) <= NAMES_BYTES
            },
        )
}

/// What the ranks send in a few calls at the rule's largest measured size: a launch with more calls less one with fewer, which leaves
/// out what launches send besides.
fn of_calls(
    args: &Args,
    file: &File,
    subject: &Subject,
    rules: (&str, &[&str]),
    place: &Place,
) -> Result<Traffic, Failure> {
    let fewer = traffic((args, file, subject), "1", rules, place)?;
    let mut more = traffic((args, file, subject), "3", rules, place)?;
    for (pair, (messages, bytes)) in fewer {
        let entry = more.entry(pair).or_default();
        *entry = (entry.0.saturating_sub(messages), entry.1.saturating_sub(bytes));
    }
    more.retain(|_, (messages, _)| *messages > 0);
    Ok(more)
}

/// What the ranks send in a whole launch.
fn traffic(
    (args, file, subject): (&Args, &File, &Subject),
    iterations: &str,
    (rules, more): (&str, &[&str]),
    place: &Place,
) -> Result<Traffic, Failure> {
    let (_, last, _) = subject.sizes(args.max_size);
    let one = Subject { min_bytes: last, max_bytes: last, ..subject.clone() };
    let mut command = command(args, file, &one)?;
    command
        .extend(["-n", iterations, "-w", "0", "-c", "0"].iter().chain(more).map(|word| (*word).to_owned()));
    let prefix = place.folder.join("sent");
    let environment = [
        ("OMPI_MCA_coll_tuned_use_dynamic_rules", "1".to_owned()),
        ("OMPI_MCA_coll_tuned_dynamic_rules_filename", rules.to_owned()),
        ("OMPI_MCA_pml_monitoring_enable", "1".to_owned()),
        ("OMPI_MCA_pml_monitoring_enable_output", "3".to_owned()),
        ("OMPI_MCA_pml_monitoring_filename", prefix.display().to_string()),
    ];
    let (ended, _) = start(command, &environment, place)?;
    if ended != Ended::Status(0) {
        return Err(failed(subject, ended, place));
    }
    let mut sent = Traffic::new();
    for entry in
        std::fs::read_dir(&place.folder).map_err(|error| Failure::Input(error.to_string()))?.flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("sent.") && name.ends_with(".prof") {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            text.lines().for_each(|line| count(line, &mut sent));
            let _ = std::fs::remove_file(entry.path());
        }
    }
    Ok(sent)
}

/// `E 0 1 4000000 bytes 20 msgs sent …`: kind, sender, receiver, bytes, messages.
fn count(line: &str, sent: &mut Traffic) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [kind, from, to, bytes, "bytes", messages, "msgs", ..] = words.as_slice() else { return };
    let (Ok(bytes), Ok(messages)) = (bytes.parse::<u64>(), messages.parse::<u64>()) else { return };
    if matches!(*kind, "E" | "I") {
        let entry = sent.entry(((*from).to_owned(), (*to).to_owned())).or_default();
        *entry = (entry.0 + messages, entry.1 + bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::{Traffic, count, is_alike, planned};

    #[test]
    fn plans_and_counts_are_read() {
        let plan = "#         size         count      type   redop      algorithm  protocol  channels\n\
                    #         1024           256     float     sum           ring        ll         2\n";
        assert_eq!(planned(plan), [("ring".into(), "ll".into(), 1024)]);
        let mut sent = Traffic::new();
        count("E\t0\t1\t4000 bytes\t20 msgs sent\t0,0,0", &mut sent);
        count("# POINT TO POINT", &mut sent);
        let mut other = sent.clone();
        count("E\t0\t1\t12 bytes\t0 msgs sent", &mut other);
        assert!(is_alike(&sent, &other));
        count("E\t0\t1\t0 bytes\t1 msgs sent", &mut other);
        assert!(!is_alike(&sent, &other));
        assert_eq!(sent.into_values().collect::<Vec<_>>(), [(20, 4000)]);
    }
}
