//! Zones around a result that must come back as they were.

use super::lane::mixed;

/// The bytes of guard zones: a fixed sequence from the start of each zone, without a period that a copied block could hit.
#[derive(Clone, Copy, Debug)]
pub struct Guard;

impl Guard {
    /// Marks a zone.
    pub fn fill(self, zone: &mut [u8]) {
        for (chunk, word) in zone.chunks_mut(8).zip(words()) {
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    /// Bytes of a marked zone that have changed.
    pub fn check(self, zone: &[u8]) -> u64 {
        let changed = |(chunk, word): (&[u8], [u8; 8])| {
            chunk.iter().zip(word).filter(|(got, want)| **got != *want).count()
        };
        zone.chunks(8).zip(words()).map(changed).sum::<usize>() as u64
    }
}

fn words() -> impl Iterator<Item = [u8; 8]> {
    (0..).map(|position| mixed(0x6775_6172_6400_0000 + position).to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_changed_byte_is_one_changed_byte() {
        let mut zone = [0; 77];
        Guard.fill(&mut zone);
        assert_eq!(Guard.check(&zone), 0);
        for at in 0..zone.len() {
            zone[at] ^= 0x10;
            assert_eq!(Guard.check(&zone), 1, "byte {at}");
            zone[at] ^= 0x10;
        }
    }

    #[test]
    fn a_shifted_zone_is_noticed() {
        let mut zone = [0; 256];
        Guard.fill(&mut zone);
        assert!((1..64).all(|shift| Guard.check(&zone[shift..]) > 100));
    }
}
