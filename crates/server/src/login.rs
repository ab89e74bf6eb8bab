//! Log-ins: SCRAM-SHA-256, in which neither side reveals a password, and the same check for the
//! page.
//!
//! - A name that is not in the file of users gets the same challenge and the same answers as one
//!   with a wrong password, and costs the same work ([`Pretended`]).
//! - A guess is paid before anything depends on whether it is right ([`Guesses`]). The response
//!   time does not distinguish a judged guess from a refused one. The verdict is computed in any
//!   case. The page, where that takes milliseconds, waits instead.
//! - The page receives a password with each request. It remembers right ones, hashed by a key of
//!   the process, and looks one up only after the guess is paid. A remembered password therefore
//!   does not bypass the limit. Requests are serialized, so that a browser's first ones, all at
//!   once, pay for few guesses.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use onehop_engine::Rights;
use pgwire::api::auth::sasl::scram::{ScramServerAuth, ScramServerAuthWaitingForClientFinal};
use pgwire::messages::startup::{Authentication, PasswordMessageFamily};
use pgwire::messages::{PgWireBackendMessage, PgWireFrontendMessage};
use ring::hmac;
use ring::rand::SystemRandom;
use tokio::io::AsyncRead;
use tokio::sync::Semaphore;

use crate::guesses::{Guess, Guesses, Refused};
use crate::link::Link;
use crate::observe::Witness;
use crate::problem::{Problem, code};
use crate::read::{End, Reader};
use crate::users::{Pretended, User, Users, UsersError, Verifier};

const MECHANISM: &str = "SCRAM-SHA-256";

/// The maximum number of remembered right passwords.
const MOST_REMEMBERED: usize = 1_000;
/// The maximum number of page passwords that are hashed at once.
const HASHED_AT_ONCE: usize = 2;
/// The minimum response time of a refused page password: longer than a hash takes.
const REFUSED_AFTER: Duration = Duration::from_millis(100);

/// The reason of a failed log-in. A client is told less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    WrongPassword,
    UnknownUser,
    TooManyGuesses,
    Malformed,
    Gone,
    UsersUnreadable,
}

impl Why {
    /// Returns the reason in the words of the audit log.
    pub fn name(self) -> &'static str {
        match self {
            Self::WrongPassword => "wrong password",
            Self::UnknownUser => "unknown user",
            Self::TooManyGuesses => "too many guesses",
            Self::Malformed => "malformed",
            Self::Gone => "client gone",
            Self::UsersUnreadable => "users unreadable",
        }
    }

    /// Returns true if a password was judged.
    pub fn is_judged(self) -> bool {
        matches!(self, Self::WrongPassword | Self::UnknownUser)
    }
}

/// A failed log-in.
#[derive(Debug)]
pub struct Failed {
    /// The reason, for the audit log only.
    pub why: Why,
    /// The error, for the client.
    pub problem: Problem,
}

/// A password that was right.
#[derive(Clone, Copy, Debug)]
pub struct Passed {
    pub rights: Rights,
    /// True if the password was hashed, or the address is new for the name. False for a repeated
    /// request.
    pub is_news: bool,
}

/// The users that may log in, and the log-in itself.
#[derive(Debug)]
pub struct Gate(Option<Door>);

/// A gate that asks for passwords.
#[derive(Debug)]
struct Door {
    users: Users,
    pretended: Pretended,
    guesses: Guesses,
    /// The key that hashes remembered passwords.
    key: hmac::Key,
    /// The hashes of right passwords, with their names and verifiers.
    right: Mutex<HashSet<[u8; 32]>>,
    /// The permits to check a page password.
    turns: Semaphore,
    /// The users as they were last read.
    last: Mutex<BTreeMap<String, User>>,
    witness: Arc<Witness>,
}

impl Gate {
    /// Creates a gate. Without users it lets every client in, as an admin.
    ///
    /// # Errors
    /// Returns a message if the file of users or its secret cannot be used, or if the system gives
    /// no random numbers.
    pub fn new(users: Option<Users>, witness: &Arc<Witness>) -> Result<Self, String> {
        let Some(users) = users else { return Ok(Self(None)) };
        let last = users.read().map_err(|e| e.to_string())?;
        let pretended = users.pretended().map_err(|e| e.to_string())?;
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        let key = key.map_err(|_| "the system gives no random numbers")?;
        Ok(Self(Some(Door {
            users,
            pretended,
            guesses: Guesses::default(),
            key,
            right: Mutex::default(),
            turns: Semaphore::new(HASHED_AT_ONCE),
            last: Mutex::new(last),
            witness: Arc::clone(witness),
        })))
    }

