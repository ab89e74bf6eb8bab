//! Draws the bytes of a query from storage to its answer. It has a column for each kind of place,
//! and a band for each connection of two places, as thick as its bytes at either end.
//!
//! ```text
//! storage ─► page cache ─► scan of a table ─► join table ─► groups ─► answer
//! memory  ───────────────►                 ──────────────►
//! ```
//! The figures are the ledgers of the scans, and the sizes of tables, groups and answer. Data that
//! a query moved outside its scans, mostly files of other formats, has a place of its own. The
//! shares of inputs in a table or in the answer are not counted: they are in proportion to the
//! bytes sent.
//!
//! A band that passes a column has a *lane* there, a row between the places, so that no band covers
//! a label. In each column, places and lanes are ordered by their origins, and as near to these as
//! space permits, which limits crossings. Each column draws its largest places separately, and
//! merges the others.

use std::cmp::Reverse;
use std::fmt::Write;

use onehop_io::Hop;

use super::html::escaped;
use super::{Explanation, Facts, Node, Totals};
use crate::units;

const WIDTH: f64 = 1080.0;
/// The height of the fullest column's places with their gaps, if there are few.
const HEIGHT: f64 = 360.0;
const TOP: f64 = 42.0;
const PLACE_WIDTH: f64 = 12.0;
/// Space for a label of two lines above a place, and for a lane.
const LABEL: f64 = 44.0;
const LANE_GAP: f64 = 10.0;
/// Space for the labels of the last column.
const RIGHT: f64 = 110.0;
/// The approximate width of a letter of a label.
const LETTER_WIDTH: f64 = 7.8;
/// The minimum thickness, for visibility.
const THINNEST: f64 = 1.5;
/// Maximum places of a column.
const MAX_PLACES: usize = 12;

/// Columns, from the left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Column {
    Origin,
    PageCache,
    Scan,
    /// Tables that are probed to build other tables come before those.
    Table(Reverse<usize>),
    Groups,
    Answer,
}

impl Column {
    /// Returns its class in the style sheet.
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

/// Bytes that leave one place and, more or fewer of them, arrive at another.
#[derive(Debug)]
struct Band {
    from: usize,
    to: usize,
    left: u64,
    arrived: u64,
}

/// Places and the bands between them.
#[derive(Debug, Default)]
pub(super) struct Flow {
    places: Vec<Place>,
    bands: Vec<Band>,
}

impl Flow {
    /// Returns the flow of a query that has run.
    pub fn of(explanation: &Explanation, totals: &Totals) -> Self {
        let mut flow = Self::default();
        let answer = flow.place(Column::Answer, "answer", totals.answer_bytes);
        flow.add(&explanation.plan, answer, 0);
        flow.add_rest(totals, answer);
        flow.merge_smallest();
        flow.share_out();
        flow
    }

    /// Returns whether no bytes were moved or found in memory.
    pub fn is_empty(&self) -> bool {
        self.bands.is_empty()
    }

    /// Returns the place of a name, and adds bytes to it.
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

    /// Returns the bytes that a place is drawn for: the maximum of its contents, input and output.
    fn extent(&self, place: usize) -> u64 {
        let into = self.bands.iter().filter(|band| band.to == place).map(|band| band.arrived).sum();
        let out = self.bands.iter().filter(|band| band.from == place).map(|band| band.left).sum();
        self.places[place].bytes.max(into).max(out)
    }

    /// Adds an operator whose bytes go to `to`, for a table nested within `within` others.
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
                let table = self.place(Column::Table(Reverse(within)), &format!("by {}", join.keys.join(", ")), bytes);
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

    /// Adds a scan with the sources of its bytes.
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

    /// Adds the bytes that were read outside the known scans.
    fn add_rest(&mut self, totals: &Totals, answer: usize) {
        let of =
            |name: &str| self.places.iter().filter(|place| place.name == name).map(|place| place.bytes).sum::<u64>();
        let read = totals.ledger.read_bytes().saturating_sub(of("storage"));
        let copied = totals.ledger.hop(Hop::HostToHost).saturating_sub(of("page cache"));
        if read > 0 {
            let place = self.scan("files and the rest", read, copied, 0);
            self.band(place, answer, read, 0);
        }
    }

