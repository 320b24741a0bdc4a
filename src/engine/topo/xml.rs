//! Topology and graph files as trees of elements: reading, typed attributes, writing.
//!
//! The reader keeps NCCL's habits where they change what a file means: the first of two equal attributes counts, attributes past
//! the sixteenth and unknown elements are ignored, numbers follow C's base-0 syntax and may have a tail. It is stricter where NCCL
//! would read nonsense as 0, and says which attribute of which element is wrong.

use std::fmt::Write as _;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use crate::engine::topo::error::Error;

/// What a file may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Elements that are kept; unknown ones do not count.
    pub elements: usize,
    /// Characters of a name or value.
    pub text: usize,
    /// Attributes of an element that are kept.
    pub attributes: usize,
    /// Elements directly below another.
    pub children: usize,
}

impl Limits {
    /// NCCL's for a topology file.
    pub const TOPOLOGY: Self = Self { elements: 255, text: 253, attributes: 16, children: 640 };
    /// NCCL's for a graph file.
    pub const GRAPH: Self = Self { elements: 65535, ..Self::TOPOLOGY };
}

/// Deepest nesting accepted; real files reach about ten.
const MAX_DEPTH: usize = 64;

/// Which elements a file may hold below which.
type Schema = fn(parent: &str, child: &str) -> bool;

/// An element with its attributes in file order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// Tag.
    pub name: String,
    /// Names and values.
    pub attributes: Vec<(String, String)>,
    /// Elements below it.
    pub children: Vec<Element>,
    /// Line where it starts, from 1; 0 for elements that come from no file.
    pub line: usize,
}

/// Reads a topology file: one `system` element of version 1.
pub fn read_topology(text: &str, limits: Limits) -> Result<Element, Error> {
    let system = read(text, "system", topology_schema, limits)?;
    check_version(&system)?;
    Ok(system)
}

/// Reads a graph file: one `graphs` element of version 1.
pub fn read_graphs(text: &str) -> Result<Element, Error> {
    let graphs = read(text, "graphs", graph_schema, Limits::GRAPH)?;
    check_version(&graphs)?;
    Ok(graphs)
}

fn check_version(root: &Element) -> Result<(), Error> {
    match root.integer("version")? {
        1 => Ok(()),
        other => Err(root.error(format!("attribute version of {} is {other}, want 1", root.name))),
    }
}

fn topology_schema(parent: &str, child: &str) -> bool {
    match parent {
        "system" => child == "cpu",
        "cpu" => matches!(child, "pci" | "nic"),
        "pci" => matches!(child, "pci" | "gpu" | "nic" | "pcilink"),
        "gpu" => matches!(child, "nvlink" | "c2c"),
        "nic" => child == "net",
        _ => false,
    }
}

fn graph_schema(parent: &str, child: &str) -> bool {
    match parent {
        "graphs" => child == "graph",
        "graph" => child == "channel",
        "channel" => matches!(child, "net" | "gpu"),
        _ => false,
    }
}

/// A file being read.
struct Parse<'a> {
    text: &'a str,
    reader: Reader<&'a [u8]>,
    schema: Schema,
    limits: Limits,
    /// Elements being read, outermost first.
    open: Vec<Element>,
    /// Depth inside an unknown element, 0 outside.
    skipping: usize,
    n_elements: usize,
    root: Option<Element>,
}

