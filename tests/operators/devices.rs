//! Runs a test function on every device this build knows, and says loudly which did not run.

use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Expands each `fn name(device: &Device) -> Result<()>` to the tests `name::cpu` and, under
/// feature `cuda`, `name::cuda`.
macro_rules! on_devices {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            #[test]
            fn cpu() -> candle_core::Result<()> {
                super::$name(&candle_core::Device::Cpu)
            }

            #[cfg(feature = "cuda")]
            #[test]
            fn cuda() -> candle_core::Result<()> {
                $crate::devices::on_cuda(module_path!(), super::$name)
            }
        }
    )+};
}

/// The same of `fn name(dtype: DType, device: &Device) -> Result<()>`, a test for each dtype: for those that take
/// longest under the sanitizers.
macro_rules! on_devices_by_dtype {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            on_devices_by_dtype!(@ $name f16 F16, bf16 BF16, f32 F32, f64 F64);
        }
    )+};
    (@ $name:ident $($dtype:ident $variant:ident),+) => {
        on_devices!($($dtype),+);
        $(fn $dtype(device: &candle_core::Device) -> candle_core::Result<()> {
            super::$name(candle_core::DType::$variant, device)
        })+
    };
}

/// Writes past libtest's capture: what was skipped must be seen without `--nocapture`.
pub fn announce(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Held by tests that create or drop device objects, which waits for all streams, and by those
/// that capture a stream, which nobody may wait for meanwhile.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(not(feature = "cuda"))]
#[test]
fn gpu_tests_are_in_this_build() {
    announce("NOTE: built without feature `cuda`: no GPU test is in this build, none was run");
    assert_ne!(
        std::env::var("COS_REQUIRE_CUDA").as_deref(),
        Ok("1"),
        "COS_REQUIRE_CUDA=1 needs a build with --features cuda"
    );
}

#[cfg(feature = "cuda")]
pub use cuda::*;

#[cfg(feature = "cuda")]
mod cuda {
    use super::announce;
    use candle_core::{Device, Result};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::OnceLock;

    static RAN: AtomicUsize = AtomicUsize::new(0);

    /// Runs `test` on the GPU and writes the numbered line that proves it.
    pub fn on_cuda(name: &str, test: impl FnOnce(&Device) -> Result<()>) -> Result<()> {
        let device = match shared_device() {
            Ok(device) => device,
            Err(reason) => {
                skip(name, &format!("no CUDA device ({reason})"));
                return Ok(());
            }
        };
        test(device)?;
        device.synchronize()?;
        let count = RAN.fetch_add(1, Ordering::Relaxed) + 1;
        announce(&format!("RAN ON CUDA #{count} {name}"));
        Ok(())
    }

    /// Announces a skip; under `COS_REQUIRE_CUDA=1` that is a failure.
    pub fn skip(name: &str, reason: &str) {
        announce(&format!("SKIPPED {name}: {reason}"));
        assert_ne!(
            std::env::var("COS_REQUIRE_CUDA").as_deref(),
            Ok("1"),
            "COS_REQUIRE_CUDA=1, but {name} was skipped: {reason}"
        );
    }

    /// One device for all tests, so that candle's own kernels are compiled once.
    fn shared_device() -> &'static std::result::Result<Device, String> {
        static DEVICE: OnceLock<std::result::Result<Device, String>> = OnceLock::new();
        DEVICE.get_or_init(|| {
            // cudarc panics where the driver library itself is missing.
            std::panic::catch_unwind(|| Device::new_cuda(0))
                .map_err(|_| "the CUDA driver could not be loaded".to_string())?
                // The first line alone: candle appends a backtrace under RUST_BACKTRACE.
                .map_err(|error| error.to_string().lines().next().unwrap_or_default().into())
        })
    }
}
