//! Faults that users of collective libraries reported in public, each as a test of the engine.

use std::time::Duration;

use chorus::{Buffer, CommInit, Communicator, DataType, RedOp, Settings, Stream, UniqueId};

struct Rank {
    comm: Communicator,
    send: Buffer,
    recv: Buffer,
    stream: Stream,
}

fn ranks(n: usize, bytes: usize) -> Vec<Rank> {
    let limit = Some(Duration::from_secs(120));
    let settings = Settings::from_env(limit).unwrap();
    let id = UniqueId::create(&settings.bootstrap).unwrap();
    let comms =
        Communicator::init(CommInit { id, n_ranks: n, ranks: (0..n).collect(), settings, limit }).unwrap();
    let make = |comm: Communicator| {
        let (send, recv, stream) = (comm.alloc(bytes).unwrap(), comm.alloc(bytes).unwrap(), comm.stream());
        Rank { comm, send, recv, stream }
    };
    comms.into_iter().map(make).collect()
}

/// Reduces `count` elements over all ranks, each with its own operator; every rank's result bytes.
fn reduce(ranks: &[Rank], count: usize, dtype: DataType, op: impl Fn(usize) -> RedOp) -> Vec<Vec<u8>> {
    for (r, rank) in ranks.iter().enumerate() {
        let spans = (rank.send.span(0), rank.recv.span(0));
        rank.comm.all_reduce(spans, count, (dtype, op(r)), &rank.stream).unwrap();
    }
    ranks.iter().for_each(|rank| rank.stream.synchronize().unwrap());
    ranks.iter().map(|rank| rank.recv.read(|bytes| bytes[..count * dtype.size()].to_vec())).collect()
}

#[test]
fn int8_average_of_eight_hundreds_wraps_to_four() {
    let ranks = ranks(8, 64);
    ranks.iter().for_each(|rank| rank.send.write(|bytes| bytes.fill(100)));
    for result in reduce(&ranks, 33, DataType::Int8, |_| RedOp::Avg) {
        assert!(result.iter().all(|&b| b == 4), "800 wraps to 32, and 32 / 8 is 4: {result:?}");
    }
}

#[test]
fn bfloat16_average_of_one_rank_leaves_no_tail_unwritten() {
    let ranks = ranks(1, 256);
    let bits = 0x4049u16.to_ne_bytes();
    ranks[0].send.write(|bytes| bytes.chunks_exact_mut(2).for_each(|c| c.copy_from_slice(&bits)));
    for count in 1..=70 {
        ranks[0].recv.write(|bytes| bytes.fill(0xff));
        let result = &reduce(&ranks, count, DataType::Bfloat16, |_| RedOp::Avg)[0];
        assert!(result.chunks_exact(2).all(|c| c == bits), "count {count}");
        ranks[0].recv.read(|bytes| assert!(bytes[2 * count..].iter().all(|&b| b == 0xff), "count {count}"));
    }
}

/// The bits of a small value in a type, for values every type holds exactly.
fn bits(dtype: DataType, value: f64) -> Vec<u8> {
    match dtype {
        DataType::Int8 => (value as i8).to_ne_bytes().to_vec(),
        DataType::Uint8 => (value as u8).to_ne_bytes().to_vec(),
        DataType::Int32 => (value as i32).to_ne_bytes().to_vec(),
        DataType::Uint32 => (value as u32).to_ne_bytes().to_vec(),
        DataType::Int64 => (value as i64).to_ne_bytes().to_vec(),
        DataType::Uint64 => (value as u64).to_ne_bytes().to_vec(),
        DataType::Half => half::f16::from_f64(value).to_ne_bytes().to_vec(),
        DataType::Bfloat16 => half::bf16::from_f64(value).to_ne_bytes().to_vec(),
        DataType::Float => (value as f32).to_ne_bytes().to_vec(),
        DataType::Double => value.to_ne_bytes().to_vec(),
        // sign, then exponent with its bias, then the mantissa's top bits.
        DataType::F8e4m3 => vec![eight_bits(value, 7, 3)],
        DataType::F8e5m2 => vec![eight_bits(value, 15, 2)],
    }
}

fn eight_bits(value: f64, bias: i32, mantissa_bits: u32) -> u8 {
    if value == 0.0 {
        return 0;
    }
    let exponent = value.log2().floor() as i32;
    let mantissa = (value / 2f64.powi(exponent) - 1.0) * f64::from(1 << mantissa_bits);
    assert_eq!(mantissa.fract(), 0.0, "{value} is not exact in 8 bits");
    (((exponent + bias) as u8) << mantissa_bits) | mantissa as u8
}

