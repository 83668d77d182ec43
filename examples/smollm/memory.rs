//! The process's resident memory: what it was before a piece of work, and its peak during it.
//! Linux alone has these counters; elsewhere there is no answer.
use std::fmt;
use std::fs;

pub struct Peak {
    before: u64,
    peak: u64,
}

/// Sets the kernel's peak back to what is resident now, and says what that is, in KiB.
pub fn reset() -> Option<u64> {
    fs::write("/proc/self/clear_refs", "5").ok()?;
    field("VmRSS:")
}

impl Peak {
    pub fn since(before: u64) -> Option<Self> {
        let peak = field("VmHWM:")?;
        Some(Self { before, peak })
    }
}

impl fmt::Display for Peak {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mib = |kib: u64| kib as f64 / 1024.0;
        let grown = self.peak.saturating_sub(self.before);
        let (peak, grown) = (mib(self.peak), mib(grown));
        write!(
            f,
            "peak memory of the prompt: {peak:.0} MiB, {grown:.0} more than before it"
        )
    }
}

fn field(name: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
