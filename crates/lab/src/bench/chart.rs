//! Charts as handwritten SVG: panels of lines or of stacked bars in a grid, with a legend for each
//! figure. Colours follow the reader's light or dark mode. Series differ in colour and marker, and
//! writes have a dashed line, so that no distinction depends on colour alone.

use std::fmt::Write;

const WIDTH: f64 = 1080.0;
const MARGIN: f64 = 24.0;
const HEAD: f64 = 56.0;
const TITLE: f64 = 34.0;
const LEGEND_LINE: f64 = 20.0;
/// The margins around the area of a panel: for numbers on the left, names below, the title above.
const LEFT: f64 = 62.0;
const BELOW: f64 = 44.0;
const ABOVE: f64 = 30.0;
const AREA_HEIGHT: f64 = 180.0;
/// The approximate width of a letter.
const LETTER: f64 = 6.6;

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Linear, from zero.
    Linear,
    /// Logarithmic, by powers of ten.
    Log,
}

/// A line.
#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    pub is_dashed: bool,
    /// The positions on the axis, and the values.
    pub points: Vec<(usize, f64)>,
}

/// Lines over equidistant positions: block sizes and threads are powers of two.
#[derive(Clone, Debug)]
pub struct Lines {
    pub title: String,
    pub along: String,
    pub value: &'static str,
    pub axis: Axis,
    pub labels: Vec<String>,
    pub series: Vec<Series>,
}

/// Stacked bars.
#[derive(Clone, Debug)]
pub struct Bars {
    pub title: String,
    pub along: String,
    pub value: &'static str,
    pub parts: Vec<&'static str>,
    /// The end of the axis; `None` for the highest bar.
    pub highest: Option<f64>,
    pub bars: Vec<(String, Vec<f64>)>,
    pub marks: Option<Marks>,
}

/// Lines across bars, for comparison.
#[derive(Clone, Debug)]
pub struct Marks {
    pub name: String,
    /// The height for each bar, if it has one.
    pub heights: Vec<Option<f64>>,
}

/// A chart.
#[derive(Clone, Debug)]
pub enum Panel {
    Lines(Lines),
    Bars(Bars),
}

impl Panel {
    /// Returns the number of positions on its axis.
    fn places(&self) -> usize {
        match self {
            Panel::Lines(lines) => lines.labels.len(),
            Panel::Bars(bars) => bars.bars.len(),
        }
    }

    /// Returns the names in the legend, and true for dashed ones.
    fn names(&self) -> Vec<(String, bool)> {
        match self {
            Panel::Lines(lines) => lines.series.iter().map(|one| (one.name.clone(), one.is_dashed)).collect(),
            Panel::Bars(bars) => {
                let parts = bars.parts.iter().map(|part| (part.to_string(), false));
                parts.chain(bars.marks.iter().map(|marks| (marks.name.clone(), true))).collect()
            }
        }
    }
}

/// Figures below each other.
#[derive(Debug, Default)]
pub struct Canvas {
    body: String,
    height: f64,
    figures: usize,
}

/// The area of a panel's values.
struct Area {
    x: f64,
    y: f64,
    width: f64,
    places: usize,
    low: f64,
    high: f64,
    axis: Axis,
}

impl Area {
    fn at(&self, place: usize) -> f64 {
        self.x + self.width * (place as f64 + 0.5) / self.places.max(1) as f64
    }

    fn height_of(&self, value: f64) -> f64 {
        let share = match self.axis {
            Axis::Linear => (value - self.low) / (self.high - self.low),
            // A value that is not positive has no logarithm, and lies on the axis.
            Axis::Log => (value.max(self.low).log10() - self.low.log10()) / (self.high.log10() - self.low.log10()),
        };
        share.clamp(0.0, 1.0) * AREA_HEIGHT
    }

    fn of(&self, value: f64) -> f64 {
        self.y + AREA_HEIGHT - self.height_of(value)
    }

    fn ticks(&self) -> Vec<f64> {
        match self.axis {
            Axis::Linear => (0..=4).map(|n| self.low + (self.high - self.low) * f64::from(n) / 4.0).collect(),
            Axis::Log => {
                let (low, high) = (self.low.log10().round() as i32, self.high.log10().round() as i32);
                let step = ((high - low) / 6 + 1).max(1) as usize;
                (low..=high).step_by(step).map(|power| 10f64.powi(power)).collect()
            }
        }
    }
}

impl Canvas {
    /// Returns true if nothing has been drawn.
    pub fn is_empty(&self) -> bool {
        self.figures == 0
    }

