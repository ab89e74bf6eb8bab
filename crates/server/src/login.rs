//! Log-ins: SCRAM-SHA-256, by which neither side tells the other a password, and a limit on guesses.
//!
//! Who fails a few times from one address has to wait before the next try, each time twice as long. Somebody whom nobody knows
//! is asked the same questions as somebody who gives the wrong password, and gets the same answer.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use onehop_engine::Rights;
use pgwire::api::auth::sasl::scram::ScramServerAuth;
use pgwire::messages::startup::{Authentication, PasswordMessageFamily};
use pgwire::messages::{PgWireBackendMessage, PgWireFrontendMessage};
use ring::hmac;
use ring::rand::SystemRandom;
use tokio::io::AsyncRead;

use crate::link::Link;
use crate::problem::{Problem, code};
use crate::read::{End, Reader};
use crate::users::{User, Users, UsersError, nobody_has, secret_of_nobody};

const MECHANISM: &str = "SCRAM-SHA-256";

/// Failures that cost nothing.
const FREE_FAILURES: u32 = 5;
/// The first wait.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Passwords that are remembered to have been right.
const MOST_REMEMBERED: usize = 1_000;
/// Addresses that are remembered.
const MOST_ADDRESSES: usize = 10_000;

/// Log-ins that failed, by address.
#[derive(Debug, Default)]
pub struct Failures(Mutex<HashMap<IpAddr, Failed>>);

#[derive(Clone, Copy, Debug)]
struct Failed {
    times: u32,
    last: Instant,
}

impl Failed {
    /// Until when nothing is heard.
    fn wait(&self) -> Duration {
        match self.times.checked_sub(FREE_FAILURES) {
            None => Duration::ZERO,
            Some(over) => FIRST_WAIT.saturating_mul(1 << over.min(10)).min(LONGEST_WAIT),
        }
    }
}

impl Failures {
    /// Refuses an address that has failed too often of late.
    pub fn check(&self, address: IpAddr, now: Instant) -> Result<(), Problem> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left = all.get(&address).map(|failed| failed.wait().saturating_sub(now.duration_since(failed.last)));
        match left {
            Some(left) if !left.is_zero() => {
                let message = "too many failed log-ins from this address";
                let hint = format!("try again in {} s", left.as_secs() + 1);
                Err(Problem::fatal(code::INVALID_AUTHORIZATION, message).with_hint(hint))
            }
            _ => Ok(()),
        }
    }

    /// Another one.
    pub fn add(&self, address: IpAddr, now: Instant) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST_ADDRESSES {
            all.retain(|_, failed| now.duration_since(failed.last) < LONGEST_WAIT);
        }
        let is_full = all.len() >= MOST_ADDRESSES;
        match all.get_mut(&address) {
            Some(failed) => {
                failed.times = failed.times.saturating_add(1);
                failed.last = now;
            }
            None if is_full => {}
            None => drop(all.insert(address, Failed { times: 1, last: now })),
        }
    }

    /// Somebody has logged in from there.
    pub fn forget(&self, address: IpAddr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
    }
}

/// Who may log in, and how they are asked.
#[derive(Debug)]
pub struct Gate {
    users: Option<Users>,
    failures: Failures,
    /// What answers for unknown users are made of, and what is remembered of passwords.
    key: hmac::Key,
    /// Passwords that were right, with names and verifiers, hashed: who looks at the page says one with each request.
    right: Mutex<HashSet<[u8; 32]>>,
}

