//! Settings: one name in SQL, environment, flags and the library; a value, a default, and where the value came from.
//!
//! The table [`DEFINITIONS`] is the only list of them: `SET`, `SHOW ALL`, `onehop_settings`, help texts and the nearest
//! name in an error all read it. Values are checked when they are set, never when they are used.

mod values;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use onehop_io::RequestedPath;
use onehop_io::rados::ClusterOptions;
use onehop_pipeline::backend::{DevicePath, MemoryLimit, Residence};

pub use self::values::parse_size;
use self::values::{
    default_memory_limit, format_device_memory, parse_cache, parse_count, parse_device_memory, parse_devices,
    parse_duration, parse_memory, parse_min_bytes, parse_path, parse_word, total_memory_bytes,
};
pub(crate) use self::values::{format_duration, format_size, with_unit};
use crate::error::{Object, nearest};
use crate::rights::Rights;
use crate::{Error, ErrorKind, Result, Rule};

/// Where a setting's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingSource {
    /// Built in.
    Default,
    /// The environment (`ONEHOP_...`).
    Env,
    /// The command line, or the options a database was opened with.
    Flag,
    /// `SET` in this session.
    Session,
}

impl SettingSource {
    /// The word for it in `SHOW ALL`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Env => "env",
            Self::Flag => "flag",
            Self::Session => "session",
        }
    }
}

/// A setting as `SHOW ALL` lists it.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The name in SQL, environment and flags alike.
    pub name: &'static str,
    /// The value in effect.
    pub value: String,
    /// The built-in value.
    pub default: String,
    /// Where the value comes from.
    pub source: SettingSource,
    /// One line on what it does.
    pub description: &'static str,
}

/// A value in its normal form, or what would be one.
type Parsed = std::result::Result<String, String>;

struct Definition {
    name: &'static str,
    default: fn() -> String,
    /// Brings a value into its normal form, or says what would be one.
    parse: fn(&str) -> Parsed,
    description: &'static str,
}

/// The least that a connection to a cluster takes for a timeout.
const MIN_CEPH_TIMEOUT: Duration = Duration::from_secs(2);

/// The setting that leaves out passes over plans.
pub(crate) const DISABLE_PASS: &str = "debug.disable_pass";

/// Settings of the process and its machine, which only an admin's session changes.
const OF_ADMINS: [&str; 4] = ["memory_limit", "temp_directory", "functions.*", "ceph.*"];

/// Returns true for a setting of the process and its machine, which only an admin's session
/// changes.
pub fn reaches_outside(name: &str) -> bool {
    OF_ADMINS.iter().any(|of_admins| match of_admins.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == *of_admins,
    })
}

