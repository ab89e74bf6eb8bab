//! Verifiers for names that are not in the file of users, so that a client cannot tell such a name
//! from one that is.
//!
//! - Salt and keys are derived from the name and the secret of the file: the same each time, and
//!   after a restart.
//! - Iterations and the length of the salt are those of a verifier in the file. The name selects
//!   the verifier, so that each kind is pretended as often as the file has it. The choice is a
//!   weighted rendezvous: a change of the file moves few names to another kind, and none while all
//!   verifiers are alike.
//! - The work is the same for every name: for known names a verifier is pretended as well, and
//!   discarded.

use std::collections::BTreeMap;

use ring::hmac;

use super::{ITERATIONS, SALT_BYTES, User, Verifier};

/// The part of a verifier that a client sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    iterations: usize,
    salt_bytes: usize,
}

/// The source of pretended verifiers.
#[derive(Debug)]
pub(crate) struct Pretended {
    key: hmac::Key,
}

impl Pretended {
    pub(super) fn new(secret: &[u8; 32]) -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, secret) }
    }

    /// Returns the verifier for a log-in under this name, and the user if there is one.
    pub(crate) fn verifier<'a>(&self, name: &str, known: &'a BTreeMap<String, User>) -> (Verifier, Option<&'a User>) {
        let (pretended, user) = (self.of(name, known), known.get(name));
        // Either one is copied, for the same work.
        (user.map_or(&pretended, User::verifier).clone(), user)
    }

    fn of(&self, name: &str, known: &BTreeMap<String, User>) -> Verifier {
        let Kind { iterations, salt_bytes } = self.kind(name, known);
        let (stored_key, server_key) = (self.derived("stored key", name), self.derived("server key", name));
        Verifier { salt: self.salt(name, salt_bytes), iterations, stored_key, server_key }
    }

    fn derived(&self, what: &str, name: &str) -> Vec<u8> {
        hmac::sign(&self.key, format!("{what}\0{name}").as_bytes()).as_ref().to_vec()
    }

    fn salt(&self, name: &str, bytes: usize) -> Vec<u8> {
        let blocks = (0..).flat_map(|block: u32| self.derived(&format!("salt {block}"), name));
        blocks.take(bytes).collect()
    }

    /// Returns the kind with the least `-ln(u) / weight`, where `u` is a number derived from name
    /// and kind.
    fn kind(&self, name: &str, known: &BTreeMap<String, User>) -> Kind {
        let mut weights: BTreeMap<Kind, f64> = BTreeMap::new();
        for Verifier { salt, iterations, .. } in known.values().map(User::verifier) {
            *weights.entry(Kind { iterations: *iterations, salt_bytes: salt.len() }).or_default() += 1.0;
        }
        let score = |kind: &Kind, weight: f64| {
            let hash = self.derived(&format!("kind {} {}", kind.iterations, kind.salt_bytes), name);
            let number = hash.iter().take(8).fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
            -((number as f64 + 1.0) / (u64::MAX as f64 + 2.0)).ln() / weight
        };
        let scored = weights.iter().map(|(kind, weight)| (score(kind, *weight), *kind));
        let least = scored.min_by(|(a, _), (b, _)| a.total_cmp(b));
        least.map_or(Kind { iterations: ITERATIONS, salt_bytes: SALT_BYTES }, |(_, kind)| kind)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use onehop_engine::Rights;

    use super::*;

    fn users(kinds: &[(usize, usize, usize)]) -> BTreeMap<String, User> {
        let all = kinds.iter().flat_map(|(count, iterations, bytes)| (0..*count).map(|n| (n, *iterations, *bytes)));
        all.map(|(n, iterations, bytes)| {
            let (stored_key, server_key) = (vec![1; 32], vec![2; 32]);
            let verifier = Verifier { salt: vec![n as u8; bytes], iterations, stored_key, server_key };
            (format!("{iterations}-{bytes}-{n}"), User { rights: Rights::Read, verifier })
        })
        .collect()
    }

    fn kinds(pretended: &Pretended, known: &BTreeMap<String, User>) -> Vec<(usize, usize)> {
        let of = |n| pretended.of(&format!("nobody{n}"), known);
        (0..2_000).map(of).map(|verifier| (verifier.iterations, verifier.salt.len())).collect()
    }

    #[test]
    fn names_are_as_those_in_the_file_in_proportion() {
        let pretended = Pretended::new(&[7; 32]);
        let alike = kinds(&pretended, &users(&[(3, 4096, 16)]));
        assert!(alike.iter().all(|kind| *kind == (4096, 16)));
        let mixed = kinds(&pretended, &users(&[(30, 10_000, 16), (10, 4096, 24)]));
        let imported = mixed.iter().filter(|kind| **kind == (4096, 24)).count();
        assert!((420..580).contains(&imported), "{imported} of 2000 are not a quarter");
        assert_eq!(mixed.iter().filter(|kind| **kind == (10_000, 16)).count(), 2_000 - imported);
        assert!(kinds(&pretended, &BTreeMap::new()).iter().all(|kind| *kind == (ITERATIONS, SALT_BYTES)));
    }

    #[test]
    fn another_user_moves_few_names_to_another_kind() {
        let pretended = Pretended::new(&[7; 32]);
        let before = kinds(&pretended, &users(&[(30, 10_000, 16), (10, 4096, 16)]));
        let after = kinds(&pretended, &users(&[(31, 10_000, 16), (10, 4096, 16)]));
        let moved = before.iter().zip(&after).filter(|(before, after)| before != after).count();
        assert!(moved < 40, "{moved} of 2000 names have moved");
    }

    #[test]
    fn a_name_has_the_same_salt_each_time_and_another_than_others() {
        let known = users(&[(1, 10_000, 48)]);
        let (first, second) = (Pretended::new(&[7; 32]), Pretended::new(&[7; 32]));
        let (of_first, of_second) = (first.of("nobody", &known), second.of("nobody", &known));
        assert!(of_first == of_second && of_first.salt.len() == 48);
        assert!(of_first.salt != first.of("somebody", &known).salt);
        assert!(of_first.salt != Pretended::new(&[8; 32]).of("nobody", &known).salt);
    }
}
