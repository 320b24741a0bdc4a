//! Expected results against folds over all ranks' inputs that share nothing with the generators, and what checks notice.

use super::*;

const FLOATS: [DataType; 6] = [
    DataType::Half,
    DataType::Float,
    DataType::Double,
    DataType::Bfloat16,
    DataType::F8e4m3,
    DataType::F8e5m2,
];
const OPS: [RedOp; 6] = [RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Min, RedOp::Avg, RedOp::PreMulSum(1.0)];
const RANKS: [usize; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 33, 64, 100];

fn inputs(pattern: &Pattern, first_elem: u64, n_elem: usize) -> Vec<Vec<u8>> {
    let fill = |rank| {
        let mut bytes = vec![0; n_elem * pattern.dtype.size()];
        pattern.fill(rank, first_elem, &mut bytes);
        bytes
    };
    (0..pattern.n_ranks).map(fill).collect()
}

fn all_reduce(n_ranks: usize, dtype: DataType, op: RedOp) -> Pattern {
    Pattern::new(Collective::AllReduce, 5, n_ranks, dtype, op)
}

/// The bits of an element.
fn bits(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// The value of a float of the given widths, by its definition.
fn value(dtype: DataType, bytes: &[u8]) -> f64 {
    let (mantissa, exponent) = widths(dtype);
    let bits = bits(bytes);
    let bias = (1 << (exponent - 1)) - 1;
    let fraction = (bits & ((1 << mantissa) - 1)) as f64 / (1_u64 << mantissa) as f64;
    let field = (bits >> mantissa & ((1 << exponent) - 1)) as i32;
    let sign = if bits >> (mantissa + exponent) & 1 == 1 { -1.0 } else { 1.0 };
    let all_ones = (1 << exponent) - 1;
    if field == all_ones && (dtype != DataType::F8e4m3 || fraction == 7.0 / 8.0) {
        return f64::NAN;
    }
    sign * if field == 0 {
        fraction * 2_f64.powi(1 - bias)
    } else {
        (1.0 + fraction) * 2_f64.powi(field - bias)
    }
}

fn widths(dtype: DataType) -> (u32, u32) {
    match dtype {
        DataType::Half => (10, 5),
        DataType::Float => (23, 8),
        DataType::Double => (52, 11),
        DataType::Bfloat16 => (7, 8),
        DataType::F8e4m3 => (3, 4),
        DataType::F8e5m2 => (2, 5),
        _ => unreachable!("floats only"),
    }
}

/// Whether a number is a member of the type: normal and with no more mantissa bits than it has.
fn is_member(dtype: DataType, number: f64) -> bool {
    let (mantissa, exponent) = widths(dtype);
    let bias = (1 << (exponent - 1)) - 1;
    let top = if dtype == DataType::F8e4m3 {
        448.0
    } else {
        (2.0 - 0.5_f64.powi(mantissa as i32)) * 2_f64.powi(bias)
    };
    let spare = 52 - mantissa;
    number == 0.0
        || (number.to_bits().trailing_zeros() >= spare
            && number.abs() >= 2_f64.powi(1 - bias)
            && number.abs() <= top)
}

/// Bits of a member; the value decides, so its spelling is unique.
fn member_bits(dtype: DataType, number: f64) -> u64 {
    let (mantissa, exponent) = widths(dtype);
    assert!(number != 0.0 && is_member(dtype, number), "{dtype} {number:e}");
    let bits = number.to_bits();
    let field = (bits >> 52 & 0x7ff) as i64 - 1023 + (1 << (exponent - 1)) - 1;
    (bits >> 63) << (mantissa + exponent) | (field as u64) << mantissa | (bits << 12 >> 12) >> (52 - mantissa)
}

/// Orders in which an engine might combine ranks, worst cases among them.
fn orders(n: usize) -> Vec<Vec<usize>> {
    let forward: Vec<usize> = (0..n).collect();
    let backward = forward.iter().rev().copied().collect();
    let even_first = (0..n).step_by(2).chain((1..n).step_by(2)).collect();
    let odd_first = (1..n).step_by(2).chain((0..n).step_by(2)).collect();
    let strided = (0..n).map(|i| (i * 37 + 11) % n).collect::<Vec<_>>();
    let distinct = strided.iter().collect::<std::collections::HashSet<_>>().len() == n;
    let mut all = vec![forward, backward, even_first, odd_first];
    all.extend(distinct.then_some(strided));
    all
}

/// Folds floats in an order, insisting that every partial result is a member of the type.
fn exact_fold(dtype: DataType, op: RedOp, scalars: [f64; 2], values: &[f64], order: &[usize]) -> f64 {
    let scaled = |rank: usize| match op {
        RedOp::PreMulSum(_) => values[rank] * scalars[rank % 2],
        _ => values[rank],
    };
    let mut acc: Option<f64> = None;
    for &rank in order {
        let next = scaled(rank);
        let combined = match (acc, op) {
            (None, _) => next,
            (Some(acc), RedOp::Prod) => acc * next,
            (Some(acc), RedOp::Max) => acc.max(next),
            (Some(acc), RedOp::Min) => acc.min(next),
            (Some(acc), _) => acc + next,
        };
        assert!(
            is_member(dtype, next) && is_member(dtype, combined),
            "{dtype} {} rounds at {combined:e}",
            op.name()
        );
        acc = Some(combined);
    }
    acc.unwrap()
}

fn assert_floats_fold_exactly(pattern: &Pattern, op: RedOp, first_elem: u64, n_elem: usize) {
    let (dtype, size) = (pattern.dtype, pattern.dtype.size());
    let inputs = inputs(pattern, first_elem, n_elem);
    let orders = orders(pattern.n_ranks);
    let mut result = Vec::new();
    for elem in 0..n_elem {
        let values: Vec<f64> =
            inputs.iter().map(|input| value(dtype, &input[elem * size..][..size])).collect();
        let folds: Vec<f64> =
            orders.iter().map(|order| exact_fold(dtype, op, pattern.scalars, &values, order)).collect();
        assert!(folds.iter().all(|fold| *fold == folds[0]), "order matters");
        result.extend(&member_bits(dtype, folds[0]).to_le_bytes()[..size]);
    }
    let verdict = pattern.check(0, first_elem, &result);
    assert_eq!(verdict, Verdict::default(), "{dtype} {} of {} ranks", op.name(), pattern.n_ranks);
}

#[test]
fn float_results_are_the_folds_of_inputs_in_any_order_and_never_round() {
    for dtype in FLOATS {
        for op in OPS.into_iter().filter(|op| *op != RedOp::Avg) {
            for n_ranks in RANKS {
                assert_floats_fold_exactly(&all_reduce(n_ranks, dtype, op), op, 17, 150);
            }
        }
    }
}

#[test]
fn other_scalars_stay_exact() {
    for dtype in FLOATS {
        for scalars in [[0.5, 0.5], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [0.5, 3.0], [3.0, 2.0], [1.5, 0.5]] {
            for n_ranks in [1, 2, 3, 8, 9, 64] {
                let op = RedOp::PreMulSum(1.0);
                let pattern = all_reduce(n_ranks, dtype, op).with_scalars(scalars[0], scalars[1]);
                assert_floats_fold_exactly(&pattern, op, 0, 130);
            }
        }
    }
}

fn integer_fold(dtype: DataType, op: RedOp, scalars: [f64; 2], inputs: &[&[u8]]) -> u64 {
    let (width, signed) =
        (8 * dtype.size() as u32, matches!(dtype, DataType::Int8 | DataType::Int32 | DataType::Int64));
    // Bits of the type as a number; all arithmetic wraps far above them.
    let number = |bits: u64| {
        let unused = 64 - width;
        if signed {
            i128::from((bits << unused) as i64 >> unused)
        } else {
            i128::from(bits << unused >> unused)
        }
    };
    let scaled = |(rank, input): (usize, &&[u8])| match op {
        RedOp::PreMulSum(_) => number(bits(input)) * scalars[rank % 2] as i128,
        _ => number(bits(input)),
    };
    let folded = inputs.iter().enumerate().map(scaled).reduce(|a, b| {
        let wide = match op {
            RedOp::Prod => a.wrapping_mul(b),
            RedOp::Max => a.max(b),
            RedOp::Min => a.min(b),
            _ => a + b,
        };
        number(wide as u64)
    });
    let result = number(folded.unwrap() as u64);
    let result = if op == RedOp::Avg { result / inputs.len() as i128 } else { result };
    result as u64
}

#[test]
fn integer_results_are_the_folds_of_inputs() {
    for &dtype in DataType::ALL.iter().filter(|dtype| !dtype.is_float()) {
        for op in OPS {
            for n_ranks in RANKS {
                for scalars in [[1.0, 2.0], [0.5, 3.0]] {
                    let pattern = all_reduce(n_ranks, dtype, op).with_scalars(scalars[0], scalars[1]);
                    let (size, inputs) = (dtype.size(), inputs(&pattern, 30, 100));
                    let mut result = Vec::new();
                    for elem in 0..100 {
                        let elements: Vec<&[u8]> =
                            inputs.iter().map(|input| &input[elem * size..][..size]).collect();
                        result.extend(&integer_fold(dtype, op, scalars, &elements).to_le_bytes()[..size]);
                    }
                    let verdict = pattern.check(0, 30, &result);
                    assert_eq!(verdict, Verdict::default(), "{dtype} {} of {n_ranks} ranks", op.name());
                }
            }
        }
    }
}

/// The members of a type around a positive number, as bits: the nearest, by search from below.
fn nearest_bits(dtype: DataType, number: f64) -> u64 {
    let size = dtype.size();
    let at = |bits: u64| value(dtype, &bits.to_le_bytes()[..size]);
    let (mantissa, exponent) = widths(dtype);
    let (mut low, mut high) = (0, ((1_u64 << exponent) - 1) << mantissa);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if at(middle) <= number { low = middle } else { high = middle }
    }
    let (below, above) = (number - at(low), at(high) - number);
    if above < below || (above == below && low % 2 == 1) { high } else { low }
}

