//! The bytes of a query from storage to its answer, drawn: a column for every place they come through, a band for
//! every way between two, as thick as the bytes on it at either end.
//!
//! ```text
//! storage ─► page cache ─► scan of a table ─► join table ─► groups ─► answer
//! memory  ───────────────►                 ──────────────►
//! ```
//! All figures are the ledgers' of the scans, and the sizes of tables, groups and answer. What a query moved outside of
//! its scans, files of other formats above all, comes in as a place of its own.

use std::cmp::Reverse;
use std::fmt::Write;

use onehop_engine::units;
use onehop_engine::{ExplainTotals, Explanation, Facts, Hop, Node};

use super::html::escaped;

const WIDTH: f64 = 1080.0;
const HEIGHT: f64 = 380.0;
const TOP: f64 = 42.0;
const PLACE_WIDTH: f64 = 14.0;
/// Room for a label of two lines between places of a column.
const GAP: f64 = 48.0;
/// Room for the labels of the last column.
const RIGHT: f64 = 150.0;
/// A letter of a label, about.
const LETTER_WIDTH: f64 = 7.6;
/// Nothing is too thin to be seen.
const THINNEST: f64 = 1.5;

/// Columns, from the left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Column {
    Origin,
    PageCache,
    Scan,
    /// Tables that others are built with come before those.
    Table(Reverse<usize>),
    Groups,
    Answer,
}

impl Column {
    /// The style sheet's name for it.
    fn class(self) -> &'static str {
        match self {
            Self::Origin | Self::PageCache => "origin",
            Self::Scan => "scan",
            Self::Table(_) | Self::Groups => "table",
            Self::Answer => "answer",
        }
    }
}

#[derive(Debug)]
struct Place {
    column: Column,
    name: String,
    bytes: u64,
}

/// Bytes that leave one place and, fewer or more of them, arrive at another.
#[derive(Debug)]
struct Band {
    from: usize,
    to: usize,
    left: u64,
    arrived: u64,
}

/// Places, and what goes between them.
#[derive(Debug, Default)]
pub struct Flow {
    places: Vec<Place>,
    bands: Vec<Band>,
}

impl Flow {
    /// The flow of a query that has run.
    pub fn of(explanation: &Explanation, totals: &ExplainTotals) -> Self {
        let mut flow = Self::default();
        let answer = flow.place(Column::Answer, "answer", totals.answer_bytes);
        flow.add(&explanation.plan, answer, 0);
        flow.add_rest(totals, answer);
        flow.share_answer(answer, totals.answer_bytes);
        flow
    }

    /// A place by its name; more bytes of one that is there.
    fn place(&mut self, column: Column, name: &str, bytes: u64) -> usize {
        let known = self.places.iter().position(|place| place.column == column && place.name == name);
        let place = known.unwrap_or_else(|| {
            self.places.push(Place { column, name: name.into(), bytes: 0 });
            self.places.len() - 1
        });
        self.places[place].bytes += bytes;
        place
    }

    fn band(&mut self, from: usize, to: usize, left: u64, arrived: u64) {
        let known = self.bands.iter_mut().find(|band| (band.from, band.to) == (from, to));
        match known {
            Some(band) => (band.left, band.arrived) = (band.left + left, band.arrived + arrived),
            None if left > 0 || arrived > 0 => self.bands.push(Band { from, to, left, arrived }),
            None => {}
        }
    }

    /// The bytes that a place is drawn for: as many as it holds, takes in or gives away.
    fn extent(&self, place: usize) -> u64 {
        let into = self.bands.iter().filter(|band| band.to == place).map(|band| band.arrived).sum();
        let out = self.bands.iter().filter(|band| band.from == place).map(|band| band.left).sum();
        self.places[place].bytes.max(into).max(out)
    }