const DEFINITIONS: &[Definition] = &[
    Definition {
        name: "threads",
        default: || std::thread::available_parallelism().map_or(1, usize::from).to_string(),
        parse: |text| parse_count(text, 1, 4096),
        description: "Threads that a query or load uses",
    },
    Definition {
        name: "memory_limit",
        default: || format_size(default_memory_limit()),
        parse: |text| parse_memory(text).map(format_size),
        description: "Memory that the process may have while statements run: a size (4GiB) or a share (60%)",
    },
    Definition {
        name: "temp_directory",
        default: || std::env::temp_dir().display().to_string(),
        parse: |text| if text.is_empty() { Err("a directory".into()) } else { Ok(text.to_string()) },
        description: "Where queries spill to, and temporary tables have their segments",
    },
    Definition {
        name: "statement_timeout",
        default: || "0".into(),
        parse: |text| parse_duration(text).map(format_duration),
        description: "How long a statement may take, to its last row: a duration (500ms, 5s, 2min, 1h), or 0 for ever",
    },
    Definition {
        name: "lock_timeout",
        default: || "30s".into(),
        parse: |text| parse_duration(text).map(format_duration),
        description: "How long to wait for another session that is changing the database: a duration (500ms, 5s), or 0 for ever",
    },
    Definition {
        name: "exec.mode",
        default: || "fused".into(),
        parse: |text| parse_word(text, &["fused", "datafusion"]),
        description: "What runs queries: fused (pipelines where they can), datafusion (its operators alone)",
    },
    Definition {
        name: "exec.fallback",
        default: || "warn".into(),
        parse: |text| parse_word(text, &["warn", "silent", "error"]),
        description: "What comes of work that no pipeline, or not the GPU, can do: warn (others do it, with a notice), silent, error",
    },
    Definition {
        name: DISABLE_PASS,
        default: String::new,
        parse: |text| Ok(text.to_string()),
        description: "Passes over plans that are left out, to find the one that a fault comes from: names of onehop_passes (type_coercion,lossy_casts)",
    },
    Definition {
        name: "preserve_order",
        default: || "true".into(),
        parse: |text| parse_word(text, &["true", "false"]),
        description: "Whether the rows of files keep their order where a query asks for no other",
    },
    Definition {
        name: "functions.allow_python",
        default: || "false".into(),
        parse: |text| parse_word(text, &["true", "false"]),
        description: "Whether functions in Python may run: with all that the process of the database may do",
    },
    Definition {
        name: "functions.allow_cuda",
        default: || "false".into(),
        parse: |text| parse_word(text, &["true", "false"]),
        description: "Whether functions in CUDA may run: in processes of their own, with all that the user of the database may do",
    },
    Definition {
        name: "functions.python",
        default: || "python3".into(),
        parse: |text| if text.is_empty() { Err("a program".into()) } else { Ok(text.to_string()) },
        description: "The Python that runs functions: it needs pyarrow and numpy",
    },
    Definition {
        name: "gpu.mode",
        default: || "auto".into(),
        parse: |text| parse_word(text, &["auto", "off", "require"]),
        description: "Whether pipelines run on a GPU: auto (where it is estimated to be faster), off, require (all of them)",
    },
    Definition {
        name: "gpu.devices",
        default: || "all".into(),
        parse: parse_devices,
        description: "The GPUs that may be used: all, or a list (cuda:0,cuda:1)",
    },
    Definition {
        name: "gpu.memory_limit",
        default: || "90%".into(),
        parse: |text| parse_device_memory(text).map(format_device_memory),
        description: "Memory of each GPU that may be used: a size (40GiB) or a share (90%); when a database is opened",
    },
    Definition {
        name: "gpu.min_bytes",
        default: || "auto".into(),
        parse: |text| {
            parse_min_bytes(text).map(|bytes| bytes.map_or_else(|| "auto".into(), |bytes| format!("{bytes}")))
        },
        description: "Pipelines that read fewer stored bytes stay on the CPU: a size (64MiB), or auto (what is estimated)",
    },
    Definition {
        name: "gpu.residence",
        default: || "auto".into(),
        parse: |text| parse_word(text, &["auto", "off"]),
        description: "Whether columns that a query brings to a GPU stay there: auto (while there is room), off (streamed each time)",
    },
    Definition {
        name: "gpu.path",
        default: || "auto".into(),
        parse: |text| parse_word(text, &["auto", "staged", "cufile", "direct"]),
        description: "How stored bytes get to a GPU: auto (direct where that works), staged (by host memory), cufile, direct (or an error)",
    },
    Definition {
        name: "gpu.spread",
        default: || "auto".into(),
        parse: |text| parse_word(text, &["auto", "on", "off"]),
        description: "Whether one query runs on several GPUs: auto (where it is estimated to be faster), on (wherever it can), off",
    },
    Definition {
        name: "io.cache",
        default: || format_size(total_memory_bytes() / 4),
        parse: |text| parse_cache(text).map(format_size),
        description: "Memory for hot blocks: a size (4GiB), a share (25%), or 0; when a database is opened",
    },
    Definition {
        name: "io.path",
        default: || "auto".into(),
        parse: parse_path,
        description: "How segments are read: auto, buffered (page cache), direct (past it, O_DIRECT)",
    },
    Definition {
        name: "ceph.conf",
        default: String::new,
        parse: |text| Ok(text.to_string()),
        description: "Configuration of the cluster of rados:// paths; empty for where Ceph looks (CEPH_CONF, /etc/ceph/ceph.conf)",
    },
    Definition {
        name: "ceph.user",
        default: || "admin".into(),
        parse: |text| if text.is_empty() { Err("a name, without \"client.\"".into()) } else { Ok(text.to_string()) },
        description: "Who we are to the cluster, without \"client.\"",
    },
    Definition {
        name: "ceph.timeout",
        default: || "30s".into(),
        parse: |text| match parse_duration(text) {
            Ok(limit) if limit >= MIN_CEPH_TIMEOUT => Ok(format_duration(limit)),
            _ => Err("a duration of two seconds or more (30s, 2min)".into()),
        },
        description: "How long the cluster may take to answer before that is an error",
    },
    Definition {
        name: "storage.block_rows",
        default: || onehop_segment::BLOCK_ROWS.to_string(),
        parse: |text| match text.parse::<usize>() {
            Ok(n) if n.is_multiple_of(1024) && (1024..=onehop_segment::BLOCK_ROWS).contains(&n) => Ok(n.to_string()),
            _ => Err("a multiple of 1024 from 1024 to 65536".into()),
        },
        description: "Rows in a block of newly written segments; smaller than the default is for tests",
    },
    Definition {
        name: "storage.segment_rows",
        default: || (1u64 << 22).to_string(),
        parse: |text| parse_count(text, 1024, onehop_segment::MAX_SEGMENT_ROWS),
        description: "Rows in a newly written segment, at most; a load holds one per thread in memory, encoded",
    },
    Definition {
        name: "storage.fresh_rows",
        default: || "10000".into(),
        parse: |text| parse_count(text, 0, 1 << 20),
        description: "Rows that a statement adds without a segment of their own, at most; a checkpoint puts them into one",
    },
    Definition {
        name: "storage.checkpoint_rows",
        default: || (1u64 << 18).to_string(),
        parse: |text| parse_count(text, 0, 1 << 30),
        description: "Rows of a table outside of segments, or deleted in them, that cause a checkpoint; 0 for never",
    },
];

