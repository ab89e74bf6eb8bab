//! What this binary is made of, as `build.rs` found it.

/// Version and commit, as `--version` prints them: `0.1.0 (2815235a1b2c)`.
pub const TEXT: &str = env!("ONEHOP_VERSION");

/// The version alone.
pub const NUMBER: &str = env!("CARGO_PKG_VERSION");

/// The commit, `+changes` after it if files differed; `None` if the source was no clone.
pub fn commit() -> Option<&'static str> {
    Some(env!("ONEHOP_COMMIT")).filter(|commit| !commit.is_empty())
}

/// Whether times taken with this binary mean anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Optimised.
    Release,
    /// Not optimised, or with the checks of a debug build.
    Debug,
}

impl Profile {
    /// This binary's.
    pub fn of_this_build() -> Self {
        // A profile that inherits release but keeps the checks is no release.
        match env!("ONEHOP_PROFILE") {
            "release" if !cfg!(debug_assertions) => Profile::Release,
            _ => Profile::Debug,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Release => "release",
            Profile::Debug => "debug",
        }
    }
}
