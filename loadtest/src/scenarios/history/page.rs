//! A page about a soak: messages acked in each second, and the harms below them.

use std::fmt::Write;

use crate::page::{document, escaped, table};

/// The width and the height of the plot, in pixels, and its margins to the left and below.
const WIDTH: f64 = 1_200.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 60.0;
const BELOW: f64 = 24.0;
const STYLE: &str = ".r{fill:#3b6ea5}.m{fill:#c0504d;opacity:.75}.s{fill:#c0504d;opacity:.08}";
/// The height of a harm's bar.
const BAR: f64 = 16.0;

/// A harm and its time, in seconds since the start.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) from: f64,
    pub(super) until: f64,
    pub(super) name: &'static str,
}

/// The page's HTML. `acked` is the number of messages in each second, and `rows` are the results.
pub(super) fn page(title: &str, acked: &[u64], marks: &[Mark], rows: &[Vec<String>]) -> String {
    let mut body = String::new();
    plot(&mut body, acked, marks);
    body.push_str(&table(rows));
    document(title, STYLE, &body)
}

/// The plot: a bar for each second, and below them a lane for each kind of harm.
fn plot(html: &mut String, acked: &[u64], marks: &[Mark]) {
    let mut lanes: Vec<&str> = marks.iter().map(|mark| mark.name).collect();
    lanes.sort_unstable();
    lanes.dedup();
    let length = marks
        .iter()
        .map(|mark| mark.until)
        .fold(acked.len() as f64, f64::max)
        .max(1.0);
    let most = acked.iter().copied().max().unwrap_or_default().max(1) as f64;
    let x = |second: f64| LEFT + second / length * WIDTH;
    let floor = HEIGHT + BELOW;
    let height = floor + lanes.len() as f64 * (BAR + 2.0) + 8.0;
    // The names of lanes stand to the right.
    let width = LEFT + WIDTH + 320.0;
    write!(html, "<svg width=\"{width}\" height=\"{height}\">").ok();
    for mark in marks {
        let wide = (x(mark.until) - x(mark.from)).max(1.0);
        write!(
            html,
            "<rect class=\"s\" x=\"{:.1}\" y=\"0\" width=\"{wide:.1}\" height=\"{HEIGHT}\"/>",
            x(mark.from)
        )
        .ok();
    }
    for (second, n) in acked.iter().enumerate() {
        let tall = *n as f64 / most * HEIGHT;
        let (at, wide) = (x(second as f64), (WIDTH / length).max(0.5));
        write!(
            html,
            "<rect class=\"r\" x=\"{at:.1}\" y=\"{:.1}\" width=\"{wide:.2}\" height=\"{tall:.1}\"><title>{second} s: {n} acked</title></rect>",
            HEIGHT - tall
        )
        .ok();
    }
    write!(
        html,
        "<line class=\"a\" x1=\"{LEFT}\" y1=\"{HEIGHT}\" x2=\"{}\" y2=\"{HEIGHT}\"/>",
        LEFT + WIDTH
    )
    .ok();
    write!(
        html,
        "<text x=\"0\" y=\"12\">{most:.0} / s</text><text x=\"0\" y=\"{HEIGHT}\">0</text>"
    )
    .ok();
    for tenth in 0..=10 {
        let second = length * f64::from(tenth) / 10.0;
        write!(
            html,
            "<text x=\"{:.0}\" y=\"{:.0}\">{second:.0} s</text>",
            x(second),
            HEIGHT + 14.0
        )
        .ok();
    }
    for (n, lane) in lanes.iter().enumerate() {
        let y = floor + n as f64 * (BAR + 2.0);
        for mark in marks.iter().filter(|mark| mark.name == *lane) {
            let wide = (x(mark.until) - x(mark.from)).max(1.0);
            write!(
                html,
                "<rect class=\"m\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{BAR}\"><title>{:.1} s to {:.1} s: {lane}</title></rect>",
                x(mark.from),
                mark.from,
                mark.until
            )
            .ok();
        }
        write!(
            html,
            "<text x=\"{:.0}\" y=\"{:.0}\">{}</text>",
            LEFT + WIDTH + 8.0,
            y + 12.0,
            escaped(lane)
        )
        .ok();
    }
    html.push_str("</svg>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_a_bar_for_each_second_and_each_harm() {
        let mark = |from, name| Mark {
            from,
            until: from + 1.0,
            name,
        };
        let marks = [
            mark(0.5, "F1 one"),
            mark(2.0, "F1 one"),
            mark(2.0, "F5 <two>"),
        ];
        let rows = [vec!["faults".to_owned(), "0".to_owned()]];
        let html = page("A soak", &[5, 0, 10], &marks, &rows);
        assert_eq!(html.matches("class=\"r\"").count(), 3);
        assert_eq!(html.matches("class=\"m\"").count(), 3);
        assert!(html.contains("<td>faults</td><td>0</td>") && html.contains("F5 &lt;two>"));
        assert!(!html.contains("http") && !html.contains("<script"));
        // A soak that acked nothing has a page as well.
        assert!(page("A soak", &[], &[], &[]).ends_with("</html>\n"));
    }
}