/// What runs queries: the setting `exec.mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExecMode {
    /// Fused pipelines where they can, DataFusion's operators elsewhere.
    Fused,
    /// DataFusion's operators alone.
    DataFusion,
}

/// The order of a file's rows where a query asks for none: the setting `preserve_order`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// That of the file.
    Stored,
    /// Any.
    Any,
}

/// What to do about an operator that pipelines should run and cannot: the setting `exec.fallback`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fallback {
    /// DataFusion runs it, with a notice.
    Warn,
    /// DataFusion runs it.
    Silent,
    /// The query fails.
    Error,
}

/// Where pipelines run: the setting `gpu.mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GpuMode {
    /// Where it is estimated to take less time.
    Auto,
    /// On the CPU.
    Off,
    /// On a device, whatever that takes.
    Require,
}

/// Whether pipelines run on several devices at once: the setting `gpu.spread`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GpuSpread {
    /// Where it is estimated to take less time than on one of them.
    Auto,
    /// Wherever they can.
    On,
    /// Never.
    Off,
}

/// Devices that may be used: the setting `gpu.devices`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceNames {
    All,
    Some(Vec<String>),
}

impl DeviceNames {
    /// As a setting has them, or as people write them.
    pub fn parse(text: &str) -> Option<Self> {
        let names = parse_devices(text).ok()?;
        Some(if names == "all" { Self::All } else { Self::Some(names.split(',').map(String::from).collect()) })
    }

    /// Whether one of that name may be.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Some(names) => names.iter().any(|known| known == name),
        }
    }
}

/// The settings of one session.
#[derive(Clone, Debug)]
pub struct Settings {
    values: BTreeMap<&'static str, (String, SettingSource)>,
    /// The values of those that the environment or flags have set: what RESET goes back to.
    given: BTreeMap<&'static str, (String, SettingSource)>,
    /// What their session may do. No setting: it stays as it is.
    rights: Rights,
    /// Read from the values whenever one has changed.
    of_each_statement: OfEachStatement,
}

/// What every statement looks at, however short it is.
#[derive(Clone, Copy, Debug, Default)]
struct OfEachStatement {
    memory_limit: u64,
    statement_timeout: Option<Duration>,
    lock_timeout: Option<Duration>,
    fresh_rows: u64,
    checkpoint_rows: Option<u64>,
}

