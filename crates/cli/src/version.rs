//! The source of this binary, as `build.rs` recorded it.

/// Version and commit, as `--version` prints them: `0.1.0 (2815235a1b2c)`.
pub const TEXT: &str = env!("ONEHOP_VERSION");

/// The version alone.
pub const NUMBER: &str = env!("CARGO_PKG_VERSION");

/// Returns the commit, with `+changes` appended if files differed, or `None` if the source was no
/// clone.
pub fn commit() -> Option<&'static str> {
    Some(env!("ONEHOP_COMMIT")).filter(|commit| !commit.is_empty())
}

/// The build profile, which determines if times of this binary are meaningful.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Optimised.
    Release,
    /// Not optimised, or with the checks of a debug build.
    Debug,
}

impl Profile {
    /// Returns the profile of this binary.
    pub fn of_this_build() -> Self {
        // A profile that inherits release but keeps the checks counts as debug.
        match env!("ONEHOP_PROFILE") {
            "release" if !cfg!(debug_assertions) => Profile::Release,
            _ => Profile::Debug,
        }
    }

    /// Returns the name of the profile.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Release => "release",
            Profile::Debug => "debug",
        }
    }
}
