//! Loading of NVIDIA's libraries at run time: an error with a remedy for each missing library, and
//! tables of their functions.

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
    /// Opens the first of these files that can be loaded, with the search path of the dynamic
    /// loader.
    ///
    /// # Errors
    /// Returns the loader's message for the first file: the others are the same library by other
    /// names.
    pub fn open(name: &'static str, files: &[&str], cure: &'static str) -> Result<Self> {
        match onehop_io::Library::open(files) {
            Ok(loaded) => Ok(Self { name, loaded }),
            Err(reason) => Err(Error::NotThere { library: name, reason, cure }),
        }
    }

    /// Returns the address of a function.
    pub fn find(&self, symbol: &CStr) -> Option<NonNull<c_void>> {
        self.loaded.find(symbol)
    }

    /// Returns the address of a function that the library must have.
    pub fn need(&self, symbol: &'static CStr) -> Result<NonNull<c_void>> {
        let too_old = || Error::TooOld { library: self.name, symbol: symbol.to_str().unwrap_or("?") };
        self.find(symbol).ok_or_else(too_old)
    }
}

/// Declares a table of a library's functions: `fn` is required, `opt` may be missing.
///
/// The signatures are copied by hand from the vendor's headers. Calls use them without a further
/// check.
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
            /// Looks up all functions.
            pub fn find(library: &$crate::library::Library) -> $crate::Result<Self> {
                Ok(Self {
                    $($name: {
                        let at = library.need($symbol)?;
                        // SAFETY: the vendor's header declares this signature for this name.
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
