//! The client side of SCRAM-SHA-256, one message at a time, from any address of this machine.

#![allow(clippy::unwrap_used, dead_code)]

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::{digest, hmac, pbkdf2};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::message;

/// The default address of a client.
pub const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;

const FIRST: &str = "n=,r=abcdefgh";

/// An exchange in which only the client's last message is left to send.
pub struct Exchange {
    stream: TcpStream,
    /// The server's first message.
    pub told: String,
}

/// Reads a message and returns its type and body, or `None` at the end.
async fn next(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let kind = stream.read_u8().await.ok()?;
    let length = stream.read_u32().await.ok()?;
    let mut body = vec![0; length as usize - 4];
    stream.read_exact(&mut body).await.ok()?;
    Some((kind, body))
}

/// Returns the SQLSTATE in an error message.
fn code_of(body: &[u8]) -> String {
    let fields = body.split(|byte| *byte == 0).filter_map(|field| std::str::from_utf8(field).ok());
    fields.filter_map(|field| field.strip_prefix('C')).next().unwrap().to_string()
}

/// Connects from an address of this machine and sends the startup message.
pub async fn started(server: SocketAddr, from: Ipv4Addr, user: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    let mut stream = socket.connect(server).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let body = [&196_608_u32.to_be_bytes()[..], format!("user\0{user}\0database\0test\0\0").as_bytes()].concat();
    stream.write_all(&[&(body.len() as u32 + 4).to_be_bytes()[..], &body].concat()).await.unwrap();
    stream
}

/// Runs an exchange up to the server's first message.
pub async fn begin(server: SocketAddr, from: Ipv4Addr, user: &str) -> Exchange {
    let mut stream = started(server, from, user).await;
    let (kind, _) = next(&mut stream).await.unwrap();
    assert_eq!(kind, b'R');
    let first = format!("n,,{FIRST}");
    let body = [b"SCRAM-SHA-256\0", &(first.len() as u32).to_be_bytes()[..], first.as_bytes()].concat();
    stream.write_all(&message(b'p', &body)).await.unwrap();
    let (kind, body) = next(&mut stream).await.unwrap();
    assert_eq!(kind, b'R');
    Exchange { stream, told: String::from_utf8(body[4..].to_vec()).unwrap() }
}

impl Exchange {
    fn field(&self, name: &str) -> String {
        self.told.split(',').find_map(|field| field.strip_prefix(name)).unwrap().to_string()
    }

    /// Returns the salt that the server sent.
    pub fn salt(&self) -> String {
        self.field("s=")
    }

    /// Returns the iterations that the server sent.
    pub fn iterations(&self) -> u32 {
        self.field("i=").parse().unwrap()
    }

    /// Returns the client's last message for a password.
    pub fn last(&self, password: &str) -> Vec<u8> {
        let salted = salted(password, &STANDARD.decode(self.salt()).unwrap(), self.iterations());
        let without_proof = format!("c=biws,r={}", self.field("r="));
        let client_key = sign(&salted, "Client Key");
        let stored_key = digest::digest(&digest::SHA256, &client_key);
        let signature = sign(stored_key.as_ref(), &format!("{FIRST},{},{without_proof}", self.told));
        let proof: Vec<u8> = client_key.iter().zip(&signature).map(|(a, b)| a ^ b).collect();
        message(b'p', format!("{without_proof},p={}", STANDARD.encode(proof)).as_bytes())
    }

    /// Sends the last message. Returns `ok`, or the SQLSTATE of the error.
    pub async fn end(mut self, last: &[u8]) -> String {
        self.stream.write_all(last).await.unwrap();
        match next(&mut self.stream).await.unwrap() {
            (b'R', _) => "ok".into(),
            (_, body) => code_of(&body),
        }
    }
}

/// Makes one guess. Returns `ok`, or the SQLSTATE of the error.
pub async fn guess(server: SocketAddr, from: Ipv4Addr, user: &str, password: &str) -> String {
    let exchange = begin(server, from, user).await;
    let last = exchange.last(password);
    exchange.end(&last).await
}

fn salted(password: &str, salt: &[u8], iterations: u32) -> [u8; 32] {
    let mut salted = [0; 32];
    let iterations = NonZeroU32::new(iterations).unwrap();
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, iterations, salt, password.as_bytes(), &mut salted);
    salted
}

fn sign(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

/// Returns a verifier in PostgreSQL's form.
pub fn verifier(password: &str, salt: &[u8], iterations: u32) -> String {
    let salted = salted(password, salt, iterations);
    let stored_key = digest::digest(&digest::SHA256, &sign(&salted, "Client Key"));
    let (salt, stored) = (STANDARD.encode(salt), STANDARD.encode(stored_key));
    format!("SCRAM-SHA-256${iterations}:{salt}${stored}:{}", STANDARD.encode(sign(&salted, "Server Key")))
}
