//! Reductions against a naive scalar oracle, for every level this CPU has.

use super::*;
use crate::engine::types::{DataType, RedOp};

/// The oracle's idea of a value: exact for every type but the 64-bit integers, which have their own arm.
#[derive(Clone, Copy)]
enum Value {
    Integer(i128),
    Single(f32),
    Double(f64),
}

fn decode(dtype: DataType, bytes: &[u8]) -> Value {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(word);
    match dtype {
        DataType::Int8 => Value::Integer(i128::from(bits as i8)),
        DataType::Int32 => Value::Integer(i128::from(bits as i32)),
        DataType::Int64 => Value::Integer(i128::from(bits as i64)),
        DataType::Uint8 | DataType::Uint32 | DataType::Uint64 => Value::Integer(i128::from(bits)),
        DataType::Half => Value::Single(half::f16::from_bits(bits as u16).to_f32()),
        DataType::Bfloat16 => Value::Single(half::bf16::from_bits(bits as u16).to_f32()),
        DataType::Float => Value::Single(f32::from_bits(bits as u32)),
        DataType::Double => Value::Double(f64::from_bits(bits)),
        DataType::F8e4m3 => Value::Single(narrow::e4m3_to_f32(bits as u8)),
        DataType::F8e5m2 => Value::Single(narrow::e5m2_to_f32(bits as u8)),
    }
}

fn encode(dtype: DataType, value: Value) -> Vec<u8> {
    let bits = match value {
        Value::Integer(v) => v as u64,
        Value::Double(v) => v.to_bits(),
        Value::Single(v) => match dtype {
            DataType::Half => u64::from(half::f16::from_f32(v).to_bits()),
            DataType::Bfloat16 => u64::from(half::bf16::from_f32(v).to_bits()),
            DataType::F8e4m3 => u64::from(narrow::f32_to_e4m3(v)),
            DataType::F8e5m2 => u64::from(narrow::f32_to_e5m2(v)),
            _ => u64::from(v.to_bits()),
        },
    };
    bits.to_le_bytes()[..dtype.size()].to_vec()
}

fn wrap(dtype: DataType, value: Value) -> Value {
    match value {
        Value::Integer(_) => decode(dtype, &encode(dtype, value)),
        other => other,
    }
}

fn combine(op: RedOp, left: Value, right: Value) -> Value {
    macro_rules! by_op {
        ($a:expr, $b:expr) => {
            match op {
                RedOp::Prod => $a * $b,
                RedOp::Min => {
                    if $b < $a {
                        $b
                    } else {
                        $a
                    }
                }
                RedOp::Max => {
                    if $b > $a {
                        $b
                    } else {
                        $a
                    }
                }
                RedOp::Sum | RedOp::Avg | RedOp::PreMulSum(_) => $a + $b,
            }
        };
    }
    match (left, right) {
        // The low 64 bits of a product are right however it wraps.
        (Value::Integer(a), Value::Integer(b)) if op == RedOp::Prod => Value::Integer(a.wrapping_mul(b)),
        (Value::Integer(a), Value::Integer(b)) => Value::Integer(by_op!(a, b)),
        (Value::Single(a), Value::Single(b)) => Value::Single(by_op!(a, b)),
        (Value::Double(a), Value::Double(b)) => Value::Double(by_op!(a, b)),
        _ => unreachable!("one type at a time"),
    }
}

/// Where in the reduction a job stands.
#[derive(Clone, Copy)]
struct Stage {
    /// Inputs are ranks' own, so scalars apply.
    raw: bool,
    /// The result is final, so an average divides.
    last: bool,
}

/// What a job over `inputs` (bytes of one element each) must give.
fn oracle(dtype: DataType, op: RedOp, n_ranks: usize, inputs: &[&[u8]], stage: Stage) -> Vec<u8> {
    let scalar = match op {
        RedOp::PreMulSum(scalar) => Some(scalar),
        RedOp::Avg if dtype == DataType::Double => Some(1.0 / n_ranks as f64),
        RedOp::Avg if dtype.is_float() => Some(f64::from(1.0 / n_ranks as f32)),
        _ => None,
    };
    let scale =
        scalar.filter(|_| stage.raw).map(|s| match decode(dtype, &encode(dtype, Value::Integer(0))) {
            Value::Integer(_) => Value::Integer(s.trunc() as i128),
            Value::Single(_) => decode(dtype, &encode(dtype, Value::Single(s as f32))),
            Value::Double(_) => Value::Double(s),
        });
    let scaled = |input: &[u8]| {
        let raw = decode(dtype, input);
        scale.map_or(raw, |scale| wrap(dtype, combine(RedOp::Prod, raw, scale)))
    };
    let folded =
        inputs.iter().map(|input| scaled(input)).reduce(|a, b| wrap(dtype, combine(op, a, b))).unwrap();
    match folded {
        Value::Integer(sum) if stage.last && op == RedOp::Avg => {
            encode(dtype, Value::Integer(sum / n_ranks as i128))
        }
        other => encode(dtype, other),
    }
}

