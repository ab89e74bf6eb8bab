//! Malformed messages: random, truncated, too long, or out of order. The connection ends or
//! continues. The server continues in any case, and leaks nothing. `ONEHOP_SEED` repeats a run.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use support::{Place, Random, is_well, message, place, startup};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sends bytes, and reads until the end of the stream.
async fn send(place: &Place, bytes: &[u8], then: Then) -> Vec<u8> {
    let mut stream = TcpStream::connect(place.address).await.unwrap();
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    match then {
        Then::Vanish => return answer,
        Then::HalfClose => {
            let _ = stream.shutdown().await;
        }
        Then::Listen => {}
    }
    let _ = tokio::time::timeout(Duration::from_millis(300), stream.read_to_end(&mut answer)).await;
    answer
}

#[derive(Clone, Copy)]
enum Then {
    Vanish,
    HalfClose,
    Listen,
}

#[tokio::test]
async fn what_is_no_beginning_ends() {
    let place = place().await;
    let mut random = Random::new("beginnings");
    for round in 0..60 {
        let mut bytes = match round % 3 {
            0 => random.bytes(200),
            1 => startup(),
            _ => [&80_877_102_u32.to_be_bytes()[..], &random.bytes(20)].concat(),
        };
        if round % 3 == 1 {
            let at = random.below(bytes.len());
            bytes[at] ^= 1 << random.below(8);
            bytes.truncate(random.below(bytes.len()) + 1);
        }
        let then = [Then::Vanish, Then::HalfClose][random.below(2)];
        send(&place, &bytes, then).await;
    }
    // A length that exceeds any memory.
    let answer = send(&place, &[0x7f, 0xff, 0xff, 0xff, 0, 3, 0, 0], Then::Listen).await;
    assert!(answer.windows(5).any(|code| code == b"08P01"), "{answer:?}");
    is_well(&place).await;
}

#[tokio::test]
async fn what_is_no_message_ends_its_connection_alone() {
    let place = place().await;
    let mut random = Random::new("messages");
    for round in 0..120 {
        let mut bytes = startup();
        for _ in 0..=random.below(4) {
            let kind = b"QPBDECSHXdcfpFz\0\xff"[random.below(17)];
            let body = match random.below(3) {
                0 => random.bytes(60),
                1 => [b"\0SELECT 1\0".to_vec(), random.bytes(12)].concat(),
                _ => vec![0; random.below(40)],
            };
            let mut one = message(kind, &body);
            if random.below(3) == 0 {
                let at = random.below(one.len());
                one[at] ^= 1 << random.below(8);
            }
            bytes.extend(one);
        }
        if round % 4 == 0 {
            bytes.truncate(bytes.len() - random.below(6).min(bytes.len() - 1));
        }
        let then = [Then::Vanish, Then::HalfClose, Then::HalfClose][random.below(3)];
        send(&place, &bytes, then).await;
    }
    is_well(&place).await;
}

#[tokio::test]
async fn oversized_and_misplaced_messages_are_told_apart() {
    let place = place().await;
    let told = async |bytes: &[u8]| send(&place, &[startup(), bytes.to_vec()].concat(), Then::Listen).await;
    let has = |answer: &[u8], text: &str| answer.windows(text.len()).any(|part| part == text.as_bytes());
    // A length above the limit: the server does not wait for the body.
    let answer = told(&[&[b'Q'][..], &0x3fff_ffff_u32.to_be_bytes()].concat()).await;
    assert!(has(&answer, "08P01") && has(&answer, "FATAL"), "{}", String::from_utf8_lossy(&answer));
    let answer = told(&message(b'Q', b"SELECT '\xff'\0")).await;
    assert!(has(&answer, "22021"), "{}", String::from_utf8_lossy(&answer));
    // COPY messages outside of a COPY, as after a failed one.
    let answer = told(&[message(b'd', b"1\n"), message(b'c', b""), message(b'Q', b"SELECT 42\0")].concat()).await;
    assert!(has(&answer, "SELECT 1"), "{}", String::from_utf8_lossy(&answer));
    // A password that was not requested.
    let answer = told(&message(b'p', b"secret\0")).await;
    assert!(has(&answer, "08P01"), "{}", String::from_utf8_lossy(&answer));
    is_well(&place).await;
}