    /// Adds a figure of the panels whose axis has at least two values. A figure of one column is
    /// drawn with any number.
    pub fn figure(&mut self, title: &str, columns: usize, panels: &[Panel]) {
        let drawn: Vec<&Panel> = panels.iter().filter(|panel| panel.places() > 1 || columns == 1).collect();
        if drawn.is_empty() {
            return;
        }
        self.figures += 1;
        let mut names: Vec<(String, bool)> = Vec::new();
        for name in drawn.iter().flat_map(|panel| panel.names()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let top = HEAD + self.height;
        let _ =
            writeln!(self.body, "<text class=\"title\" x=\"{MARGIN}\" y=\"{}\">{}</text>", top + 20.0, escaped(title));
        let legend = self.legend(&names, top + TITLE);
        let panel_width = (WIDTH - 2.0 * MARGIN) / columns as f64;
        let panel_height = ABOVE + AREA_HEIGHT + BELOW;
        let first = top + TITLE + legend;
        for (number, panel) in drawn.iter().enumerate() {
            let x = MARGIN + (number % columns) as f64 * panel_width;
            let y = first + (number / columns) as f64 * panel_height;
            self.panel(panel, &names, (x, y), panel_width);
        }
        self.height += TITLE + legend + drawn.len().div_ceil(columns) as f64 * panel_height + 20.0;
    }

    /// Draws the legend. Returns its height.
    fn legend(&mut self, names: &[(String, bool)], top: f64) -> f64 {
        let (mut x, mut y) = (MARGIN, top + 10.0);
        for (number, (name, is_dashed)) in names.iter().enumerate() {
            let width = 44.0 + name.chars().count() as f64 * LETTER;
            if x > MARGIN && x + width > WIDTH - MARGIN {
                (x, y) = (MARGIN, y + LEGEND_LINE);
            }
            let (class, dashed) = (number % COLOURS, dash(*is_dashed));
            let _ = write!(self.body, "<path class=\"line c{class}{dashed}\" d=\"M{x} {y}h24\"/>");
            self.marker(number, x + 12.0, y);
            let _ = writeln!(self.body, "<text x=\"{}\" y=\"{}\">{}</text>", x + 30.0, y + 4.0, escaped(name));
            x += width;
        }
        y + LEGEND_LINE - top
    }

    fn marker(&mut self, number: usize, x: f64, y: f64) {
        let class = number % COLOURS;
        let _ = match number % 4 {
            0 => write!(self.body, "<circle class=\"f{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>"),
            1 => write!(
                self.body,
                "<rect class=\"f{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"6.4\" height=\"6.4\"/>",
                x - 3.2,
                y - 3.2
            ),
            2 => write!(self.body, "<path class=\"f{class}\" d=\"M{x:.1} {:.1}l4 7h-8z\"/>", y - 4.2),
            _ => {
                write!(self.body, "<path class=\"f{class}\" d=\"M{x:.1} {:.1}l4.4 4.4l-4.4 4.4l-4.4 -4.4z\"/>", y - 4.4)
            }
        };
    }

    fn panel(&mut self, panel: &Panel, names: &[(String, bool)], (x, y): (f64, f64), width: f64) {
        let number_of = |name: &str| names.iter().position(|(known, _)| known == name).unwrap_or(0);
        let (x, y, width) = (x + LEFT, y + ABOVE, width - LEFT - 14.0);
        match panel {
            Panel::Lines(lines) => {
                let values: Vec<f64> = lines.series.iter().flat_map(|one| &one.points).map(|point| point.1).collect();
                let (low, high) = range(&values, lines.axis);
                let area = Area { x, y, width, places: lines.labels.len(), low, high, axis: lines.axis };
                self.frame(&area, &lines.title, &lines.along, lines.value, &lines.labels);
                for one in &lines.series {
                    self.line(&area, one, number_of(&one.name), &lines.labels);
                }
            }
            Panel::Bars(bars) => {
                let mut sums: Vec<f64> = bars.bars.iter().map(|(_, parts)| parts.iter().sum()).collect();
                sums.extend(bars.marks.iter().flat_map(|marks| marks.heights.iter().flatten()));
                let high = bars.highest.unwrap_or_else(|| range(&sums, Axis::Linear).1);
                let area = Area { x, y, width, places: bars.bars.len(), low: 0.0, high, axis: Axis::Linear };
                let labels: Vec<String> = bars.bars.iter().map(|(label, _)| label.clone()).collect();
                self.frame(&area, &bars.title, &bars.along, bars.value, &labels);
                self.bars(&area, bars, &number_of);
            }
        }
    }

    fn frame(&mut self, area: &Area, title: &str, along: &str, value: &str, labels: &[String]) {
        let (left, bottom) = (area.x, area.y + AREA_HEIGHT);
        // Begins beside the axis' title, because it may be wider than the area.
        let from = left - LEFT + 20.0;
        let _ =
            writeln!(self.body, "<text class=\"head\" x=\"{from}\" y=\"{}\">{}</text>", area.y - 10.0, escaped(title));
        for tick in area.ticks() {
            let y = area.of(tick);
            let _ = writeln!(
                self.body,
                "<path class=\"grid\" d=\"M{left:.1} {y:.1}h{:.1}\"/><text class=\"quiet end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                area.width,
                left - 6.0,
                y + 4.0,
                number(tick)
            );
        }
        let (x, y) = (left - LEFT + 12.0, area.y + AREA_HEIGHT / 2.0);
        let _ = writeln!(
            self.body,
            "<text class=\"quiet middle\" transform=\"translate({x:.1} {y:.1}) rotate(-90)\">{}</text>",
            escaped(value)
        );
        // As many names as fit.
        let longest = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0) as f64 * LETTER + 8.0;
        let step = (longest * labels.len() as f64 / area.width).ceil().max(1.0) as usize;
        for (place, label) in labels.iter().enumerate().step_by(step) {
            let (x, y) = (area.at(place), bottom + 16.0);
            let _ =
                writeln!(self.body, "<text class=\"quiet middle\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(label));
        }
        let (x, y) = (left + area.width / 2.0, bottom + 33.0);
        let _ = writeln!(self.body, "<text class=\"quiet middle\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(along));
    }

    fn line(&mut self, area: &Area, series: &Series, number_of: usize, labels: &[String]) {
        let mut path = String::new();
        for (i, (place, value)) in series.points.iter().enumerate() {
            let _ = write!(path, "{}{:.1} {:.1}", if i == 0 { "M" } else { "L" }, area.at(*place), area.of(*value));
        }
        let (class, dashed) = (number_of % COLOURS, dash(series.is_dashed));
        let _ = writeln!(self.body, "<path class=\"line c{class}{dashed}\" d=\"{path}\"/>");
        for (place, value) in &series.points {
            let label = labels.get(*place).map_or("", String::as_str);
            let text = format!("{}, {label}: {}", series.name, number(*value));
            let _ = write!(self.body, "<g><title>{}</title>", escaped(&text));
            self.marker(number_of, area.at(*place), area.of(*value));
            let _ = writeln!(self.body, "</g>");
        }
    }

    fn bars(&mut self, area: &Area, bars: &Bars, number_of: &dyn Fn(&str) -> usize) {
        let width = (area.width / area.places.max(1) as f64 * 0.6).min(48.0);
        for (place, (label, parts)) in bars.bars.iter().enumerate() {
            let (x, mut y) = (area.at(place) - width / 2.0, area.y + AREA_HEIGHT);
            for (part, value) in bars.parts.iter().zip(parts) {
                let height = area.height_of(*value);
                y -= height;
                let class = number_of(part) % COLOURS;
                let title = escaped(&format!("{label}, {part}: {}", number(*value)));
                let _ = writeln!(
                    self.body,
                    "<rect class=\"f{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\">\
                     <title>{title}</title></rect>"
                );
            }
        }
        let Some(marks) = &bars.marks else { return };
        let class = number_of(&marks.name) % COLOURS;
        for (place, height) in marks.heights.iter().enumerate() {
            let Some(height) = height else { continue };
            let (x, y, width) = (area.at(place) - width / 2.0 - 6.0, area.of(*height), width + 12.0);
            let title = escaped(&format!("{}: {}", marks.name, number(*height)));
            let _ = writeln!(
                self.body,
                "<path class=\"line c{class} dashed\" d=\"M{x:.1} {y:.1}h{width:.1}\"><title>{title}</title></path>"
            );
        }
    }

    /// Returns the SVG file.
    pub fn finish(self, title: &str, subtitle: &str) -> String {
        let height = HEAD + self.height + MARGIN;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" role=\"img\">\n<title>{}</title>\n<style>{STYLE}</style>\n<rect \
             class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n<text class=\"quiet\" x=\"{MARGIN}\" \
             y=\"32\">{}</text>\n{}</svg>\n",
            escaped(title),
            escaped(subtitle),
            self.body
        )
    }
}

/// The number of series with distinct colours.
const COLOURS: usize = 8;

/// The style has literal colours and no variables, which SVG renderers outside of browsers do not
/// support.
const STYLE: &str = "
text { font: 12px system-ui, 'Segoe UI', 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif; }
.title { font-size: 16px; font-weight: 600; } .head { font-weight: 600; }
.end { text-anchor: end; } .middle { text-anchor: middle; }
.grid { fill: none; } .line { fill: none; stroke-width: 1.8; } .dashed { stroke-dasharray: 5 4; }
.paper { fill: #fbfbf9; } text { fill: #1d2326; } .quiet { fill: #5c676d; } .grid { stroke: #d9dedd; }
.c0 { stroke: #2f7f86; } .c1 { stroke: #b3541e; } .c2 { stroke: #6a5aa8; } .c3 { stroke: #2e7d4f; }
.f0 { fill: #2f7f86; } .f1 { fill: #b3541e; } .f2 { fill: #6a5aa8; } .f3 { fill: #2e7d4f; }
.c4 { stroke: #a8336b; } .c5 { stroke: #8a6d1a; } .c6 { stroke: #2a62a8; } .c7 { stroke: #4d5559; }
.f4 { fill: #a8336b; } .f5 { fill: #8a6d1a; } .f6 { fill: #2a62a8; } .f7 { fill: #4d5559; }
@media (prefers-color-scheme: dark) {
  .paper { fill: #14181a; } text { fill: #e6eae8; } .quiet { fill: #9aa6ab; } .grid { stroke: #2d3538; }
  .c0 { stroke: #58b3ba; } .c1 { stroke: #f2a26b; } .c2 { stroke: #a497e0; } .c3 { stroke: #6fc493; }
  .f0 { fill: #58b3ba; } .f1 { fill: #f2a26b; } .f2 { fill: #a497e0; } .f3 { fill: #6fc493; }
  .c4 { stroke: #e887b4; } .c5 { stroke: #d8bd62; } .c6 { stroke: #7fb0ef; } .c7 { stroke: #b4bec2; }
  .f4 { fill: #e887b4; } .f5 { fill: #d8bd62; } .f6 { fill: #7fb0ef; } .f7 { fill: #b4bec2; }
}
";

fn dash(is_dashed: bool) -> &'static str {
    if is_dashed { " dashed" } else { "" }
}

/// Returns the ends of an axis, rounded and never equal.
fn range(values: &[f64], axis: Axis) -> (f64, f64) {
    let above_nothing = values.iter().copied().filter(|value| *value > 0.0 && value.is_finite());
    let high = above_nothing.clone().fold(0.0, f64::max);
    if high == 0.0 {
        return if axis == Axis::Log { (1.0, 10.0) } else { (0.0, 1.0) };
    }
    match axis {
        Axis::Linear => {
            // The next of 1, 2, 4, 6, 8 and 10 by a power of ten, because the quarters of all of
            // these are short numbers.
            let power = 10f64.powf(high.log10().floor());
            let step = [1.0, 2.0, 4.0, 6.0, 8.0, 10.0].into_iter().find(|step| step * power >= high);
            (0.0, step.unwrap_or(10.0) * power)
        }
        Axis::Log => {
            let low = above_nothing.fold(high, f64::min);
            let (low, high) = (low.log10().floor(), high.log10().ceil());
            (10f64.powf(low), 10f64.powf(if high > low { high } else { low + 1.0 }))
        }
    }
}

/// Formats a number: `0.5`, `12`, `3.4k`, `1.2M`.
fn number(value: f64) -> String {
    let (value, unit) = match value {
        v if v >= 999_500.0 => (v / 1e6, "M"),
        v if v >= 9_995.0 => (v / 1e3, "k"),
        v => (v, ""),
    };
    let digits = if value < 0.1 {
        3
    } else if value < 10.0 {
        2
    } else if value < 100.0 {
        1
    } else {
        0
    };
    let text = format!("{value:.digits$}");
    let short = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{short}{unit}")
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            // XML excludes control characters.
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_where_numbers_are_round() {
        assert_eq!(range(&[3.0, 1945.0], Axis::Linear), (0.0, 2000.0));
        assert_eq!(range(&[999.0], Axis::Linear), (0.0, 1000.0));
        assert_eq!(range(&[3.0, 1945.0], Axis::Log), (1.0, 10_000.0));
        assert_eq!(range(&[100.0], Axis::Log), (100.0, 1000.0));
        assert_eq!((range(&[0.0], Axis::Linear), range(&[], Axis::Log)), ((0.0, 1.0), (1.0, 10.0)));
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0.0, 0.5, 12.5, 500.0, 9000.0, 12_345.0, 2e6].map(number),
            ["0", "0.5", "12.5", "500", "9000", "12.3k", "2M"]
        );
    }
}
