//! How long steps take, as measured, and how many prompt rows fit into a time.
//!
//! Only chunk sizes and refusals depend on it, never a result.

use std::time::Duration;

/// The weight of the newest measurement.
const NEWEST: f64 = 0.2;

/// Moving averages of step times.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pace {
    /// Seconds of a step without prompt rows.
    decode: Option<f64>,
    /// Seconds that a prompt row adds.
    row: Option<f64>,
}

impl Pace {
    /// Learns from a step with so many prompt rows.
    pub(crate) fn observe(&mut self, prompt_rows: usize, elapsed: Duration) {
        let elapsed = elapsed.as_secs_f64();
        if prompt_rows == 0 {
            average(&mut self.decode, elapsed);
        } else {
            average(&mut self.row, (elapsed - self.decode.unwrap_or(0.0)).max(0.0) / prompt_rows as f64);
        }
    }

    /// Prompt rows that a step may take to end within `left`; any number while nothing is known.
    pub(crate) fn rows_within(&self, left: Duration) -> usize {
        let left = left.as_secs_f64() - self.decode.unwrap_or(0.0);
        self.row.map_or(usize::MAX, |row| (left.max(0.0) / row.max(1e-9)) as usize)
    }
}

/// Moves an average towards a measurement.
pub(crate) fn average(mean: &mut Option<f64>, value: f64) {
    *mean = Some(mean.map_or(value, |mean| mean + NEWEST * (value - mean)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_follow_the_measured_speed() {
        let mut pace = Pace::default();
        assert_eq!(pace.rows_within(Duration::ZERO), usize::MAX);
        pace.observe(0, Duration::from_millis(10));
        pace.observe(100, Duration::from_millis(110));
        assert_eq!(pace.rows_within(Duration::from_micros(60_500)), 50);
        assert_eq!(pace.rows_within(Duration::from_millis(5)), 0);
        // Twice as slow for a while: the average follows.
        (0..50).for_each(|_| pace.observe(100, Duration::from_millis(210)));
        assert_eq!(pace.rows_within(Duration::from_micros(60_500)), 25);
    }
}
