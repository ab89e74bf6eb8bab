//! Thrift's compact protocol, as far as needed to walk footers and page headers.
//!
//! A walk allocates nothing. Every count is checked against the bytes that are left, and nested
//! structs against [`MOST_DEPTH`].

/// The maximum nesting of structs, lists and maps. Parquet's own have six levels.
const MOST_DEPTH: u8 = 32;

/// The reason why bytes are not of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason} at byte {at}")]
pub(super) struct Broken {
    reason: &'static str,
    at: usize,
}

pub(super) type Walked<T> = Result<T, Broken>;

/// The type of a value, and of the elements of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Boolean,
    Byte,
    Integer,
    Double,
    Binary,
    List,
    Map,
    Struct,
    Uuid,
}

impl Kind {
    fn of(code: u8) -> Option<Self> {
        Some(match code {
            1 | 2 => Self::Boolean,
            3 => Self::Byte,
            4..=6 => Self::Integer,
            7 => Self::Double,
            8 => Self::Binary,
            9 | 10 => Self::List,
            11 => Self::Map,
            12 => Self::Struct,
            13 => Self::Uuid,
            _ => return None,
        })
    }
}

/// A list's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct List {
    /// `None` for the empty lists of some writers.
    pub kind: Option<Kind>,
    /// The number of elements.
    pub len: usize,
}

/// Walks over bytes.
#[derive(Clone, Debug)]
pub(super) struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Walk<'a> {
    /// Begins a walk.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns the number of bytes before the next value.
    pub fn position(&self) -> usize {
        self.at
    }

    fn broken<T>(&self, reason: &'static str) -> Walked<T> {
        Err(Broken { reason, at: self.at })
    }

    fn byte(&mut self) -> Walked<u8> {
        let Some(byte) = self.bytes.get(self.at) else { return self.broken("an end within a value") };
        self.at += 1;
        Ok(*byte)
    }

    fn pass(&mut self, bytes: u64) -> Walked<()> {
        let left = (self.bytes.len() - self.at) as u64;
        if bytes > left {
            return self.broken("a length beyond the end");
        }
        self.at += bytes as usize;
        Ok(())
    }

    fn varint(&mut self) -> Walked<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        self.broken("a number of more than 64 bits")
    }

    /// Reads a number of any width.
    pub fn integer(&mut self) -> Walked<i64> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Reads the header of a list. Fails if the list has more elements than bytes are left.
    pub fn list(&mut self) -> Walked<List> {
        let header = self.byte()?;
        let len = match header >> 4 {
            15 => self.varint()?,
            short => short.into(),
        };
        if len > (self.bytes.len() - self.at) as u64 {
            return self.broken("a list with more elements than bytes follow");
        }
        let kind = Kind::of(header & 0x0F);
        if kind.is_none() && len > 0 {
            return self.broken("a list of no known type");
        }
        Ok(List { kind, len: len as usize })
    }

    /// Calls `with` for each field of a struct. It returns true if it has read the value, otherwise
    /// the value is skipped.
    pub fn fields(&mut self, mut with: impl FnMut(&mut Self, i64, Kind) -> Walked<bool>) -> Walked<()> {
        let mut id = 0;
        loop {
            let header = self.byte()?;
            if header == 0 {
                return Ok(());
            }
            id = match header >> 4 {
                0 => self.integer()?,
                delta => id + i64::from(delta),
            };
            let Some(kind) = Kind::of(header & 0x0F) else { return self.broken("a field of no known type") };
            if !with(self, id, kind)? {
                self.skip(kind, MOST_DEPTH, Within::Struct)?;
            }
            id = id.clamp(0, i64::from(i16::MAX));
        }
    }

    fn skip(&mut self, kind: Kind, depth: u8, within: Within) -> Walked<()> {
        let Some(depth) = depth.checked_sub(1) else { return self.broken("values nested too deep") };
        match kind {
            // A field has its boolean in its header.
            Kind::Boolean => self.pass(u64::from(within == Within::List)),
            Kind::Byte => self.pass(1),
            Kind::Integer => self.varint().map(drop),
            Kind::Double => self.pass(8),
            Kind::Uuid => self.pass(16),
            Kind::Binary => {
                let len = self.varint()?;
                self.pass(len)
            }
            Kind::List => {
                let List { kind, len } = self.list()?;
                (0..len).try_for_each(|_| kind.map_or(Ok(()), |kind| self.skip(kind, depth, Within::List)))
            }
            Kind::Map => self.skip_map(depth),
            Kind::Struct => loop {
                let header = self.byte()?;
                if header == 0 {
                    return Ok(());
                }
                if header >> 4 == 0 {
                    self.integer()?;
                }
                let Some(kind) = Kind::of(header & 0x0F) else { return self.broken("a field of no known type") };
                self.skip(kind, depth, Within::Struct)?;
            },
        }
    }

    fn skip_map(&mut self, depth: u8) -> Walked<()> {
        let len = self.varint()?;
        if len == 0 {
            return Ok(());
        }
        let kinds = self.byte()?;
        let (Some(key), Some(value)) = (Kind::of(kinds >> 4), Kind::of(kinds & 0x0F)) else {
            return self.broken("a map of no known type");
        };
        for _ in 0..len {
            self.skip(key, depth, Within::List)?;
            self.skip(value, depth, Within::List)?;
        }
        Ok(())
    }

    /// Skips an element of a list.
    pub fn skip_element(&mut self, kind: Kind) -> Walked<()> {
        self.skip(kind, MOST_DEPTH, Within::List)
    }
}

/// The container of a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Struct,
    List,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_depths_are_bounded() {
        assert_eq!(
            Walk::new(&[0xFC, 0xFF, 0xFF, 0xFF, 0x7F]).list().unwrap_err().reason,
            "a list with more elements than bytes follow"
        );
        assert_eq!(Walk::new(&[0xFF; 16]).integer().unwrap_err().reason, "a number of more than 64 bits");
        // A list of a list of a list.
        let deep = Walk::new(&[0x19; 64]).fields(|_, _, _| Ok(false)).unwrap_err();
        assert_eq!(deep.reason, "values nested too deep");
        assert_eq!(
            Walk::new(&[0x18, 0x7F, 1]).fields(|_, _, _| Ok(false)).unwrap_err().reason,
            "a length beyond the end"
        );
    }

    #[test]
    fn fields_are_walked_by_id() {
        // 1: i32 -3, 3: binary "ab", 4: true, 5: list of two booleans, 20: i64 1.
        let bytes = [0x15, 0x05, 0x28, 0x02, b'a', b'b', 0x11, 0x19, 0x21, 1, 2, 0x06, 40, 0x02, 0];
        let (mut walk, mut seen) = (Walk::new(&bytes), Vec::new());
        walk.fields(|walk, id, kind| {
            seen.push((id, kind));
            Ok(match id {
                1 => walk.integer()? == -3,
                _ => false,
            })
        })
        .unwrap();
        let kinds = [(1, Kind::Integer), (3, Kind::Binary), (4, Kind::Boolean), (5, Kind::List), (20, Kind::Integer)];
        assert_eq!((seen.as_slice(), walk.position()), (kinds.as_slice(), bytes.len()));
    }
}
