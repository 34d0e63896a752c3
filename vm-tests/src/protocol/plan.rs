//! What the guest is told to do: one JSON document in the initramfs.

use serde::{Deserialize, Serialize};

use super::Task;

/// Where the guest finds its plan.
pub const PLAN_PATH: &str = "/plan.json";

/// Everything the guest's init needs to know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Kernel modules by path, in the order in which they must be loaded.
    pub modules: Vec<String>,
    /// Disks to wait for, and to mount, before the first task.
    pub disks: Vec<DiskPlan>,
    /// How long to wait before the first task.
    pub settle_seconds: u64,
    /// What to run, in order.
    pub tasks: Vec<Task>,
    /// Whether the machine restarts after the last task, and is not powered off.
    pub restarts: bool,
}

/// One disk, found by its serial number because device names depend on probing order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskPlan {
    /// The serial number that the device reports; `/dev/disk/SERIAL` is made to lead to it.
    pub serial: String,
    /// Where to mount it, if it is to be mounted.
    pub mount: Option<MountPlan>,
}

/// How to mount a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountPlan {
    /// The directory to mount it on; it is made if it is not there.
    pub at: String,
    /// The file system, as `mount -t` takes it.
    pub file_system: String,
    /// Whether it is mounted read-only.
    pub read_only: bool,
}

impl Plan {
    /// The plan as the JSON that goes into the initramfs.
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
    /// If `text` is not the JSON of a plan.
    pub fn from_json(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_its_json_form() {
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
    fn what_is_not_a_plan_is_refused() {
        assert!(Plan::from_json("{}").is_err());
        assert!(Plan::from_json("").is_err());
    }
}
