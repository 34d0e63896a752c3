//! The guest's work: one JSON document in the initramfs.

use serde::{Deserialize, Serialize};

use super::Task;

/// The path of the plan in the guest.
pub const PLAN_PATH: &str = "/plan.json";

/// The complete input of the guest's init.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Kernel modules by path, in the order in which they must be loaded.
    pub modules: Vec<String>,
    /// Disks to wait for, and to mount, before the first task.
    pub disks: Vec<DiskPlan>,
    /// The seconds to wait before the first task.
    pub settle_seconds: u64,
    /// The tasks, in order.
    pub tasks: Vec<Task>,
    /// `true` if the machine restarts after the last task; otherwise it is powered off.
    pub restarts: bool,
}

/// One disk, found by its serial number because device names depend on probing order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskPlan {
    /// The serial number that the device reports; init makes `/dev/disk/SERIAL` a link to the device.
    pub serial: String,
    /// The mount, if the disk is to be mounted.
    pub mount: Option<MountPlan>,
}

/// How to mount a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountPlan {
    /// The mount point; init creates it if necessary.
    pub at: String,
    /// The file system, as for `mount -t`.
    pub file_system: String,
    /// `true` to mount it read-only.
    pub read_only: bool,
}

impl Plan {
    /// Returns the plan as JSON for the initramfs.
    ///
    /// # Panics
    ///
    /// Never: strings, numbers and lists always have a JSON form.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a plan has a JSON form")
    }

    /// Reads a plan back.
    ///
    /// # Errors
    ///
    /// Returns an error if `text` is not the JSON of a plan.
    pub fn from_json(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_back_from_its_json() {
        let plan = Plan {
            modules: vec!["/modules/00-virtio_blk.ko".into()],
            disks: vec![
                DiskPlan { serial: "raw".into(), mount: None },
                DiskPlan {
                    serial: "weights".into(),
                    mount: Some(MountPlan {
                        at: "/disk/weights".into(),
                        file_system: "ext4".into(),
                        read_only: true,
                    }),
                },
            ],
            settle_seconds: 5,
            tasks: vec![
                Task::suite("kernel"),
                Task::test("load::empty"),
                Task::command(["/bin/x", "a \"quoted\" argument"]).env("K", "v"),
            ],
            restarts: true,
        };
        assert_eq!(Plan::from_json(&plan.to_json()).unwrap(), plan);
    }

    #[test]
    fn other_json_is_not_a_plan() {
        assert!(Plan::from_json("{}").is_err());
        assert!(Plan::from_json("").is_err());
    }
}
