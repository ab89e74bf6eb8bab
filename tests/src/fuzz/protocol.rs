//! PostgreSQL's protocol: whole conversations, values of parameters, and rows of COPY.
//!
//! A conversation consists of all bytes of a client, from the first on. The first byte of an input
//! selects a server with or without log-ins. Damage changes its bytes, or its messages, whose
//! lengths are then corrected. Values and rows are sent over a persistent connection, in whole
//! messages with damaged contents.

use std::net::Ipv4Addr;

use super::server::{Connection, LogIns, Place};
use super::{Made, Mutator, Outcome, Target, Verdict};

/// Encodes a message.
pub(super) fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
}

/// Encodes the first packet of a client.
pub(super) fn startup(parameters: &[(&str, &str)]) -> Vec<u8> {
    let parameters: String = parameters.iter().map(|(name, value)| format!("{name}\0{value}\0")).collect();
    packet(&[&196_608_u32.to_be_bytes()[..], parameters.as_bytes(), b"\0"].concat())
}

/// Encodes a message without a type.
fn packet(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32 + 4).to_be_bytes()[..], body].concat()
}

pub(super) fn terminate() -> Vec<u8> {
    message(b'X', b"")
}

fn query(sql: &str) -> Vec<u8> {
    message(b'Q', format!("{sql}\0").as_bytes())
}

fn sync() -> Vec<u8> {
    message(b'S', b"")
}

fn parse(name: &str, sql: &str, types: &[u32]) -> Vec<u8> {
    let mut body = format!("{name}\0{sql}\0").into_bytes();
    body.extend((types.len() as u16).to_be_bytes());
    types.iter().for_each(|oid| body.extend(oid.to_be_bytes()));
    message(b'P', &body)
}

fn bind(portal: &str, statement: &str, formats: &[u16], values: &[Option<&[u8]>], results: &[u16]) -> Vec<u8> {
    let mut body = format!("{portal}\0{statement}\0").into_bytes();
    let put = |body: &mut Vec<u8>, formats: &[u16]| {
        body.extend((formats.len() as u16).to_be_bytes());
        formats.iter().for_each(|format| body.extend(format.to_be_bytes()));
    };
    put(&mut body, formats);
    body.extend((values.len() as u16).to_be_bytes());
    for value in values {
        body.extend(value.map_or(-1, |value| value.len() as i32).to_be_bytes());
        body.extend(value.unwrap_or_default());
    }
    put(&mut body, results);
    message(b'B', &body)
}

fn describe(kind: char, name: &str) -> Vec<u8> {
    message(b'D', format!("{kind}{name}\0").as_bytes())
}

fn execute(portal: &str, rows: u32) -> Vec<u8> {
    message(b'E', &[format!("{portal}\0").as_bytes(), &rows.to_be_bytes()].concat())
}

fn close(kind: char, name: &str) -> Vec<u8> {
    message(b'C', format!("{kind}{name}\0").as_bytes())
}

fn data(bytes: &[u8]) -> Vec<u8> {
    message(b'd', bytes)
}

/// Returns the complete messages of a server.
fn answers(bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = u32::from_be_bytes(rest.get(1..5)?.try_into().ok()?) as usize;
        let (kind, body) = (rest[0], rest.get(5..length + 1)?);
        rest = &rest[length + 1..];
        Some((kind, body))
    })
}

/// Counts the `ReadyForQuery` messages of a server.
pub(super) fn ready(bytes: &[u8]) -> usize {
    answers(bytes).filter(|(kind, _)| *kind == b'Z').count()
}

/// Judges a server's answer: an error of class `XX` is a failure.
fn judge(answer: &[u8]) -> Verdict {
    let mut outcome = Outcome::Accepted;
    for (_, body) in answers(answer).filter(|(kind, _)| *kind == b'E') {
        outcome = Outcome::Refused;
        let fields = || body.split(|byte| *byte == 0);
        if fields().any(|field| field.starts_with(b"CXX")) {
            let message = fields().find_map(|field| field.strip_prefix(b"M")).unwrap_or_default();
            return Err(format!("internal: {}", String::from_utf8_lossy(message)));
        }
    }
    Ok(outcome)
}

