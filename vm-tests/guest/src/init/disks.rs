//! Finds disks by their serial numbers, and mounts them.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use longshore_vm_tests::protocol::DiskPlan;
use rustix::mount::MountFlags;

use super::{Error, Result, mounts};

/// The folder with links to the disks, by the names in the plan.
const BY_NAME: &str = "/dev/disk";

/// The maximum wait for disks. Drivers probe in the background, so a disk may appear after init starts.
const APPEARANCE_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

/// Waits for every disk, creates its link, and mounts it if the plan asks for it.
pub(super) fn prepare(disks: &[DiskPlan]) -> Result<()> {
    let devices = wait_for(disks)?;
    fs::create_dir_all(BY_NAME).map_err(Error::system("creating", BY_NAME))?;
    for disk in disks {
        let device = &devices[&disk.serial];
        let name = format!("{BY_NAME}/{}", disk.serial);
        symlink(device, &name).map_err(Error::system("linking", &name))?;
        if let Some(mount) = &disk.mount {
            let flags = if mount.read_only { MountFlags::RDONLY } else { MountFlags::empty() };
            mounts::mount_at(device, &mount.file_system, &mount.at, flags)?;
        }
    }
    Ok(())
}

/// Returns the device of every disk, by serial number.
fn wait_for(disks: &[DiskPlan]) -> Result<BTreeMap<String, String>> {
    let started = Instant::now();
    loop {
        let present = by_serial(Path::new("/sys/block"));
        let missing: Vec<String> = disks
            .iter()
            .map(|disk| disk.serial.clone())
            .filter(|serial| !present.contains_key(serial))
            .collect();
        if missing.is_empty() {
            return Ok(present);
        }
        if started.elapsed() > APPEARANCE_LIMIT {
            let present = present.into_keys().collect();
            let seconds = APPEARANCE_LIMIT.as_secs();
            return Err(Error::MissingDisks { missing, present, seconds });
        }
        thread::sleep(POLL);
    }
}

/// Returns the disks that report a serial number.
fn by_serial(sys_block: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(sys_block).into_iter().flatten().flatten() {
        // virtio-blk has it in the disk's folder, nvme in the controller's, padded with spaces.
        let serial = ["serial", "device/serial"]
            .into_iter()
            .find_map(|file| fs::read_to_string(entry.path().join(file)).ok());
        let device = format!("/dev/{}", entry.file_name().to_string_lossy());
        match serial.as_deref().map(str::trim) {
            None | Some("") => {}
            Some(serial) => drop(found.insert(serial.to_owned(), device)),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_of_both_kinds_are_found_and_others_are_ignored() {
        let dir = std::env::temp_dir().join(format!("longshore-block-{}", std::process::id()));
        for (file, content) in [
            ("vda/serial", "weights\n"),
            ("nvme0n1/device/serial", "fast                \n"),
            ("loop0/size", "0\n"),
            ("vdb/serial", "\n"),
        ] {
            let path = dir.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let found = by_serial(&dir);
        fs::remove_dir_all(&dir).unwrap();
        let found: Vec<_> = found.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert_eq!(found, [("fast", "/dev/nvme0n1"), ("weights", "/dev/vda")]);
    }
}
