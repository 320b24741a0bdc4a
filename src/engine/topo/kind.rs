//! The closed sets of a machine's description: kinds of vertices, links and paths, CPU families.
//!
//! Discriminants are NCCL's numbers. A path is "better" when its type is smaller, so the order of [`PathType`] is a fact the
//! search relies on.

use std::fmt;

macro_rules! numbered_set {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $value:literal $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vmeta])* $variant = $value),+ }

        impl $name {
            /// Every member, in numeric order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word used in logs, files and settings.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// The member with that word, exactly spelt.
            pub fn from_name(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|member| member.name() == word)
            }

            /// The member with that number.
            pub fn from_number(number: i32) -> Option<Self> {
                Self::ALL.iter().copied().find(|member| *member as i32 == number)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }
    };
}

numbered_set! {
    /// What a vertex of the system graph stands for.
    NodeType {
        /// A rank's view of a device; it hangs off a [`NodeType::Dev`].
        Gpu = 0 "GPU",
        /// A PCI switch.
        Pci = 1 "PCI",
        /// The NVLink switch fabric of a host, as one vertex.
        Nvs = 2 "NVS",
        /// A NUMA domain.
        Cpu = 3 "CPU",
        /// A network card.
        Nic = 4 "NIC",
        /// A network port as the transport numbers it.
        Net = 5 "NET",
        /// A port for kernel-initiated traffic.
        Gin = 6 "GIN",
        /// A port for remote memory access.
        Rma = 7 "RMA",
        /// The physical device, owner of all its links.
        Dev = 8 "DEV",
        /// The shared chip-to-chip bridge of a partitioned device.
        Cxb = 9 "CXB",
    }
}

numbered_set! {
    /// What a link is made of. Numbers match [`PathType`] where both exist.
    LinkType {
        /// Inside one device.
        Loc = 0 "LOC",
        /// NVLink.
        Nvl = 1 "NVL",
        /// Chip-to-chip link between a GPU and its CPU.
        C2c = 3 "C2C",
        /// PCI Express.
        Pci = 4 "PCI",
        /// Between NUMA domains.
        Sys = 9 "SYS",
        /// From card to network.
        Net = 10 "NET",
    }
}

numbered_set! {
    /// How far two vertices are apart; smaller is nearer.
    PathType {
        /// The same device.
        Loc = 0 "LOC",
        /// NVLink, directly or through switches.
        Nvl = 1 "NVL",
        /// NVLink through an intermediate GPU.
        Nvb = 2 "NVB",
        /// Chip-to-chip link.
        C2c = 3 "C2C",
        /// At most one PCI switch.
        Pix = 4 "PIX",
        /// Several PCI switches, no CPU.
        Pxb = 5 "PXB",
        /// GPU to NIC over the chip-to-chip link and the CPU's PCI port.
        P2c = 6 "P2C",
        /// To a NIC through another GPU.
        Pxn = 7 "PXN",
        /// Through one CPU's root complex.
        Phb = 8 "PHB",
        /// Between NUMA domains.
        Sys = 9 "SYS",
        /// Through the network.
        Net = 10 "NET",
        /// Not at all.
        Dis = 11 "DIS",
    }
}

/// Instruction set of a CPU. Numbers are NCCL's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CpuArch {
    /// Intel, AMD, Zhaoxin.
    X86 = 1,
    /// IBM POWER.
    Power = 2,
    /// Arm.
    Arm = 3,
}

/// Who made a CPU. Numbers are NCCL's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CpuVendor {
    /// Intel.
    Intel = 1,
    /// AMD.
    Amd = 2,
    /// Zhaoxin.
    Zhaoxin = 3,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_types_are_ordered_by_distance() {
        assert!(PathType::Nvl < PathType::Nvb && PathType::Pxn < PathType::Phb);
        assert_eq!(PathType::Dis as i32, 11);
        assert_eq!(PathType::from_number(6), Some(PathType::P2c));
        assert_eq!(PathType::from_number(12), None);
    }

    #[test]
    fn link_numbers_skip_the_pure_path_types() {
        assert_eq!(LinkType::from_number(2), None);
        assert_eq!(LinkType::from_name("PCI").map(|t| t as i32), Some(4));
        assert_eq!(NodeType::Cxb as usize, 9);
    }
}
