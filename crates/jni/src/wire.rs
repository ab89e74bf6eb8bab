//! Entries as the bytes in which Java gets them: one crossing of the border for a page of a directory, not one per field.
//!
//! Numbers are big-endian, as Java's buffers begin. An entry is: kind (u8: 0 a file, 1 a directory), bytes (u64), milliseconds
//! since 1970 (u64), identity (16 bytes), bytes of the name (u32), the name in UTF-8. A page is: bytes of the name behind which
//! to go on (u32; 0: that was all) and that name, which need not be one of the entries', entries (u32), and these.
//! What a transaction has staged is: tasks (u32), and of each the name as above; directories (u32), and of each the path, files
//! (u64) and bytes (u64).

use onehop_io::rados::fs::{Entry, Kind, Page, Staged};

/// One entry.
pub fn entry(entry: &Entry) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, entry);
    bytes
}

/// A page of a directory.
pub fn page(page: &Page) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_text(&mut bytes, page.next.as_deref().unwrap_or_default());
    bytes.extend(u32::try_from(page.entries.len()).unwrap_or(u32::MAX).to_be_bytes());
    page.entries.iter().for_each(|entry| put(&mut bytes, entry));
    bytes
}

/// What a transaction has staged.
pub fn staged(staged: &Staged) -> Vec<u8> {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes();
    let mut bytes = Vec::new();
    bytes.extend(count(staged.tasks.len()));
    staged.tasks.iter().for_each(|(task, _)| put_text(&mut bytes, task));
    bytes.extend(count(staged.directories.len()));
    for (path, files) in &staged.directories {
        put_text(&mut bytes, path);
        bytes.extend(files.files.to_be_bytes());
        bytes.extend(files.bytes.to_be_bytes());
    }
    bytes
}

fn put(bytes: &mut Vec<u8>, entry: &Entry) {
    bytes.push(match entry.kind {
        Kind::File => 0,
        Kind::Directory => 1,
    });
    bytes.extend(entry.len.to_be_bytes());
    bytes.extend(entry.mtime_ms.to_be_bytes());
    bytes.extend(entry.id.0.to_be_bytes());
    put_text(bytes, &entry.name);
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use onehop_io::rados::fs::Id;

    #[test]
    fn an_entry_has_these_bytes() {
        let file = Entry { name: "ü".into(), kind: Kind::File, len: 258, mtime_ms: 3, id: Id(4) };
        let bytes = [&[0; 7][..], &[1, 2], &[0; 7], &[3], &[0; 15], &[4, 0, 0, 0, 2, 0xc3, 0xbc]].concat();
        assert_eq!(entry(&file), bytes);
        let one = Page { entries: vec![file], next: Some("a".into()) };
        assert_eq!(page(&one), [&[0, 0, 0, 1, b'a', 0, 0, 0, 1], &bytes[..]].concat());
    }
}
