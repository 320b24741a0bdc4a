//! Messages of a log's line: who said what.
//!
//! A line may stand behind an MPI rank tag and a time stamp. Where two processes wrote at once, two messages share a line; they are
//! told apart where the second one's `host:pid:tid` begins.

const MARK: &str = "NCCL INFO ";

/// Thread (`host:pid:tid`) and text of every message of a line; `is_known` says whether a thread has spoken before.
pub(super) fn messages(line: &str, is_known: impl Fn(&str) -> bool) -> Vec<(String, &str)> {
    let mut parts = line.split(MARK);
    let mut thread = thread_of(parts.next().unwrap_or_default());
    let mut all = Vec::new();
    let texts: Vec<&str> = parts.collect();
    for (at, text) in texts.iter().enumerate() {
        if at + 1 == texts.len() {
            all.push((std::mem::take(&mut thread), *text));
            break;
        }
        // The end of this part is the prefix of the next.
        let (own, next) = cut(text, &is_known);
        all.push((std::mem::replace(&mut thread, next), own));
    }
    all
}

/// A text without the `host:pid:tid [device] ` at its end, and that thread.
fn cut<'a>(text: &'a str, is_known: &impl Fn(&str) -> bool) -> (&'a str, String) {
    let trimmed = text.trim_end();
    let before = trimmed.rsplit_once('[').map_or(trimmed, |(before, _)| before).trim_end();
    let start = before.rfind(char::is_whitespace).map_or(0, |at| at + 1);
    let word = &before[start..];
    // Graph texts are numbers and signs; the name of a host begins behind them.
    let guess = word.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(0);
    let known = word.char_indices().map(|(at, _)| at).find(|&at| is_known(&word[at..]));
    let at = start + known.unwrap_or(guess);
    (&text[..at], thread_of(&before[at..]))
}

/// `host:pid:tid` at the end of the prefix, before the device in brackets.
fn thread_of(prefix: &str) -> String {
    let words = prefix.split_whitespace().rev();
    let found =
        words.map(|word| word.rsplit('>').next().unwrap_or(word)).find(|word| word.matches(':').count() >= 2);
    found.map(|word| word.trim_start_matches(':').to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{messages, thread_of};

    #[test]
    fn threads_are_found_behind_tags_and_times() {
        for prefix in ["box:1:2 [0] ", "[1,0]<stdout>:box:1:2 [0] ", "[2026-01-02 03:04:05] box:1:2 [0] "] {
            assert_eq!(thread_of(prefix), "box:1:2");
        }
    }

    #[test]
    fn two_messages_on_one_line_are_told_apart() {
        let line =
            "box:1:2 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1box:3:4 [1] NCCL INFO Ring 00 : 0 -> 1 -> 0";
        let all = messages(line, |_| false);
        let expected = [("box:1:2", "Trees [0] 1/-1/-1->0->-1"), ("box:3:4", "Ring 00 : 0 -> 1 -> 0")];
        assert_eq!(all, expected.map(|(thread, text)| (thread.to_owned(), text)));
        let numbers = line.replace("box", "10-0-0-1");
        let all = messages(&numbers, |thread| thread == "10-0-0-1:3:4");
        assert_eq!((all[0].1, all[1].0.as_str()), ("Trees [0] 1/-1/-1->0->-1", "10-0-0-1:3:4"));
    }

    proptest! {
        #[test]
        fn any_line_is_cut_without_loss_of_the_last_message(head in ".{0,40}", tail in "[a-z0-9 :>-]{0,20}") {
            let line = format!("{head}NCCL INFO {tail}");
            let all = messages(&line, |_| false);
            prop_assert_eq!(all.last().map(|(_, text)| *text), Some(tail.as_str()));
        }
    }
}
