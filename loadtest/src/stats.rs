//! Histograms and medians.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Latencies, to three digits, from 1 µs to a minute.
pub struct Latencies(Histogram<u64>);

/// The reported quantiles, in µs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Quantiles {
    pub count: u64,
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Latencies {
    /// An empty histogram.
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1_000, 60_000_000_000, 3);
        Latencies(
            histogram.unwrap_or_else(|never| unreachable!("the bounds are in order: {never}")),
        )
    }

    /// Adds one latency.
    pub fn record(&mut self, latency: Duration) {
        self.0
            .saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds all latencies of another histogram.
    pub fn add(&mut self, other: &Latencies) {
        self.0
            .add(&other.0)
            .unwrap_or_else(|never| unreachable!("the bounds are the same: {never}"));
    }

    /// The reported quantiles.
    pub fn quantiles(&self) -> Quantiles {
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 / 1000.0;
        Quantiles {
            count: self.0.len(),
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: self.0.max() as f64 / 1000.0,
        }
    }
}

/// The median of some numbers; 0 of none.
pub fn median(numbers: impl IntoIterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.into_iter().collect();
    numbers.sort_by(f64::total_cmp);
    match numbers.len() {
        0 => 0.0,
        n if n % 2 == 1 => numbers[n / 2],
        n => f64::midpoint(numbers[n / 2 - 1], numbers[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median([]), 0.0);
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