    /// Merges the smallest places of each column that has too many.
    fn merge_smallest(&mut self) {
        let mut columns: Vec<Column> = self.places.iter().map(|place| place.column).collect();
        columns.sort();
        columns.dedup();
        let mut becomes: Vec<usize> = (0..self.places.len()).collect();
        for column in columns {
            let mut of_column: Vec<usize> =
                (0..becomes.len()).filter(|place| self.places[*place].column == column).collect();
            if of_column.len() <= MAX_PLACES {
                continue;
            }
            of_column.sort_by_key(|place| Reverse(self.places[*place].bytes));
            let rest = &of_column[MAX_PLACES - 1..];
            let bytes = rest.iter().map(|place| self.places[*place].bytes).sum();
            self.places.push(Place { column, name: format!("{} others", rest.len()), bytes });
            rest.iter().for_each(|place| becomes[*place] = self.places.len() - 1);
        }
        for Band { from, to, left, arrived } in std::mem::take(&mut self.bands) {
            let new = |place: usize| becomes.get(place).copied().unwrap_or(place);
            self.band(new(from), new(to), left, arrived);
        }
    }

    /// Divides the bytes of a table, groups or the answer among its inputs, by the bytes they send.
    fn share_out(&mut self) {
        for (number, place) in self.places.iter().enumerate() {
            if place.column <= Column::Scan {
                continue;
            }
            let sent: u64 = self.bands.iter().filter(|band| band.to == number).map(|band| band.left).sum();
            for band in self.bands.iter_mut().filter(|band| band.to == number) {
                let share = band.left as f64 / sent.max(1) as f64;
                band.arrived = (place.bytes as f64 * share).round() as u64;
            }
        }
    }

    /// Returns the drawing.
    pub fn svg(&self) -> String {
        let layout = Layout::of(self);
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"Bytes from storage to answer; the table below \
             has the same figures\">\n",
            layout.height
        );
        for (band, path) in self.bands.iter().zip(&layout.paths) {
            let class = self.places[band.from].column.class();
            let title = escaped(&self.way(band));
            let _ = writeln!(svg, "<path class=\"band {class}\" d=\"{path}\"><title>{title}</title></path>");
        }
        for (number, place) in self.places.iter().enumerate() {
            // Skips places that were merged.
            if !layout.is_drawn[number] {
                continue;
            }
            let Spot { x, y, thick } = layout.places[number];
            let (name, bytes) = (escaped(&short(&place.name, layout.step)), units::bytes(place.bytes));
            let _ = writeln!(
                svg,
                "<g><title>{}: {bytes}</title><rect class=\"{}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{PLACE_WIDTH}\" \
                 height=\"{thick:.1}\" rx=\"1\"/><text x=\"{x:.1}\" y=\"{:.1}\">{name}<tspan class=\"bytes\" \
                 x=\"{x:.1}\" dy=\"15\">{bytes}</tspan></text></g>",
                escaped(&place.name),
                place.column.class(),
                y - 21.0,
            );
        }
        svg + "</svg>\n"
    }

    /// Returns the same as a table.
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
}

/// The position of an item in the drawing.
#[derive(Clone, Copy, Debug, Default)]
struct Spot {
    x: f64,
    y: f64,
    thick: f64,
}

/// An item of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Item {
    Place(usize),
    /// The lane of a band that passes.
    Lane(usize),
}

/// The positions of all items of a flow.
struct Layout {
    height: f64,
    /// The distance between columns.
    step: f64,
    places: Vec<Spot>,
    is_drawn: Vec<bool>,
    /// The paths of the bands.
    paths: Vec<String>,
}