    /// An operator whose bytes go to `to`, for a table within so many others.
    fn add(&mut self, node: &Node, to: usize, within: usize) {
        match &node.facts {
            Facts::Scan(scan) => {
                let (read, copied, cached) = match (&scan.ledger, scan.read) {
                    (Some(ledger), _) => (ledger.read_bytes(), ledger.hop(Hop::HostToHost), ledger.cached_bytes),
                    (None, Some((_, bytes))) => (bytes, if scan.path == "buffered" { bytes } else { 0 }, 0),
                    (None, None) => (0, 0, 0),
                };
                let name = if scan.alias == scan.table {
                    scan.table.clone()
                } else {
                    format!("{} {}", scan.table, scan.alias)
                };
                let place = self.scan(&name, read, copied, cached);
                self.band(place, to, read + cached, read + cached);
            }
            Facts::Join(join) => {
                let bytes = join.built.map_or(0, |table| table.bytes as u64);
                let table =
                    self.place(Column::Table(Reverse(within)), &format!("table by {}", join.keys.join(", ")), bytes);
                for (number, input) in node.inputs.iter().enumerate() {
                    let (to, within) = if number == 0 { (to, within) } else { (table, within + 1) };
                    self.add(input, to, within);
                }
                self.band(table, to, bytes, bytes);
            }
            Facts::Groups(groups) => {
                let bytes = groups.bytes.unwrap_or(0);
                let name = if groups.keys.is_empty() { "aggregate" } else { "groups" };
                let place = self.place(Column::Groups, name, bytes);
                node.inputs.iter().for_each(|input| self.add(input, place, within));
                self.band(place, to, bytes, 0);
            }
            Facts::Filter(_) | Facts::Rows(_) | Facts::Top(_) | Facts::Other(_) => {
                node.inputs.iter().for_each(|input| self.add(input, to, within))
            }
        }
    }

    /// A scan, with the ways its bytes came.
    fn scan(&mut self, name: &str, read: u64, copied: u64, cached: u64) -> usize {
        let scan = self.place(Column::Scan, name, read + cached);
        let through_cache = copied.min(read);
        if read > 0 {
            let storage = self.place(Column::Origin, "storage", read);
            self.band(storage, scan, read - through_cache, read - through_cache);
            if through_cache > 0 {
                let page_cache = self.place(Column::PageCache, "page cache", through_cache);
                self.band(storage, page_cache, through_cache, through_cache);
                self.band(page_cache, scan, through_cache, through_cache);
            }
        }
        if cached > 0 {
            let memory = self.place(Column::Origin, "memory", cached);
            self.band(memory, scan, cached, cached);
        }
        scan
    }

    /// What was read outside of the scans that are known.
    fn add_rest(&mut self, totals: &ExplainTotals, answer: usize) {
        let of =
            |name: &str| self.places.iter().filter(|place| place.name == name).map(|place| place.bytes).sum::<u64>();
        let read = totals.ledger.read_bytes().saturating_sub(of("storage"));
        let copied = totals.ledger.hop(Hop::HostToHost).saturating_sub(of("page cache"));
        if read > 0 {
            let place = self.scan("files and the rest", read, copied, 0);
            self.band(place, answer, read, 0);
        }
    }

    /// Who brings how much of the answer nobody counts: all that arrives there shares it.
    fn share_answer(&mut self, answer: usize, bytes: u64) {
        let into: Vec<usize> = (0..self.bands.len()).filter(|band| self.bands[*band].to == answer).collect();
        for band in &into {
            self.bands[*band].arrived = bytes / into.len() as u64;
        }
    }