fn read(text: &str, root: &str, schema: Schema, limits: Limits) -> Result<Element, Error> {
    let mut reader = Reader::from_str(text);
    reader.config_mut().check_end_names = true;
    let mut parse =
        Parse { text, reader, schema, limits, open: Vec::new(), skipping: 0, n_elements: 0, root: None };
    loop {
        let start = parse.reader.buffer_position();
        let event = parse
            .reader
            .read_event()
            .map_err(|e| parse.error_at(parse.reader.error_position(), &e.to_string()))?;
        match event {
            Event::Eof => break,
            Event::Start(tag) => parse.enter(&tag, root, start)?,
            Event::Empty(tag) => {
                parse.enter(&tag, root, start)?;
                parse.leave();
            }
            Event::End(_) => parse.leave(),
            Event::Text(found) if parse.skipping == 0 && !found.iter().all(u8::is_ascii_whitespace) => {
                return Err(parse.error_at(start, "text between elements, want only elements"));
            }
            Event::CData(_) | Event::GeneralRef(_) if parse.skipping == 0 => {
                return Err(parse.error_at(start, "text between elements, want only elements"));
            }
            _ => {}
        }
    }
    if let Some(element) = parse.open.last() {
        return Err(element.error(format!("element {} is never closed", element.name)));
    }
    parse.root.ok_or_else(|| Error::Xml { line: 1, problem: format!("no element {root} at top level") })
}

impl Parse<'_> {
    fn line_of(&self, position: u64) -> usize {
        let end = usize::try_from(position).unwrap_or(usize::MAX).min(self.text.len());
        1 + self.text.as_bytes()[..end].iter().filter(|&&byte| byte == b'\n').count()
    }

    fn error_at(&self, position: u64, problem: &str) -> Error {
        Error::Xml { line: self.line_of(position), problem: problem.to_owned() }
    }

    fn enter(&mut self, tag: &BytesStart<'_>, root: &str, start: u64) -> Result<(), Error> {
        if self.open.len() + self.skipping >= MAX_DEPTH {
            return Err(self.error_at(start, "elements nested deeper than 64"));
        }
        let name = String::from_utf8_lossy(tag.name().as_ref()).into_owned();
        let known = match self.open.last() {
            _ if self.skipping > 0 => false,
            Some(parent) => (self.schema)(&parent.name, &name),
            None => name == root && self.root.is_none(),
        };
        if !known {
            self.skipping += 1;
            return Ok(());
        }
        self.n_elements += 1;
        if self.n_elements > self.limits.elements {
            return Err(self.error_at(start, &format!("more than {} elements", self.limits.elements)));
        }
        if self.open.last().is_some_and(|parent| parent.children.len() >= self.limits.children) {
            return Err(
                self.error_at(start, &format!("more than {} elements below one", self.limits.children))
            );
        }
        let line = self.line_of(start);
        let attributes = self.attributes(tag, &name, start)?;
        self.open.push(Element { name, attributes, children: Vec::new(), line });
        Ok(())
    }

    fn attributes(
        &self,
        tag: &BytesStart<'_>,
        element: &str,
        start: u64,
    ) -> Result<Vec<(String, String)>, Error> {
        let mut kept = Vec::new();
        for attribute in tag.attributes().with_checks(false) {
            let attribute =
                attribute.map_err(|e| self.error_at(start, &format!("attributes of {element}: {e}")))?;
            let key = String::from_utf8_lossy(attribute.key.as_ref()).into_owned();
            let value = match attribute.unescape_value() {
                Ok(value) => value.into_owned(),
                Err(e) => return Err(self.error_at(start, &format!("attribute {key} of {element}: {e}"))),
            };
            if key.len() > self.limits.text || value.len() > self.limits.text {
                let problem =
                    format!("attribute {key} of {element} is longer than {} characters", self.limits.text);
                return Err(self.error_at(start, &problem));
            }
            if kept.len() < self.limits.attributes {
                kept.push((key, value));
            }
        }
        Ok(kept)
    }

    fn leave(&mut self) {
        if self.skipping > 0 {
            self.skipping -= 1;
            return;
        }
        let Some(element) = self.open.pop() else { return };
        match self.open.last_mut() {
            Some(parent) => parent.children.push(element),
            None => self.root = Some(element),
        }
    }
}

