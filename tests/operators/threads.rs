//! Several callers at once: threads that share a device, and two devices for one GPU.

use crate::compare::{assert_same_bits, bits};
use crate::inputs::{normal, DTYPES, SAMPLE};
use candle_core::{CustomOp1, DType, Device, Result};
use candle_online_softmax::{softmax, OnlineSoftmax};
use rayon::prelude::*;

on_devices!(
    threads_share_a_device,
    two_devices_take_turns,
    long_rows_on_two_streams,
    first_call_of_a_thread_is_in_place
);

fn bits_on(device: &Device, dtype: DType, cols: usize) -> Result<Vec<u64>> {
    let x = normal(cols as u64, &[5, cols], dtype, device)?;
    bits(&x.apply_op1(OnlineSoftmax)?)
}

/// Every thread starts cold and finds its functions loaded, or loads them, under the others.
fn threads_share_a_device(device: &Device) -> Result<()> {
    let _alone = crate::devices::alone();
    let work = |device: &Device| -> Result<Vec<Vec<u64>>> {
        let cases = DTYPES.into_iter().flat_map(|d| SAMPLE.map(|c| (d, c)));
        cases
            .map(|(dtype, cols)| bits_on(device, dtype, cols))
            .collect()
    };
    let want = work(device)?;
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6)
            .map(|_| scope.spawn(|| work(&another(device)?)))
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().expect("no panic"))
            .collect::<Vec<_>>()
    });
    for result in results {
        assert!(result? == want, "threads disagree");
    }
    Ok(())
}

/// A thread that never used the device before: nothing but the operator makes its context current.
fn first_call_of_a_thread_is_in_place(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for cols in SAMPLE {
            let x = normal(2, &[3, cols], dtype, device)?;
            let z = x.copy()?;
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| z.inplace_op1(&OnlineSoftmax));
                thread.join().expect("no panic")
            })?;
            let y = x.apply_op1(OnlineSoftmax)?;
            assert_same_bits(&z, &y, &format!("{dtype:?}, {cols} columns"))?;
        }
    }
    Ok(())
}

/// Functions cached for one device object are not handed to the other.
fn two_devices_take_turns(device: &Device) -> Result<()> {
    let _alone = crate::devices::alone();
    for dtype in DTYPES {
        let b = another(device)?;
        for cols in SAMPLE {
            let a = if cols.is_multiple_of(2) {
                another(device)?
            } else {
                b.clone()
            };
            let x = normal(1, &[3, cols], dtype, &a)?;
            let on_a = x.apply_op1(OnlineSoftmax)?;
            let on_b = x
                .to_device(&Device::Cpu)?
                .to_device(&b)?
                .apply_op1(OnlineSoftmax)?;
            drop((x, a));
            assert_same_bits(&on_a, &on_b, &format!("{dtype:?}, {cols} columns"))?;
        }
    }
    Ok(())
}

/// Launches whose blocks wait for each other, on two streams at once: neither keeps from the other the room that it
/// waits for.
fn long_rows_on_two_streams(device: &Device) -> Result<()> {
    let _alone = crate::devices::alone();
    let with_stream = || match device {
        Device::Cuda(_) => Device::new_cuda_with_stream(0),
        other => Ok(other.clone()),
    };
    let devices = [with_stream()?, with_stream()?];
    for cols in [400_000, 900_000, 4_000_000] {
        let x = normal(1, &[4, cols], DType::F32, &Device::Cpu)?;
        let copies = [x.to_device(&devices[0])?, x.to_device(&devices[1])?];
        let mut results = Vec::new();
        for _ in 0..10 {
            for x in &copies {
                results.push(x.apply_op1(OnlineSoftmax)?);
            }
        }
        for y in &results[1..] {
            assert_same_bits(y, &results[0], &format!("{cols} columns"))?;
        }
    }
    Ok(())
}

/// Parallel callers in place on views of one tensor: no worker waits for the storage that it holds.
#[test]
fn in_place_from_rayon_workers() -> Result<()> {
    let shape = [64, 16, 4096];
    let x = normal(1, &shape, DType::F32, &Device::Cpu)?;
    let want = x.apply_op1(OnlineSoftmax)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(16).build();
    pool.expect("a pool").install(|| {
        (0..shape[0])
            .into_par_iter()
            .with_max_len(1)
            .try_for_each(|i| x.narrow(0, i, 1)?.inplace_op1(&OnlineSoftmax))
    })?;
    assert_same_bits(&x, &want, "in place by workers")
}

/// A device object of its own for the same hardware.
fn another(device: &Device) -> Result<Device> {
    match device {
        Device::Cuda(_) => Device::new_cuda(0),
        other => Ok(other.clone()),
    }
}

/// The bits on the CPU do not depend on how many threads share the work: rows, strips of rows side by side, or parts of
/// one row.
#[test]
fn bits_do_not_depend_on_the_number_of_threads() -> Result<()> {
    let cpu = &Device::Cpu;
    for dtype in DTYPES {
        for (shape, dim) in [
            ([3001, 40, 1], 1),
            ([40, 3001, 1], 1),
            ([1, 400_003, 1], 1),
            ([3, 131_072, 1], 1),
            ([2, 1000, 130], 1),
        ] {
            let x = normal(1, &shape, dtype, cpu)?;
            let g = normal(2, &shape, dtype, cpu)?.transpose(dim, 2)?;
            let run = || -> Result<[Vec<u64>; 3]> {
                let y = softmax(&x, dim)?;
                let rows = y.transpose(dim, 2)?;
                let dx = OnlineSoftmax.bwd(&rows, &rows, &g)?.expect("a gradient");
                let z = x.transpose(dim, 2)?.force_contiguous()?;
                z.inplace_op1(&OnlineSoftmax)?;
                Ok([bits(&y)?, bits(&dx)?, bits(&z)?])
            };
            let want = run()?;
            for threads in [1, 2, 3, 8] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
                let pool = pool.build().expect("a pool");
                let got = pool.install(run)?;
                assert!(got == want, "{threads} threads, {dtype:?}, {shape:?}");
            }
        }
    }
    Ok(())
}

/// In place holds the tensor's lock: it does not wait for the pool, whose threads may all be waiting for that lock.
#[test]
fn in_place_beside_readers_in_the_pool() -> Result<()> {
    let x = normal(1, &[64, 20_000], DType::F32, &Device::Cpu)?;
    rayon::in_place_scope(|scope| -> Result<()> {
        for _ in 0..20 {
            let x = x.clone();
            scope.spawn(move |_| {
                (0..8).into_par_iter().for_each(|row| {
                    let y = x.narrow(0, row, 1).and_then(|x| softmax(&x, 1));
                    assert!(y.is_ok());
                })
            });
        }
        for _ in 0..20 {
            x.inplace_op1(&OnlineSoftmax)?;
        }
        Ok(())
    })
}