    /// The drawing.
    pub fn svg(&self) -> String {
        let mut columns: Vec<Column> = self.places.iter().map(|place| place.column).collect();
        columns.sort();
        columns.dedup();
        let extents: Vec<u64> = (0..self.places.len()).map(|place| self.extent(place)).collect();
        let scale = self.scale(&columns, &extents);
        let tops = self.tops(&columns, &extents, scale);
        let step = (WIDTH - RIGHT - PLACE_WIDTH) / (columns.len().max(2) - 1) as f64;
        let left = |place: usize| {
            columns.iter().position(|column| *column == self.places[place].column).unwrap_or(0) as f64 * step
        };
        let height = tops.iter().zip(&extents).map(|(top, bytes)| top + thickness(*bytes, scale) + GAP);
        let height = height.fold(HEIGHT, f64::max);
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"Bytes from storage to answer; the table \
             below has the same figures\">\n"
        );
        let (mut out, mut into) = (tops.clone(), tops.clone());
        for band in &self.bands {
            let (a, b) = (thickness(band.left, scale), thickness(band.arrived, scale));
            let (x0, x1) = (left(band.from) + PLACE_WIDTH, left(band.to));
            let (y0, y1) = (out[band.from], into[band.to]);
            out[band.from] += a;
            into[band.to] += b;
            let middle = f64::midpoint(x0, x1);
            let _ = writeln!(
                svg,
                "<path class=\"band\" d=\"M{x0:.1} {y0:.1}C{middle:.1} {y0:.1} {middle:.1} {y1:.1} {x1:.1} {y1:.1}V{:.1}\
                 C{middle:.1} {:.1} {middle:.1} {:.1} {x0:.1} {:.1}Z\"><title>{}</title></path>",
                y1 + b,
                y1 + b,
                y0 + a,
                y0 + a,
                escaped(&self.way(band))
            );
        }
        for (number, place) in self.places.iter().enumerate() {
            let (x, y) = (left(number), tops[number]);
            let _ = writeln!(
                svg,
                "<rect class=\"{}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{PLACE_WIDTH}\" height=\"{:.1}\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\">{}<tspan class=\"bytes\" x=\"{x:.1}\" dy=\"15\">{}</tspan></text>",
                place.column.class(),
                thickness(extents[number], scale),
                y - 21.0,
                escaped(&short(&place.name, step)),
                units::bytes(place.bytes)
            );
        }
        svg + "</svg>\n"
    }

    /// The same as a table.
    pub fn table(&self) -> String {
        let head =
            ["from", "to", "bytes out", "bytes in"].map(|name| format!("<th scope=\"col\">{name}</th>")).concat();
        let mut rows = format!("<table><thead><tr>{head}</tr></thead><tbody>\n");
        for Band { from, to, left, arrived } in &self.bands {
            let names = [from, to].map(|place| format!("<td>{}</td>", escaped(&self.places[*place].name)));
            let bytes = [left, arrived].map(|bytes| format!("<td class=\"number\">{}</td>", units::count(*bytes)));
            let _ = writeln!(rows, "<tr>{}{}</tr>", names.concat(), bytes.concat());
        }
        rows + "</tbody></table>\n"
    }

    fn way(&self, band: &Band) -> String {
        let (from, to) = (&self.places[band.from].name, &self.places[band.to].name);
        format!("{from} to {to}: {} out, {} in", units::bytes(band.left), units::bytes(band.arrived))
    }

    /// Units of the drawing for a byte: the fullest column fills it.
    fn scale(&self, columns: &[Column], extents: &[u64]) -> f64 {
        let of_column = |column: &Column| {
            let bytes = self.places.iter().zip(extents).filter(|(place, _)| place.column == *column);
            let (places, bytes) = bytes.fold((0, 0), |(places, all), (_, bytes)| (places + 1, all + bytes));
            let room = (HEIGHT - TOP - GAP * f64::from(places)).max(60.0);
            room / bytes.max(1) as f64
        };
        columns.iter().map(of_column).fold(f64::INFINITY, f64::min)
    }

    /// Where each place begins, those of a column below each other.
    fn tops(&self, columns: &[Column], extents: &[u64], scale: f64) -> Vec<f64> {
        let mut next = vec![TOP; columns.len()];
        let place_top = |(place, bytes): (&Place, &u64)| {
            let column = columns.iter().position(|column| *column == place.column).unwrap_or(0);
            let top = next[column];
            next[column] += thickness(*bytes, scale) + GAP;
            top
        };
        self.places.iter().zip(extents).map(place_top).collect()
    }
}

fn thickness(bytes: u64, scale: f64) -> f64 {
    (bytes as f64 * scale).max(THINNEST)
}

/// A name that leaves room for its neighbour's.
fn short(name: &str, width: f64) -> String {
    match name.char_indices().nth((width / LETTER_WIDTH) as usize) {
        Some((at, _)) => format!("{}…", &name[..at]),
        None => name.to_string(),
    }
}
