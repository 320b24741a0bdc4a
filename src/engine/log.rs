//! Diagnostic lines in NCCL's form, switched by NCCL's variables, so that tools which read NCCL's logs read ours.
//!
//! `NCCL_DEBUG` = NONE, VERSION, WARN, INFO, ABORT or TRACE (unset: nothing) · `NCCL_DEBUG_SUBSYS` = comma list, `^` first
//! turns it round (default INIT,BOOTSTRAP,ENV) · `NCCL_DEBUG_FILE` with `%h` host, `%p` process, `%%` ·
//! `NCCL_DEBUG_TIMESTAMP_LEVELS` (default WARN) and `NCCL_DEBUG_TIMESTAMP_FORMAT` (default `[%F %T] `).
//!
//! Two deviations: without a file lines go to stderr, because the table owns stdout; and a file is appended to, because the
//! processes of a host may share it. Every line is one write, so lines of different processes never mix.
//!
//! A line that is switched off costs one relaxed load. The static is the standard library's on purpose, also under loom: it
//! guards nothing.

use std::cell::Cell;
use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::panic::Location;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::env;

/// The release of NCCL whose behaviour is reproduced, as its version line spells it.
pub const NCCL_VERSION: &str = "2.30.7";

/// A set of parts of the engine that log under one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subsys(u32);

impl Subsys {
    /// Communicator set-up and teardown.
    pub const INIT: Self = Self(1);
    /// Collective calls.
    pub const COLL: Self = Self(2);
    /// Peer-to-peer transport.
    pub const P2P: Self = Self(4);
    /// Shared-memory transport.
    pub const SHM: Self = Self(8);
    /// Network transport.
    pub const NET: Self = Self(0x10);
    /// Topology and search.
    pub const GRAPH: Self = Self(0x20);
    /// Choice of algorithm and protocol.
    pub const TUNING: Self = Self(0x40);
    /// Settings taken from the environment.
    pub const ENV: Self = Self(0x80);
    /// Memory.
    pub const ALLOC: Self = Self(0x100);
    /// Every call with its arguments.
    pub const CALL: Self = Self(0x200);
    /// Progress thread.
    pub const PROXY: Self = Self(0x400);
    /// Multicast.
    pub const NVLS: Self = Self(0x800);
    /// Rendezvous of the ranks.
    pub const BOOTSTRAP: Self = Self(0x1000);
    /// Buffer registration.
    pub const REG: Self = Self(0x2000);
    /// Profiler.
    pub const PROFILE: Self = Self(0x4000);
    /// Reliability reports: the watch.
    pub const RAS: Self = Self(0x8000);
    /// Communicator teardown.
    pub const DESTROY: Self = Self(0x1_0000);
    /// Host memory.
    pub const ALLOC_HOST: Self = Self(0x2_0000);
    /// Everything.
    pub const ALL: Self = Self(SUBSYS_MASK);

    fn from_name(name: &str) -> Option<Self> {
        SUBSYS_NAMES.iter().find(|(word, _)| word.eq_ignore_ascii_case(name)).map(|&(_, subsys)| subsys)
    }
}

impl std::ops::BitOr for Subsys {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

const SUBSYS_MASK: u32 = 0x3_ffff;
/// Bits of the static beside the subsystems.
const WARN_BIT: u32 = 1 << 29;
const VERSION_BIT: u32 = 1 << 30;
const UNREAD: u32 = u32::MAX;

const SUBSYS_NAMES: [(&str, Subsys); 19] = [
    ("INIT", Subsys::INIT),
    ("COLL", Subsys::COLL),
    ("P2P", Subsys::P2P),
    ("SHM", Subsys::SHM),
    ("NET", Subsys::NET),
    ("GRAPH", Subsys::GRAPH),
    ("TUNING", Subsys::TUNING),
    ("ENV", Subsys::ENV),
    ("ALLOC", Subsys::ALLOC),
    ("CALL", Subsys::CALL),
    ("PROXY", Subsys::PROXY),
    ("NVLS", Subsys::NVLS),
    ("BOOTSTRAP", Subsys::BOOTSTRAP),
    ("REG", Subsys::REG),
    ("PROFILE", Subsys::PROFILE),
    ("RAS", Subsys::RAS),
    ("DESTROY", Subsys::DESTROY),
    ("ALLOC_HOST", Subsys::ALLOC_HOST),
    ("ALL", Subsys::ALL),
];

/// How much is logged; each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    None,
    Version,
    Warn,
    Info,
    Abort,
    Trace,
}

