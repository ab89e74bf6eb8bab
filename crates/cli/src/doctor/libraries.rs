//! Libraries that are loaded at run time. The probe searches the paths of the dynamic loader and
//! loads nothing: loading a driver can take seconds and has side effects.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::Finding;

/// A library and its use. No query needs one: without them it runs on the CPU, from this machine's
/// files.
struct Library {
    name: &'static str,
    file: &'static str,
    serves: &'static str,
    /// The features that need it.
    used_by: &'static str,
}

const LIBRARIES: [Library; 4] = [
    Library {
        name: "libcuda",
        file: "libcuda.so",
        serves: "queries on NVIDIA GPUs",
        used_by: "queries on a GPU, and the GPU's paths of `onehop bench io` and `onehop bench q6`",
    },
    Library {
        name: "libnvrtc",
        file: "libnvrtc.so",
        serves: "kernels compiled for the query",
        used_by: "queries on a GPU, and the GPU's paths of `onehop bench q6`",
    },
    Library {
        name: "libcufile",
        file: "libcufile.so",
        serves: "reads from storage straight into GPU memory",
        used_by: "queries on a GPU with gpu.path = 'cufile', and the cuFile paths of `onehop bench io` and `onehop bench q6`",
    },
    Library {
        name: "librados",
        file: "librados.so",
        serves: "files and databases on Ceph",
        used_by: "`onehop rados`, and all that is named rados://",
    },
];

/// Probes the libraries.
pub fn probe() -> Vec<Finding> {
    let folders = folders();
    LIBRARIES.iter().map(|library| look(library, &folders)).collect()
}

fn look(library: &Library, folders: &[PathBuf]) -> Finding {
    let users = format!("used by {}", library.used_by);
    match folders.iter().find_map(|folder| find(folder, library.file)) {
        Some(path) => {
            let version = version(&path, library.file).map(|version| format!(" ({version})")).unwrap_or_default();
            Finding::ok(library.name, format!("{}{version}; {users}", path.display()))
        }
        None => Finding::info(library.name, format!("not found; {users}"))
            .because(format!("{} is not in any of {} library folders", library.file, folders.len()))
            .fix(format!("needed for {} alone; queries run without it", library.serves)),
    }
}

/// Finds `libx.so`, `libx.so.1` or, with the highest version, `libx.so.1.2`.
fn find(folder: &Path, file: &str) -> Option<PathBuf> {
    let is_it = |name: &str| name.strip_prefix(file).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let entries = fs::read_dir(folder).ok()?.flatten();
    let paths = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_it)).map(|entry| entry.path());
    // A dangling link is no library.
    paths.filter(|path| path.exists()).max()
}

/// Returns the version in the name of the link's target.
fn version(path: &Path, file: &str) -> Option<String> {
    let real = fs::canonicalize(path).ok()?;
    let version = real.file_name()?.to_str()?.strip_prefix(file)?.strip_prefix('.')?;
    version.contains('.').then(|| version.to_string())
}

/// Returns the loader's search path, in its order, and the folders of CUDA's installer.
fn folders() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        std::env::var_os("LD_LIBRARY_PATH").map(|paths| std::env::split_paths(&paths).collect()).unwrap_or_default();
    configured(Path::new("/etc/ld.so.conf"), 0, &mut all);
    let arch = std::env::consts::ARCH;
    for folder in ["/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib", "/usr/local/cuda/lib64"] {
        all.push(folder.into());
    }
    for folder in ["/lib", "/usr/lib"] {
        all.push(format!("{folder}/{arch}-linux-gnu").into());
    }
    let mut seen = BTreeSet::new();
    all.retain(|folder| folder.is_absolute() && folder.canonicalize().is_ok_and(|real| seen.insert(real)));
    all
}

/// Adds the folders of an `ld.so.conf`, which may include others.
fn configured(file: &Path, depth: usize, all: &mut Vec<PathBuf>) {
    let Ok(text) = fs::read_to_string(file) else { return };
    for line in text.lines().map(|line| line.split('#').next().unwrap_or("").trim()).filter(|line| !line.is_empty()) {
        match line.strip_prefix("include") {
            Some(pattern) if depth < 4 => {
                included(pattern.trim()).iter().for_each(|file| configured(file, depth + 1, all));
            }
            Some(_) => {}
            None => all.push(line.into()),
        }
    }
}

/// Returns the files of an include line, whose pattern is `*.conf` in practice.
fn included(pattern: &str) -> Vec<PathBuf> {
    let path = Path::new(pattern);
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    let Some((before, after)) = name.split_once('*') else { return vec![path.into()] };
    let fits =
        |name: &str| name.len() >= before.len() + after.len() && name.starts_with(before) && name.ends_with(after);
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> =
        entries.filter(|entry| entry.file_name().to_str().is_some_and(fits)).map(|entry| entry.path()).collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_configuration_are_followed() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        let at = |name: &str| root.path().join(name);
        fs::create_dir(at("lib"))?;
        fs::write(at("lib/libcuda.so.1"), "")?;
        fs::write(at("lib/libcudart.so.12"), "")?;
        std::os::unix::fs::symlink(at("nowhere"), at("lib/librados.so.2"))?;
        fs::write(at("a.conf"), format!("{} # here\n", at("lib").display()))?;
        fs::write(at("main.conf"), format!("include {}/a*.conf\n", root.path().display()))?;
        let mut folders = Vec::new();
        configured(&at("main.conf"), 0, &mut folders);
        assert_eq!(folders, [at("lib")]);
        assert_eq!(find(&folders[0], "libcuda.so"), Some(at("lib/libcuda.so.1")));
        assert_eq!(find(&folders[0], "librados.so"), None);
        fs::write(at("lib/libcufile.so.1.15.1"), "")?;
        std::os::unix::fs::symlink(at("lib/libcufile.so.1.15.1"), at("lib/libcufile.so.0"))?;
        assert_eq!(version(&at("lib/libcufile.so.0"), "libcufile.so"), Some("1.15.1".into()));
        assert_eq!(version(&at("lib/libcuda.so.1"), "libcuda.so"), None);
        Ok(())
    }
}
