//! A page about a run: a single file without scripts, with nothing from elsewhere.

use std::fmt::Write;

/// The width and the height of a plot, in pixels, and the margin to its left.
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 150.0;
const LEFT: f64 = 64.0;
/// The place of a plot's times below it and of its names to the right, in pixels.
const BELOW: f64 = 22.0;
const RIGHT: f64 = 190.0;
/// The colours of a plot's lines, in their order. They differ in brightness as well.
const COLOURS: [&str; 5] = ["#1f5fa8", "#d1603d", "#3a8f5c", "#8a5fb0", "#8b8b8b"];
const STYLE: &str = "body{font:14px sans-serif;margin:2em;color:#222;background:#fff}\
    table{margin:1em 0}td{padding:1px 1em 1px 0}td+td{text-align:right}tr:first-child td{font-weight:600}\
    h2{font-size:15px;margin:1.5em 0 .3em}text{font:11px sans-serif;fill:#444}\
    .a{stroke:#bbb}polyline{fill:none;stroke-width:1.5}";

/// A line of a plot: its name, and its value in each second where there was one.
pub struct Line {
    pub name: String,
    pub values: Vec<Option<f64>>,
}

/// A whole page around `body`, with more rules of style.
pub fn document(title: &str, style: &str, body: &str) -> String {
    let title = escaped(title);
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\
         <style>{STYLE}{style}</style><h1>{title}</h1>{body}</html>\n"
    )
}

/// Rows of cells. The first row is the heading.
pub fn table(rows: &[Vec<String>]) -> String {
    let row = |cells: &Vec<String>| {
        let cells = cells
            .iter()
            .map(|cell| format!("<td>{}</td>", escaped(cell)));
        format!("<tr>{}</tr>", cells.collect::<String>())
    };
    format!(
        "<table>{}</table>",
        rows.iter().map(row).collect::<String>()
    )
}

/// Text for a page.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('"', "&quot;")
}

/// A plot of lines over seconds, from 0 to the largest value. Empty if there is no value.
pub fn plot(title: &str, lines: &[Line]) -> String {
    let values = lines.iter().flat_map(|line| line.values.iter().flatten());
    let most = values.copied().fold(0.0, f64::max);
    let seconds = lines.iter().map(|line| line.values.len()).max();
    let seconds = seconds.unwrap_or_default().max(2) as f64 - 1.0;
    if most <= 0.0 {
        return String::new();
    }
    let title = escaped(title);
    let x = |second: f64| LEFT + second / seconds * WIDTH;
    let y = |value: f64| HEIGHT - value / most * (HEIGHT - 14.0);
    let mut svg = format!(
        "<h2>{title}</h2><svg role=\"img\" aria-label=\"{title}, at most {}\" width=\"{}\" height=\"{}\">\
         <line class=\"a\" x1=\"{LEFT}\" y1=\"{HEIGHT}\" x2=\"{}\" y2=\"{HEIGHT}\"/>\
         <text x=\"0\" y=\"14\">{}</text><text x=\"0\" y=\"{HEIGHT}\">0</text>",
        number(most),
        LEFT + WIDTH + RIGHT,
        HEIGHT + BELOW,
        LEFT + WIDTH,
        number(most),
    );
    for fifth in 0..=5 {
        let second = seconds * f64::from(fifth) / 5.0;
        let (at, below) = (x(second), HEIGHT + 14.0);
        write!(
            svg,
            "<text x=\"{at:.0}\" y=\"{below}\">{second:.0} s</text>"
        )
        .ok();
    }
    for (n, (line, colour)) in lines.iter().zip(COLOURS.iter().cycle()).enumerate() {
        for (from, part) in parts(&line.values) {
            let points = part
                .iter()
                .enumerate()
                .map(|(n, value)| format!("{:.1},{:.1} ", x((from + n) as f64), y(*value)));
            let points: String = points.collect();
            write!(
                svg,
                "<polyline stroke=\"{colour}\" points=\"{}\"/>",
                points.trim_end()
            )
            .ok();
        }
        let (at, down) = (LEFT + WIDTH + 12.0, 14.0 + 16.0 * n as f64);
        let name = escaped(&line.name);
        write!(
            svg,
            "<text x=\"{at}\" y=\"{down}\" style=\"fill:{colour}\">{name}</text>"
        )
        .ok();
    }
    svg.push_str("</svg>");
    svg
}

/// The runs of values without a gap, each with the second of its first.
fn parts(values: &[Option<f64>]) -> Vec<(usize, Vec<f64>)> {
    let mut parts: Vec<(usize, Vec<f64>)> = Vec::new();
    let mut is_open = false;
    for (second, value) in values.iter().enumerate() {
        match (value, parts.last_mut()) {
            (Some(value), Some((_, part))) if is_open => part.push(*value),
            (Some(value), _) => parts.push((second, vec![*value])),
            (None, _) => {}
        }
        is_open = value.is_some();
    }
    parts
}

/// A number to three digits.
fn number(value: f64) -> String {
    match value {
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, values: &[Option<f64>]) -> Line {
        Line {
            name: name.to_owned(),
            values: values.to_vec(),
        }
    }

    #[test]
    fn a_line_ends_at_a_gap_and_begins_again_after_it() {
        let values = [Some(1.0), Some(2.0), None, Some(4.0)];
        let svg = plot("A < B", &[line("one", &values), line("two", &[None, None])]);
        assert_eq!(svg.matches("<polyline").count(), 2, "{svg}");
        // The largest value is at the top, and the last second at the right.
        assert!(svg.contains("924.0,14.0\""), "{svg}");
        assert!(svg.contains("A &lt; B") && svg.contains(">two</text>"));
    }

    #[test]
    fn nothing_measured_makes_no_plot() {
        assert_eq!(plot("Empty", &[line("one", &[None, Some(0.0)])]), "");
    }

    #[test]
    fn a_page_takes_nothing_from_elsewhere() {
        let rows = [vec!["a".to_owned(), "<b>".to_owned()]];
        let html = document("T & U", "", &table(&rows));
        assert!(html.contains("<td>a</td><td>&lt;b></td>") && html.contains("T &amp; U"));
        assert!(!html.contains("http") && !html.contains("<script") && !html.contains("url("));
        assert!(html.ends_with("</html>\n"));
    }
}