    /// Returns true if no password is required.
    pub fn is_open(&self) -> bool {
        self.0.is_none()
    }

    /// Asks a client to prove that it knows its user's password, and returns the user's rights.
    pub async fn pass<R: AsyncRead + Unpin>(
        &self,
        name: &str,
        address: IpAddr,
        reader: &mut Reader<R>,
        link: &mut Link,
    ) -> Result<Rights, Failed> {
        match &self.0 {
            None => Ok(Rights::Admin),
            Some(door) => door.ask(name, address, reader, link).await,
        }
    }

    /// Checks a plaintext password, sent over a private connection.
    pub async fn check(&self, name: &str, password: &str, address: IpAddr) -> Result<Passed, Failed> {
        match &self.0 {
            None => Ok(Passed { rights: Rights::Admin, is_news: false }),
            Some(door) => door.check(name, password, address).await,
        }
    }
}

impl Door {
    /// Reads the users, and reports changes.
    fn known(&self) -> Result<BTreeMap<String, User>, Failed> {
        let known = self.users.read().map_err(unreadable)?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if *last != known {
            self.witness.users_changed(&last, &known);
            last.clone_from(&known);
        }
        Ok(known)
    }

    fn right(&self) -> MutexGuard<'_, HashSet<[u8; 32]>> {
        self.right.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask<R: AsyncRead + Unpin>(
        &self,
        name: &str,
        address: IpAddr,
        reader: &mut Reader<R>,
        link: &mut Link,
    ) -> Result<Rights, Failed> {
        let known = self.known()?;
        let (verifier, user) = self.pretended.verifier(name, &known);
        put(link, Authentication::SASL(vec![MECHANISM.into()])).await?;
        let first = password(reader).await?;
        let (answer, waiting) = answered(&verifier, first)?;
        put(link, Authentication::SASLContinue(answer.into())).await?;
        let last = password(reader).await?.into_sasl_response().map_err(violation)?;
        let guess = self.guesses.take(name, address, Instant::now());
        let verdict = waiting.on_client_final_message(&last.data).ok();
        let passed = settled(name, guess, user, verdict)?;
        link.put(PgWireBackendMessage::Authentication(Authentication::SASLFinal(passed.found.into())));
        Ok(passed.rights)
    }

    async fn check(&self, name: &str, password: &str, address: IpAddr) -> Result<Passed, Failed> {
        let known = self.known()?;
        let (verifier, user) = self.pretended.verifier(name, &known);
        // Names and verifiers contain no zero byte.
        let tag = hmac::sign(&self.key, format!("{name}\0{}\0{password}", verifier.text()).as_bytes());
        let tag: [u8; 32] = tag.as_ref().try_into().unwrap_or_default();
        let turn = self.turns.acquire().await;
        let due = tokio::time::Instant::now() + REFUSED_AFTER;
        let guess = self.guesses.take(name, address, Instant::now());
        let is_remembered = self.right().contains(&tag);
        let is_right = match &guess {
            _ if is_remembered => true,
            Ok(_) => is_of(verifier, password).await,
            Err(_) => false,
        };
        drop(turn);
        // The response time does not distinguish a wrong password that only the pair's counter has
        // paid for, which was hashed, from a refused one.
        if !is_right && guess.as_ref().map_or(true, Guess::is_own) {
            tokio::time::sleep_until(due).await;
        }
        let Settled { rights, is_new, .. } = settled(name, guess, user, is_right.then_some(()))?;
        self.remember(tag);
        Ok(Passed { rights, is_news: is_new || !is_remembered })
    }

    fn remember(&self, tag: [u8; 32]) {
        let mut right = self.right();
        if right.len() >= MOST_REMEMBERED {
            right.clear();
        }
        right.insert(tag);
    }
}

/// Hashes a password on a blocking thread.
async fn is_of(verifier: Verifier, password: &str) -> bool {
    let password = password.to_string();
    tokio::task::spawn_blocking(move || verifier.is_of(&password)).await.unwrap_or(false)
}

/// Returns the answer to a client's first message, and the state that checks its last one.
fn answered(
    verifier: &Verifier,
    first: PasswordMessageFamily,
) -> Result<(String, ScramServerAuthWaitingForClientFinal), Failed> {
    if !is_initial(&first) {
        return Err(violation("it does not begin as SASL does"));
    }
    let first = first.into_sasl_initial_response().map_err(violation)?;
    if first.auth_method != MECHANISM {
        return Err(violation(format!("the server asks for {MECHANISM}")));
    }
    let first = first.data.ok_or_else(|| violation("a log-in begins with nothing"))?;
    ScramServerAuth::new().on_client_first_message_with_secret(&first, verifier.secret()).map_err(violation)
}