/// Bytes that differ everywhere, without NaN: the oracle does not say which NaN comes out.
fn random_bytes(dtype: DataType, seed: u64, n_elem: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    };
    let mut bytes = Vec::new();
    for _ in 0..n_elem {
        let element = match dtype {
            DataType::Float => (((next() >> 20) as f32 - 8e6) * 1e-3).to_bits().to_le_bytes().to_vec(),
            DataType::Double => (((next() >> 10) as f64 - 1e13) * 1e-5).to_bits().to_le_bytes().to_vec(),
            DataType::Half => {
                half::f16::from_f32(((next() % 4001) as f32 - 2000.0) / 64.0).to_le_bytes().to_vec()
            }
            DataType::Bfloat16 => {
                half::bf16::from_f32(((next() % 4001) as f32 - 2000.0) / 64.0).to_le_bytes().to_vec()
            }
            DataType::F8e4m3 => vec![(next() % 127) as u8 | (next() as u8 & 0x80)],
            DataType::F8e5m2 => vec![(next() % 124) as u8 | (next() as u8 & 0x80)],
            _ => next().rotate_left(8).to_le_bytes()[..dtype.size()].to_vec(),
        };
        bytes.extend(element);
    }
    bytes
}

fn levels() -> impl Iterator<Item = Level> {
    Level::ALL.iter().copied().filter(|level| level.is_available())
}

const OPS: [RedOp; 6] = [RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Min, RedOp::Avg, RedOp::PreMulSum(3.0)];
const GUARD: usize = 80;

/// One job with inputs and outputs `shift` bytes off alignment; `in_place` puts the result over the first input.
struct Case {
    dtype: DataType,
    op: RedOp,
    level: Level,
    n_sources: usize,
    n_destinations: usize,
    n_elem: usize,
    shift: usize,
    post: bool,
    non_temporal: bool,
    in_place: bool,
}

impl Case {
    fn check(&self) {
        let &Case { dtype, op, n_sources, n_elem, shift, post, .. } = self;
        let size = dtype.size();
        let inputs: Vec<Vec<u8>> = (0..n_sources)
            .map(|rank| {
                let mut padded = vec![0; shift + rank];
                padded.extend(random_bytes(dtype, (n_elem * 31 + rank) as u64 + 1, n_elem));
                padded
            })
            .collect();
        let reducer = Reducer::at_level(dtype, op, n_sources, self.level);
        let scale = reducer.own_scale();
        let mut sources: Vec<Source> = inputs
            .iter()
            .enumerate()
            .map(|(rank, bytes)| Source { ptr: bytes[shift + rank..].as_ptr(), scale })
            .collect();
        let mut outputs = vec![vec![0xa5_u8; n_elem * size + 2 * GUARD]; self.n_destinations];
        if self.in_place {
            let start = GUARD + shift;
            outputs[0][start..start + n_elem * size].copy_from_slice(&inputs[0][shift..]);
        }
        let destinations: Vec<*mut u8> = outputs
            .iter_mut()
            .enumerate()
            .map(|(i, bytes)| bytes[GUARD + shift + i..].as_mut_ptr())
            .collect();
        if self.in_place {
            sources[0].ptr = destinations[0];
        }
        let job = Job {
            sources: &sources,
            destinations: &destinations,
            n_elem,
            post,
            non_temporal: self.non_temporal,
        };
        // SAFETY: every pointer has room for `n_elem` elements, and buffers are apart but for the first in place.
        unsafe { reducer.run(&job) };
        let mut want = Vec::new();
        for elem in 0..n_elem {
            let elements: Vec<&[u8]> = inputs
                .iter()
                .enumerate()
                .map(|(rank, bytes)| &bytes[shift + rank + elem * size..][..size])
                .collect();
            want.extend(oracle(dtype, op, n_sources, &elements, Stage { raw: true, last: post }));
        }
        for (i, bytes) in outputs.iter().enumerate() {
            let start = GUARD + shift + i;
            let what = format!(
                "{dtype} {} {:?}: {n_sources} sources, output {i}, {n_elem} elements, shift {shift}, post {post}, nt {}, in place {}",
                op.name(),
                self.level,
                self.non_temporal,
                self.in_place,
            );
            assert_eq!(&bytes[start..start + n_elem * size], &want[..], "{what}");
            let outside = bytes[..start].iter().chain(&bytes[start + n_elem * size..]);
            assert!(outside.copied().all(|byte| byte == 0xa5), "wrote outside: {what}");
        }
    }
}

fn every(mut visit: impl FnMut(DataType, RedOp, Level)) {
    for &dtype in DataType::ALL {
        for op in OPS {
            levels().for_each(|level| visit(dtype, op, level));
        }
    }
}

#[test]
fn every_type_operator_and_count_agrees_with_the_oracle() {
    every(|dtype, op, level| {
        for n_sources in 1..=9 {
            for n_elem in 0..=70 {
                let turn = n_elem + n_sources;
                Case {
                    dtype,
                    op,
                    level,
                    n_sources,
                    n_elem,
                    n_destinations: 1 + turn % 3,
                    shift: n_elem * dtype.size() % 64 + (turn % 2) * (n_elem % 7),
                    post: turn % 4 != 0,
                    non_temporal: turn % 5 < 2,
                    in_place: turn % 3 == 0,
                }
                .check();
            }
        }
    });
}

