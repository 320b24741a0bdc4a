//! Graphs over ranks and hosts: rings and trees inside a host, and how they join across hosts.

pub mod trees;
