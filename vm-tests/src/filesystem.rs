//! File system images, made from a folder without a mount and without root.

use std::{
    fmt::Write as _,
    fs::{self, File},
    path::Path,
};

use crate::{
    error::{Error, Result},
    tool::{DEBUGFS, MKE2FS, MKFS_EROFS, MKFS_XFS},
};

/// The block size of the ext4 images.
const EXT4_BLOCK_BYTES: u64 = 4096;
const SECTOR_BYTES: u64 = 512;

/// A file system of the guest's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileSystem {
    /// ext4, with blocks of 4 KiB.
    Ext4,
    /// XFS.
    Xfs,
    /// EROFS, not compressed.
    Erofs,
}

impl FileSystem {
    /// Returns the name for `mount -t` and `modprobe`.
    #[must_use]
    pub fn kernel_name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Erofs => "erofs",
        }
    }
}

/// Makes the file `image` with the content of `dir`. It has `bytes`, unless the file system's size
/// follows from its content.
///
/// # Errors
///
/// Returns an error if the tool is missing or fails; for example, the content may not fit.
pub fn make_image(file_system: FileSystem, dir: &Path, image: &Path, bytes: u64) -> Result<()> {
    match file_system {
        FileSystem::Ext4 => {
            sparse_file(image, bytes)?;
            let block = EXT4_BLOCK_BYTES.to_string();
            let fixed = ["-q", "-F", "-t", "ext4", "-b", &block, "-E", "root_owner=0:0", "-d"];
            MKE2FS
                .run(fixed.map(AsRef::as_ref).into_iter().chain([dir.as_os_str(), image.as_ref()]))
        }
        FileSystem::Xfs => {
            sparse_file(image, bytes)?;
            let list = image.with_extension("proto");
            fs::write(&list, xfs_prototype(dir)?).map_err(Error::io("writing", &list))?;
            MKFS_XFS.run(["-q".as_ref(), "-p".as_ref(), list.as_os_str(), image.as_ref()])
        }
        FileSystem::Erofs => {
            MKFS_EROFS.run(["--quiet".as_ref(), image.as_os_str(), dir.as_os_str()])
        }
    }
    .map(drop)
}

/// Makes the file `image`, of `bytes`, an ext4 file system with the content of `dir`. Files of more than
/// 8 MiB have many extents, because each block group is that small and begins with metadata.
///
/// # Errors
///
/// Like [`make_image`].
pub fn make_fragmented_ext4(dir: &Path, image: &Path, bytes: u64) -> Result<()> {
    sparse_file(image, bytes)?;
    let block = EXT4_BLOCK_BYTES.to_string();
    let fixed = ["-q", "-F", "-t", "ext4", "-b", &block, "-g", "2048", "-O", "^flex_bg"];
    let owner = ["-E", "root_owner=0:0", "-d"];
    let options = fixed.into_iter().chain(owner).map(AsRef::as_ref);
    MKE2FS.run(options.chain([dir.as_os_str(), image.as_ref()])).map(drop)
}

/// Returns the disk sector of byte `offset` of `file` in an ext4 image made by [`make_image`].
///
/// # Errors
///
/// Returns an error if the image has no such file, or the file has a hole there.
pub fn ext4_sector_of(image: &Path, file: &str, offset: u64) -> Result<u64> {
    let request = format!("bmap {file} {}", offset / EXT4_BLOCK_BYTES);
    let answer = DEBUGFS.run(["-R".as_ref(), request.as_ref(), image.as_os_str()])?;
    let block: u64 = String::from_utf8_lossy(&answer).trim().parse().unwrap_or(0);
    // debugfs prints block 0, which is the superblock, if there is no block.
    if block == 0 {
        return Err(Error::Unsupported {
            path: image.join(file.trim_start_matches('/')),
            reason: "has no disk block at that offset",
        });
    }
    Ok(block * (EXT4_BLOCK_BYTES / SECTOR_BYTES) + offset % EXT4_BLOCK_BYTES / SECTOR_BYTES)
}

