//! Bytes in PostgreSQL's formats: `\x0a1b`, or characters with `\\` and `\123` among them.

/// Returns the bytes of a text, or `None` if it has neither format.
pub fn bytes(text: &str) -> Option<Vec<u8>> {
    if let Some(digits) = text.strip_prefix("\\x") {
        let digits: Vec<u8> = digits.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let nibble = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
        return digits.chunks(2).map(|pair| Some(nibble(*pair.first()?)? << 4 | nibble(*pair.get(1)?)?)).collect();
    }
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [first, others @ ..] = rest {
        rest = others;
        match (first, others) {
            (b'\\', [b'\\', others @ ..]) => {
                bytes.push(b'\\');
                rest = others;
            }
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', others @ ..]) => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = others;
            }
            (b'\\', _) => return None,
            _ => bytes.push(*first),
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn both_forms_are_read() {
        assert_eq!(bytes("\\x0A 1b"), Some(vec![10, 27]));
        assert_eq!(bytes("\\x"), Some(vec![]));
        assert_eq!(bytes("a\\\\b\\001"), Some(b"a\\b\x01".to_vec()));
        for wrong in ["\\x0", "\\xzz", "\\", "\\8", "\\400"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }
}
