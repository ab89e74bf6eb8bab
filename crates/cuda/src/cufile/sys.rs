//! Functions and structures of cuFile, as its header `cufile.h` declares them (1.15, of CUDA 13.0).

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::{offset_of, size_of};

use crate::driver::sys::RawStream;
use crate::library::functions;

/// A `CUfileHandle_t`.
pub type RawHandle = *mut c_void;
/// A `CUfileBatchHandle_t`.
pub type RawBatch = *mut c_void;

/// A `CUfileError_t`: cuFile's code and, for [`CUDA_ERROR`], the driver's.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Status {
    pub code: c_int,
    pub cuda: c_int,
}

/// `CU_FILE_CUDA_DRIVER_ERROR`.
pub const CUDA_ERROR: c_int = 5011;
/// `CU_FILE_DRIVER_ALREADY_OPEN`.
pub const ALREADY_OPEN: c_int = 5026;
/// `CU_FILE_HANDLE_NOT_REGISTERED`.
pub const HANDLE_NOT_REGISTERED: c_int = 5027;
/// `CU_FILE_BATCH_FULL`.
pub const BATCH_FULL: c_int = 5037;

/// `CU_FILE_HANDLE_TYPE_OPAQUE_FD`.
pub const TYPE_FD: c_int = 1;

/// A `CUfileDescr_t`. `handle` has the descriptor in its first half.
#[repr(C)]
#[derive(Debug)]
pub struct Descriptor {
    pub kind: c_int,
    pub handle: Handle,
    pub fs_ops: *const c_void,
}

/// File handle in a [`Descriptor`].
#[repr(C)]
pub union Handle {
    pub fd: c_int,
    pub pointer: *mut c_void,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handle")
    }
}

const _: () = assert!(size_of::<Descriptor>() == 24 && offset_of!(Descriptor, handle) == 8);

/// A `CUfileDrvProps_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Properties {
    pub nvfs_major: c_uint,
    pub nvfs_minor: c_uint,
    pub poll_threshold: usize,
    pub max_direct_kib: usize,
    /// Bits of the supported direct paths.
    pub supports: c_uint,
    /// Bits of the configuration.
    pub control: c_uint,
    pub features: c_uint,
    pub max_cache_kib: c_uint,
    pub buffer_cache_kib: c_uint,
    pub max_pinned_kib: c_uint,
    pub max_batch: c_uint,
    pub batch_timeout_ms: c_uint,
}

const _: () = assert!(size_of::<Properties>() == 56 && offset_of!(Properties, max_batch) == 48);

/// `CU_FILE_NVME_P2P_SUPPORTED`, a bit of [`Properties::supports`].
pub const NVME_P2P: u32 = 11;
/// `CU_FILE_ALLOW_COMPAT_MODE`, a bit of [`Properties::control`].
pub const ALLOW_COMPAT: u32 = 1;

/// `CUFILE_BATCH`.
pub const MODE_BATCH: c_int = 1;
/// `CUFILE_READ`.
pub const OP_READ: c_int = 0;
/// `CUFILE_WRITE`.
pub const OP_WRITE: c_int = 1;

/// A `CUfileIOParams_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BatchEntry {
    pub mode: c_int,
    pub base: *mut c_void,
    pub file_offset: libc::off_t,
    pub buffer_offset: libc::off_t,
    pub bytes: usize,
    pub file: RawHandle,
    pub op: c_int,
    pub cookie: *mut c_void,
}

const _: () = assert!(
    size_of::<BatchEntry>() == 64
        && offset_of!(BatchEntry, base) == 8
        && offset_of!(BatchEntry, file) == 40
        && offset_of!(BatchEntry, op) == 48
        && offset_of!(BatchEntry, cookie) == 56
);

/// A `CUfileIOEvents_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BatchEvent {
    pub cookie: *mut c_void,
    pub status: c_uint,
    pub moved: isize,
}

const _: () = assert!(size_of::<BatchEvent>() == 24 && offset_of!(BatchEvent, moved) == 16);

/// `CUFILE_COMPLETE`, of [`BatchEvent::status`].
pub const COMPLETE: c_uint = 0x10;
/// `CUFILE_WAITING` and `CUFILE_PENDING`.
pub const UNFINISHED: c_uint = 0x3;

/// `CU_FILE_STREAM_FIXED_BUF_OFFSET`, `_FILE_OFFSET` and `_FILE_SIZE`, and
/// `CU_FILE_STREAM_PAGE_ALIGNED_INPUTS`: the parameters are known, and in whole pages, at
/// submission.
pub const STREAM_KNOWN_ALIGNED: c_uint = 0xf;

/// `CUFILE_PARAM_LOG_DIR`.
pub const LOG_FOLDER: c_int = 2;

/// Room for a `CUfileStatsLevel3_t`, which has 5,000 bytes in 1.15 and has grown since.
pub const STATS_WORDS: usize = 4096;

functions! {
    /// `libcufile`.
    Api {
        fn open = c"cuFileDriverOpen"() -> Status;
        fn close = c"cuFileDriverClose_v2"() -> Status;
        fn properties = c"cuFileDriverGetProperties"(*mut Properties) -> Status;
        fn register_file = c"cuFileHandleRegister"(*mut RawHandle, *mut Descriptor) -> Status;
        fn forget_file = c"cuFileHandleDeregister"(RawHandle) -> ();
        fn register_buffer = c"cuFileBufRegister"(*const c_void, usize, c_int) -> Status;
        fn forget_buffer = c"cuFileBufDeregister"(*const c_void) -> Status;
        fn read = c"cuFileRead"(RawHandle, *mut c_void, usize, libc::off_t, libc::off_t) -> isize;
        fn write = c"cuFileWrite"(RawHandle, *const c_void, usize, libc::off_t, libc::off_t) -> isize;
        opt version = c"cuFileGetVersion"(*mut c_int) -> Status;
        opt set_text = c"cuFileSetParameterString"(c_int, *const c_char) -> Status;
        opt batch_new = c"cuFileBatchIOSetUp"(*mut RawBatch, c_uint) -> Status;
        opt batch_submit = c"cuFileBatchIOSubmit"(RawBatch, c_uint, *mut BatchEntry, c_uint) -> Status;
        opt batch_status = c"cuFileBatchIOGetStatus"(RawBatch, c_uint, *mut c_uint, *mut BatchEvent, *mut libc::timespec) -> Status;
        opt batch_free = c"cuFileBatchIODestroy"(RawBatch) -> ();
        opt stream_register = c"cuFileStreamRegister"(RawStream, c_uint) -> Status;
        opt stream_forget = c"cuFileStreamDeregister"(RawStream) -> Status;
        opt read_async = c"cuFileReadAsync"(RawHandle, *mut c_void, *mut usize, *mut libc::off_t, *mut libc::off_t, *mut isize, RawStream) -> Status;
        opt write_async = c"cuFileWriteAsync"(RawHandle, *mut c_void, *mut usize, *mut libc::off_t, *mut libc::off_t, *mut isize, RawStream) -> Status;
        opt stats_level = c"cuFileSetStatsLevel"(c_int) -> Status;
        opt stats_start = c"cuFileStatsStart"() -> Status;
        opt stats_3 = c"cuFileGetStatsL3"(*mut u64) -> Status;
    }
}