#[test]
fn pre_multiplied_sums_with_scalars_a_half_one_two_and_three() {
    let ranks = ranks(4, 1024);
    let scalars = [0.5, 1.0, 2.0, 3.0];
    for &dtype in DataType::ALL {
        for (r, rank) in ranks.iter().enumerate() {
            // 2, 1, 1, 1 times 0.5, 1, 2, 3; an integer type takes the half as 0.
            let input = bits(dtype, if r == 0 { 2.0 } else { 1.0 });
            rank.send.write(|bytes| {
                bytes[..15 * dtype.size()]
                    .chunks_exact_mut(dtype.size())
                    .for_each(|c| c.copy_from_slice(&input))
            });
        }
        let want = bits(dtype, if dtype.is_float() { 7.0 } else { 6.0 });
        for result in reduce(&ranks, 15, dtype, |r| RedOp::PreMulSum(scalars[r])) {
            assert!(
                result.chunks_exact(dtype.size()).all(|c| c == want),
                "{dtype}: {result:?}, want {want:?}"
            );
        }
    }
}

#[test]
fn eight_bit_floats_have_their_biases_and_largest_values() {
    let ranks = ranks(2, 64);
    // e4m3: 0x7e is 448, the largest; there is no infinity, so the sum stays there. e5m2: 0x7b is 57344.
    for (dtype, largest, one) in [(DataType::F8e4m3, 0x7e, 0x38), (DataType::F8e5m2, 0x7b, 0x3c)] {
        assert_eq!(bits(dtype, 1.0), [one], "the bias");
        ranks.iter().for_each(|rank| rank.send.write(|bytes| bytes.fill(largest)));
        assert!(reduce(&ranks, 8, dtype, |_| RedOp::Max)[0].iter().all(|&b| b == largest));
        assert!(
            reduce(&ranks, 8, dtype, |_| RedOp::Avg)[0].iter().all(|&b| b == largest),
            "{dtype}: halves add up again"
        );
    }
    ranks.iter().for_each(|rank| rank.send.write(|bytes| bytes.fill(0x7e)));
    let sum = reduce(&ranks, 8, DataType::F8e4m3, |_| RedOp::Sum);
    assert!(sum[0].iter().all(|&b| b == 0x7e), "448 + 448 saturates: {:x?}", sum[0]);
}

#[test]
fn more_than_two_to_the_thirty_one_elements() {
    let count = (1usize << 31) + 5;
    let available = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = available
        .lines()
        .find_map(|l| l.strip_prefix("MemAvailable:")?.split_whitespace().next()?.parse::<u64>().ok());
    if kib.unwrap_or(0) < 10 << 20 {
        println!(
            "skipped: 2^31 + 5 elements on 2 ranks need 10 GiB of memory, {} KiB are available",
            kib.unwrap_or(0)
        );
        return;
    }
    let limit = Some(Duration::from_secs(300));
    let settings = Settings::from_env(limit).unwrap();
    let id = UniqueId::create(&settings.bootstrap).unwrap();
    let comms = Communicator::init(CommInit { id, n_ranks: 2, ranks: vec![0, 1], settings, limit }).unwrap();
    let buffers: Vec<Buffer> = comms.iter().map(|comm| comm.alloc(count + 1).unwrap()).collect();
    let at = |i: usize| (i % 251) as u8;
    for (r, buffer) in buffers.iter().enumerate() {
        buffer.write(|bytes| {
            bytes
                .chunks_mut(251)
                .for_each(|c| c.iter_mut().enumerate().for_each(|(i, b)| *b = i as u8 + r as u8))
        });
        buffer.write(|bytes| bytes[count] = 0xee);
    }
    let streams: Vec<Stream> = comms.iter().map(Communicator::stream).collect();
    for ((comm, buffer), stream) in comms.iter().zip(&buffers).zip(&streams) {
        let spans = (buffer.span(0), buffer.span(0));
        comm.all_reduce(spans, count, (DataType::Uint8, RedOp::Sum), stream).unwrap();
    }
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    for buffer in &buffers {
        buffer.read(|bytes| {
            let wrong = |i: usize| bytes[i] != at(i).wrapping_mul(2).wrapping_add(1);
            let near = [0, 1 << 20, (1 << 31) - 1, 1 << 31, count - 1];
            let bad = (0..count).step_by(4099).chain(near).find(|&i| wrong(i));
            assert_eq!(bad, None);
            assert_eq!(bytes[count], 0xee);
        });
    }
}
