//! One step for a profiler: `ncu --profile-from-start off` and the like see its launches alone.

use crate::errors::EngineError;

/// Set to a number of rows to have the second step of exactly so many profiled, without graphs. The first one loads
/// kernels.
const ROWS: &str = "ATLAS_CUDA_PROFILE_ROWS";

/// Which step is shown to a profiler.
pub(super) struct Profile {
    rows: usize,
    seen: usize,
}

impl Profile {
    /// What the environment asks for.
    pub(super) fn from_env() -> Result<Option<Self>, EngineError> {
        let Some(rows) = std::env::var_os(ROWS) else { return Ok(None) };
        let number = rows.to_str().and_then(|rows| rows.parse().ok());
        let bad = || EngineError::Unsupported(format!("{ROWS}: {} is not a number of rows", rows.display()));
        Ok(Some(Self { rows: number.ok_or_else(bad)?, seen: 0 }))
    }

    /// Whether the next step, of `rows` rows, is the one.
    pub(super) fn wants(&mut self, rows: usize) -> bool {
        self.seen += usize::from(rows == self.rows);
        rows == self.rows && self.seen == 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_step_of_so_many_rows_is_profiled() {
        let mut profile = Profile { rows: 8, seen: 0 };
        let wanted: Vec<bool> = [8, 64, 8, 1, 8].into_iter().map(|rows| profile.wants(rows)).collect();
        assert_eq!(wanted, [false, false, true, false, false]);
    }
}
