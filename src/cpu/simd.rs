//! The row core compiled once for each vector width, and the choice among them at run time.
//!
//! No intrinsics: the core's loops are plain Rust that LLVM turns into vectors, so there is one source
//! for all. A function with `#[target_feature]` compiles what is inlined into it for that feature; hence
//! the `#[inline(always)]` on everything a [`Kernel`] calls.

use std::sync::OnceLock;

/// A loop over a row, or several.
pub trait Kernel {
    /// The loop. `FMA`: this is compiled for a processor with fused multiply-add. Implementations are
    /// `#[inline(always)]`.
    fn run<const FMA: bool>(self);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// What the crate is compiled for: SSE2 on x86-64, NEON with fused multiply-add on AArch64.
    Baseline,
}

/// Runs `kernel` at the widest level that this processor has.
#[inline]
pub fn dispatch<K: Kernel>(kernel: K) {
    match level() {
        // SAFETY: `level` names a level only where the processor has its features.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { avx512(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { avx2(kernel) },
        Level::Baseline => {
            kernel.run::<{ cfg!(any(target_feature = "fma", target_arch = "aarch64")) }>()
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2")]
fn avx512<K: Kernel>(kernel: K) {
    kernel.run::<true>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi2")]
fn avx2<K: Kernel>(kernel: K) {
    kernel.run::<true>()
}

/// The widest level, or a lower one named by the environment variable `COS_CPU` (`avx2`, `baseline`):
/// asked once.
fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        let most = std::env::var("COS_CPU").unwrap_or_default();
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("bmi2");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            match most.as_str() {
                "baseline" => {}
                "avx2" if avx2 => return Level::Avx2,
                _ if avx2 && avx512 => return Level::Avx512,
                _ if avx2 => return Level::Avx2,
                _ => {}
            }
        }
        let _ = most;
        Level::Baseline
    })
}