const LEVEL_NAMES: [(&str, Level); 6] = [
    ("NONE", Level::None),
    ("VERSION", Level::Version),
    ("WARN", Level::Warn),
    ("INFO", Level::Info),
    ("ABORT", Level::Abort),
    ("TRACE", Level::Trace),
];

/// What may be printed now: subsystem bits of INFO, and the bits above. All ones until the environment was read.
static ENABLED: AtomicU32 = AtomicU32::new(UNREAD);
static LOGGER: OnceLock<Logger> = OnceLock::new();

thread_local! {
    static DEVICE: Cell<u32> = const { Cell::new(0) };
}

/// Names the device (rank inside this process) that this thread works for; it stands in brackets in the lines.
pub fn set_device(device: u32) {
    DEVICE.set(device);
}

/// Whether INFO lines of that subsystem are wanted; for callers whose text is dear to make.
#[inline]
pub fn is_on(subsys: Subsys) -> bool {
    let enabled = ENABLED.load(Ordering::Relaxed);
    enabled & subsys.0 != 0 && (enabled != UNREAD || logger().enabled & subsys.0 != 0)
}

/// `host:pid:tid [device] NCCL INFO text`, when the level and the subsystem are on.
#[inline]
pub fn info(subsys: Subsys, text: fmt::Arguments<'_>) {
    if is_on(subsys) {
        logger().write_info(text);
    }
}

/// An empty line and `[time] host:pid:tid [device] file:line NCCL WARN text`, when the level is WARN or above.
#[track_caller]
pub fn warn(text: fmt::Arguments<'_>) {
    let enabled = ENABLED.load(Ordering::Relaxed);
    if enabled & WARN_BIT != 0 && (enabled != UNREAD || logger().enabled & WARN_BIT != 0) {
        logger().write_warn(Location::caller(), text);
    }
}

/// The version line, which rank 0 prints at VERSION or above.
pub fn version() {
    if logger().enabled & VERSION_BIT != 0 {
        let package = env!("CARGO_PKG_VERSION");
        logger().write(format!("NCCL version {NCCL_VERSION}+chorus{package}\n"));
    }
}

/// A line for people that no switch turns off: on stderr, one write, told apart by its first word.
pub fn notice(text: fmt::Arguments<'_>) {
    let _ = write_once(io::stderr().lock(), &format!("chorus: {text}\n"));
}

/// The line that says a setting came from the environment.
pub fn setting(name: &str, value: impl fmt::Display) {
    info(Subsys::ENV, format_args!("{name} set by environment to {value}"));
}

/// This host's name up to the first dot, as lines show it.
pub fn host() -> &'static str {
    &logger().host
}

#[cold]
fn logger() -> &'static Logger {
    let logger = LOGGER.get_or_init(|| {
        let settings = Settings::from_texts(env::text);
        Logger::new(settings)
    });
    ENABLED.store(logger.enabled, Ordering::Relaxed);
    logger
}

#[derive(Debug, PartialEq)]
struct Settings {
    level: Level,
    mask: u32,
    file: Option<String>,
    stamped: Vec<Level>,
    stamp_format: String,
}

impl Settings {
    fn from_texts(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let level = lookup("NCCL_DEBUG").and_then(|text| find_level(&text)).unwrap_or(Level::None);
        let mask = match lookup("NCCL_DEBUG_SUBSYS") {
            Some(text) => parse_mask(&text),
            None => (Subsys::INIT | Subsys::BOOTSTRAP | Subsys::ENV).0,
        };
        let stamped = match lookup("NCCL_DEBUG_TIMESTAMP_LEVELS") {
            Some(text) => parse_levels(&text),
            None => vec![Level::Warn],
        };
        let format = lookup("NCCL_DEBUG_TIMESTAMP_FORMAT").unwrap_or_else(|| "[%F %T] ".into());
        let file = lookup("NCCL_DEBUG_FILE").filter(|name| !name.is_empty() && level > Level::Version);
        Self { level, mask, file, stamped, stamp_format: format.replace('_', " ") }
    }