impl Element {
    /// An element that comes from no file.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// The same with one more attribute.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl ToString) -> Self {
        self.set(key, value);
        self
    }

    /// Sets an attribute, at its place when it exists.
    pub fn set(&mut self, key: &str, value: impl ToString) {
        match self.attributes.iter_mut().find(|(name, _)| name == key) {
            Some((_, old)) => *old = value.to_string(),
            None => self.attributes.push((key.to_owned(), value.to_string())),
        }
    }

    /// An attribute's text.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.attributes.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// An attribute's text; its absence is an error.
    pub fn required(&self, key: &str) -> Result<&str, Error> {
        self.text(key).ok_or_else(|| self.error(format!("element {} has no attribute {key}", self.name)))
    }

    /// An integer attribute that must be there.
    pub fn integer(&self, key: &str) -> Result<i32, Error> {
        let text = self.required(key)?;
        self.parse_integer(key, text)
    }

    /// An integer attribute, or its default.
    pub fn integer_or(&self, key: &str, default: i32) -> Result<i32, Error> {
        self.text(key).map_or(Ok(default), |text| self.parse_integer(key, text))
    }

    /// An integer attribute that counts something and must be there.
    pub fn count(&self, key: &str) -> Result<i32, Error> {
        let number = self.integer(key)?;
        if number < 0 {
            return Err(self.error(format!("attribute {key} of {} is {number}, want 0 or more", self.name)));
        }
        Ok(number)
    }

    fn parse_integer(&self, key: &str, text: &str) -> Result<i32, Error> {
        let fits = |number: &i64| i64::from(i32::MIN) <= *number && *number <= i64::from(u32::MAX);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "0xffffffff is -1 here, as the format's readers have it"
        )]
        let cut = |number| number as i32;
        c_integer(text, 0).filter(fits).map(cut).ok_or_else(|| {
            self.error(format!("attribute {key} of {} is {text:?}, want a 32-bit integer", self.name))
        })
    }

    /// A number attribute that must be there.
    pub fn float(&self, key: &str) -> Result<f32, Error> {
        let text = self.required(key)?;
        let end =
            text.find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-' | 'e' | 'E')).unwrap_or(text.len());
        let bad = || self.error(format!("attribute {key} of {} is {text:?}, want a number", self.name));
        text[..end].parse().map_err(|_| bad())
    }

    /// A 64-bit number in hexadecimal, with or without `0x`.
    pub fn hexadecimal(&self, key: &str) -> Result<Option<u64>, Error> {
        let Some(text) = self.text(key) else { return Ok(None) };
        let digits = text.trim_start().trim_start_matches("0x").trim_start_matches("0X");
        let end = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
        match u64::from_str_radix(&digits[..end], 16) {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(self
                .error(format!("attribute {key} of {} is {text:?}, want a hexadecimal number", self.name))),
        }
    }

    /// The first element below with that name.
    pub fn child(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|child| child.name == name)
    }

    /// An error at this element.
    pub fn error(&self, problem: impl Into<String>) -> Error {
        Error::Xml { line: self.line, problem: problem.into() }
    }

    /// The element and all below as text, two spaces per level, as NCCL dumps it.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text, 0);
        text
    }

    fn write(&self, text: &mut String, indent: usize) {
        const INFALLIBLE: &str = "invariant: writing to a string succeeds";
        write!(text, "{:indent$}<{}", "", self.name).expect(INFALLIBLE);
        for (key, value) in &self.attributes {
            write!(text, " {key}=\"{}\"", quick_xml::escape::partial_escape(value).replace('"', "&quot;"))
                .expect(INFALLIBLE);
        }
        if self.children.is_empty() {
            text.push_str("/>\n");
            return;
        }
        text.push_str(">\n");
        for child in &self.children {
            child.write(text, indent + 2);
        }
        writeln!(text, "{:indent$}</{}>", "", self.name).expect(INFALLIBLE);
    }
}

