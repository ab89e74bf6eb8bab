//! Parses `residence`, the devices whose memory holds a table's segments.
//!
//! ```text
//! cuda:0                                 all segments on one device
//! cuda:0,cuda:1                          divided among two, each segment on one of them
//! y1997=cuda:1; y1998=cuda:1; cuda:0     two partitions on the second, all others on the first
//! y1998=cuda:0                           one partition on a device, the others on none
//! ```
//! The catalog stores this text in canonical form: devices in order, each once.

use std::collections::BTreeSet;
use std::fmt;

use onehop_pipeline::backend::{Backend, Site};
use onehop_segment::BlockList;

use crate::catalog::{PartitionBy, TableEntry};
use crate::error::nearest;
use crate::settings::DeviceNames;
use crate::{Error, ErrorKind, Result};

/// Devices for segments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Homes {
    /// Devices of partitions that name their own.
    partitions: Vec<(String, Vec<String>)>,
    /// Devices of all other partitions.
    others: Vec<String>,
}

impl Homes {
    /// Parses a residence from user input.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`].
    pub fn parse(text: &str) -> Result<Self> {
        let mut homes = Self::default();
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some((partition, devices)) => {
                    let partition = partition.trim();
                    if homes.partitions.iter().any(|(known, _)| known == partition) {
                        return Err(invalid(format!("'{text}' says twice where partition \"{partition}\" belongs")));
                    }
                    homes.partitions.push((partition.into(), device_names(devices)?));
                }
                None if homes.others.is_empty() => homes.others = device_names(part)?,
                None => return Err(invalid(format!("'{text}' says twice where all other partitions belong"))),
            }
        }
        match homes.all().is_empty() {
            true => Err(invalid(format!("'{text}' is no device"))),
            false => Ok(homes),
        }
    }

    /// Returns the devices of a table. A residence that another version wrote and that cannot be
    /// parsed counts as none.
    pub fn of(table: &TableEntry) -> Option<Self> {
        Self::parse(table.residence.as_deref()?).ok()
    }

    /// Checks that a table has all partitions that they name.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn check(&self, by: Option<&PartitionBy>) -> Result<()> {
        let names: Vec<String> = by.map_or_else(Vec::new, |by| (0..by.count() as u32).map(|n| by.name(n)).collect());
        let Some((missing, _)) = self.partitions.iter().find(|(name, _)| !names.contains(name)) else { return Ok(()) };
        let error = Error::new(ErrorKind::NotFound, format!("the table has no partition \"{missing}\""));
        Err(match nearest(missing, names.iter().map(String::as_str)) {
            Some(near) => error.with_hint(format!("did you mean \"{near}\"?")),
            None => error,
        })
    }

    /// Returns the devices of a partition's segments; empty for none.
    pub fn of_partition(&self, name: Option<&str>) -> &[String] {
        let own = name.and_then(|name| self.partitions.iter().find(|(known, _)| known == name));
        own.map_or(&self.others, |(_, devices)| devices)
    }

    /// Returns all devices that it names.
    pub fn all(&self) -> BTreeSet<&str> {
        let own = self.partitions.iter().flat_map(|(_, devices)| devices);
        own.chain(&self.others).map(String::as_str).collect()
    }

    /// Returns each distinct set of devices.
    pub fn choices(&self) -> Vec<&[String]> {
        let mut choices: Vec<&[String]> = Vec::new();
        for devices in self.partitions.iter().map(|(_, devices)| devices).chain([&self.others]) {
            if !devices.is_empty() && !choices.contains(&devices.as_slice()) {
                choices.push(devices);
            }
        }
        choices
    }
}

impl fmt::Display for Homes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = self.partitions.iter().map(|(partition, devices)| format!("{partition}={}", devices.join(",")));
        let others = (!self.others.is_empty()).then(|| self.others.join(","));
        f.write_str(&own.chain(others).collect::<Vec<_>>().join("; "))
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
        .with_hint("one is called 'cuda:0', several 'cuda:0,cuda:1', and of partitions 'y1997=cuda:0; y1998=cuda:1'")
}

