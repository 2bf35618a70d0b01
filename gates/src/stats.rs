//! The few statistics that records hold: robust ones, because a run on a shared machine has outliers.

use atlas_schemas::gate::Samples;

/// The `q`-quantile (0..=1) with linear interpolation between closest ranks; NaN for no values.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let rank = q.clamp(0.0, 1.0) * last as f64;
    let low = rank.floor() as usize;
    let high = (low + 1).min(last);
    sorted[low] + (sorted[high] - sorted[low]) * (rank - low as f64)
}

/// The median; NaN for no values.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The interquartile range: half the range for three values, blind to one outlier from five on.
pub fn spread(values: &[f64]) -> f64 {
    quantile(values, 0.75) - quantile(values, 0.25)
}

/// Raw values with their summary.
pub fn samples(values: Vec<f64>) -> Samples {
    Samples { median: median(&values), spread: spread(&values), values }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(quantile(&[0.0, 10.0], 0.25), 2.5);
        assert_eq!(quantile(&[7.0], 0.9), 7.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn spread_ignores_one_outlier_in_five() {
        assert_eq!(spread(&[1.0, 2.0, 3.0]), 1.0);
        assert_eq!(spread(&[10.0, 10.0, 10.0, 10.0, 1000.0]), 0.0);
        assert_eq!(spread(&[5.0]), 0.0);
    }
}
