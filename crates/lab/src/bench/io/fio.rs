//! The equivalent command of fio, with which our figures can be verified independently.
//!
//! fio uses our file, which must exist: it creates none. Sequential jobs have a part of the file
//! each, as ours have. Writes begin one block into the file, so that the header stays, and with it
//! the permission to overwrite the file. fio determines the rest of its contents.

use std::path::Path;

use super::{Effort, Point};

/// Returns the words of a command that measures a point of a file of this size.
///
/// # Errors
/// Returns the reason if fio has no equivalent.
pub fn command(point: &Point, effort: &Effort, file: &Path, file_bytes: u64) -> Result<Vec<String>, &'static str> {
    if point.way.is_device() {
        return Err("fio has no such path, but where it was built with cuFile; --emit gdsio has");
    }
    let block = point.block_bytes as u64;
    let skipped = if point.rw.writes() { block } else { 0 };
    let blocks = (file_bytes.saturating_sub(skipped) / block).max(1);
    // Each random job uses all blocks.
    let parts = if point.rw.is_random() { 1 } else { point.jobs as u64 };
    let part_bytes = (blocks / parts).max(1) * block;
    let mut words = vec![
        "fio".to_string(),
        "--name=point".into(),
        // fio separates the names of several files by a colon.
        format!("--filename={}", file.display().to_string().replace(':', "\\:")),
        "--allow_file_create=0".into(),
        format!("--rw={}", point.rw),
        format!("--bs={block}"),
        format!("--ioengine={}", if point.way.has_depth() { "io_uring" } else { "psync" }),
        format!("--direct={}", u8::from(point.way.is_direct())),
        // Our reads give the page cache no hints.
        "--fadvise_hint=0".into(),
        format!("--iodepth={}", if point.way.has_depth() { point.depth } else { 1 }),
        format!("--numjobs={}", point.jobs),
        format!("--offset={skipped}"),
        format!("--size={part_bytes}"),
        "--thread".into(),
        "--group_reporting".into(),
        "--time_based".into(),
        format!("--runtime={}ms", effort.runtime.as_millis()),
        format!("--ramp_time={}ms", effort.ramp.as_millis()),
        format!("--randseed={}", effort.seed),
    ];
    if parts > 1 {
        words.push(format!("--offset_increment={part_bytes}"));
    }
    if point.rw.is_random() {
        // Our random order may repeat a block before it has visited all.
        words.push("--norandommap".into());
    }
    if point.way.has_depth() {
        words.extend(["--fixedbufs".to_string(), "--registerfiles".into()]);
    }
    Ok(words)
}

/// Returns a command as a shell reads it.
pub fn shell_line(words: &[String]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:+@%".contains(c);
    let quoted = |word: &String| match word.chars().all(is_plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Rw, Way};
    use super::*;

    fn line(rw: Rw, way: Way, depth: usize, jobs: usize, file: &str) -> String {
        let point = Point { rw, way, block_bytes: 1 << 20, depth, jobs };
        let effort = Effort {
            runtime: Duration::from_secs(3),
            ramp: Duration::from_millis(500),
            seed: 7,
            verify: false,
            touch: false,
        };
        command(&point, &effort, Path::new(file), 100 << 20).map(|words| shell_line(&words)).unwrap_or_default()
    }

    #[test]
    fn reads_have_the_whole_file() {
        assert_eq!(
            line(Rw::RandRead, Way::Uring, 8, 2, "/data/it's mine"),
            "fio --name=point '--filename=/data/it'\\''s mine' --allow_file_create=0 --rw=randread --bs=1048576 \
             --ioengine=io_uring --direct=1 --fadvise_hint=0 --iodepth=8 --numjobs=2 --offset=0 --size=104857600 --thread \
             --group_reporting --time_based --runtime=3000ms --ramp_time=500ms --randseed=7 --norandommap --fixedbufs \
             --registerfiles"
        );
    }

    #[test]
    fn writes_spare_the_header_and_jobs_have_parts() {
        let line = line(Rw::Write, Way::Buffered, 8, 4, "/f");
        assert!(
            line.contains(" --ioengine=psync --direct=0 --fadvise_hint=0 --iodepth=1 --numjobs=4 --offset=1048576 "),
            "{line}"
        );
        // 99 blocks are left: 24 for each.
        assert!(line.contains(" --size=25165824 ") && line.ends_with(" --offset_increment=25165824"), "{line}");
    }
}
