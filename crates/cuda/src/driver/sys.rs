//! Declarations of the driver functions that this crate calls, as in its header `cuda.h`.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::library::functions;

/// A `CUdevice`.
pub type RawDevice = c_int;
/// A `CUcontext`.
pub type RawContext = *mut c_void;
/// A `CUstream`.
pub type RawStream = *mut c_void;
/// A `CUevent`.
pub type RawEvent = *mut c_void;
/// A `CUmodule`.
pub type RawModule = *mut c_void;
/// A `CUfunction`.
pub type RawFunction = *mut c_void;
/// A `CUdeviceptr`.
pub type Address = u64;

/// A `CUipcMemHandle`, which is passed by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RawShared(pub [u8; 64]);

const _: () = assert!(size_of::<RawShared>() == 64);

/// `CUDA_ERROR_NOT_READY`.
pub const NOT_READY: c_int = 600;
/// `CU_STREAM_NON_BLOCKING`: no ordering with the default stream.
pub const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub const EVENT_NO_TIMING: c_uint = 2;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
pub const SHARED_WITH_PEERS: c_uint = 1;
/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for all contexts.
pub const HOST_PORTABLE: c_uint = 1;
/// `CU_MEMHOSTREGISTER_PORTABLE`: the same for memory that existed before.
pub const REGISTER_PORTABLE: c_uint = 1;
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
pub const MULTIPROCESSORS: c_int = 16;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
pub const MOST_SHARED_BYTES: c_int = 8;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`.
pub const COMPUTE_MAJOR: c_int = 75;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`.
pub const COMPUTE_MINOR: c_int = 76;

functions! {
    /// `libcuda`.
    Api {
        fn init = c"cuInit"(c_uint) -> c_int;
        fn version = c"cuDriverGetVersion"(*mut c_int) -> c_int;
        fn error_name = c"cuGetErrorName"(c_int, *mut *const c_char) -> c_int;
        fn error_text = c"cuGetErrorString"(c_int, *mut *const c_char) -> c_int;
        fn device_count = c"cuDeviceGetCount"(*mut c_int) -> c_int;
        fn device = c"cuDeviceGet"(*mut RawDevice, c_int) -> c_int;
        fn device_name = c"cuDeviceGetName"(*mut c_char, c_int, RawDevice) -> c_int;
        fn device_memory = c"cuDeviceTotalMem_v2"(*mut usize, RawDevice) -> c_int;
        fn device_attribute = c"cuDeviceGetAttribute"(*mut c_int, c_int, RawDevice) -> c_int;
        fn device_pci = c"cuDeviceGetPCIBusId"(*mut c_char, c_int, RawDevice) -> c_int;
        fn device_uuid = c"cuDeviceGetUuid"(*mut u8, RawDevice) -> c_int;
        fn retain = c"cuDevicePrimaryCtxRetain"(*mut RawContext, RawDevice) -> c_int;
        fn release = c"cuDevicePrimaryCtxRelease_v2"(RawDevice) -> c_int;
        fn set_current = c"cuCtxSetCurrent"(RawContext) -> c_int;
        fn alloc = c"cuMemAlloc_v2"(*mut Address, usize) -> c_int;
        fn free = c"cuMemFree_v2"(Address) -> c_int;
        fn extent = c"cuMemGetAddressRange_v2"(*mut Address, *mut usize, Address) -> c_int;
        fn share = c"cuIpcGetMemHandle"(*mut RawShared, Address) -> c_int;
        fn open_shared = c"cuIpcOpenMemHandle_v2"(*mut Address, RawShared, c_uint) -> c_int;
        fn close_shared = c"cuIpcCloseMemHandle"(Address) -> c_int;
        fn alloc_host = c"cuMemHostAlloc"(*mut *mut c_void, usize, c_uint) -> c_int;
        fn free_host = c"cuMemFreeHost"(*mut c_void) -> c_int;
        fn register_host = c"cuMemHostRegister_v2"(*mut c_void, usize, c_uint) -> c_int;
        fn unregister_host = c"cuMemHostUnregister"(*mut c_void) -> c_int;
        fn to_device = c"cuMemcpyHtoD_v2"(Address, *const c_void, usize) -> c_int;
        fn to_host = c"cuMemcpyDtoH_v2"(*mut c_void, Address, usize) -> c_int;
        fn to_device_async = c"cuMemcpyHtoDAsync_v2"(Address, *const c_void, usize, RawStream) -> c_int;
        fn to_host_async = c"cuMemcpyDtoHAsync_v2"(*mut c_void, Address, usize, RawStream) -> c_int;
        fn within_async = c"cuMemcpyDtoDAsync_v2"(Address, Address, usize, RawStream) -> c_int;
        fn fill = c"cuMemsetD8_v2"(Address, u8, usize) -> c_int;
        fn fill_async = c"cuMemsetD8Async"(Address, u8, usize, RawStream) -> c_int;
        fn stream = c"cuStreamCreate"(*mut RawStream, c_uint) -> c_int;
        fn stream_free = c"cuStreamDestroy_v2"(RawStream) -> c_int;
        fn stream_wait = c"cuStreamSynchronize"(RawStream) -> c_int;
        fn stream_after = c"cuStreamWaitEvent"(RawStream, RawEvent, c_uint) -> c_int;
        fn event = c"cuEventCreate"(*mut RawEvent, c_uint) -> c_int;
        fn event_free = c"cuEventDestroy_v2"(RawEvent) -> c_int;
        fn event_record = c"cuEventRecord"(RawEvent, RawStream) -> c_int;
        fn event_query = c"cuEventQuery"(RawEvent) -> c_int;
        fn event_wait = c"cuEventSynchronize"(RawEvent) -> c_int;
        fn module_load = c"cuModuleLoadData"(*mut RawModule, *const c_void) -> c_int;
        fn module_free = c"cuModuleUnload"(RawModule) -> c_int;
        fn module_function = c"cuModuleGetFunction"(*mut RawFunction, RawModule, *const c_char) -> c_int;
        fn function_attribute = c"cuFuncSetAttribute"(RawFunction, c_int, c_int) -> c_int;
        fn launch = c"cuLaunchKernel"(
            RawFunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, RawStream, *mut *mut c_void, *mut *mut c_void
        ) -> c_int;
        fn event_elapsed = c"cuEventElapsedTime"(*mut f32, RawEvent, RawEvent) -> c_int;
    }
}
