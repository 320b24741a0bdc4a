//! An engine error as bytes, so that the rank which meets it first can tell the others and all end with the same words.

use std::time::Duration;

use crate::engine::error::Error;

const DIED: u8 = 1;
const LATE: u8 = 2;
const INTERRUPTED: u8 = 3;
const USAGE: u8 = 4;
const UNAVAILABLE: u8 = 5;
const COMBINATION: u8 = 6;
const OTHER: u8 = 7;

/// One byte of kind, eight of a number (milliseconds, signal), then the text.
pub(crate) fn encode(error: &Error) -> Vec<u8> {
    let (kind, number, text) = match error {
        Error::PeerDied(text) => (DIED, 0, text.clone()),
        Error::Timeout { what, limit } => (LATE, limit.as_millis() as u64, what.clone()),
        Error::Interrupted(signal) => (INTERRUPTED, *signal as u64, String::new()),
        Error::InvalidUsage(text) | Error::InvalidArgument(text) => (USAGE, 0, text.clone()),
        Error::Unavailable(text) => (UNAVAILABLE, 0, text.clone()),
        Error::NoSuchCombination(text) => (COMBINATION, 0, text.clone()),
        Error::System { .. } => (OTHER, 0, error.to_string()),
        Error::Internal(text) => (OTHER, 0, text.clone()),
    };
    let mut bytes = vec![kind];
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// The error that a peer told.
pub(crate) fn decode(bytes: &[u8]) -> Error {
    let Some((head, text)) = bytes.split_at_checked(9) else {
        return Error::Internal("a peer reported a failure without saying which".into());
    };
    let number = u64::from_le_bytes(head[1..9].try_into().expect("invariant: eight bytes"));
    let text = String::from_utf8_lossy(text).into_owned();
    match head[0] {
        DIED => Error::PeerDied(text),
        LATE => Error::Timeout { what: text, limit: Duration::from_millis(number) },
        INTERRUPTED => Error::Interrupted(number as i32),
        USAGE => Error::InvalidUsage(text),
        UNAVAILABLE => Error::Unavailable(text),
        COMBINATION => Error::NoSuchCombination(text),
        _ => Error::Internal(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn told_errors_keep_kind_and_words() {
        let errors = [
            Error::PeerDied("rank 2 died".into()),
            Error::Timeout { what: "rank 1 is late".into(), limit: Duration::from_millis(5500) },
            Error::Interrupted(15),
            Error::InvalidUsage("no".into()),
            Error::Unavailable("not here".into()),
            Error::NoSuchCombination("nvls with ll".into()),
            Error::Internal("bug".into()),
        ];
        for error in errors {
            let told = decode(&encode(&error));
            assert_eq!(told.to_string(), error.to_string());
            assert_eq!(std::mem::discriminant(&told), std::mem::discriminant(&error));
        }
        assert!(matches!(decode(&[1, 2]), Error::Internal(_)));
    }
}
