//! A connection to a cluster, with every default replaced that waits for ever.
//!
//! | librados' default | what would happen | here |
//! |---|---|---|
//! | `rados_osd_op_timeout` 0 | an operation on a dead OSD never ends | half of [`ClusterOptions::timeout`] |
//! | `rados_mon_op_timeout` 0 | a question to dead monitors never ends | half of it |
//! | `client_mount_timeout` 300 s | connecting to a cluster that is down takes five minutes | all of it |
//! | `objecter_timeout` 10 s | operations that end before that never make the client ask where the OSDs are now: after an OSD has been restarted it would go on asking the old address | a quarter of the time of an operation |
//! | `objecter_tick_interval` 5 s | the same: it looks only that often | one second |
//! | `objecter_inflight_op_bytes` 100 MiB | whoever starts an operation beyond them waits, in the library, without a limit of time | 1 GiB: writers and readers have budgets of their own ([`FsOptions`](super::FsOptions)) |
//! | no `FULL_TRY` | a write to a full pool never ends | set for every write ([`Pool`]) |
//!
//! Half: who got no answer to a change asks once whether it has happened, and that takes as long again.

use std::ffi::{CString, c_char};
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::library::{Handle, Rados};
use super::{Code, Error, Pool, Result};

/// How to find a cluster and how long to wait for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClusterOptions {
    /// The configuration file; `None`: where Ceph looks (`CEPH_CONF`, `/etc/ceph/ceph.conf`, ...).
    pub conf: Option<PathBuf>,
    /// Who we are, without "client.".
    pub user: String,
    /// How long anything may take before it is an error. At least two seconds, in whole seconds.
    pub timeout: Duration,
    /// Further options of Ceph's, set after those of the file.
    pub settings: Vec<(String, String)>,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self { conf: None, user: "admin".into(), timeout: Duration::from_secs(60), settings: Vec::new() }
    }
}

/// A connection. It ends when the last [`Pool`] of it is dropped.
#[derive(Debug)]
pub struct Cluster {
    pub(super) rados: Arc<Rados>,
    pub(super) handle: Handle,
}

// SAFETY: a `rados_t` may be used from any thread, by several at once; nothing here is per thread.
unsafe impl Send for Cluster {}
// SAFETY: as above.
unsafe impl Sync for Cluster {}

impl Cluster {
    /// Connects.
    ///
    /// # Errors
    /// Without the library, without a configuration, or if no monitor answers within the time.
    pub fn connect(options: &ClusterOptions) -> Result<Arc<Self>> {
        let rados = Rados::load()?;
        let user = text(&format!("client.{}", options.user))?;
        let mut handle: Handle = ptr::null_mut();
        // SAFETY: strings that end; the handle is written before the call returns.
        let made = unsafe { (rados.rados_create2)(&raw mut handle, c"ceph".as_ptr(), user.as_ptr(), 0) };
        check(made, || format!("make a client {}", options.user))?;
        // From here on dropping it frees the handle.
        let cluster = Self { rados, handle };
        cluster.configure(options)?;
        // SAFETY: a handle that is configured and not connected yet.
        check(unsafe { (cluster.rados.rados_connect)(cluster.handle) }, || match &options.conf {
            Some(conf) => format!("connect to the cluster of {} as client.{}", conf.display(), options.user),
            None => format!("connect to the cluster as client.{}", options.user),
        })?;
        Ok(Arc::new(cluster))
    }

    /// What a monitor says of a pool's settings, as JSON.
    pub(super) fn settings_of(&self, pool: &str) -> Result<String> {
        let what = || format!("ask a monitor for the settings of pool {pool}");
        if pool.contains(|letter: char| matches!(letter, '"' | '\\') || letter.is_control()) {
            return Err(Error::Cluster { what: what(), code: Code(libc::EINVAL) });
        }
        let command =
            text(&format!(r#"{{"prefix": "osd pool get", "pool": "{pool}", "var": "all", "format": "json"}}"#))?;
        let command = [command.as_ptr()];
        let (mut said, mut said_bytes, mut status, mut status_bytes) = (ptr::null_mut(), 0, ptr::null_mut(), 0);
        // SAFETY: a connected handle, one string that ends, no input; what the library has allocated is freed by it, once.
        unsafe {
            let returned = (self.rados.rados_mon_command)(
                self.handle,
                command.as_ptr(),
                command.len(),
                ptr::null(),
                0,
                &raw mut said,
                &raw mut said_bytes,
                &raw mut status,
                &raw mut status_bytes,
            );
            let settings = match said.is_null() {
                true => String::new(),
                false => String::from_utf8_lossy(std::slice::from_raw_parts(said.cast(), said_bytes)).into_owned(),
            };
            for allocated in [said, status] {
                if !allocated.is_null() {
                    (self.rados.rados_buffer_free)(allocated);
                }
            }
            check(returned, what)?;
            Ok(settings)
        }
    }

    fn configure(&self, options: &ClusterOptions) -> Result<()> {
        let conf = options.conf.as_ref().map(|path| text(&path.to_string_lossy())).transpose()?;
        let conf_ptr: *const c_char = conf.as_ref().map_or(ptr::null(), |path| path.as_ptr());
        // SAFETY: a string that ends, or none, which means the usual places.
        check(unsafe { (self.rados.rados_conf_read_file)(self.handle, conf_ptr) }, || match &options.conf {
            Some(conf) => format!("read the configuration {}", conf.display()),
            None => "find a ceph.conf in the usual places".into(),
        })?;
        let all = options.timeout.as_secs().max(2);
        // What the library says on standard error is said again by our errors, where they belong.
        let operation = all / 2;
        let ours = [
            ("client_mount_timeout", all.to_string()),
            ("rados_mon_op_timeout", operation.to_string()),
            ("rados_osd_op_timeout", operation.to_string()),
            ("objecter_timeout", (operation / 4).max(1).to_string()),
            ("objecter_tick_interval", "1".into()),
            ("objecter_inflight_op_bytes", (1_u64 << 30).to_string()),
            ("log_to_stderr", "false".into()),
            ("err_to_stderr", "false".into()),
        ];
        let theirs = options.settings.iter().map(|(name, value)| (name.as_str(), value.clone()));
        for (name, value) in ours.into_iter().chain(theirs) {
            let (key, set) = (text(name)?, text(&value)?);
            // SAFETY: strings that end.
            check(unsafe { (self.rados.rados_conf_set)(self.handle, key.as_ptr(), set.as_ptr()) }, || {
                // A key is not for logs.
                format!("set the option {name} to {}", if name == "key" { "what was given" } else { &value })
            })?;
        }
        Ok(())
    }

    /// Objects of a pool, in a namespace ("" is one as well).
    ///
    /// # Errors
    /// If there is no such pool.
    pub fn pool(self: &Arc<Self>, name: &str, namespace: &str) -> Result<Arc<Pool>> {
        Pool::open(self, name, namespace)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: pools own the cluster, and are gone, each having waited for its operations.
        unsafe { (self.rados.rados_shutdown)(self.handle) }
    }
}

/// A string as C has it.
pub(super) fn text(text: &str) -> Result<CString> {
    CString::new(text)
        .map_err(|_| Error::Cluster { what: format!("pass on {text:?}: it has a zero byte"), code: Code(libc::EINVAL) })
}

/// An error if a function of the library has returned one.
pub(super) fn check(returned: i32, what: impl FnOnce() -> String) -> Result<()> {
    if returned < 0 { Err(Error::Cluster { what: what(), code: Code(-returned) }) } else { Ok(()) }
}