/// The target of whole conversations.
struct Conversations {
    open: Place,
    users: Place,
}

pub(super) fn conversations() -> Made {
    Ok(Box::new(Conversations { open: Place::new(LogIns::None)?, users: Place::new(LogIns::Users)? }))
}

impl Target for Conversations {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let ada = || {
            startup(&[("user", "ada"), ("database", "test"), ("application_name", "fuzz"), ("client_encoding", "UTF8")])
        };
        let open = |parts: &[Vec<u8>]| [vec![b'o'], ada(), parts.concat()].concat();
        let number = 7_i32.to_be_bytes();
        let sasl = |text: &str| {
            message(b'p', &[b"SCRAM-SHA-256\0", &(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat())
        };
        let rows = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0\0\x02\0\0\0\x04\0\0\0\x01\0\0\0\x01a\0\x02\xff\xff\xff\xff\0\0\0\0\xff\xff";
        vec![
            open(&[query("SELECT 1; SELECT * FROM t; SELECT 'x'"), query("SELECT nonsense"), query("")]),
            open(&[
                parse("s", "SELECT a, s, d FROM t WHERE a > $1 AND s <> $2", &[23, 25]),
                describe('S', "s"),
                bind("p", "s", &[1, 0], &[Some(&number), Some(b"y")], &[1]),
                describe('P', "p"),
                execute("p", 1),
                execute("p", 0),
                close('P', "p"),
                close('S', "s"),
                sync(),
            ]),
            open(&[
                query("BEGIN"),
                parse("", "SELECT * FROM generate_series(1, 1000) AS g(i)", &[]),
                bind("c", "", &[], &[], &[0]),
                execute("c", 10),
                message(b'H', b""),
                execute("c", 10),
                sync(),
                query("SELECT error"),
                query("SELECT 1"),
                query("ROLLBACK"),
            ]),
            open(&[
                query("COPY small FROM STDIN"),
                data(b"1\ta\n2\t\\N\n"),
                data(b"3\t\\x41\\n\n\\.\n"),
                message(b'c', b""),
                query("COPY small TO STDOUT WITH (FORMAT csv, HEADER)"),
                query("COPY (SELECT * FROM t) TO STDOUT (FORMAT binary)"),
            ]),
            open(&[
                query("COPY small FROM STDIN (FORMAT csv)"),
                data(b"1,\"a\"\"b\"\n2,"),
                message(b'f', b"no more\0"),
                query("SELECT 1"),
            ]),
            open(&[
                query("COPY small FROM STDIN (FORMAT binary)"),
                data(&rows[..20]),
                data(&rows[20..]),
                message(b'c', b""),
            ]),
            open(&[
                parse("i", "INSERT INTO small VALUES ($1, $2) RETURNING i", &[]),
                bind("", "i", &[0], &[Some(b"5"), None], &[]),
                execute("", 0),
                bind("", "i", &[1, 1], &[Some(&number), Some(b"x")], &[1]),
                execute("", 0),
                sync(),
                query(
                    "PREPARE q (INT) AS SELECT $1 + 1; EXECUTE q(2); DEALLOCATE ALL; SET datestyle TO 'German'; SHOW ALL; DISCARD ALL",
                ),
                query("DECLARE k CURSOR FOR SELECT * FROM t; FETCH 2 FROM k; CLOSE k"),
            ]),
            open(&[message(b'F', b"\0\0\0\x01\0\0\0\0\0\0"), query("SELECT 1"), message(b'p', b"secret\0")]),
            [
                vec![b'o'],
                packet(&80_877_103_u32.to_be_bytes()),
                packet(&80_877_104_u32.to_be_bytes()),
                ada(),
                query("SELECT 1"),
            ]
            .concat(),
            [
                vec![b'o'],
                packet(&[&80_877_102_u32.to_be_bytes()[..], &1_u32.to_be_bytes(), &2_u32.to_be_bytes()].concat()),
            ]
            .concat(),
            [
                vec![b'o'],
                packet(
                    &[
                        &196_610_u32.to_be_bytes()[..],
                        b"user\0x\0_pq_.y\0z\0options\0-c statement_timeout=1s\0TimeZone\0Europe/Berlin\0\0",
                    ]
                    .concat(),
                ),
                query("SELECT now()"),
            ]
            .concat(),
            [vec![b'u'], ada(), sasl("n,,n=,r=abcdefgh"), message(b'p', b"c=biws,r=abcdefgh,p=AAAA")].concat(),
            [
                vec![b'u'],
                startup(&[("user", "nobody")]),
                sasl("y,a=x,n=x,r=0123456789"),
                message(b'p', b"c=eSws,r=0,p="),
            ]
            .concat(),
            [vec![b'u'], ada(), message(b'p', b"secret\0"), query("SELECT 1")].concat(),
        ]
    }

    fn mutate(&self, mutator: &mut Mutator, input: &[u8], other: &[u8]) -> Vec<u8> {
        match mutator.next(4) {
            0 => mutator.mutate(input, other),
            _ => damaged(mutator, input, other),
        }
    }

    fn run(&mut self, input: &[u8]) -> Verdict {
        let (kind, bytes) = input.split_first().unwrap_or((&b'o', &[]));
        let place = if *kind == b'u' { &self.users } else { &self.open };
        // Wrong log-ins are counted by address, and an address with many has to wait.
        let hash = input.iter().fold(7_u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(*byte)));
        let from = match kind {
            b'u' => Ipv4Addr::from(0x7F00_0000 | (hash & 0x00FF_FFFF).clamp(2, 0x00FF_FFF0)),
            _ => Ipv4Addr::LOCALHOST,
        };
        judge(&place.converse(place.address, from, &[bytes, &terminate()].concat())?)
    }