impl Settings {
    /// Defaults, then the environment, then `given`.
    pub fn new(given: &[(String, String)]) -> Result<Self> {
        let mut settings = Self {
            values: BTreeMap::new(),
            given: BTreeMap::new(),
            rights: Rights::default(),
            of_each_statement: OfEachStatement::default(),
        };
        settings.read();
        for definition in DEFINITIONS {
            let variable = environment_name(definition.name);
            if let Some(value) = std::env::var_os(&variable) {
                // Who did not set it with this in mind has to learn where it is set.
                let said_where = |e: Error| Error::new(e.kind(), format!("{variable}: {}", e.message()));
                settings.set(definition.name, &value.to_string_lossy(), SettingSource::Env).map_err(said_where)?;
            }
        }
        for (name, value) in given {
            settings.set(name, value, SettingSource::Flag)?;
        }
        Ok(settings)
    }

    /// Sets a value, checked.
    pub fn set(&mut self, name: &str, value: &str, source: SettingSource) -> Result<()> {
        let definition = definition(name)?;
        self.check_right(definition, source)?;
        let value = (definition.parse)(value.trim()).map_err(|wanted| {
            Error::new(ErrorKind::Invalid, format!("{name} cannot be '{value}': it takes {wanted}"))
                .breaking(Rule::Setting)
        })?;
        if source != SettingSource::Session {
            self.given.insert(definition.name, (value.clone(), source));
        }
        self.values.insert(definition.name, (value, source));
        self.read();
        Ok(())
    }

    /// Back to what the environment or a flag says, or else to the default.
    pub fn reset(&mut self, name: &str) -> Result<()> {
        let definition = definition(name)?;
        self.check_right(definition, SettingSource::Session)?;
        match self.given.get(definition.name) {
            Some(given) => drop(self.values.insert(definition.name, given.clone())),
            None => drop(self.values.remove(definition.name)),
        }
        self.read();
        Ok(())
    }

    /// All that this session has changed, back as [`reset`](Self::reset) does.
    pub fn reset_all(&mut self) {
        self.values = self.given.clone();
        self.read();
    }

    /// Values have changed.
    fn read(&mut self) {
        let timeout = |name| parse_duration(self.value(name)).ok().filter(|limit| !limit.is_zero());
        let memory_limit = parse_memory(self.value("memory_limit")).unwrap_or_else(|_| default_memory_limit());
        self.of_each_statement = OfEachStatement {
            memory_limit,
            statement_timeout: timeout("statement_timeout"),
            lock_timeout: timeout("lock_timeout"),
            fresh_rows: self.value("storage.fresh_rows").parse().unwrap_or(0),
            checkpoint_rows: self.value("storage.checkpoint_rows").parse().ok().filter(|rows| *rows > 0),
        };
    }

    /// The same for a session that may do so much.
    pub fn with_rights(self, rights: Rights) -> Self {
        Self { rights, ..self }
    }