impl Gate {
    /// `None` for everybody, as an admin.
    pub fn new(users: Option<Users>) -> Option<Self> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok()?;
        Some(Self { users, failures: Failures::default(), key, right: Mutex::default() })
    }

    /// Asks somebody for proof of who they are. What they may do, if they are.
    pub async fn pass<R: AsyncRead + Unpin>(
        &self,
        name: &str,
        address: IpAddr,
        reader: &mut Reader<R>,
        link: &mut Link,
    ) -> Result<Rights, Problem> {
        let Some(users) = &self.users else { return Ok(Rights::Admin) };
        self.failures.check(address, Instant::now())?;
        let outcome = self.ask(users, name, reader, link).await;
        match &outcome {
            Ok(_) => self.failures.forget(address),
            Err(problem) if problem.code == code::INVALID_PASSWORD => self.failures.add(address, Instant::now()),
            Err(_) => {}
        }
        outcome
    }

    /// Whether anybody has to log in.
    pub fn is_open(&self) -> bool {
        self.users.is_none()
    }

    /// What somebody may do who says a password, by a way that nobody else hears.
    pub async fn check(&self, name: &str, password: &str, address: IpAddr) -> Result<Rights, Problem> {
        let Some(users) = &self.users else { return Ok(Rights::Admin) };
        self.failures.check(address, Instant::now())?;
        let known = users.read().map_err(unreadable)?;
        let user = known.get(name).cloned();
        let verifier = user.as_ref().map(User::verifier).unwrap_or_default();
        // Names and verifiers have no such bytes.
        let tag = hmac::sign(&self.key, format!("{name}\0{verifier}\0{password}").as_bytes());
        let tag: [u8; 32] = tag.as_ref().try_into().unwrap_or_default();
        let mut is_right = self.right().contains(&tag);
        if !is_right {
            let (user, password) = (user.clone(), password.to_string());
            let hashed = move || user.map_or_else(|| nobody_has(&password), |user| user.has_password(&password));
            is_right = tokio::task::spawn_blocking(hashed).await.unwrap_or(false);
        }
        match user.filter(|_| is_right) {
            Some(user) => {
                let mut right = self.right();
                if right.len() >= MOST_REMEMBERED {
                    right.clear();
                }
                right.insert(tag);
                self.failures.forget(address);
                Ok(user.rights)
            }
            None => {
                self.failures.add(address, Instant::now());
                Err(wrong_password(name))
            }
        }
    }

    fn right(&self) -> MutexGuard<'_, HashSet<[u8; 32]>> {
        self.right.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask<R: AsyncRead + Unpin>(
        &self,
        users: &Users,
        name: &str,
        reader: &mut Reader<R>,
        link: &mut Link,
    ) -> Result<Rights, Problem> {
        let known = users.read().map_err(unreadable)?;
        let user = known.get(name);
        let secret = user.map_or_else(|| secret_of_nobody(name, &self.key), |user| user.secret());
        put(link, Authentication::SASL(vec![MECHANISM.into()])).await?;
        let first = password(reader).await?;
        if !is_initial(&first) {
            return Err(violation("it does not begin as SASL does"));
        }
        let first = first.into_sasl_initial_response().map_err(violation)?;
        if first.auth_method != MECHANISM {
            return Err(violation(format!("the server asks for {MECHANISM}")));
        }
        let first = first.data.ok_or_else(|| violation("a log-in begins with nothing"))?;
        let answered = ScramServerAuth::new().on_client_first_message_with_secret(&first, secret);
        let (answer, waiting) = answered.map_err(violation)?;
        put(link, Authentication::SASLContinue(answer.into())).await?;
        let last = password(reader).await?.into_sasl_response().map_err(violation)?;
        let answer = waiting.on_client_final_message(&last.data).map_err(|_| wrong_password(name))?;
        let user = user.ok_or_else(|| wrong_password(name))?;
        link.put(PgWireBackendMessage::Authentication(Authentication::SASLFinal(answer.into())));
        Ok(user.rights)
    }
}

fn unreadable(e: UsersError) -> Problem {
    // The details are for whoever runs the server.
    eprintln!("onehop: {e}");
    Problem::fatal(code::INVALID_AUTHORIZATION, "the server cannot read who may log in")
}

fn wrong_password(name: &str) -> Problem {
    Problem::fatal(code::INVALID_PASSWORD, format!("password authentication failed for user \"{name}\""))
}

async fn put(link: &mut Link, message: Authentication) -> Result<(), Problem> {
    link.put(PgWireBackendMessage::Authentication(message));
    link.flush().await.map_err(|_| violation("the client is gone"))
}

async fn password<R: AsyncRead + Unpin>(reader: &mut Reader<R>) -> Result<PasswordMessageFamily, Problem> {
    match reader.next().await {
        Ok((PgWireFrontendMessage::PasswordMessageFamily(message), _)) => Ok(message),
        Ok(_) => Err(violation("expected a password response")),
        Err(End::Closed) => Err(violation("the client is gone")),
        Err(End::Nonsense(problem)) => Err(problem),
    }
}

/// A mechanism's name, and so many bytes as it says. The decoder takes that for granted.
fn is_initial(message: &PasswordMessageFamily) -> bool {
    let PasswordMessageFamily::Raw(bytes) = message else { return false };
    let Some(end) = bytes.iter().position(|byte| *byte == 0) else { return false };
    let Some(length) = bytes.get(end + 1..end + 5).and_then(|bytes| bytes.try_into().ok()) else { return false };
    match i32::from_be_bytes(length) {
        -1 => true,
        length => usize::try_from(length).is_ok_and(|length| length == bytes.len() - end - 5),
    }
}

fn violation(what: impl std::fmt::Display) -> Problem {
    Problem::fatal(code::PROTOCOL_VIOLATION, format!("malformed log-in: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_guesses_has_to_wait_longer_each_time() {
        let (failures, now) = (Failures::default(), Instant::now());
        let (guesser, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        for _ in 0..FREE_FAILURES {
            assert!(failures.check(guesser, now).is_ok());
            failures.add(guesser, now);
        }
        assert!(failures.check(guesser, now).is_err());
        assert!(failures.check(other, now).is_ok());
        assert!(failures.check(guesser, now + FIRST_WAIT).is_ok());
        failures.add(guesser, now + FIRST_WAIT);
        assert!(failures.check(guesser, now + 2 * FIRST_WAIT).is_err());
        (0..100).for_each(|_| failures.add(guesser, now));
        assert!(failures.check(guesser, now + LONGEST_WAIT).is_ok());
        failures.forget(guesser);
        assert!(failures.check(guesser, now).is_ok());
    }
}