    fn settle(&mut self) -> Result<(), String> {
        self.open.is_well()
    }
}

/// Splits a conversation into its first byte, its packets without a type, and its messages.
fn parts(input: &[u8]) -> Vec<Vec<u8>> {
    let (mut parts, mut rest) = (Vec::new(), input);
    let mut take = |rest: &mut &[u8], bytes: usize| {
        let (part, left) = rest.split_at(bytes.min(rest.len()));
        *rest = left;
        parts.push(part.to_vec());
    };
    take(&mut rest, 1);
    let length = |rest: &[u8], at: usize| {
        rest.get(at..at + 4).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]) as usize)
    };
    // The length of a packet begins with a zero byte, the type of a message does not.
    while rest.first() == Some(&0) {
        let bytes = length(rest, 0).max(4);
        take(&mut rest, bytes);
    }
    while !rest.is_empty() {
        let bytes = (length(rest, 1) + 1).max(5);
        take(&mut rest, bytes);
    }
    parts
}

/// Damages messages. Most of the time their lengths are corrected.
fn damaged(mutator: &mut Mutator, input: &[u8], other: &[u8]) -> Vec<u8> {
    const KINDS: &[u8] = b"BCDEFHPQSXcdfp";
    let (mut all, others) = (parts(input), parts(other));
    for _ in 0..=mutator.next(3) {
        let at = 1 + mutator.next(all.len().saturating_sub(1).max(1));
        let theirs = others[mutator.next(others.len())].clone();
        match mutator.next(10) {
            0 if at < all.len() && all.len() > 2 => _ = all.remove(at),
            1 if at < all.len() => all.insert(at, all[at].clone()),
            2 if at < all.len() => {
                let with = 1 + mutator.next(all.len() - 1);
                all.swap(at, with);
            }
            3 => all.insert(at.min(all.len()), theirs),
            4 if at < all.len() && !all[at].is_empty() => all[at][0] = *mutator.one_of(KINDS),
            5 => all.insert(at.min(all.len()), message(*mutator.one_of(KINDS), &theirs)),
            _ if at < all.len() && all[at].len() > 5 => {
                let head = if all[at][0] == 0 { 4 } else { 5 };
                let body = mutator.mutate(&all[at][head..], theirs.get(head..).unwrap_or_default());
                all[at] = match head {
                    4 => packet(&body),
                    _ => message(all[at][0], &body),
                };
            }
            _ => {}
        }
    }
    all.concat()
}