/// A log-in that succeeded.
struct Settled<T> {
    rights: Rights,
    /// True if the name has not logged in from the address recently.
    is_new: bool,
    /// The result of the check.
    found: T,
}

/// Settles a guess. `verdict` is present if the password is right.
fn settled<T>(
    name: &str,
    guess: Result<Guess<'_>, Refused>,
    user: Option<&User>,
    verdict: Option<T>,
) -> Result<Settled<T>, Failed> {
    let guess = guess.map_err(|refused| Failed { why: Why::TooManyGuesses, problem: too_many(refused) })?;
    let why = if user.is_some() { Why::WrongPassword } else { Why::UnknownUser };
    match (user, verdict) {
        (Some(user), Some(found)) => Ok(Settled { rights: user.rights, is_new: guess.right(), found }),
        _ => Err(Failed { why, problem: guess.refusal().map_or_else(|| wrong_password(name), too_many) }),
    }
}

fn unreadable(e: UsersError) -> Failed {
    // The details are for the operator of the server.
    eprintln!("onehop: {e}");
    let problem = Problem::fatal(code::INVALID_AUTHORIZATION, "the server cannot read who may log in");
    Failed { why: Why::UsersUnreadable, problem }
}

fn too_many(refused: Refused) -> Problem {
    let message = "too many failed log-ins of this user, or from this address";
    let hint = format!("try again in {} s", refused.wait.as_secs() + 1);
    Problem::fatal(code::INVALID_AUTHORIZATION, message).with_hint(hint)
}

fn wrong_password(name: &str) -> Problem {
    Problem::fatal(code::INVALID_PASSWORD, format!("password authentication failed for user \"{name}\""))
}

async fn put(link: &mut Link, message: Authentication) -> Result<(), Failed> {
    link.put(PgWireBackendMessage::Authentication(message));
    link.flush().await.map_err(|_| gone())
}

async fn password<R: AsyncRead + Unpin>(reader: &mut Reader<R>) -> Result<PasswordMessageFamily, Failed> {
    match reader.next().await {
        Ok((PgWireFrontendMessage::PasswordMessageFamily(message), _)) => Ok(message),
        Ok(_) => Err(violation("expected a password response")),
        Err(End::Closed) => Err(gone()),
        Err(End::Nonsense(problem)) => Err(Failed { why: Why::Malformed, problem }),
    }
}

/// Returns true if the message has a mechanism's name and as many bytes as its length field says.
/// The decoder assumes both.
fn is_initial(message: &PasswordMessageFamily) -> bool {
    let PasswordMessageFamily::Raw(bytes) = message else { return false };
    let Some(end) = bytes.iter().position(|byte| *byte == 0) else { return false };
    let Some(length) = bytes.get(end + 1..end + 5).and_then(|bytes| bytes.try_into().ok()) else { return false };
    match i32::from_be_bytes(length) {
        -1 => true,
        length => usize::try_from(length).is_ok_and(|length| length == bytes.len() - end - 5),
    }
}

fn violation(what: impl std::fmt::Display) -> Failed {
    let problem = Problem::fatal(code::PROTOCOL_VIOLATION, format!("malformed log-in: {what}"));
    Failed { why: Why::Malformed, problem }
}