/// Returns the names of devices in order, each once.
///
/// # Errors
/// [`ErrorKind::Invalid`].
pub(crate) fn device_names(text: &str) -> Result<Vec<String>> {
    let none = || invalid(format!("'{text}' is no device"));
    let Some(DeviceNames::Some(names)) = DeviceNames::parse(text.trim()) else { return Err(none()) };
    let number = |name: &String| name.strip_prefix("cuda:").and_then(|number| number.parse::<u32>().ok());
    let numbers = names.iter().map(number).collect::<Option<BTreeSet<u32>>>().ok_or_else(none)?;
    Ok(numbers.into_iter().map(|number| format!("cuda:{number}")).collect())
}

/// Returns the preferred devices of each segment of a list. `partition_of` returns the partition of
/// the block at a position of the list. Returns an empty vector if the table has no residence.
pub(crate) fn sites(
    table: &TableEntry,
    blocks: &BlockList,
    partition_of: impl Fn(usize) -> Option<usize>,
) -> Vec<Site> {
    let Some(homes) = Homes::of(table) else { return Vec::new() };
    let mut sites = vec![Site::default(); blocks.segments().len()];
    for run in blocks.runs() {
        let partition = table.partition_by.as_ref().zip(partition_of(run.places.start));
        let name = partition.map(|(by, number)| by.name(number as u32));
        sites[run.segment].devices = homes.of_partition(name.as_deref()).into();
    }
    sites
}

/// Returns whether segments of these devices belong on this backend, or on some of its parts.
pub(crate) fn belongs_on(devices: &[String], backend: &dyn Backend) -> bool {
    let is_it = |name: &String| match backend.parts() {
        [] => backend.name() == name,
        parts => parts.iter().any(|part| part.name() == name),
    };
    !devices.is_empty() && devices.iter().all(is_it)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for (text, again) in [
            ("cuda:0", "cuda:0"),
            ("1, CUDA:0,1", "cuda:0,cuda:1"),
            (" y1998 = 1;y1997=cuda:1,0 ; 2;", "y1998=cuda:1; y1997=cuda:0,cuda:1; cuda:2"),
            ("y1998=cuda:10,cuda:9", "y1998=cuda:9,cuda:10"),
        ] {
            let homes = Homes::parse(text).unwrap();
            assert_eq!(homes.to_string(), again);
            assert_eq!(Homes::parse(again).unwrap(), homes);
        }
        for text in ["", ";", "all", "here", "y1998=", "y1998=all", "0;1", "a=0;a=1", "cuda:-1", "cuda:99999999999"] {
            assert_eq!(Homes::parse(text).unwrap_err().kind(), ErrorKind::Invalid, "{text}");
        }
    }

    #[test]
    fn partitions_have_devices_of_their_own() {
        let homes = Homes::parse("a=1; b=1; c=0,2; 0").unwrap();
        assert_eq!(homes.of_partition(Some("a")), ["cuda:1"]);
        assert_eq!(homes.of_partition(Some("d")), ["cuda:0"]);
        assert_eq!(homes.of_partition(None), ["cuda:0"]);
        assert_eq!(homes.all().into_iter().collect::<Vec<_>>(), ["cuda:0", "cuda:1", "cuda:2"]);
        assert_eq!(homes.choices().len(), 3);
        assert!(Homes::parse("a=1").unwrap().of_partition(Some("b")).is_empty());
        let by = PartitionBy::Hash { column: "x".into(), partitions: 3 };
        assert!(Homes::parse("p0=0; p2=1").unwrap().check(Some(&by)).is_ok());
        let error = Homes::parse("p3=0").unwrap().check(Some(&by)).unwrap_err();
        assert_eq!((error.kind(), error.message()), (ErrorKind::NotFound, "the table has no partition \"p3\""));
        assert!(Homes::parse("p0=0").unwrap().check(None).is_err());
        assert!(Homes::parse("0").unwrap().check(None).is_ok());
    }
}
