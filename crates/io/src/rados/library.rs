//! `librados.so.2`, loaded when a cluster is first asked for: nothing of Ceph's is needed to build Onehop or to start it.
//!
//! The library stays loaded until the process ends: it has threads that outlive a close.
//!
//! Signatures are those of `rados/librados.h`, written down by hand; the soname has stood for this interface since 2012.
//! The newest function here (`rados_aio_create_completion2`) came with Ceph 14.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use super::{Error, Result};
use crate::Library;

/// What a function of the library points to; which of its types, the parameter's name says.
pub type Handle = *mut c_void;
pub type Completion = unsafe extern "C" fn(Handle, *mut c_void);

/// `LIBRADOS_CMPXATTR_OP_EQ`.
pub const EQUAL: u8 = 1;
/// `LIBRADOS_CREATE_EXCLUSIVE`.
pub const EXCLUSIVE: c_int = 1;
/// `LIBRADOS_ALLOC_HINT_FLAG_SEQUENTIAL_WRITE`, `SEQUENTIAL_READ`, `APPEND_ONLY`, `IMMUTABLE`: what BlueStore asks for before it keeps
/// bytes in large pieces, with a checksum for each of these rather than for every 4 KiB.
pub const WRITTEN_ONCE: u32 = 1 | 4 | 16 | 32;
/// `LIBRADOS_OPERATION_FULL_TRY`: with it a full pool answers "no space"; without it the operation waits for ever.
pub const FULL_TRY: c_int = 64;

/// A table of functions that must all be there.
macro_rules! functions {
    ($($name:ident ($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// Where the library's functions are.
        #[derive(Clone, Copy, Debug)]
        pub struct Rados {
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl Rados {
            fn find(library: &Library) -> Result<Self> {
                Ok(Self {
                    $($name: {
                        let name = const {
                            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                                Ok(name) => name,
                                Err(_) => panic!("a name with an end in it"),
                            }
                        };
                        let at = need(library, name)?;
                        // SAFETY: the function of this name has this signature in the header.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(at.as_ptr()) }
                    },)*
                })
            }
        }
    };
}

functions! {
    rados_create2(*mut Handle, *const c_char, *const c_char, u64) -> c_int;
    rados_conf_read_file(Handle, *const c_char) -> c_int;
    rados_conf_set(Handle, *const c_char, *const c_char) -> c_int;
    rados_connect(Handle) -> c_int;
    rados_shutdown(Handle);
    rados_mon_command(Handle, *const *const c_char, usize, *const c_char, usize, *mut *mut c_char, *mut usize, *mut *mut c_char, *mut usize) -> c_int;
    rados_buffer_free(*mut c_char);
    rados_ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
    rados_ioctx_destroy(Handle);
    rados_ioctx_set_namespace(Handle, *const c_char);
    rados_nobjects_list_open(Handle, *mut Handle) -> c_int;
    rados_nobjects_list_next(Handle, *mut *const c_char, *mut *const c_char, *mut *const c_char) -> c_int;
    rados_nobjects_list_close(Handle);
    rados_aio_create_completion2(*mut c_void, Completion, *mut Handle) -> c_int;
    rados_aio_release(Handle);
    rados_aio_get_return_value(Handle) -> c_int;
    rados_create_write_op() -> Handle;
    rados_release_write_op(Handle);
    rados_write_op_assert_exists(Handle);
    rados_write_op_cmpxattr(Handle, *const c_char, u8, *const c_char, usize);
    rados_write_op_omap_cmp2(Handle, *const c_char, u8, *const c_char, usize, usize, *mut c_int);
    rados_write_op_setxattr(Handle, *const c_char, *const c_char, usize);
    rados_write_op_create(Handle, c_int, *const c_char);
    rados_write_op_set_alloc_hint2(Handle, u64, u64, u32);
    rados_write_op_write(Handle, *const c_char, usize, u64);
    rados_write_op_truncate(Handle, u64);
    rados_write_op_write_full(Handle, *const c_char, usize);
    rados_write_op_remove(Handle);
    rados_write_op_omap_set2(Handle, *const *const c_char, *const *const c_char, *const usize, *const usize, usize);
    rados_write_op_omap_rm_keys2(Handle, *const *const c_char, *const usize, usize);
    rados_aio_write_op_operate(Handle, Handle, Handle, *const c_char, *mut libc::time_t, c_int) -> c_int;
    rados_create_read_op() -> Handle;
    rados_release_read_op(Handle);
    rados_read_op_assert_exists(Handle);
    rados_read_op_stat(Handle, *mut u64, *mut libc::time_t, *mut c_int);
    rados_read_op_getxattrs(Handle, *mut Handle, *mut c_int);
    rados_read_op_omap_get_vals2(Handle, *const c_char, *const c_char, u64, *mut Handle, *mut c_uchar, *mut c_int);
    rados_read_op_omap_get_vals_by_keys2(Handle, *const *const c_char, usize, *const usize, *mut Handle, *mut c_int);
    rados_read_op_read(Handle, u64, usize, *mut c_char, *mut usize, *mut c_int);
    rados_aio_read_op_operate(Handle, Handle, Handle, *const c_char, c_int) -> c_int;
    rados_omap_get_next2(Handle, *mut *mut c_char, *mut *mut c_char, *mut usize, *mut usize) -> c_int;
    rados_omap_get_end(Handle);
    rados_getxattrs_next(Handle, *mut *const c_char, *mut *const c_char, *mut usize) -> c_int;
    rados_getxattrs_end(Handle);
}

impl Rados {
    /// The library, loaded by the first who asks. A failure is not remembered: it may be installed meanwhile.
    pub fn load() -> Result<Arc<Self>> {
        static LOADED: OnceLock<Arc<Rados>> = OnceLock::new();
        if let Some(loaded) = LOADED.get() {
            return Ok(Arc::clone(loaded));
        }
        let functions = Arc::new(Self::find(&open("librados.so.2")?)?);
        Ok(Arc::clone(LOADED.get_or_init(|| functions)))
    }
}

fn open(file: &str) -> Result<Library> {
    Library::open(&[file]).map_err(|reason| Error::NoLibrary { reason })
}

fn need(library: &Library, symbol: &'static CStr) -> Result<NonNull<c_void>> {
    let missing = || Error::NoLibrary { reason: format!("it has no {}", symbol.to_str().unwrap_or("?")) };
    library.find(symbol).ok_or_else(missing)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_missing_says_so_and_what_to_do() {
        let error = open("librados-of-nowhere.so.2").unwrap_err().to_string();
        assert!(error.contains("librados-of-nowhere.so.2") && error.contains("install"), "{error}");
    }

    #[test]
    fn a_library_without_a_function_is_too_old() {
        let error = Rados::find(&open("libc.so.6").unwrap()).unwrap_err().to_string();
        assert!(error.contains("it has no rados_create2"), "{error}");
    }
}