    fn enabled(&self) -> u32 {
        let mut enabled = 0;
        if self.level >= Level::Info {
            enabled |= self.mask & SUBSYS_MASK;
        }
        if self.level >= Level::Warn {
            enabled |= WARN_BIT;
        }
        if self.level >= Level::Version {
            enabled |= VERSION_BIT;
        }
        enabled
    }
}

fn find_level(text: &str) -> Option<Level> {
    LEVEL_NAMES.iter().find(|(word, _)| word.eq_ignore_ascii_case(text.trim())).map(|&(_, level)| level)
}

fn parse_mask(text: &str) -> u32 {
    let (inverted, list) = match text.strip_prefix('^') {
        Some(list) => (true, list),
        None => (false, text),
    };
    let named =
        list.split(',').filter_map(|name| Subsys::from_name(name.trim())).fold(0, |mask, s| mask | s.0);
    if inverted { SUBSYS_MASK & !named } else { named }
}

fn parse_levels(text: &str) -> Vec<Level> {
    let (inverted, list) = match text.strip_prefix('^') {
        Some(list) => (true, list),
        None => (false, text),
    };
    let words: Vec<&str> = list.split(',').map(str::trim).collect();
    let is_named =
        |word: &str| words.iter().any(|w| w.eq_ignore_ascii_case(word) || w.eq_ignore_ascii_case("ALL"));
    LEVEL_NAMES.iter().filter(|(word, _)| is_named(word) != inverted).map(|&(_, level)| level).collect()
}

struct Logger {
    enabled: u32,
    host: String,
    pid: u32,
    file: Option<File>,
    settings: Settings,
}

impl Logger {
    fn new(settings: Settings) -> Self {
        let host = short_host();
        let pid = std::process::id();
        let file = settings.file.as_deref().and_then(|pattern| open_file(&expand(pattern, &host, pid)));
        Self { enabled: settings.enabled(), host, pid, file, settings }
    }

    fn prefix(&self, level: Level) -> String {
        let mut line = String::with_capacity(160);
        if self.settings.stamped.contains(&level) {
            // A format chrono does not know leaves the stamp out; the line matters more.
            let _ = write!(line, "{}", chrono::Local::now().format(&self.settings.stamp_format));
        }
        let tid = rustix::thread::gettid().as_raw_nonzero();
        let _ = write!(line, "{}:{}:{tid} [{}] ", self.host, self.pid, DEVICE.get());
        line
    }

    fn write_info(&self, text: fmt::Arguments<'_>) {
        let mut line = self.prefix(Level::Info);
        let _ = writeln!(line, "NCCL INFO {text}");
        self.write(line);
    }

    fn write_warn(&self, place: &Location<'_>, text: fmt::Arguments<'_>) {
        let file = place.file().split_once("src/").map_or(place.file(), |(_, inner)| inner);
        let mut line = format!("\n{}", self.prefix(Level::Warn));
        let _ = writeln!(line, "{file}:{} NCCL WARN {text}", place.line());
        self.write(line);
    }

    fn write(&self, line: String) {
        // Lines that cannot be written (a full disk, a closed pipe) must not stop a collective.
        let _ = match &self.file {
            Some(file) => write_once(file, &line),
            None => write_once(io::stderr().lock(), &line),
        };
    }
}

fn write_once(mut sink: impl Write, line: &str) -> io::Result<()> {
    sink.write_all(line.as_bytes())
}

fn open_file(path: &str) -> Option<File> {
    match OpenOptions::new().append(true).create(true).open(path) {
        Ok(file) => Some(file),
        Err(error) => {
            let _ = write_once(
                io::stderr().lock(),
                &format!("NCCL_DEBUG_FILE: cannot open {path}: {error}; log lines go to stderr\n"),
            );
            None
        }
    }
}

/// `%h`, `%p` and `%%` of a file pattern; other escapes stay as they are.
fn expand(pattern: &str, host: &str, pid: u32) -> String {
    let mut name = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            name.push(c);
            continue;
        }
        match rest.next() {
            Some('h') => name.push_str(host),
            Some('p') => name.push_str(&pid.to_string()),
            Some('%') => name.push('%'),
            Some(other) => name.extend(['%', other]),
            None => name.push('%'),
        }
    }
    name
}

