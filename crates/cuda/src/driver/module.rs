//! Code on the device: modules, and the kernels in them, launched into streams.

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::sync::Arc;

use super::{Context, Stream, sys};
use crate::Result;

/// Loaded code.
struct Module {
    context: Arc<Context>,
    raw: sys::RawModule,
}

// SAFETY: modules may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above, by several at once.
unsafe impl Sync for Module {}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: loaded once; what is still running of it is waited for by the driver.
            unsafe { (self.context.api().module_free)(self.raw) };
        }
    }
}

/// A function of the device's. Keeps its code loaded.
#[derive(Clone)]
pub struct Kernel {
    module: Arc<Module>,
    raw: sys::RawFunction,
}

// SAFETY: as modules.
unsafe impl Send for Kernel {}
// SAFETY: as modules.
unsafe impl Sync for Kernel {}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").finish_non_exhaustive()
    }
}

/// How many threads a kernel is launched with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks of threads.
    pub blocks: u32,
    /// Threads of each.
    pub threads: u32,
}

impl Grid {
    /// A single thread: what a program is that knows nothing of parallel ones.
    pub const ONE: Self = Self { blocks: 1, threads: 1 };

    /// A thread for each of so many things, in blocks of 256, up to a number of blocks that fills any device: kernels
    /// go round for the rest.
    pub fn of(things: u64) -> Self {
        let blocks = things.div_ceil(256).clamp(1, 1 << 16);
        Self { blocks: blocks as u32, threads: 256 }
    }
}

impl Kernel {
    /// Loads a compiled image (`cubin`) and finds a function in it.
    ///
    /// # Errors
    /// An image for another device, or without that function.
    pub fn load(context: &Arc<Context>, image: &[u8], name: &CStr) -> Result<Self> {
        context.bind()?;
        let (mut raw, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the image is whole and copied by the call; writes one pointer, given back once.
        context.check("cuModuleLoadData", unsafe {
            (context.api().module_load)(&raw mut raw, image.as_ptr().cast::<c_void>())
        })?;
        let module = Arc::new(Module { context: Arc::clone(context), raw });
        // SAFETY: the module lives; the name ends; writes one pointer that is good as long as the module.
        let code = unsafe { (context.api().module_function)(&raw mut function, raw, name.as_ptr()) };
        context.check("cuModuleGetFunction", code)?;
        Ok(Self { module, raw: function })
    }

    /// Another function of the same code.
    ///
    /// # Errors
    /// There is none of that name.
    pub(crate) fn sibling(&self, name: &CStr) -> Result<Self> {
        let context = &self.module.context;
        context.bind()?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the module lives; the name ends; writes one pointer that is good as long as the module.
        let code = unsafe { (context.api().module_function)(&raw mut function, self.module.raw, name.as_ptr()) };
        context.check("cuModuleGetFunction", code)?;
        Ok(Self { module: Arc::clone(&self.module), raw: function })
    }

    /// The same function, whose launches may ask for up to so many bytes of shared memory: together with what it has of its
    /// own, that may be more than the 48 KiB which a device gives unasked.
    ///
    /// # Errors
    /// The device has less.
    pub(crate) fn with_shared(self, bytes: u32) -> Result<Self> {
        let context = &self.module.context;
        context.bind()?;
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        // SAFETY: the function lives as long as its module.
        let code = unsafe { (context.api().function_attribute)(self.raw, sys::MOST_SHARED_BYTES, bytes) };
        context.check("cuFuncSetAttribute", code)?;
        Ok(self)
    }

    /// Launches it into a stream, with a structure by value as its only argument.
    ///
    /// # Errors
    /// Those of the driver, also of what was done in the stream before.
    ///
    /// # Safety
    /// The kernel's argument is laid out like `A`; what it points to is memory of the device of the lengths that the
    /// kernel reads and writes, and lives, and is used by nobody else, until the stream is through with it.
    pub unsafe fn launch<A: Copy>(&self, stream: &Stream, grid: Grid, arguments: &A) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_with(stream, grid, 0, std::ptr::from_ref(arguments).cast()) }
    }

    /// As [`Kernel::launch`], with an argument of words of 64 bits, and so many bytes of shared memory for each block.
    ///
    /// # Errors
    /// As [`Kernel::launch`].
    ///
    /// # Safety
    /// As [`Kernel::launch`]; there are at least as many words as the argument has.
    pub(crate) unsafe fn launch_words(&self, stream: &Stream, grid: Grid, shared: u32, words: &[u64]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_with(stream, grid, shared, words.as_ptr().cast()) }
    }

    /// # Safety
    /// As [`Kernel::launch`], of the argument that lies at `argument`.
    unsafe fn launch_with(&self, stream: &Stream, grid: Grid, shared: u32, argument: *const c_void) -> Result<()> {
        let context = &self.module.context;
        context.bind()?;
        let mut parameters = [argument.cast_mut()];
        // SAFETY: function and stream live; the driver copies the argument before it returns; the rest is the caller's
        // promise.
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