#[test]
fn blocks_join_at_any_length_and_offset() {
    every(|dtype, op, level| {
        for (n_elem, shift, non_temporal) in
            [(1023, 0, false), (2049, 9, true), (4097, 1, true), (9001, 3, false), (8192, 64, true)]
        {
            Case {
                dtype,
                op,
                level,
                n_sources: 2,
                n_destinations: 2,
                n_elem,
                shift,
                post: true,
                non_temporal,
                in_place: true,
            }
            .check();
            Case {
                dtype,
                op,
                level,
                n_sources: 1,
                n_destinations: 2,
                n_elem,
                shift,
                post: false,
                non_temporal,
                in_place: false,
            }
            .check();
        }
    });
}

#[test]
fn partial_results_are_neither_scaled_nor_divided() {
    for &dtype in DataType::ALL {
        for op in [RedOp::Avg, RedOp::PreMulSum(2.0)] {
            let (a, b) = (random_bytes(dtype, 1, 1), random_bytes(dtype, 2, 1));
            let mut out = vec![0; dtype.size()];
            let sources = [a.as_ptr(), b.as_ptr()].map(|ptr| Source { ptr, scale: None });
            let job = Job {
                sources: &sources,
                destinations: &[out.as_mut_ptr()],
                n_elem: 1,
                post: false,
                non_temporal: false,
            };
            // SAFETY: three separate elements.
            unsafe { Reducer::new(dtype, op, 5).run(&job) };
            assert_eq!(
                out,
                oracle(dtype, op, 5, &[&a, &b], Stage { raw: false, last: false }),
                "{dtype} {}",
                op.name()
            );
        }
    }
}

#[test]
fn int8_average_of_eight_hundreds_wraps_to_four() {
    let input = [100_u8];
    let mut out = [0_u8];
    let job = Job {
        sources: &[Source { ptr: input.as_ptr(), scale: None }; 8],
        destinations: &[out.as_mut_ptr()],
        n_elem: 1,
        post: true,
        non_temporal: false,
    };
    // SAFETY: one element each.
    unsafe { Reducer::new(DataType::Int8, RedOp::Avg, 8).run(&job) };
    assert_eq!(out[0], 4);
}

#[test]
fn average_over_one_rank_writes_every_element() {
    for &dtype in DataType::ALL {
        for level in levels() {
            for n_elem in 1..=70 {
                Case {
                    dtype,
                    level,
                    n_elem,
                    op: RedOp::Avg,
                    n_sources: 1,
                    n_destinations: 1,
                    shift: 0,
                    post: true,
                    non_temporal: n_elem % 2 == 0,
                    in_place: false,
                }
                .check();
            }
        }
    }
}

#[test]
fn scalars_are_converted_to_the_type_once() {
    for &dtype in DataType::ALL {
        for scalar in [0.5, 1.0, 2.0, 3.0] {
            for level in levels() {
                let op = RedOp::PreMulSum(scalar);
                let case = Case {
                    dtype,
                    op,
                    level,
                    n_sources: 2,
                    n_destinations: 1,
                    n_elem: 67,
                    shift: 0,
                    post: true,
                    non_temporal: false,
                    in_place: false,
                };
                case.check();
            }
        }
    }
    assert_eq!(Reducer::new(DataType::Int32, RedOp::PreMulSum(0.5), 2).own_scale(), Some(0));
    assert_eq!(Reducer::new(DataType::Half, RedOp::Avg, 4).own_scale(), Some(0x3400));
    assert_eq!(Reducer::new(DataType::F8e4m3, RedOp::PreMulSum(1e6), 2).own_scale(), Some(0x7e));
    assert_eq!(Reducer::new(DataType::Uint64, RedOp::Avg, 4).own_scale(), None);
}

#[test]
fn averages_divide_toward_zero_in_every_integer_type() {
    for (dtype, value, want) in [
        (DataType::Int8, -7_i64, -2_i64),
        (DataType::Int32, -7, -2),
        (DataType::Int64, -7, -2),
        (DataType::Int32, i64::from(i32::MIN), i64::from(i32::MIN) / 3),
        (DataType::Uint32, i64::from(u32::MAX), i64::from(u32::MAX) / 3),
        (DataType::Uint8, 255, 85),
    ] {
        let input = value.to_le_bytes();
        let mut out = [0_u8; 8];
        let sources = [Source { ptr: input.as_ptr(), scale: None }];
        let job = Job {
            sources: &sources,
            destinations: &[out.as_mut_ptr()],
            n_elem: 1,
            post: true,
            non_temporal: false,
        };
        // SAFETY: one element each.
        unsafe { Reducer::new(dtype, RedOp::Avg, 3).run(&job) };
        assert_eq!(out[..dtype.size()], want.to_le_bytes()[..dtype.size()], "{dtype} {value}");
    }
}
