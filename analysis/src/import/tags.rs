//! Prefixes that launchers put before every line.

/// A line without MPI (`[1,0]<stdout>:`), Slurm (`0: `) and time (`[2026-01-02 03:04:05] `) prefixes, trimmed.
pub fn strip(line: &str) -> &str {
    split(line).1
}

/// The task that a launcher's prefix names (empty where there is none), and the line without prefixes, trimmed. Lines of several tasks
/// interleave in one log; the task tells their streams apart.
pub fn split(line: &str) -> (&str, &str) {
    let mut task = "";
    let mut rest = line.trim();
    loop {
        let tagged = mpi_tag(rest).or_else(|| task_number(rest));
        if let Some((tag, shorter)) = tagged {
            task = tag;
            rest = shorter.trim_start();
        } else if let Some(shorter) = time_stamp(rest).or_else(|| clock_stamp(rest)) {
            rest = shorter.trim_start();
        } else {
            return (task, rest);
        }
    }
}

/// `[1,0]<stdout>:` or `[1,0]:`.
fn mpi_tag(line: &str) -> Option<(&str, &str)> {
    let (inside, rest) = line.strip_prefix('[')?.split_once(']')?;
    let (job, rank) = inside.split_once(',')?;
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    if !(is_number(job) && is_number(rank)) {
        return None;
    }
    let rest = match rest.strip_prefix('<') {
        Some(stream) => stream.split_once('>')?.1,
        None => rest,
    };
    Some((inside, rest.strip_prefix(':').unwrap_or(rest)))
}

/// `[2026-01-02 03:04:05]`, `2026-01-02T03:04:05.123Z`, each at the start of the line.
fn time_stamp(line: &str) -> Option<&str> {
    let bracket = line.strip_prefix('[');
    let text = bracket.unwrap_or(line);
    let date = text.get(..10)?;
    let shape = |c: char| if c.is_ascii_digit() { '0' } else { c };
    if date.chars().map(shape).collect::<String>() != "0000-00-00" || !text[10..].starts_with([' ', 'T', '_'])
    {
        return None;
    }
    if bracket.is_some() {
        return text.split_once(']').map(|(_, rest)| rest);
    }
    let end = text[11..].find(' ').map_or(text.len(), |at| 11 + at);
    text[11..end].contains(':').then(|| &text[end..])
}

/// `Tue Dec  1 00:11:52 2026`, as mpirun --timestamp-output puts it right before its tag.
fn clock_stamp(line: &str) -> Option<&str> {
    const SHAPE: &[u8] = b"aaa aaa 00 00:00:00 0000";
    let stamp = line.get(..SHAPE.len())?.as_bytes();
    let fits = |(byte, shape): (&u8, &u8)| match shape {
        b'a' => byte.is_ascii_alphabetic(),
        b'0' => byte.is_ascii_digit() || *byte == b' ',
        other => byte == other,
    };
    let rest = &line[SHAPE.len()..];
    (stamp.iter().zip(SHAPE).all(fits) && rest.starts_with(['[', '<', ' '])).then_some(rest)
}

/// `0: ` as srun -l prints.
fn task_number(line: &str) -> Option<(&str, &str)> {
    let (number, rest) = line.split_once(':')?;
    let number = number.trim();
    (!number.is_empty()
        && number.len() <= 7
        && number.bytes().all(|b| b.is_ascii_digit())
        && rest.starts_with(' '))
    .then_some((number, rest))
}

#[cfg(test)]
mod tests {
    use super::{split, strip};

    #[test]
    fn every_prefix_goes_and_nothing_else() {
        for line in [
            "  8 2 float",
            "[1,0]<stdout>:       8 2 float",
            "[1,12]: 8 2 float",
            " 0: 8 2 float",
            "[2026-01-02 03:04:05] 8 2 float",
            "2026-01-02T03:04:05.123Z 8 2 float",
            "2026-01-02 03:04:05 [1,0]<stderr>:8 2 float",
            "Tue Dec  1 00:11:52 2026[1,0]<stdout>:   8 2 float",
        ] {
            assert_eq!(strip(line), "8 2 float", "{line}");
        }
        assert_eq!(split("[1,12]<stdout>: 8 2 float"), ("1,12", "8 2 float"));
        assert_eq!(split(" 3: 8 2 float"), ("3", "8 2 float"));
        assert_eq!(split("8 2 float").0, "");
        assert_eq!(strip("[0] NCCL INFO x"), "[0] NCCL INFO x");
        assert_eq!(strip("# size: 8"), "# size: 8");
        assert_eq!(strip("2026-01-02"), "2026-01-02");
    }
}
