//! Which build this process runs: ranks of different builds must not talk, because shared memory has no version field.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::sync::OnceLock;

/// Raised by hand when the meaning of a bootstrap or control message changes.
pub const ABI: u32 = 1;
const VERSION_BYTES: usize = 20;
/// Bytes of an encoded build.
pub const BUILD_BYTES: usize = 4 + 8 + VERSION_BYTES;

/// A build of this program: what two ranks compare before they exchange anything else.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Build {
    abi: u32,
    id: u64,
    version: [u8; VERSION_BYTES],
}

impl Build {
    /// The build of this process. Its id is a hash of the running file, so that two builds of one version differ too.
    pub fn of_this_process() -> Self {
        static BUILD: OnceLock<Build> = OnceLock::new();
        *BUILD.get_or_init(|| {
            let mut version = [0; VERSION_BYTES];
            let text = env!("CARGO_PKG_VERSION").as_bytes();
            let length = text.len().min(VERSION_BYTES);
            version[..length].copy_from_slice(&text[..length]);
            Self { abi: ABI, id: hash_of_running_file().unwrap_or(0), version }
        })
    }

    /// The bytes that travel.
    pub fn to_bytes(&self) -> [u8; BUILD_BYTES] {
        let mut bytes = [0; BUILD_BYTES];
        bytes[..4].copy_from_slice(&self.abi.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.id.to_le_bytes());
        bytes[12..].copy_from_slice(&self.version);
        bytes
    }

    /// The build that a peer sent.
    pub fn from_bytes(bytes: &[u8; BUILD_BYTES]) -> Self {
        let field = |range: std::ops::Range<usize>| &bytes[range];
        Self {
            abi: u32::from_le_bytes(field(0..4).try_into().expect("invariant: four bytes")),
            id: u64::from_le_bytes(field(4..12).try_into().expect("invariant: eight bytes")),
            version: field(12..BUILD_BYTES).try_into().expect("invariant: the rest"),
        }
    }

    #[cfg(test)]
    pub(crate) fn with_id(mut self, id: u64) -> Self {
        self.id = id;
        self
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version: String = self
            .version
            .iter()
            .take_while(|&&b| b != 0)
            .map(|&b| if b.is_ascii_graphic() { char::from(b) } else { '?' })
            .collect();
        write!(f, "Chorus {version} (ABI {}, build {:016x})", self.abi, self.id)
    }
}

impl fmt::Debug for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Four multiply-and-rotate lanes: the file is 20 to 60 MB and start-up waits for this.
fn hash_of_running_file() -> std::io::Result<u64> {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut file = File::open("/proc/self/exe")?;
    let mut block = vec![0_u8; 1 << 18];
    let mut lanes = [ODD, ODD.rotate_left(16), ODD.rotate_left(32), ODD.rotate_left(48)];
    let mut total = 0;
    loop {
        let length = fill(&mut file, &mut block)?;
        total += length as u64;
        block[length..].fill(0);
        for four in block[..length.next_multiple_of(32)].chunks_exact(32) {
            for (lane, word) in lanes.iter_mut().zip(four.chunks_exact(8)) {
                let word = u64::from_le_bytes(word.try_into().expect("invariant: eight bytes"));
                *lane = (*lane ^ word).wrapping_mul(ODD).rotate_left(29);
            }
        }
        if length < block.len() {
            break;
        }
    }
    Ok(lanes.iter().fold(total, |hash, lane| (hash ^ lane).wrapping_mul(ODD).rotate_left(31)))
}

fn fill(file: &mut File, block: &mut [u8]) -> std::io::Result<usize> {
    let mut length = 0;
    while length < block.len() {
        match file.read(&mut block[length..])? {
            0 => break,
            n => length += n,
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_is_known_by_its_file_and_survives_the_wire() {
        let build = Build::of_this_process();
        assert_ne!(build.id, 0, "the running file can be read");
        assert_eq!(hash_of_running_file().expect("readable"), build.id, "the hash is a function of the file");
        assert_eq!(Build::from_bytes(&build.to_bytes()), build);
        assert!(build.to_string().contains(env!("CARGO_PKG_VERSION")));
        assert_ne!(build.with_id(1), build);
    }

    #[test]
    fn a_peers_version_text_cannot_hurt_a_terminal() {
        let bytes = [0x1b; BUILD_BYTES];
        assert!(!Build::from_bytes(&bytes).to_string().contains('\u{1b}'));
    }
}
