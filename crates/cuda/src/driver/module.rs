//! Device code: modules, and their kernels, which are launched into streams.

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::sync::Arc;

use super::{Context, Stream, sys};
use crate::Result;

/// Loaded device code.
struct Module {
    context: Arc<Context>,
    raw: sys::RawModule,
}

// SAFETY: modules may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above, by several threads at once.
unsafe impl Sync for Module {}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: loaded once; the driver waits for kernels of it that still run.
            unsafe { (self.context.api().module_free)(self.raw) };
        }
    }
}

/// A function on the device. It keeps its module loaded.
#[derive(Clone)]
pub struct Kernel {
    module: Arc<Module>,
    raw: sys::RawFunction,
}

// SAFETY: as for modules.
unsafe impl Send for Kernel {}
// SAFETY: as for modules.
unsafe impl Sync for Kernel {}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").finish_non_exhaustive()
    }
}

/// Number of threads of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Number of blocks.
    pub blocks: u32,
    /// Threads in each block.
    pub threads: u32,
}

impl Grid {
    /// A single thread, for a kernel without parallelism.
    pub const ONE: Self = Self { blocks: 1, threads: 1 };

    /// Returns one thread for each item, in blocks of 256. The number of blocks is limited to one
    /// that fills any device: kernels loop over the remaining items.
    pub fn of(things: u64) -> Self {
        let blocks = things.div_ceil(256).clamp(1, 1 << 16);
        Self { blocks: blocks as u32, threads: 256 }
    }
}

impl Kernel {
    /// Loads a compiled image (`cubin`) and finds a function in it.
    ///
    /// # Errors
    /// Returns an error if the image is for another device, or has no such function.
    pub fn load(context: &Arc<Context>, image: &[u8], name: &CStr) -> Result<Self> {
        context.bind()?;
        let (mut raw, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the image is complete and the call copies it; writes one pointer, unloaded once.
        context.check("cuModuleLoadData", unsafe {
            (context.api().module_load)(&raw mut raw, image.as_ptr().cast::<c_void>())
        })?;
        let module = Arc::new(Module { context: Arc::clone(context), raw });
        // SAFETY: the module lives; the name is terminated; writes one pointer that is valid as
        // long as the module.
        let code = unsafe { (context.api().module_function)(&raw mut function, raw, name.as_ptr()) };
        context.check("cuModuleGetFunction", code)?;
        Ok(Self { module, raw: function })
    }

    /// Finds another function of the same module.
    ///
    /// # Errors
    /// Returns an error if there is none of that name.
    pub(crate) fn sibling(&self, name: &CStr) -> Result<Self> {
        let context = &self.module.context;
        context.bind()?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the module lives; the name is terminated; writes one pointer that is valid as
        // long as the module.
        let code = unsafe { (context.api().module_function)(&raw mut function, self.module.raw, name.as_ptr()) };
        context.check("cuModuleGetFunction", code)?;
        Ok(Self { module: Arc::clone(&self.module), raw: function })
    }

    /// Raises the function's limit of dynamic shared memory to `bytes`. Together with the
    /// function's static shared memory, this may exceed the default of 48 KiB.
    ///
    /// # Errors
    /// Returns an error if the device has less.
    pub(crate) fn with_shared(self, bytes: u32) -> Result<Self> {
        let context = &self.module.context;
        context.bind()?;
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        // SAFETY: the function lives as long as its module.
        let code = unsafe { (context.api().function_attribute)(self.raw, sys::MOST_SHARED_BYTES, bytes) };
        context.check("cuFuncSetAttribute", code)?;
        Ok(self)
    }

    /// Launches the kernel into a stream, with one structure by value as its only argument.
    ///
    /// # Errors
    /// Returns the error of the driver, including errors of earlier work in the stream.
    ///
    /// # Safety
    /// The kernel's argument is laid out like `A`. Its pointers refer to device memory of the
    /// lengths that the kernel reads and writes. That memory lives, and has no other user, until
    /// the stream has finished the kernel.
    pub unsafe fn launch<A: Copy>(&self, stream: &Stream, grid: Grid, arguments: &A) -> Result<()> {
        // SAFETY: the caller upholds the contract.
        unsafe { self.launch_with(stream, grid, 0, std::ptr::from_ref(arguments).cast()) }
    }

    /// Launches the kernel as [`Kernel::launch`] does, with an argument of 64-bit words and
    /// `shared` bytes of shared memory for each block.
    ///
    /// # Errors
    /// As [`Kernel::launch`].
    ///
    /// # Safety
    /// As [`Kernel::launch`]; there are at least as many words as the argument has.
    pub(crate) unsafe fn launch_words(&self, stream: &Stream, grid: Grid, shared: u32, words: &[u64]) -> Result<()> {
        // SAFETY: the caller upholds the contract.
        unsafe { self.launch_with(stream, grid, shared, words.as_ptr().cast()) }
    }

    /// # Safety
    /// As [`Kernel::launch`], for the argument that lies at `argument`.
    unsafe fn launch_with(&self, stream: &Stream, grid: Grid, shared: u32, argument: *const c_void) -> Result<()> {
        let context = &self.module.context;
        context.bind()?;
        let mut parameters = [argument.cast_mut()];
        // SAFETY: function and stream live; the driver copies the argument before it returns; the
        // caller guarantees the rest.
        let code = unsafe {
            (context.api().launch)(
                self.raw,
                grid.blocks,
                1,
                1,
                grid.threads,
                1,
                1,
                shared,
                stream.raw(),
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        context.check("cuLaunchKernel", code)
    }
}