#[test]
fn averages_accept_every_way_an_engine_may_compute_them_and_little_more() {
    for dtype in FLOATS {
        for n_ranks in [2, 3, 5, 6, 7, 8, 16, 64] {
            let pattern = all_reduce(n_ranks, dtype, RedOp::Avg);
            let (size, inputs) = (dtype.size(), inputs(&pattern, 0, 200));
            let reciprocal = value(dtype, &nearest_bits(dtype, 1.0 / n_ranks as f64).to_le_bytes()[..size]);
            let round = |number: f64| value(dtype, &nearest_bits(dtype, number).to_le_bytes()[..size]);
            let mut ways = [const { Vec::new() }; 3];
            for elem in 0..200 {
                let values = inputs.iter().map(|input| value(dtype, &input[elem * size..][..size]));
                let values: Vec<f64> = values.filter(|value| *value != 0.0).collect();
                assert_eq!(values.len(), 2);
                let (a, b) = (values[0], values[1]);
                ways[0].extend(
                    &nearest_bits(dtype, round(a * reciprocal) + round(b * reciprocal)).to_le_bytes()[..size],
                );
                ways[1].extend(&nearest_bits(dtype, a * reciprocal + b * reciprocal).to_le_bytes()[..size]);
                let off = nearest_bits(dtype, round(a * reciprocal) + round(b * reciprocal)) + 4;
                ways[2].extend(&off.to_le_bytes()[..size]);
            }
            let found = ways.map(|way| pattern.check(0, 0, &way).wrong);
            assert_eq!(found, [0, 0, 200], "{dtype} {n_ranks}");
        }
    }
}