impl Layout {
    fn of(flow: &Flow) -> Self {
        let count = flow.places.len();
        let is_drawn: Vec<bool> =
            (0..count).map(|place| flow.bands.iter().any(|band| band.from == place || band.to == place)).collect();
        let mut columns: Vec<Column> =
            flow.places.iter().zip(&is_drawn).filter(|(_, drawn)| **drawn).map(|(place, _)| place.column).collect();
        columns.sort();
        columns.dedup();
        let column_of = |place: usize| columns.iter().position(|c| *c == flow.places[place].column).unwrap_or(0);
        let mut items: Vec<Vec<Item>> = vec![Vec::new(); columns.len()];
        (0..count).filter(|place| is_drawn[*place]).for_each(|place| items[column_of(place)].push(Item::Place(place)));
        for (number, band) in flow.bands.iter().enumerate() {
            let passed = items.iter_mut().take(column_of(band.to)).skip(column_of(band.from) + 1);
            passed.for_each(|items| items.push(Item::Lane(number)));
        }
        let bytes = |item: &Item| match item {
            Item::Place(place) => flow.extent(*place),
            Item::Lane(band) => flow.bands[*band].left,
        };
        let gap = |item: &Item| if matches!(item, Item::Place(_)) { LABEL } else { LANE_GAP };
        // Drawing units per byte: the fullest column fills the height.
        let scale_of = |items: &Vec<Item>| {
            let room = (HEIGHT - items.iter().map(gap).sum::<f64>()).max(60.0);
            room / items.iter().map(bytes).sum::<u64>().max(1) as f64
        };
        let scale = items.iter().map(scale_of).fold(f64::INFINITY, f64::min);
        let step = (WIDTH - RIGHT - PLACE_WIDTH) / (columns.len().max(2) - 1) as f64;

        let mut places = vec![Spot::default(); count];
        // The lanes of each band.
        let mut lanes: Vec<Vec<Spot>> = vec![Vec::new(); flow.bands.len()];
        let mut height = 0.0;
        for (number, column) in items.iter_mut().enumerate() {
            let origin = |item: &Item| origin(flow, &places, &lanes, *item);
            column.sort_by(|a, b| origin(a).total_cmp(&origin(b)));
            let origins: Vec<f64> = column.iter().map(origin).collect();
            let mut next: f64 = 0.0;
            for (item, origin) in column.iter().zip(origins) {
                let thick = thickness(bytes(item), scale);
                let least = next + if matches!(item, Item::Place(_)) { TOP } else { LANE_GAP };
                // An item without an origin is placed as high as possible.
                let y = if origin.is_finite() { least.max(origin - thick / 2.0) } else { least };
                let spot = Spot { x: number as f64 * step, y, thick };
                match item {
                    Item::Place(place) => places[*place] = spot,
                    Item::Lane(band) => lanes[*band].push(spot),
                }
                next = y + thick;
            }
            height = f64::max(height, next + LANE_GAP);
        }
        let paths = paths(flow, &places, &lanes, scale);
        Self { height, step, places, is_drawn, paths }
    }
}

/// Returns the mean position of an item's origins, weighted by bytes; negative infinity without
/// origins.
fn origin(flow: &Flow, places: &[Spot], lanes: &[Vec<Spot>], item: Item) -> f64 {
    let is_into = |number: usize, band: &Band| match item {
        Item::Place(place) => band.to == place,
        Item::Lane(lane) => number == lane,
    };
    let (mut weight, mut sum) = (0.0, 0.0);
    for (number, band) in flow.bands.iter().enumerate().filter(|(number, band)| is_into(*number, band)) {
        let from = lanes[number].last().unwrap_or(&places[band.from]);
        let bytes = band.left.max(1) as f64;
        weight += bytes;
        sum += bytes * (from.y + from.thick / 2.0);
    }
    // Items without an origin come first.
    if weight > 0.0 { sum / weight } else { f64::NEG_INFINITY }
}

/// Returns each band's outline. Bands that share a place are ordered by their targets where they
/// leave it, and by their origins where they reach it.
fn paths(flow: &Flow, places: &[Spot], lanes: &[Vec<Spot>], scale: f64) -> Vec<String> {
    let ends = |number: usize| {
        let band = &flow.bands[number];
        let next = lanes[number].first().unwrap_or(&places[band.to]);
        let before = lanes[number].last().unwrap_or(&places[band.from]);
        (next.y, before.y)
    };
    let mut by_target: Vec<usize> = (0..flow.bands.len()).collect();
    by_target.sort_by(|a, b| ends(*a).0.total_cmp(&ends(*b).0));
    let mut by_origin = by_target.clone();
    by_origin.sort_by(|a, b| ends(*a).1.total_cmp(&ends(*b).1));
    let (mut out, mut into): (Vec<f64>, Vec<f64>) = places.iter().map(|spot| (spot.y, spot.y)).unzip();
    let (mut starts, mut stops) = (vec![0.0; flow.bands.len()], vec![0.0; flow.bands.len()]);
    for number in by_target {
        let band = &flow.bands[number];
        starts[number] = out[band.from];
        out[band.from] += thickness(band.left, scale);
    }
    for number in by_origin {
        let band = &flow.bands[number];
        stops[number] = into[band.to];
        into[band.to] += thickness(band.arrived, scale);
    }
    let path = |(number, band): (usize, &Band)| {
        let start = Spot { x: places[band.from].x, y: starts[number], thick: thickness(band.left, scale) };
        let stop = Spot { x: places[band.to].x, y: stops[number], thick: thickness(band.arrived, scale) };
        let stations: Vec<Spot> = [start].into_iter().chain(lanes[number].iter().copied()).chain([stop]).collect();
        outline(&stations)
    };
    flow.bands.iter().enumerate().map(path).collect()
}