    /// What their session may do.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    fn check_right(&self, definition: &Definition, source: SettingSource) -> Result<()> {
        let name = definition.name;
        match source == SettingSource::Session && reaches_outside(name) {
            true => self.rights.need(Rights::Admin, &format!("to change {name}")),
            false => Ok(()),
        }
    }

    /// All of them.
    pub fn list(&self) -> Vec<Setting> {
        DEFINITIONS.iter().map(|definition| self.describe(definition)).collect()
    }

    /// One of them.
    pub fn get(&self, name: &str) -> Result<Setting> {
        Ok(self.describe(definition(name)?))
    }

    fn describe(&self, definition: &Definition) -> Setting {
        let default = default(definition.name).to_string();
        let (value, source) =
            self.values.get(definition.name).cloned().unwrap_or_else(|| (default.clone(), SettingSource::Default));
        Setting { name: definition.name, value, default, source, description: definition.description }
    }

    fn value(&self, name: &str) -> &str {
        self.values.get(name).map_or_else(|| default(name), |(value, _)| value.as_str())
    }

    /// Threads a statement may use.
    pub fn threads(&self) -> usize {
        self.value("threads").parse().unwrap_or(1)
    }

    /// Bytes for operators before they spill.
    pub fn memory_limit_bytes(&self) -> u64 {
        self.of_each_statement.memory_limit
    }

    /// Where they spill to.
    pub fn temp_directory(&self) -> PathBuf {
        self.value("temp_directory").into()
    }

    /// How long a statement may take.
    pub fn statement_timeout(&self) -> Option<Duration> {
        self.of_each_statement.statement_timeout
    }

    /// How long to wait for the writer's place; `None` is for ever.
    pub fn lock_timeout(&self) -> Option<Duration> {
        self.of_each_statement.lock_timeout
    }

    /// Whether pipelines run what they can.
    pub fn exec_mode(&self) -> ExecMode {
        match self.value("exec.mode") {
            "datafusion" => ExecMode::DataFusion,
            _ => ExecMode::Fused,
        }
    }

    /// Names of the passes that are left out, with commas between.
    pub fn disabled_passes(&self) -> &str {
        self.value(DISABLE_PASS)
    }

    /// The order of a file's rows.
    pub fn row_order(&self) -> RowOrder {
        match self.value("preserve_order") {
            "false" => RowOrder::Any,
            _ => RowOrder::Stored,
        }
    }

    /// What to do about what they cannot.
    pub fn exec_fallback(&self) -> Fallback {
        match self.value("exec.fallback") {
            "silent" => Fallback::Silent,
            "error" => Fallback::Error,
            _ => Fallback::Warn,
        }
    }

    /// Whether functions in CUDA may run.
    pub fn functions_allow_cuda(&self) -> bool {
        self.value("functions.allow_cuda") == "true"
    }

    /// Whether functions in Python may run.
    pub fn functions_allow_python(&self) -> bool {
        self.value("functions.allow_python") == "true"
    }

    /// The Python that runs functions.
    pub fn functions_python(&self) -> &str {
        self.value("functions.python")
    }

    /// Where pipelines run.
    pub fn gpu_mode(&self) -> GpuMode {
        match self.value("gpu.mode") {
            "off" => GpuMode::Off,
            "require" => GpuMode::Require,
            _ => GpuMode::Auto,
        }
    }

    /// Whether on several devices at once.
    pub fn gpu_spread(&self) -> GpuSpread {
        match self.value("gpu.spread") {
            "on" => GpuSpread::On,
            "off" => GpuSpread::Off,
            _ => GpuSpread::Auto,
        }
    }

    /// On which devices.
    pub fn gpu_devices(&self) -> DeviceNames {
        DeviceNames::parse(self.value("gpu.devices")).unwrap_or(DeviceNames::All)
    }

    /// How much of their memory may be used.
    pub fn gpu_memory_limit(&self) -> MemoryLimit {
        parse_device_memory(self.value("gpu.memory_limit")).unwrap_or_default()
    }

    /// Stored bytes below which nothing is worth a device; `None` if the estimate decides alone.
    pub fn gpu_min_bytes(&self) -> Option<u64> {
        parse_min_bytes(self.value("gpu.min_bytes")).unwrap_or(None)
    }

    /// Whether what queries bring to a device stays there.
    pub fn gpu_residence(&self) -> Residence {
        if self.value("gpu.residence") == "off" { Residence::Off } else { Residence::Auto }
    }

    /// By which way stored bytes get to a device.
    pub fn gpu_path(&self) -> DevicePath {
        match self.value("gpu.path") {
            "staged" => DevicePath::Staged,
            "cufile" => DevicePath::Cufile,
            "direct" => DevicePath::Direct,
            _ => DevicePath::Auto,
        }
    }

    /// Bytes for hot blocks.
    pub fn cache_bytes(&self) -> u64 {
        parse_cache(self.value("io.cache")).unwrap_or(0)
    }

    /// How to find the cluster of `rados://` paths.
    pub fn ceph(&self) -> ClusterOptions {
        let conf = Some(self.value("ceph.conf")).filter(|conf| !conf.is_empty()).map(PathBuf::from);
        let timeout = parse_duration(self.value("ceph.timeout")).unwrap_or(MIN_CEPH_TIMEOUT);
        ClusterOptions { conf, user: self.value("ceph.user").to_string(), timeout, settings: Vec::new() }
    }

    /// Rows in a new block.
    pub fn block_rows(&self) -> usize {
        self.value("storage.block_rows").parse().unwrap_or(onehop_segment::BLOCK_ROWS)
    }

    /// Rows in a new segment, at most.
    pub fn segment_rows(&self) -> u64 {
        self.value("storage.segment_rows").parse().unwrap_or(1 << 22)
    }

    /// Rows that a statement adds outside of segments, at most.
    pub fn fresh_rows(&self) -> u64 {
        self.of_each_statement.fresh_rows
    }

    /// Rows outside of segments that cause a checkpoint; `None` if none do.
    pub fn checkpoint_rows(&self) -> Option<u64> {
        self.of_each_statement.checkpoint_rows
    }

    /// The path asked for.
    pub fn io_path(&self) -> RequestedPath {
        match self.value("io.path") {
            "buffered" => RequestedPath::Buffered,
            "direct" => RequestedPath::HostDirect,
            _ => RequestedPath::Auto,
        }
    }
}