fn short_host() -> String {
    let uname = rustix::system::uname();
    let name = uname.nodename().to_string_lossy();
    name.split('.').next().unwrap_or("localhost").replace(['%', '/'], "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Settings {
        Settings::from_texts(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
    }

    #[test]
    fn nothing_is_on_without_nccl_debug() {
        assert_eq!(settings(&[]).enabled(), 0);
        assert_eq!(settings(&[("NCCL_DEBUG", "nonsense")]).enabled(), 0);
    }

    #[test]
    fn levels_include_those_before_them() {
        assert_eq!(settings(&[("NCCL_DEBUG", "version")]).enabled(), VERSION_BIT);
        assert_eq!(settings(&[("NCCL_DEBUG", "WARN")]).enabled(), VERSION_BIT | WARN_BIT);
        assert_eq!(settings(&[("NCCL_DEBUG", "INFO")]).enabled(), VERSION_BIT | WARN_BIT | 0x1081);
        assert_eq!(settings(&[("NCCL_DEBUG", "Trace")]).enabled(), VERSION_BIT | WARN_BIT | 0x1081);
    }

    #[test]
    fn subsystems_are_a_list_that_a_caret_turns_round() {
        assert_eq!(parse_mask("COLL,tuning"), 0x42);
        assert_eq!(parse_mask("ALL"), SUBSYS_MASK);
        assert_eq!(parse_mask("^COLL,P2P"), SUBSYS_MASK & !6);
        assert_eq!(parse_mask("nothing_known"), 0);
    }

    #[test]
    fn warnings_alone_are_stamped_unless_asked_otherwise() {
        assert_eq!(settings(&[]).stamped, vec![Level::Warn]);
        assert_eq!(parse_levels("INFO,VERSION"), vec![Level::Version, Level::Info]);
        assert!(
            !parse_levels("^WARN").contains(&Level::Warn) && parse_levels("^WARN").contains(&Level::Info)
        );
        assert_eq!(parse_levels("ALL").len(), LEVEL_NAMES.len());
    }

    #[test]
    fn file_patterns_know_host_and_process() {
        assert_eq!(expand("log.%h.%p", "node7", 42), "log.node7.42");
        assert_eq!(expand("100%%.%q%", "h", 1), "100%.%q%");
    }

    #[test]
    fn no_file_is_opened_below_warn() {
        assert_eq!(settings(&[("NCCL_DEBUG", "VERSION"), ("NCCL_DEBUG_FILE", "x")]).file, None);
        assert_eq!(settings(&[("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_FILE", "x")]).file.as_deref(), Some("x"));
    }

    #[test]
    fn lines_in_a_file_have_nccls_shape() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let pattern = folder.path().join("log.%p");
        let pattern = pattern.to_str().expect("a plain path");
        let logger = Logger::new(settings(&[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_FILE", pattern)]));
        set_device(3);
        logger.write_info(format_args!("Bootstrap: Using lo:127.0.0.1<0>"));
        logger.write_warn(Location::caller(), format_args!("something odd"));
        set_device(0);
        let path = folder.path().join(format!("log.{}", std::process::id()));
        let text = std::fs::read_to_string(path).expect("the log");
        let lines: Vec<&str> = text.lines().collect();
        let place = format!("{}:{}:", logger.host, std::process::id());
        assert!(lines[0].starts_with(&place), "{text}");
        assert!(lines[0].ends_with(" [3] NCCL INFO Bootstrap: Using lo:127.0.0.1<0>"), "{text}");
        assert_eq!(lines[1], "");
        assert!(lines[2].starts_with('[') && lines[2].contains(&place), "{text}");
        assert!(lines[2].contains(" [3] engine/log.rs:"), "{text}");
        assert!(lines[2].ends_with(" NCCL WARN something odd"), "{text}");
    }

    #[test]
    fn a_line_is_one_write() {
        struct Counting(usize);
        impl Write for Counting {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 += 1;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut sink = Counting(0);
        write_once(&mut sink, "one line\n").expect("a sink that never fails");
        assert_eq!(sink.0, 1);
    }
}