/// Returns the path along the upper edges of a band's stations, and back along the lower ones.
fn outline(stations: &[Spot]) -> String {
    let Some((first, rest)) = stations.split_first() else { return String::new() };
    let right = |spot: &Spot| spot.x + PLACE_WIDTH;
    let low = |spot: &Spot| spot.y + spot.thick;
    let mut path = format!("M{:.1} {:.1}", right(first), first.y);
    let mut from = first;
    for to in rest {
        let middle = f64::midpoint(right(from), to.x);
        let _ = write!(path, "C{middle:.1} {:.1} {middle:.1} {:.1} {:.1} {:.1}", from.y, to.y, to.x, to.y);
        if !std::ptr::eq(to, &stations[stations.len() - 1]) {
            let _ = write!(path, "H{:.1}", right(to));
        }
        from = to;
    }
    let _ = write!(path, "V{:.1}", low(from));
    for (to, from) in stations.iter().zip(rest).rev() {
        if !std::ptr::eq(from, &stations[stations.len() - 1]) {
            let _ = write!(path, "H{:.1}", from.x);
        }
        let middle = f64::midpoint(right(to), from.x);
        let _ =
            write!(path, "C{middle:.1} {:.1} {middle:.1} {:.1} {:.1} {:.1}", low(from), low(to), right(to), low(to));
    }
    path + "Z"
}

fn thickness(bytes: u64, scale: f64) -> f64 {
    (bytes as f64 * scale).max(THINNEST)
}

/// Shortens a name to leave space for its neighbour's.
fn short(name: &str, width: f64) -> String {
    let most = (width / LETTER_WIDTH) as usize;
    match name.char_indices().nth(most) {
        Some(_) => name.chars().take(most.saturating_sub(2)).chain(['…']).collect(),
        None => name.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(bands: &[(usize, usize, u64)], columns: &[Column]) -> Flow {
        let mut flow = Flow::default();
        for (number, column) in columns.iter().enumerate() {
            flow.place(*column, &format!("place {number}"), 100);
        }
        bands.iter().for_each(|(from, to, bytes)| flow.band(*from, *to, *bytes, *bytes));
        flow
    }

    #[test]
    fn no_two_things_of_a_column_overlap() {
        let columns = [Column::Origin, Column::Scan, Column::Scan, Column::Table(Reverse(0)), Column::Answer];
        let flow = flow(&[(0, 1, 900), (0, 2, 100), (1, 4, 900), (2, 3, 50), (3, 4, 50)], &columns);
        let layout = Layout::of(&flow);
        assert!(layout.is_drawn.iter().all(|drawn| *drawn) && layout.paths.len() == 5);
        let mut scans = [layout.places[1], layout.places[2]];
        scans.sort_by(|a, b| a.y.total_cmp(&b.y));
        assert!(scans[0].y + scans[0].thick + 20.0 < scans[1].y, "{scans:?}");
        // The band that passes the table's column runs above the table and its label.
        assert_eq!(layout.paths[2].matches('H').count(), 2, "{}", layout.paths[2]);
        assert!(layout.places[3].y > layout.places[1].y + layout.places[1].thick, "{:?}", layout.places);
        assert!(layout.places.iter().all(|spot| spot.y + spot.thick <= layout.height && spot.x <= WIDTH - RIGHT));
    }

    #[test]
    fn of_many_places_the_smallest_are_one() {
        let columns: Vec<Column> = [Column::Origin, Column::Answer].into_iter().chain([Column::Scan; 40]).collect();
        let bands: Vec<_> = (2..42).flat_map(|scan| [(0, scan, scan as u64), (scan, 1, scan as u64)]).collect();
        let mut flow = flow(&bands, &columns);
        flow.places.iter_mut().enumerate().for_each(|(number, place)| place.bytes = number as u64);
        flow.merge_smallest();
        flow.share_out();
        let layout = Layout::of(&flow);
        let drawn: Vec<&str> =
            flow.places.iter().zip(&layout.is_drawn).filter(|(_, d)| **d).map(|(p, _)| p.name.as_str()).collect();
        assert_eq!(drawn.len(), 2 + MAX_PLACES);
        assert!(
            drawn.contains(&"29 others") && drawn.contains(&"place 41") && !drawn.contains(&"place 2"),
            "{drawn:?}"
        );
        let sent: u64 = flow.bands.iter().filter(|band| band.from == 0).map(|band| band.left).sum();
        assert_eq!(sent, (2..42).sum::<u64>());
    }

    #[test]
    fn names_leave_room() {
        assert_eq!(short("short", 100.0), "short");
        assert_eq!(short("äöü and much, much more", 79.0), "äöü and …");
    }
}
