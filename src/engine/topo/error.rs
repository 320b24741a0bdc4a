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
    /// Says that the graph file is meant: errors of a machine's own description carry no name, their reader knows it.
    pub(crate) fn of_graph_file(self) -> Self {
        match self {
            Self::Xml { line, problem } => Self::Machine(format!("NCCL_GRAPH_FILE: line {line}: {problem}")),
            other => other,
        }
    }

    /// A machine that cannot be.
    pub(crate) fn machine(text: impl Into<String>) -> Self {
        Self::Machine(text.into())
    }
}
