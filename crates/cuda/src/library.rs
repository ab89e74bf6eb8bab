//! NVIDIA's libraries, found when the program runs: each with what to do where it is not, and tables of their functions.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use crate::{Error, Result};

/// A loaded library.
#[derive(Debug)]
pub struct Library {
    name: &'static str,
    loaded: onehop_io::Library,
}

impl Library {
    /// The first of these files that can be loaded, looked for as the dynamic loader does.
    ///
    /// # Errors
    /// What the loader says about the first: the others are the same library by other names.
    pub fn open(name: &'static str, files: &[&str], cure: &'static str) -> Result<Self> {
        match onehop_io::Library::open(files) {
            Ok(loaded) => Ok(Self { name, loaded }),
            Err(reason) => Err(Error::NotThere { library: name, reason, cure }),
        }
    }

    /// Where a function is.
    pub fn find(&self, symbol: &CStr) -> Option<NonNull<c_void>> {
        self.loaded.find(symbol)
    }

    /// Where a function is that must be there.
    pub fn need(&self, symbol: &'static CStr) -> Result<NonNull<c_void>> {
        let too_old = || Error::TooOld { library: self.name, symbol: symbol.to_str().unwrap_or("?") };
        self.find(symbol).ok_or_else(too_old)
    }
}

/// A table of a library's functions: `fn` must be there, `opt` may be missing.
///
/// The signatures are the vendor's headers', written down by hand: what they say is what is called.
macro_rules! functions {
    (
        $(#[$doc:meta])* $table:ident {
            $(fn $name:ident = $symbol:literal ($($arg:ty),*) -> $ret:ty;)*
            $(opt $maybe:ident = $maybe_symbol:literal ($($maybe_arg:ty),*) -> $maybe_ret:ty;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $table {
            $(pub $name: unsafe extern "C" fn($($arg),*) -> $ret,)*
            $(pub $maybe: Option<unsafe extern "C" fn($($maybe_arg),*) -> $maybe_ret>,)*
        }

        impl $table {
            /// Looks all of them up.
            pub fn find(library: &$crate::library::Library) -> $crate::Result<Self> {
                Ok(Self {
                    $($name: {
                        let at = library.need($symbol)?;
                        // SAFETY: the function of this name has this signature in the vendor's header.
                        unsafe { std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($arg),*) -> $ret>(at.as_ptr()) }
                    },)*
                    $($maybe: library.find($maybe_symbol).map(|at| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($maybe_arg),*) -> $maybe_ret>(at.as_ptr()) }
                    }),)*
                })
            }
        }
    };
}
pub(crate) use functions;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_says_so() {
        let error = Library::open("libnowhere", &["libnowhere.so.7", "libnowhere.so"], "install it").unwrap_err();
        assert!(error.to_string().contains("libnowhere cannot be loaded: libnowhere.so.7"), "{error}");
        assert_eq!(error.cure(), Some("install it"));
        assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::Unsupported);
    }

    #[test]
    fn a_function_that_is_missing_has_its_name_in_the_error() {
        let library = Library::open("libc", &["libc.so.6"], "").unwrap();
        assert!(library.find(c"strlen").is_some());
        let error = library.need(c"cuInit").unwrap_err().to_string();
        assert!(error.contains("libc has no cuInit"), "{error}");
    }
}
