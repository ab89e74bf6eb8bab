//! Whole compressed files, as streams.
//!
//! Decompression is streamed, so the length of the output needs no memory. The state of a decoder
//! does: a frame of zstd declares a window of up to 2 GiB, and a stream of xz a dictionary of up to
//! 4 GiB. Both are refused over [`most_window_bytes`], before they are allocated.

use std::io::{self, BufRead, Read};

use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::MultiGzDecoder;
use liblzma::bufread::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};

/// The largest window that a decoder accepts, which is the default of the zstd command.
const MOST_WINDOW_LOG: u32 = 27;
/// The smallest window that is always accepted: that of `zstd -19` and of `xz -6`.
const LEAST_WINDOW_LOG: u32 = 23;
/// The memory of a decoder of xz beside its dictionary.
const XZ_STATE_BYTES: u64 = 1 << 20;

/// The error of zstd for a window over its bound.
const ZSTD_OVER_WINDOW: &str = "Frame requires too much memory for decoding";

/// The compression of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// `.gz`
    Gzip,
    /// `.bz2`
    Bzip2,
    /// `.xz`
    Xz,
    /// `.zst`
    Zstd,
}

/// Returns the largest accepted window if statements may use `memory_bytes`.
pub fn most_window_bytes(memory_bytes: u64) -> u64 {
    1 << most_window_log(memory_bytes)
}

fn most_window_log(memory_bytes: u64) -> u32 {
    (memory_bytes / 4).max(1).ilog2().clamp(LEAST_WINDOW_LOG, MOST_WINDOW_LOG)
}

/// Returns the decompressed bytes of a file.
///
/// # Errors
/// If the decoder cannot be created.
pub fn reader(
    file: impl BufRead + Send + 'static,
    compression: Compression,
    memory_bytes: u64,
) -> io::Result<Box<dyn Read + Send>> {
    let window_log = most_window_log(memory_bytes);
    let decoder: Box<dyn Read + Send> = match compression {
        Compression::Gzip => Box::new(MultiGzDecoder::new(file)),
        Compression::Bzip2 => Box::new(MultiBzDecoder::new(file)),
        Compression::Xz => {
            let stream = Stream::new_stream_decoder((1 << window_log) + XZ_STATE_BYTES, CONCATENATED)?;
            Box::new(XzDecoder::new_stream(file, stream))
        }
        Compression::Zstd => {
            let mut decoder = zstd::Decoder::with_buffer(file)?;
            decoder.window_log_max(window_log)?;
            Box::new(decoder)
        }
    };
    Ok(Box::new(Bounded { decoder, window_log }))
}

/// A decoder that reports the bound that its file exceeds.
struct Bounded {
    decoder: Box<dyn Read + Send>,
    window_log: u32,
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(buffer).map_err(|e| {
            let inner = e.get_ref().and_then(|inner| inner.downcast_ref::<liblzma::stream::Error>());
            // zstd reports its errors as strings only.
            let is_over = matches!(inner, Some(liblzma::stream::Error::MemLimit)) || e.to_string() == ZSTD_OVER_WINDOW;
            match is_over {
                true => {
                    let most = 1_u64 << (self.window_log - 20);
                    let message = format!("it is compressed with a window of more than {most} MiB");
                    io::Error::new(io::ErrorKind::OutOfMemory, message)
                }
                false => e,
            }
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{Cursor, Write};

    use super::*;

    const TEXT: &[u8] = b"a,b\n1,2\n";

    fn xz(dictionary_bytes: u32) -> Vec<u8> {
        let mut options = liblzma::stream::LzmaOptions::new_preset(0).unwrap();
        options.dict_size(dictionary_bytes);
        let mut filters = liblzma::stream::Filters::new();
        filters.lzma2(&options);
        let stream = Stream::new_stream_encoder(&filters, liblzma::stream::Check::Crc32).unwrap();
        let mut encoder = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
        encoder.write_all(TEXT).unwrap();
        encoder.finish().unwrap()
    }

    /// Returns a frame of zstd that declares its window, and no content size.
    fn zst(window_log: u8) -> Vec<u8> {
        let mut frame = vec![0x28, 0xB5, 0x2F, 0xFD, 0, (window_log - 10) << 3];
        let header = (TEXT.len() as u32) << 3 | 1;
        frame.extend_from_slice(&header.to_le_bytes()[..3]);
        frame.extend_from_slice(TEXT);
        frame
    }

    fn inflated(bytes: Vec<u8>, compression: Compression, memory_bytes: u64) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        reader(Cursor::new(bytes), compression, memory_bytes)?.read_to_end(&mut text)?;
        Ok(text)
    }

    #[test]
    fn windows_are_bounded_by_memory() {
        for (log, memory_bytes, is_read) in [(23, 0, true), (26, 256 << 20, true), (27, 256 << 20, false)] {
            for (compression, bytes) in [(Compression::Xz, xz(1 << log)), (Compression::Zstd, zst(log))] {
                let found = inflated(bytes, compression, memory_bytes);
                match is_read {
                    true => assert_eq!(found.unwrap(), TEXT, "{compression:?} {log}"),
                    false => assert_eq!(found.unwrap_err().kind(), io::ErrorKind::OutOfMemory, "{compression:?} {log}"),
                }
            }
        }
        assert!(inflated(zst(28), Compression::Zstd, u64::MAX).is_err());
        assert_eq!(inflated(zst(27), Compression::Zstd, u64::MAX).unwrap(), TEXT);
    }

    #[test]
    fn members_follow_each_other() {
        let two = |one: Vec<u8>| [one.clone(), one].concat();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(TEXT).unwrap();
        let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        bzip2.write_all(TEXT).unwrap();
        for (compression, one) in [
            (Compression::Gzip, gzip.finish().unwrap()),
            (Compression::Bzip2, bzip2.finish().unwrap()),
            (Compression::Xz, xz(1 << 20)),
            (Compression::Zstd, zst(20)),
        ] {
            assert_eq!(inflated(two(one), compression, 1 << 30).unwrap(), [TEXT, TEXT].concat(), "{compression:?}");
        }
    }
}