/// C's `strtol`: leading blanks, sign, base by prefix when `base` is 0, digits, anything after. Empty text is 0, as the format uses
/// it for "unknown"; text without a leading number is nothing.
pub(crate) fn c_integer(text: &str, base: u32) -> Option<i64> {
    let text = text.trim_start();
    if text.is_empty() {
        return Some(0);
    }
    let (negative, rest) = match text.as_bytes()[0] {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let hex = rest.strip_prefix("0x").or_else(|| rest.strip_prefix("0X"));
    let (base, digits) = match (base, hex) {
        (0 | 16, Some(hex)) => (16, hex),
        (0, None) if rest.len() > 1 && rest.starts_with('0') => (8, rest),
        (0, None) => (10, rest),
        _ => (base, rest),
    };
    let mut value: Option<i64> = None;
    for digit in digits.chars().map_while(|c| c.to_digit(base)) {
        value = Some(value.unwrap_or(0).saturating_mul(i64::from(base)).saturating_add(i64::from(digit)));
    }
    let value = match value {
        Some(value) => value,
        None if hex.is_some() => 0,
        None => return None,
    };
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        read_topology(text, Limits::TOPOLOGY).expect_err("a bad file").to_string()
    }

    #[test]
    fn a_file_reads_and_writes_back() {
        let text = "<system version=\"1\">\n  <cpu numaid=\"0\" arch=\"x86_64\">\n    <nic>\n      <net dev=\"0\" name=\"a&amp;b\"/>\n    \
                    </nic>\n  </cpu>\n</system>\n";
        let system = read_topology(text, Limits::TOPOLOGY).expect("a good file");
        assert_eq!(system.children[0].children[0].children[0].text("name"), Some("a&b"));
        assert_eq!(system.children[0].line, 2);
        assert_eq!(system.to_text(), text);
    }

    #[test]
    fn unknown_elements_comments_and_extra_attributes_are_skipped() {
        let text = "<!-- a <b> --><system version='1' version='2'><gone><cpu/></gone><cpu numaid='3'><gpu/></cpu></system>";
        let system = read_topology(text, Limits::TOPOLOGY).expect("a good file");
        assert_eq!(system.children.len(), 1);
        assert!(system.children[0].children.is_empty(), "a gpu directly below a cpu is not known");
    }

    #[test]
    fn errors_name_line_element_and_attribute() {
        assert_eq!(problem("<system version='2'/>"), "line 1: attribute version of system is 2, want 1");
        assert_eq!(problem("<system/>"), "line 1: element system has no attribute version");
        assert_eq!(
            problem("\n<system version='x'/>"),
            "line 2: attribute version of system is \"x\", want a 32-bit integer"
        );
        assert_eq!(problem("<system version='1'>\n<cpu>"), "line 2: element cpu is never closed");
        assert_eq!(
            problem("<system version='1'>\nhello</system>"),
            "line 1: text between elements, want only elements"
        );
        assert_eq!(problem("<other/>"), "line 1: no element system at top level");
        assert!(problem("<system version='1'><cpu></system>").starts_with("line 1: "));
        assert!(
            problem(&format!("<system version='{}'/>", "1".repeat(300)))
                .contains("longer than 253 characters")
        );
    }

    #[test]
    fn too_many_elements_are_refused() {
        let text = format!("<system version='1'>{}</system>", "<cpu/>".repeat(255));
        assert_eq!(problem(&text), "line 1: more than 255 elements");
        let fits = format!("<system version='1'>{}</system>", "<cpu/>".repeat(254));
        assert!(read_topology(&fits, Limits::TOPOLOGY).is_ok());
    }

    #[test]
    fn numbers_follow_c() {
        assert_eq!(c_integer("0x1f tail", 0), Some(31));
        assert_eq!(c_integer("010", 0), Some(8));
        assert_eq!(c_integer("-4", 0), Some(-4));
        assert_eq!(c_integer("ff", 16), Some(255));
        assert_eq!(c_integer("0xff", 16), Some(255));
        assert_eq!(c_integer("", 0), Some(0));
        assert_eq!(c_integer("word", 0), None);
        assert_eq!(c_integer("99999999999999999999", 0), Some(i64::MAX));
    }
}
