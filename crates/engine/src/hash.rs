//! Hashes that are part of the format on disk: partitions, and keys of the catalog.

/// SplitMix64's finaliser.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Hashes a string to 64 bits.
pub(crate) fn hash_text(text: &str) -> u64 {
    // Two CRCs with different starts make 64 bits that any implementation can repeat.
    let low = crc32c::crc32c(text.as_bytes());
    let high = crc32c::crc32c_append(0x9e37_79b9, text.as_bytes());
    mix(u64::from(high) << 32 | u64::from(low))
}