/// The OIDs of parameter types: scalar types, array types, and unknown ones.
const TYPES: [u32; 38] = [
    16, 17, 20, 21, 23, 25, 26, 114, 700, 701, 790, 1000, 1005, 1007, 1009, 1016, 1021, 1022, 1042, 1043, 1082, 1083,
    1114, 1115, 1182, 1184, 1185, 1186, 1187, 1231, 1266, 1700, 2950, 2951, 3802, 705, 0, 999_999,
];
/// Statements with one parameter.
const STATEMENTS: [&str; 6] = [
    "SELECT $1 AS v",
    "SELECT CAST($1 AS VARCHAR), $1 IS NULL",
    "SELECT * FROM c WHERE s = $1 OR CAST(k AS VARCHAR) = CAST($1 AS VARCHAR)",
    "INSERT INTO c (s) VALUES ($1)",
    "SELECT k FROM c WHERE k = ANY($1)",
    "SELECT $1 || 'x', coalesce($1, NULL)",
];

/// The target of parameter values: `type, statement, format of the value, format of the result`,
/// and the value.
struct Values {
    place: Place,
    connection: Option<Connection>,
}

pub(super) fn values() -> Made {
    Ok(Box::new(Values { place: Place::new(LogIns::None)?, connection: None }))
}

impl Target for Values {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let texts: [&[u8]; 16] = [
            b"t",
            b"\\xdeadbeef",
            b"-9223372036854775808",
            b"12",
            b"1.5e-300",
            b"NaN",
            b"-123456789012345678901234567890.0001",
            b"2024-02-29",
            b"12:34:56.789",
            b"2024-02-29 12:34:56.789+01:30",
            b"1 year -2 mons 3 days 04:05:06.7",
            b"{1,NULL,3}",
            b"{\"a b\",NULL,\"\\\"\"}",
            b"{\"a\": [1, null]}",
            b"00112233-4455-6677-8899-aabbccddeeff",
            b"0044-03-15 BC",
        ];
        let numeric = [0, 2, 0, 1, 0, 0, 0, 4, 0x04, 0xD2, 0x16, 0x2E];
        let array =
            [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 23, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 7, 255, 255, 255, 255];
        let interval = [0, 0, 0, 0, 0, 0x0F, 0x42, 0x40, 0, 0, 0, 3, 0, 0, 0, 14];
        let binaries: [&[u8]; 8] = [
            &[1],
            &[0; 2],
            &[0, 0, 0, 7],
            &[0x40, 0x09, 0x21, 0xFB, 0x54, 0x44, 0x2D, 0x18],
            &numeric,
            &array,
            &interval,
            &[7; 16],
        ];
        let mut seeds = Vec::new();
        for number in 0..TYPES.len() {
            for (format, values) in [(0, &texts[..]), (1, &binaries[..])] {
                let value = values[number % values.len()];
                let other = values[(number * 5 + 1) % values.len()];
                seeds.push([&[number as u8, number as u8, format, format][..], value].concat());
                seeds.push([&[number as u8, (number + 1) as u8, format, 1 - format][..], other].concat());
            }
        }
        seeds
    }

    fn mutate(&self, mutator: &mut Mutator, input: &[u8], other: &[u8]) -> Vec<u8> {
        let mut mutated = mutator.mutate(input, other.get(4..).unwrap_or_default());
        // There are two formats. Most other byte values would be refused at once.
        for at in [2, 3] {
            if let Some(byte) = mutated.get_mut(at).filter(|byte| **byte > 1) {
                *byte &= 1;
            }
        }
        mutated
    }

    fn run(&mut self, input: &[u8]) -> Verdict {
        let head = |at: usize| input.get(at).copied().unwrap_or(0);
        let oid = TYPES[usize::from(head(0)) % TYPES.len()];
        let sql = STATEMENTS[usize::from(head(1)) % STATEMENTS.len()];
        let value = input.get(4..);
        let messages = [
            parse("", sql, &[oid]),
            bind("", "", &[u16::from(head(2))], &[value], &[u16::from(head(3))]),
            describe('P', ""),
            execute("", 0),
            sync(),
        ];
        ask(&self.place, &mut self.connection, &messages.concat(), 1)
    }
}

