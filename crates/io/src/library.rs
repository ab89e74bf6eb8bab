//! Libraries found when the program runs, through the C library's own `dlopen`: three calls, which need no crate.
//!
//! A library stays loaded until the process ends: those of devices and clusters start threads and register handlers that
//! outlive a close.

use std::ffi::{CStr, CString, c_void};
use std::ptr::NonNull;

/// A loaded library.
#[derive(Debug)]
pub struct Library {
    handle: NonNull<c_void>,
}

// SAFETY: a handle is a number to the loader, whose calls may come from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// The first of these files that can be loaded, looked for as the dynamic loader does.
    ///
    /// # Errors
    /// What the loader says about the first: the others are the same library by other names.
    pub fn open(files: &[&str]) -> Result<Self, String> {
        let mut reason = None;
        for file in files {
            let Ok(file) = CString::new(*file) else { continue };
            // SAFETY: a string that ends. What a library does when it is loaded is the trust we have in its vendor.
            let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            match NonNull::new(handle) {
                Some(handle) => return Ok(Self { handle }),
                None => reason = reason.or_else(last_words),
            }
        }
        Err(reason.unwrap_or_else(|| "no reason given".into()))
    }

    /// Where a function is.
    pub fn find(&self, symbol: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is of `dlopen` and never closed; the name ends.
        NonNull::new(unsafe { libc::dlsym(self.handle.as_ptr(), symbol.as_ptr()) })
    }
}

/// What the loader said last on this thread.
fn last_words() -> Option<String> {
    // SAFETY: the string is valid until the next call of the loader on this thread, and copied before that.
    unsafe {
        let text = libc::dlerror();
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_says_so() {
        let reason = Library::open(&["libnowhere.so.7", "libnowhere.so"]).unwrap_err();
        assert!(reason.contains("libnowhere.so.7"), "{reason}");
        let library = Library::open(&["libnowhere.so", "libc.so.6"]).unwrap();
        assert!(library.find(c"strlen").is_some());
        assert!(library.find(c"cuInit").is_none());
    }
}