/// A right result, without knowing how to compute one: what a check wants, element by element.
fn right_result(pattern: &Pattern, n_elem: usize) -> Vec<u8> {
    let size = pattern.dtype.size();
    let mut result = vec![0; n_elem * size];
    for (elem, bytes) in result.chunks_mut(size).enumerate() {
        // All bits set is a NaN or -1; should that be right, nothing is found and it stays.
        bytes.fill(0xff);
        if let Some(mismatch) = pattern.check(0, elem as u64, bytes).first {
            bytes.copy_from_slice(&mismatch.want.to_le_bytes()[..size]);
        }
    }
    result
}

#[test]
fn one_flipped_bit_is_one_wrong_element() {
    for &dtype in DataType::ALL {
        for op in OPS {
            let pattern = all_reduce(3, dtype, op);
            let mut result = right_result(&pattern, 70);
            assert_eq!(pattern.check(0, 0, &result), Verdict::default());
            for bit in 0..8 * result.len() {
                let elem = bit / 8 / dtype.size();
                // A tolerance of two steps forgives the two lowest bits.
                let forgiven = op == RedOp::Avg && dtype.is_float() && bit % (8 * dtype.size()) < 2;
                result[bit / 8] ^= 1 << (bit % 8);
                let verdict = pattern.check(0, 0, &result);
                assert_eq!(verdict.wrong, u64::from(!forgiven), "{dtype} {} bit {bit}", op.name());
                assert!(forgiven || verdict.first.unwrap().elem == elem as u64);
                result[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}

#[test]
fn pieces_join_into_the_whole() {
    for &dtype in DataType::ALL {
        for op in OPS {
            let (pattern, size) = (all_reduce(4, dtype, op), dtype.size());
            let mut whole = vec![0; 400 * size];
            pattern.fill(2, 0, &mut whole);
            for (first, n_elem) in [(0, 1), (1, 63), (63, 2), (64, 64), (100, 300), (399, 1), (7, 0)] {
                let mut piece = vec![0; n_elem * size];
                pattern.fill(2, first as u64, &mut piece);
                assert_eq!(
                    piece,
                    whole[first * size..][..n_elem * size],
                    "{dtype} {} from {first}",
                    op.name()
                );
            }
            let result = right_result(&pattern, 400);
            let found = |first: usize, n: usize| {
                pattern.check(1, first as u64, &result[first * size..][..n * size]).wrong
            };
            assert_eq!(found(0, 400) + found(3, 200) + found(63, 66) + found(128, 0), 0);
        }
    }
}

#[test]
fn copies_are_checked_against_their_source_rank() {
    for &dtype in DataType::ALL {
        let pattern = Pattern::new(Collective::AllGather, 3, 4, dtype, RedOp::Sum);
        let blocks = inputs(&pattern, 0, 333);
        for (source, block) in blocks.iter().enumerate() {
            assert_eq!(pattern.check(source, 0, block).wrong, 0);
            let wrong = pattern.check((source + 1) % 4, 0, block).wrong;
            assert!(wrong > 300, "{dtype}: another rank's block has {wrong} wrong elements");
        }
    }
}

#[test]
fn copied_floats_are_normal_numbers_of_either_sign() {
    for dtype in FLOATS {
        let pattern = Pattern::new(Collective::AllGather, 0, 2, dtype, RedOp::Sum);
        let (size, blocks) = (dtype.size(), inputs(&pattern, 0, 5000));
        let values: Vec<f64> = blocks[1].chunks(size).map(|bytes| value(dtype, bytes)).collect();
        assert!(values.iter().all(|value| *value != 0.0 && is_member(dtype, *value)));
        let negative = values.iter().filter(|value| **value < 0.0).count();
        assert!((2000..3000).contains(&negative), "{dtype}: {negative} of 5000 are negative");
    }
}

#[test]
fn misplaced_stale_and_missing_data_are_noticed() {
    for &dtype in DataType::ALL {
        for op in OPS {
            let (pattern, size) = (all_reduce(4, dtype, op), dtype.size());
            let result = right_result(&pattern, 1000);
            let shifted = pattern.check(0, 1, &result[..999 * size]).wrong;
            let stale = Pattern::new(Collective::AllReduce, 6, 4, dtype, op).check(0, 0, &result).wrong;
            // Formats of a few values often have the same value again.
            assert!(shifted > 250 && stale > 250, "{dtype} {}: {shifted} shifted, {stale} stale", op.name());
        }
        // The sum without one rank's input, for a type in which no share is zero.
        let (pattern, size) = (all_reduce(4, dtype, RedOp::Sum), dtype.size());
        let inputs = inputs(&pattern, 0, 500);
        let zeros =
            inputs.iter().map(|input| input.chunks(size).filter(|element| bits(element) == 0).count());
        assert!(zeros.max() < Some(300), "{dtype}: a rank that contributes nothing could go missing");
    }
}

#[test]
fn sums_of_floats_are_never_zero_and_have_either_sign() {
    for dtype in FLOATS {
        let (pattern, size) = (all_reduce(8, dtype, RedOp::Sum), dtype.size());
        let result = right_result(&pattern, 1000);
        let values: Vec<f64> = result.chunks(size).map(|bytes| value(dtype, bytes)).collect();
        assert!(values.iter().all(|value| *value != 0.0));
        assert!((150..850).contains(&values.iter().filter(|value| **value < 0.0).count()), "{dtype}");
    }
}

#[test]
fn scalars_are_those_of_the_contract() {
    assert_eq!([0, 1, 2, 7].map(mulsum_scalar), [1.0, 2.0, 1.0, 2.0]);
}
