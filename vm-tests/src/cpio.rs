//! Writes the archive format of an initramfs ("newc" cpio).
//!
//! cpio(1) is not used, because it needs root to create the device node that init's first standard
//! streams come from. The format of one entry:
//!
//! ```text
//! "070701" 13 fields of 8 hexadecimal digits   name NUL   pad to 4   content   pad to 4
//!          ino mode uid gid nlink mtime size devmajor devminor rdevmajor rdevminor namesize check
//! ```

use std::{
    collections::BTreeSet,
    io::{self, Write},
};

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// Writes entries to `out`, and creates their parent folders.
#[derive(Debug)]
pub(crate) struct Writer<W> {
    out: W,
    written_bytes: usize,
    inode: u32,
    names: BTreeSet<String>,
}

impl<W: Write> Writer<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, written_bytes: 0, inode: 0, names: BTreeSet::new() }
    }

    /// Adds a folder and its parents, unless it exists.
    pub(crate) fn directory(&mut self, path: &str) -> io::Result<()> {
        let name = relative(path)?;
        self.parents(name)?;
        if self.names.contains(name) {
            return Ok(());
        }
        self.entry(name, DIRECTORY | 0o755, (0, 0), &[])
    }

    /// Adds a file that every user may read and, if `executable`, execute.
    pub(crate) fn file(&mut self, path: &str, executable: bool, content: &[u8]) -> io::Result<()> {
        let name = relative(path)?;
        self.parents(name)?;
        let mode = if executable { 0o755 } else { 0o644 };
        self.entry(name, REGULAR | mode, (0, 0), content)
    }

    /// Adds a character device.
    pub(crate) fn character_device(
        &mut self,
        path: &str,
        major: u32,
        minor: u32,
    ) -> io::Result<()> {
        let name = relative(path)?;
        self.parents(name)?;
        self.entry(name, CHARACTER_DEVICE | 0o600, (major, minor), &[])
    }

    /// Ends the archive and returns the writer.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.header("TRAILER!!!", 0, 0, (0, 0), 0)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn parents(&mut self, name: &str) -> io::Result<()> {
        let slashes: Vec<usize> = name.match_indices('/').map(|(at, _)| at).collect();
        for at in slashes {
            if !self.names.contains(&name[..at]) {
                self.entry(&name[..at], DIRECTORY | 0o755, (0, 0), &[])?;
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        name: &str,
        mode: u32,
        device: (u32, u32),
        content: &[u8],
    ) -> io::Result<()> {
        if !self.names.insert(name.to_owned()) {
            return Err(invalid(format!("{name} is in the initramfs twice")));
        }
        let size = u32::try_from(content.len())
            .map_err(|_| invalid(format!("{name} is too large for an initramfs (4 GiB)")))?;
        self.inode += 1;
        self.header(name, self.inode, mode, device, size)?;
        self.put(content)?;
        self.pad()
    }

    fn header(
        &mut self,
        name: &str,
        inode: u32,
        mode: u32,
        (major, minor): (u32, u32),
        size: u32,
    ) -> io::Result<()> {
        let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        let name_size = u32::try_from(name.len() + 1).map_err(|_| invalid("a name is too long"))?;
        let fields = [inode, mode, 0, 0, links, 0, size, 0, 0, major, minor, name_size, 0];
        self.put(b"070701")?;
        for field in fields {
            self.put(format!("{field:08x}").as_bytes())?;
        }
        self.put(name.as_bytes())?;
        self.put(&[0])?;
        self.pad()
    }

    fn pad(&mut self) -> io::Result<()> {
        let missing = self.written_bytes.next_multiple_of(4) - self.written_bytes;
        self.put(&[0; 3][..missing])
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written_bytes += bytes.len();
        self.out.write_all(bytes)
    }
}

/// Returns the name under which an absolute path is stored.
fn relative(path: &str) -> io::Result<&str> {
    let name = path.strip_prefix('/').unwrap_or_default();
    let plain = name.split('/').all(|part| !matches!(part, "" | "." | ".."));
    if plain && !name.contains('\0') {
        Ok(name)
    } else {
        Err(invalid(format!("{path:?} is not a plain absolute path in the guest")))
    }
}

fn invalid(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason.into())
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::Write as _,
        process::{Command, Stdio},
    };

    use super::*;

    fn sample() -> Vec<u8> {
        let mut writer = Writer::new(Vec::new());
        writer.character_device("/dev/console", 5, 1).unwrap();
        writer.file("/init", true, b"#!").unwrap();
        // These lengths have every remainder of the padding.
        for len in 0..5 {
            writer.file(&format!("/some/folder/{len}"), false, &vec![b'x'; len]).unwrap();
        }
        writer.directory("/some/folder").unwrap();
        writer.directory("/empty").unwrap();
        writer.finish().unwrap()
    }

    /// Reads an archive with cpio(1), which is an independent implementation.
    fn cpio(args: &[&str], archive: &[u8], dir: &std::path::Path) -> String {
        let mut child = Command::new("cpio")
            .args(args)
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("cpio is needed for this test; on Debian: apt install cpio");
        child.stdin.take().unwrap().write_all(archive).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn cpio_lists_the_same_names_and_modes() {
        let dir = tempfile::tempdir().unwrap();
        let listed = cpio(&["--list", "--quiet"], &sample(), dir.path());
        let names: Vec<_> = listed.lines().collect();
        assert_eq!(
            names,
            [
                "dev",
                "dev/console",
                "init",
                "some",
                "some/folder",
                "some/folder/0",
                "some/folder/1",
                "some/folder/2",
                "some/folder/3",
                "some/folder/4",
                "empty",
            ]
        );
        let long = cpio(&["--list", "--verbose", "--quiet"], &sample(), dir.path());
        let console = long.lines().find(|line| line.ends_with("dev/console")).unwrap();
        assert!(console.starts_with("crw-------"), "{console}");
        assert!(console.contains("5,   1"), "{console}");
        assert!(long.lines().any(|line| line.starts_with("-rwxr-xr-x") && line.ends_with("init")));
    }

    #[test]
    fn cpio_extracts_the_same_content() {
        let dir = tempfile::tempdir().unwrap();
        cpio(
            &["--extract", "--make-directories", "--quiet", "init", "some/*", "empty"],
            &sample(),
            dir.path(),
        );
        assert_eq!(fs::read(dir.path().join("init")).unwrap(), b"#!");
        for len in 0..5 {
            let file = dir.path().join(format!("some/folder/{len}"));
            assert_eq!(fs::read(file).unwrap(), vec![b'x'; len]);
        }
        assert!(dir.path().join("empty").is_dir());
    }

    #[test]
    fn a_name_is_not_written_twice() {
        let mut writer = Writer::new(Vec::new());
        writer.file("/a", false, b"").unwrap();
        assert!(writer.file("/a", false, b"").unwrap_err().to_string().contains("twice"));
    }

    #[test]
    fn only_plain_absolute_paths_are_accepted() {
        for path in ["", "/", "a", "/a/../b", "/a//b", "/a/", "/./a", "/nul\0"] {
            assert!(Writer::new(Vec::new()).file(path, false, b"").is_err(), "{path:?}");
        }
    }
}
