//! The comparison of two series of times: the rank-sum test of Mann and Whitney, and the difference
//! of the medians.

/// A smaller difference, in seconds, is useless to an attacker over a network, however certain it
/// is.
pub const MATERIAL: f64 = 0.0005;
/// A difference counts as chance unless its probability under chance is below this.
pub const CHANCE: f64 = 0.001;

/// The difference of two series.
#[derive(Clone, Copy, Debug)]
pub struct Shift {
    /// The probability that chance alone separates two equal series this far.
    pub p: f64,
    /// The first median minus the second, in seconds.
    pub medians: f64,
}

impl Shift {
    /// The shift of `a` against `b`.
    pub fn between(a: &[f64], b: &[f64]) -> Self {
        Shift {
            p: rank_sum(a, b),
            medians: median(a) - median(b),
        }
    }

    /// Whether the shift is both certain and large enough to matter.
    pub fn is_material(self) -> bool {
        self.p < CHANCE && self.medians.abs() > MATERIAL
    }
}

fn median(of: &[f64]) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) {
        f64::midpoint(sorted[half - 1], sorted[half])
    } else {
        sorted[half]
    }
}

/// Two-sided, by the normal approximation, which needs dozens of samples.
fn rank_sum(a: &[f64], b: &[f64]) -> f64 {
    let mut all: Vec<(f64, bool)> = a
        .iter()
        .map(|x| (*x, true))
        .chain(b.iter().map(|x| (*x, false)))
        .collect();
    all.sort_by(|x, y| x.0.total_cmp(&y.0));
    let (mut ranks_of_a, mut ties, mut below) = (0.0, 0.0, 0);
    for equal in all.chunk_by(|x, y| x.0 == y.0) {
        let n = equal.len() as f64;
        let from_a = equal.iter().filter(|(_, of_a)| *of_a).count() as f64;
        ranks_of_a += from_a * (below as f64 + (n + 1.0) / 2.0);
        ties += n * n * n - n;
        below += equal.len();
    }
    let (n, m) = (a.len() as f64, b.len() as f64);
    let u = ranks_of_a - n * (n + 1.0) / 2.0;
    let all = n + m;
    let deviation = (n * m / 12.0 * (all + 1.0 - ties / (all * (all - 1.0)))).sqrt();
    let z = ((u - n * m / 2.0).abs() - 0.5).max(0.0) / deviation;
    beyond(z / std::f64::consts::SQRT_2)
}

/// The complementary error function of a non-negative number, to seven places (Abramowitz and
/// Stegun 7.1.26).
fn beyond(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let series = [
        1.061_405_429,
        -1.453_152_027,
        1.421_413_741,
        -0.284_496_736,
        0.254_829_592,
    ];
    series.iter().fold(0.0, |sum, factor| (sum + factor) * t) * (-x * x).exp()
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    /// Times as on this machine: three milliseconds, a long tail, and sometimes a pause by another
    /// process.
    fn times(random: &mut StdRng, n: usize) -> Vec<f64> {
        let one = |_| {
            let busy = if random.random_range(0..20) == 0 {
                0.015
            } else {
                0.001
            };
            0.003 - busy * (1.0 - random.random_range(0.0..1.0_f64)).ln()
        };
        (0..n).map(one).collect()
    }

    #[test]
    fn the_statistic_is_the_one_of_the_tables() {
        // Two-sided 5 % and 0.1 % of the normal distribution.
        for (z, p) in [(1.959_964, 0.05), (3.290_527, 0.001), (0.0, 1.0)] {
            assert!(
                (beyond(z / std::f64::consts::SQRT_2) - p).abs() < 1e-6,
                "{z}"
            );
        }
        // U = 0 of 5 and 5: z = (12.5 - 0.5) / sqrt(25 * 11 / 12) = 2.5067.
        let p = rank_sum(&[1.0, 2.0, 3.0, 4.0, 5.0], &[6.0, 7.0, 8.0, 9.0, 10.0]);
        assert!((p - 0.012_186).abs() < 1e-5, "{p}");
        // All values are equal, so nothing differs.
        assert!(rank_sum(&[1.0, 1.0, 2.0, 2.0], &[1.0, 1.0, 2.0, 2.0]) > 0.999);
    }

    #[test]
    fn a_planted_millisecond_is_found_and_chance_is_not() {
        let mut random = StdRng::seed_from_u64(1);
        let mut alarms = 0;
        for _ in 0..200 {
            let [a, b] = [times(&mut random, 200), times(&mut random, 200)];
            alarms += usize::from(Shift::between(&a, &b).is_material());
            let later: Vec<f64> = b.iter().map(|time| time + 0.001).collect();
            for shift in [Shift::between(&a, &later), Shift::between(&later, &a)] {
                assert!(shift.is_material(), "{shift:?}");
            }
            // A certain difference, but too small to matter.
            let a_little: Vec<f64> = a.iter().map(|time| time + MATERIAL / 5.0).collect();
            assert!(!Shift::between(&a_little, &a).is_material());
        }
        assert_eq!(alarms, 0);
    }
}
