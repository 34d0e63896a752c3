//! The kernel's modules: their load order and their decompressed content.

use std::path::{Path, PathBuf};

use super::{Kernel, path_str};
use crate::{
    error::{Error, Result},
    tool::{MODPROBE, XZ},
};

/// One module of a [`Kernel`], as a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    path: PathBuf,
}

impl Kernel {
    /// Returns the modules `names` and their dependencies in load order. A built-in module adds nothing.
    pub(crate) fn modules(&self, names: &[String]) -> Result<Vec<Module>> {
        let mut modules: Vec<Module> = Vec::new();
        for name in names {
            let root = path_str(&self.root)?;
            let shown = MODPROBE.run([
                "--dirname",
                root,
                "--set-version",
                self.release(),
                // The administrator's module settings are for another kernel.
                "--config",
                "/dev/null",
                "--show-depends",
                name,
            ])?;
            for module in dependencies(&String::from_utf8_lossy(&shown)) {
                if !modules.contains(&module) {
                    modules.push(module);
                }
            }
        }
        Ok(modules)
    }
}

impl Module {
    /// Returns the module's name without folder and extensions.
    pub(crate) fn name(&self) -> String {
        let file = self.path.file_name().unwrap_or_default().to_string_lossy();
        file.split('.').next().unwrap_or_default().to_owned()
    }

    /// Returns the module's decompressed content. The guest has no decompressor, and the kernel
    /// decompresses only if the loader asks for it with a flag.
    pub(crate) fn content(&self) -> Result<Vec<u8>> {
        match extension(&self.path) {
            "xz" => XZ.run(["--decompress".as_ref(), "--stdout".as_ref(), self.path.as_os_str()]),
            "ko" => std::fs::read(&self.path).map_err(Error::io("reading", &self.path)),
            _ => Err(Error::Unsupported {
                path: self.path.clone(),
                reason: "only plain modules and modules compressed by xz are supported",
            }),
        }
    }
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

/// Reads the output of `modprobe --show-depends`.
fn dependencies(shown: &str) -> Vec<Module> {
    shown
        .lines()
        .filter_map(|line| line.strip_prefix("insmod "))
        // Options may follow the path, which itself contains no options.
        .map(|rest| rest.find(".ko").map_or(rest, |dot| path_part(rest, dot)))
        .map(|path| Module { path: PathBuf::from(path) })
        .collect()
}

/// Returns the path at the start of `rest`, whose module extension begins at `dot`.
fn path_part(rest: &str, dot: usize) -> &str {
    let end = rest[dot..].find(' ').map_or(rest.len(), |space| dot + space);
    &rest[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_modprobes_and_built_in_modules_add_nothing() {
        let shown = "insmod /k/lib/modules/6.12/kernel/lib/libcrc32c.ko.xz \n\
                     builtin nvme\n\
                     insmod /k/with space/xfs.ko.xz option=1\n\
                     insmod /k/plain.ko\n";
        let modules = dependencies(shown);
        let names: Vec<_> = modules.iter().map(Module::name).collect();
        assert_eq!(names, ["libcrc32c", "xfs", "plain"]);
        assert_eq!(modules[1].path, Path::new("/k/with space/xfs.ko.xz"));
    }

    #[test]
    fn a_module_in_an_unknown_form_is_refused() {
        let module = Module { path: "/k/xfs.ko.zst".into() };
        assert!(module.content().unwrap_err().to_string().contains("compressed by xz"));
    }
}
