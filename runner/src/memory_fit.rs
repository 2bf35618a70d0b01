//! Does a model fit the memory that is there? The runner's check before anything heavy starts.

use crate::errors::CliError;
use crate::host::memory::{Available, available, show_bytes};
use serde::Serialize;

/// Bytes that a served model needs, by what needs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct MemoryNeed {
    /// Weights.
    pub(crate) weight_bytes: u64,
    /// KV cache of one sequence at the served context length.
    pub(crate) kv_bytes: u64,
    /// Recurrent and convolution state of one sequence.
    pub(crate) state_bytes: u64,
    /// Tokens that `kv_bytes` was computed for.
    pub(crate) context: u64,
}

impl MemoryNeed {
    /// The least with which the model can serve: weights and one sequence at full length.
    pub(crate) fn total(&self) -> u64 {
        self.weight_bytes.saturating_add(self.kv_bytes).saturating_add(self.state_bytes)
    }
}

/// A need against what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct MemoryFit {
    /// What is needed.
    #[serde(flatten)]
    pub(crate) need: MemoryNeed,
    /// Sum of the above.
    pub(crate) needed_bytes: u64,
    /// What may be used.
    pub(crate) available: Available,
    /// Fraction of the available memory that the options let Atlas take, in percent.
    pub(crate) utilization_percent: u32,
    /// Whether it fits.
    pub(crate) fits: bool,
}

impl MemoryFit {
    /// Compares with the memory that is available now. `utilization` is the fraction of it that may be taken.
    pub(crate) fn now(need: MemoryNeed, utilization: f64) -> Result<Self, CliError> {
        let available = available().ok_or_else(|| CliError::Failed("/proc/meminfo cannot be read".to_owned()))?;
        Ok(Self::compare(need, available, utilization))
    }

    fn compare(need: MemoryNeed, available: Available, utilization: f64) -> Self {
        let usable = available.bytes as f64 * utilization;
        Self {
            need,
            needed_bytes: need.total(),
            available,
            utilization_percent: (utilization * 100.0).round() as u32,
            fits: need.total() as f64 <= usable,
        }
    }

    /// One line for people.
    pub(crate) fn summary(&self) -> String {
        format!(
            "needs {} (weights {}, KV cache for {} tokens {}, recurrent state {}); {} available, of which {} % may be used",
            show_bytes(self.needed_bytes),
            show_bytes(self.need.weight_bytes),
            self.need.context,
            show_bytes(self.need.kv_bytes),
            show_bytes(self.need.state_bytes),
            show_bytes(self.available.bytes),
            self.utilization_percent,
        )
    }

    /// Refuses with the numbers when it does not fit.
    pub(crate) fn require(&self) -> Result<(), CliError> {
        if self.fits {
            return Ok(());
        }
        let remedy = if self.need.weight_bytes as f64
            > self.available.bytes as f64 * f64::from(self.utilization_percent) / 100.0
        {
            "free memory, or take a smaller model or quantisation"
        } else {
            "free memory, or lower `max_seq_len`"
        };
        Err(CliError::Refused(format!("not enough memory: {}\n  {remedy}", self.summary())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn fit(weights: u64, kv: u64, there: u64) -> MemoryFit {
        let need = MemoryNeed { weight_bytes: weights * GIB, kv_bytes: kv * GIB, state_bytes: 0, context: 4096 };
        let bytes = there * GIB;
        MemoryFit::compare(need, Available { bytes, system_bytes: bytes, cgroup_bytes: None, total_bytes: bytes }, 0.9)
    }

    #[test]
    fn refusals_carry_numbers_and_the_right_remedy() {
        assert!(fit(8, 1, 10).require().is_ok());
        let weights = fit(20, 1, 10).require().unwrap_err();
        assert_eq!(weights.exit_code(), 4);
        assert!(weights.to_string().contains("needs 21.0 GiB") && weights.to_string().contains("10.0 GiB available"));
        assert!(weights.to_string().contains("smaller model"));
        assert!(fit(8, 2, 10).require().unwrap_err().to_string().contains("lower `max_seq_len`"));
    }
}