fn sparse_file(path: &Path, bytes: u64) -> Result<()> {
    File::create(path).and_then(|file| file.set_len(bytes)).map_err(Error::io("creating", path))
}

/// Returns the list of files for `mkfs.xfs -p`.
fn xfs_prototype(dir: &Path) -> Result<String> {
    // No boot image, no sizes, then the root folder.
    let mut list = String::from("/dev/null\n0 0\nd--755 0 0\n");
    xfs_prototype_folder(dir, 1, &mut list)?;
    list.push_str("$\n$\n");
    Ok(list)
}

fn xfs_prototype_folder(dir: &Path, depth: usize, list: &mut String) -> Result<()> {
    let mut entries = fs::read_dir(dir)
        .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
        .map_err(Error::io("listing", dir))?;
    entries.sort_by_key(fs::DirEntry::file_name);
    let indent = " ".repeat(depth);
    for entry in entries {
        let path = entry.path();
        let shown = path.to_str().filter(|text| !text.contains(char::is_whitespace));
        let Some(shown) = shown else {
            let reason = "mkfs.xfs needs names in UTF-8 without spaces";
            return Err(Error::Unsupported { path, reason });
        };
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let kind = entry.file_type().map_err(Error::io("reading the type of", &path))?;
        // Writing to a string cannot fail.
        if kind.is_dir() {
            let _ = writeln!(list, "{indent}{name} d--755 0 0");
            xfs_prototype_folder(&path, depth + 1, list)?;
            let _ = writeln!(list, "{indent}$");
        } else if kind.is_file() {
            let _ = writeln!(list, "{indent}{name} ---644 0 0 {shown}");
        } else {
            return Err(Error::Unsupported { path, reason: "only files and folders are copied" });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("sub/small"), "small").unwrap();
        // Each block begins with its number.
        let mut large = vec![0; 64 * 4096];
        for (number, block) in large.chunks_mut(4096).enumerate() {
            block[..8].copy_from_slice(&(number as u64 + 1).to_le_bytes());
        }
        fs::write(dir.path().join("large"), large).unwrap();
        dir
    }

    #[test]
    fn the_sector_of_a_byte_holds_that_byte() {
        let (dir, out) = (tree(), tempfile::tempdir().unwrap());
        let image = out.path().join("ext4.img");
        make_image(FileSystem::Ext4, dir.path(), &image, 8 << 20).unwrap();
        let content = fs::read(&image).unwrap();
        for number in [0, 1, 33, 63] {
            let sector = ext4_sector_of(&image, "/large", number * 4096).unwrap() as usize;
            assert_eq!(content[sector * 512..][..8], (number + 1).to_le_bytes());
            let inside = ext4_sector_of(&image, "/large", number * 4096 + 1025).unwrap() as usize;
            assert_eq!(inside, sector + 2);
        }
        assert!(ext4_sector_of(&image, "/large", 64 * 4096).is_err(), "past the end");
        assert!(ext4_sector_of(&image, "/missing", 0).is_err());
    }

    #[test]
    fn content_that_does_not_fit_is_an_error() {
        let (dir, out) = (tree(), tempfile::tempdir().unwrap());
        let error = make_image(FileSystem::Ext4, dir.path(), &out.path().join("i"), 100 << 10);
        assert!(error.unwrap_err().to_string().contains("mke2fs"));
    }

    #[test]
    fn the_xfs_list_nests_and_ends_each_folder() {
        let dir = tree();
        let at = dir.path().display();
        assert_eq!(
            xfs_prototype(dir.path()).unwrap(),
            format!(
                "/dev/null\n0 0\nd--755 0 0\n large ---644 0 0 {at}/large\n sub d--755 0 0\n  \
                 small ---644 0 0 {at}/sub/small\n $\n$\n$\n"
            )
        );
    }

    #[test]
    fn names_that_the_xfs_list_cannot_express_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("two words"), "").unwrap();
        assert!(xfs_prototype(dir.path()).unwrap_err().to_string().contains("two words"));
    }
}