/// Asks over a persistent connection, which is opened when first needed, and again after one that
/// ended.
fn ask(place: &Place, connection: &mut Option<Connection>, bytes: &[u8], times: usize) -> Verdict {
    let mut open = match connection.take() {
        Some(open) => open,
        None => Connection::new(place)?,
    };
    match open.ask(bytes, times) {
        Ok(answer) => {
            *connection = Some(open);
            judge(&answer)
        }
        // Messages were whole, so no damage to their contents may end a connection.
        Err(e) => Err(e),
    }
}

/// The target of COPY: rows in a format that the input's first byte selects, and back.
struct CopyRows {
    place: Place,
    connection: Option<Connection>,
}

pub(super) fn copy_binary() -> Made {
    Ok(Box::new(CopyRows { place: Place::new(LogIns::None)?, connection: None }))
}

impl Target for CopyRows {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let mut rows = b"bPGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0".to_vec();
        let numeric = [0, 2, 0, 0, 0, 0, 0, 2, 0, 12, 0x13, 0x88];
        let fields: [&[u8]; 11] = [
            &[1],
            &[0, 5],
            &[0, 0, 0, 7],
            &[0, 0, 0, 0, 0, 0, 0, 9],
            &1.5_f32.to_be_bytes(),
            &2.5_f64.to_be_bytes(),
            &numeric,
            "text ü".as_bytes(),
            &8825_i32.to_be_bytes(),
            &762_000_000_000_000_i64.to_be_bytes(),
            &762_000_000_000_000_i64.to_be_bytes(),
        ];
        rows.extend(11_u16.to_be_bytes());
        for field in fields {
            rows.extend((field.len() as u32).to_be_bytes());
            rows.extend(field);
        }
        rows.extend(11_u16.to_be_bytes());
        rows.extend([255; 4 * 11]);
        rows.extend([255, 255]);
        let text = "ttrue\t1\t2\t3\t1.5\t2.5\t12.50\ta\\tb\\\\\t2024-02-29\t2024-02-29 12:00:00\t2024-02-29 12:00:00+01\n\
            \\N\t\\N\t\\N\t\\N\t\\N\t\\N\t\\N\t\\N\t\\N\t\\N\t\\N\n";
        let csv = "cf,1,2,3,1.5,2.5,-12.50,\"a \"\"b\"\", c\nd\",2024-02-29,2024-02-29 12:00:00,2024-02-29 12:00:00+01\n,,,,,,,,,,\n";
        vec![rows, text.as_bytes().to_vec(), csv.as_bytes().to_vec()]
    }

    fn run(&mut self, input: &[u8]) -> Verdict {
        let (kind, rows) = input.split_first().unwrap_or((&b'b', &[]));
        let format = match kind {
            b't' => "text",
            b'c' => "csv",
            _ => "binary",
        };
        let cut = rows.len() / 3;
        let messages = [
            query("BEGIN"),
            query(&format!("COPY c FROM STDIN (FORMAT {format})")),
            data(&rows[..cut]),
            data(&rows[cut..]),
            message(b'c', b""),
            query("SELECT count(*), sum(k), max(n), min(t) FROM c"),
            query(&format!("COPY c TO STDOUT (FORMAT {format})")),
            query("ROLLBACK"),
        ];
        ask(&self.place, &mut self.connection, &messages.concat(), 5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_conversation() {
        let whole = [vec![b'o'], startup(&[("user", "x")]), query("SELECT 1"), sync(), vec![7, 0, 0]].concat();
        assert_eq!(parts(&whole).concat(), whole);
        assert_eq!(parts(&whole).len(), 5);
        assert_eq!(parts(b""), vec![Vec::<u8>::new()]);
        for seed in 0..200 {
            let _ = damaged(&mut Mutator::new(seed), &whole, b"x");
        }
    }
}