fn gone() -> Failed {
    Failed { why: Why::Gone, ..violation("the client is gone") }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use pgwire::messages::startup::PasswordMessageFamily;

    use super::*;

    /// Returns the difference of two samples of times in their means, as dudect does: Welch's t of
    /// the times below a percentile of both, which excludes other load of the machine. The largest
    /// |t| of several percentiles counts.
    fn difference(a: &[f64], b: &[f64]) -> f64 {
        let mut both: Vec<f64> = a.iter().chain(b).copied().collect();
        both.sort_by(f64::total_cmp);
        let percentiles = [0.5, 0.75, 0.9].map(|part| both[(both.len() as f64 * part) as usize]);
        percentiles.iter().map(|most| welch(a, b, *most).abs()).fold(0.0, f64::max)
    }

    fn welch(a: &[f64], b: &[f64], most: f64) -> f64 {
        let moments = |all: &[f64]| {
            let kept: Vec<f64> = all.iter().copied().filter(|time| *time <= most).collect();
            let mean = kept.iter().sum::<f64>() / kept.len() as f64;
            let variance = kept.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / (kept.len() as f64 - 1.0);
            (mean, variance / kept.len() as f64)
        };
        let ((mean_a, error_a), (mean_b, error_b)) = (moments(a), moments(b));
        (mean_a - mean_b) / (error_a + error_b).sqrt()
    }

    /// Returns the least difference of several runs. A difference in the code shows in all of them,
    /// one of the machine does not.
    fn least_difference(mut run: impl FnMut() -> (Vec<f64>, Vec<f64>)) -> f64 {
        let mut least = f64::INFINITY;
        for _ in 0..5 {
            let (a, b) = run();
            least = least.min(difference(&a, &b));
            if least < 5.0 {
                break;
            }
        }
        least
    }

    fn initial() -> PasswordMessageFamily {
        let first = b"n,,n=,r=abcdefgh";
        let length = (first.len() as u32).to_be_bytes();
        PasswordMessageFamily::Raw([MECHANISM.as_bytes(), b"\0", &length, first].concat().as_slice().into())
    }

    /// Performs the server's part of an exchange that ends with a wrong password. `extra` is the
    /// additional work of a leaky implementation.
    fn exchange(pretended: &Pretended, known: &BTreeMap<String, User>, name: &str, extra: impl Fn(bool)) {
        let (verifier, user) = pretended.verifier(name, known);
        extra(user.is_some());
        let (answer, waiting) = answered(&verifier, initial()).unwrap();
        let nonce = answer.split(',').next().unwrap();
        let proof = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        let last = format!("c=biws,{nonce},p={proof}");
        assert!(waiting.on_client_final_message(last.as_bytes()).is_err());
    }

    fn timed(extra: impl Fn(bool) + Copy) -> f64 {
        let folder = tempfile::tempdir().unwrap();
        let users = Users::at(folder.path().join("users"));
        for n in 0..20 {
            users.add(&format!("user{:02}", 2 * n), "x", Rights::Read).unwrap();
        }
        let (pretended, known) = (users.pretended().unwrap(), users.read().unwrap());
        let count = std::env::var("ONEHOP_TIMED_LOGINS").ok().and_then(|count| count.parse().ok()).unwrap_or(2_000);
        least_difference(|| {
            let mut times = [Vec::new(), Vec::new()];
            for n in 0..2 * count {
                // Alternates, with each kind equally often first and second.
                let is_known = (n ^ (n >> 1)) & 1 == 0;
                let name = format!("user{:02}", n / 2 % 20 * 2 + usize::from(!is_known));
                let began = Instant::now();
                exchange(&pretended, &known, &name, extra);
                times[usize::from(is_known)].push(began.elapsed().as_nanos() as f64);
            }
            let [unknown, known] = times;
            (unknown, known)
        })
    }

    #[test]
    fn a_name_that_is_not_there_takes_as_long_as_one_that_is() {
        let t = timed(|_| {});
        assert!(t < 10.0, "the times differ: t = {t}");
        // The check detects an actual difference.
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"key");
        let t = timed(|is_known| {
            if is_known {
                for _ in 0..40 {
                    let _ = std::hint::black_box(hmac::sign(&key, b"name"));
                }
            }
        });
        assert!(t >= 10.0, "a difference of 40 hashes is not found: t = {t}");
    }

    #[test]
    fn a_verdict_of_a_name_that_is_not_there_is_wrong_whatever_the_proof() {
        let guesses = Guesses::default();
        let guess = guesses.take("nobody", IpAddr::from([10, 0, 0, 1]), Instant::now());
        let failed = settled("nobody", guess, None, Some(())).map(drop).unwrap_err();
        assert_eq!((failed.why, failed.problem.code), (Why::UnknownUser, code::INVALID_PASSWORD));
    }

    #[test]
    fn what_has_no_guess_left_is_not_let_in() {
        let guesses = Guesses::default();
        let (address, now) = (IpAddr::from([10, 0, 0, 1]), Instant::now());
        while guesses.take("ada", address, now).is_ok() {}
        let folder = tempfile::tempdir().unwrap();
        let users = Users::at(folder.path().join("users"));
        users.add("ada", "x", Rights::Read).unwrap();
        let known = users.read().unwrap();
        let guess = guesses.take("ada", address, now);
        let failed = settled("ada", guess, known.get("ada"), Some(())).map(drop).unwrap_err();
        assert_eq!((failed.why, failed.problem.code), (Why::TooManyGuesses, code::INVALID_AUTHORIZATION));
    }
}
