//! What can be wrong with a machine's description.

/// Why a description cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The text is not what a topology or graph file holds.
    #[error("line {line}: {problem}")]
    Xml {
        /// Line of the file, from 1.
        line: usize,
        /// Element, attribute, and what would be right.
        problem: String,
    },
    /// The elements are well formed but describe no usable machine.
    #[error("{0}")]
    Machine(String),
    /// A setting has a value it cannot have.
    #[error("{name} is {value:?}, want {want}")]
    Setting {
        /// Name of the variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What would be right.
        want: &'static str,
    },
}

impl Error {
    /// A machine that cannot be.
    pub(crate) fn machine(text: impl Into<String>) -> Self {
        Self::Machine(text.into())
    }
}