/// The default of a setting as the process found it when it first looked: to ask the system for its processors takes longer
/// than to parse a statement. Empty for a name that is none.
fn default(name: &str) -> &'static str {
    static DEFAULTS: LazyLock<BTreeMap<&str, String>> =
        LazyLock::new(|| DEFINITIONS.iter().map(|definition| (definition.name, (definition.default)())).collect());
    DEFAULTS.get(name).map_or("", String::as_str)
}

fn definition(name: &str) -> Result<&'static Definition> {
    DEFINITIONS.iter().find(|definition| definition.name.eq_ignore_ascii_case(name)).ok_or_else(|| {
        let error = Error::new(ErrorKind::NotFound, format!("there is no setting \"{name}\"")).of(Object::Setting);
        match nearest(name, DEFINITIONS.iter().map(|definition| definition.name)) {
            Some(near) => error.with_hint(format!("did you mean \"{near}\"?")),
            None => error.with_hint("SHOW ALL lists the settings"),
        }
    })
}

/// `gpu.mode` is `ONEHOP_GPU_MODE`.
pub(crate) fn environment_name(name: &str) -> String {
    format!("ONEHOP_{}", name.replace('.', "_").to_uppercase())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked_when_they_are_set() {
        let mut settings = Settings::new(&[("threads".into(), "3".into())]).unwrap();
        assert_eq!((settings.threads(), settings.get("threads").unwrap().source), (3, SettingSource::Flag));
        let error = settings.set("threads", "many", SettingSource::Session).unwrap_err();
        assert_eq!(error.message(), "threads cannot be 'many': it takes a whole number from 1 to 4096");
        let error = settings.set("thread", "2", SettingSource::Session).unwrap_err();
        assert_eq!(error.hint(), Some("did you mean \"threads\"?"));
        settings.set("memory_limit", "2GiB", SettingSource::Session).unwrap();
        assert_eq!(settings.memory_limit_bytes(), 2 << 30);
        assert!(settings.set("storage.block_rows", "1000", SettingSource::Session).is_err());
        let error = settings.set("io.path", "staged", SettingSource::Session).unwrap_err();
        let said =
            "io.path cannot be 'staged': it takes auto, buffered, direct; how bytes get to a GPU is gpu.path's to say";
        assert_eq!(error.message(), said);
        assert_eq!(settings.gpu_path(), DevicePath::Auto);
        for (text, path) in
            [("staged", DevicePath::Staged), ("CUFILE", DevicePath::Cufile), ("direct", DevicePath::Direct)]
        {
            settings.set("gpu.path", text, SettingSource::Session).unwrap();
            assert_eq!(settings.gpu_path(), path);
        }
        assert!(settings.set("gpu.path", "buffered", SettingSource::Session).is_err());
    }

    #[test]
    fn reset_goes_back_to_what_a_flag_says() {
        let mut settings = Settings::new(&[("threads".into(), "3".into())]).unwrap();
        for reset_all in [false, true] {
            settings.set("threads", "5", SettingSource::Session).unwrap();
            settings.set("memory_limit", "2GiB", SettingSource::Session).unwrap();
            match reset_all {
                true => settings.reset_all(),
                false => ["threads", "memory_limit"].iter().for_each(|name| settings.reset(name).unwrap()),
            }
            assert_eq!((settings.threads(), settings.get("threads").unwrap().source), (3, SettingSource::Flag));
            assert_eq!(settings.get("memory_limit").unwrap().source, SettingSource::Default);
        }
    }
}
