//! `longshore doctor`: which features this machine supports, and how to enable the others.

mod devices;
mod finding;

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

use longshore::mem::Granule;
use longshore::remote::FoundCredentials;
use longshore::{Heap, heap};
use longshore_sys::file::{self, ReadFlags};
use longshore_sys::memfd::{self, Backing};
use longshore_sys::{dma_heap, huge_pages, memory, page_cache, udmabuf, uring};
use serde_json::{Value, json};

use finding::{Finding, Group, State};

use crate::args::DoctorArgs;
use crate::output::print;
use crate::units::Decimal;

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let mut loading = vec![kernel(), available_memory(), file_size()];
    loading.extend([io_uring(), memfd_heap(), huge_pages_of_memfd(), huge_mappings_of_memfd()]);
    loading.extend([mid_pages(), hugetlb_pool(), udmabuf_heap(), udmabuf_limit(), dma_heaps()]);
    loading.extend(file_system(&args.directory));
    let groups = [
        (Group::Loading, loading),
        (Group::Servers, credentials()),
        (Group::Devices, devices::findings()),
    ];
    let text = if args.json { format!("{}\n", as_json(&groups)) } else { as_table(&groups) };
    print(&text)
}

fn as_table(groups: &[(Group, Vec<Finding>)]) -> String {
    let mut text = String::new();
    for (group, findings) in groups {
        let space = if text.is_empty() { "" } else { "\n" };
        text += &format!("{space}{}:\n", group.heading());
        for finding in findings {
            let mark = match finding.state {
                State::Yes => "yes    ",
                State::Limited => "limited",
                State::No => "no     ",
            };
            text += &format!("{mark}  {:<22}  {}\n", finding.name, finding.found);
            if let Some(advice) = &finding.advice {
                text += &format!("{:33}{advice}\n", "");
            }
        }
    }
    text
}

fn as_json(groups: &[(Group, Vec<Finding>)]) -> Value {
    let findings = groups.iter().flat_map(|(group, findings)| {
        findings.iter().map(|finding| {
            json!({
                "group": group.name(),
                "name": finding.name,
                "state": match finding.state {
                    State::Yes => "yes",
                    State::Limited => "limited",
                    State::No => "no",
                },
                "found": finding.found,
                "advice": finding.advice,
            })
        })
    });
    json!({ "findings": findings.collect::<Vec<Value>>() })
}

fn credentials() -> Vec<Finding> {
    let found = FoundCredentials::all().into_iter().map(|it| {
        let name = match it.scheme {
            "s3" => "Amazon S3",
            "gs" => "Google Cloud Storage",
            "az" => "Azure Blob Storage",
            _ => "Hugging Face Hub",
        };
        match it.found {
            Some(found) => Finding::yes(name, found),
            None => Finding::limited(name, "no credentials were found", it.hint),
        }
    });
    found.collect()
}

fn kernel() -> Finding {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Finding::yes("kernel", release.trim())
}

fn available_memory() -> Finding {
    let available = memory::available();
    let machine = available.machine_bytes.unwrap_or(0);
    match available.control_group {
        Some((left, path)) if left < machine => Finding::limited(
            "memory",
            format!("{} (the machine has {})", Decimal(left as f64), Decimal(machine as f64)),
            format!("raise {}", path.display()),
        ),
        _ => Finding::yes("memory", format!("{} available", Decimal(machine as f64))),
    }
}

fn file_size() -> Finding {
    match memory::file_size_limit() {
        None => Finding::yes("file size limit", "none"),
        Some(limit) => Finding::limited(
            "file size limit",
            format!("{}; it also limits memfds", Decimal(limit as f64)),
            "ulimit -f unlimited",
        ),
    }
}

fn io_uring() -> Finding {
    const NAME: &str = "io_uring";
    match uring::probe(8) {
        Ok(()) => Finding::yes(NAME, "reads, with timeouts"),
        Err(error) => {
            let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
            let advice = match (disabled.as_deref().map(str::trim), error.kind()) {
                (Ok("1" | "2"), _) => "sysctl kernel.io_uring_disabled=0",
                (_, ErrorKind::PermissionDenied) => {
                    "a seccomp filter refuses it (containers: --security-opt seccomp=…)"
                }
                _ => "a kernel of 5.11 or later with CONFIG_IO_URING",
            };
            Finding::limited(NAME, format!("{error}; threads read instead"), advice)
        }
    }
}

fn memfd_heap() -> Finding {
    const NAME: &str = "heap memfd";
    match memfd::create("doctor", Backing::Shmem) {
        Ok(_) => Finding::yes(NAME, "can be sealed and shared"),
        Err(error) => Finding::no(NAME, error.to_string(), "a kernel with CONFIG_MEMFD_CREATE"),
    }
}

/// Allocates a buffer, because the settings alone do not show which pages are available.
fn huge_pages_of_memfd() -> Finding {
    const NAME: &str = "2 MiB pages for memfd";
    let setting = huge_pages::shmem_setting().unwrap_or_else(|_| "absent".to_owned());
    // Not a multiple of 2 MiB, so that it cannot come from the hugetlb pool.
    match Heap::Memfd.allocate((16 << 20) + 4096).map(|buffer| buffer.page_report()) {
        Ok(report) if report.prevailing() == Some(Granule::SIZE_2M) => {
            Finding::yes(NAME, format!("obtained (shmem_enabled is {setting})"))
        }
        Ok(report) => Finding::limited(
            NAME,
            format!("obtained {report} (shmem_enabled is {setting})"),
            "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        ),
        Err(error) => Finding::no(NAME, error.to_string(), "free some memory"),
    }
}

/// Examines the mappings that other programs get of a memfd. The kernel aligns them only if the setting
/// permits huge pages.
fn huge_mappings_of_memfd() -> Finding {
    mappings_by_setting(huge_pages::shmem_setting().as_deref().unwrap_or("absent"))
}

fn mappings_by_setting(setting: &str) -> Finding {
    const NAME: &str = "2 MiB mappings";
    match setting {
        "always" | "within_size" | "advise" | "force" => Finding::yes(
            NAME,
            format!("for programs that map a memfd (shmem_enabled is {setting})"),
        ),
        _ => Finding::limited(
            NAME,
            format!("only for programs that align them to 2 MiB (shmem_enabled is {setting})"),
            "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled, or map the memfd at a \
             multiple of 2 MiB",
        ),
    }
}

fn mid_pages() -> Finding {
    const NAME: &str = "64 KiB pages for memfd";
    match huge_pages::shmem_setting_of(Granule::SIZE_64K).as_deref() {
        Ok("never") => Finding::limited(
            NAME,
            "not used if 2 MiB pages are not available",
            "echo advise > /sys/kernel/mm/transparent_hugepage/hugepages-64kB/shmem_enabled",
        ),
        Ok(setting) => Finding::yes(NAME, format!("shmem_enabled is {setting}")),
        Err(_) => Finding::limited(NAME, "not supported by this kernel", "Linux 6.11 or later"),
    }
}

fn hugetlb_pool() -> Finding {
    const NAME: &str = "heap hugetlb";
    match huge_pages::pool_2m() {
        Ok(pool) if pool.available_pages + pool.overcommit_pages > 0 => Finding::yes(
            NAME,
            format!(
                "{} of {} pages of 2 MiB are free, {} more on demand{}",
                pool.available_pages,
                pool.total_pages,
                pool.overcommit_pages,
                other_pools(&huge_pages::pools())
            ),
        ),
        Ok(pool) => Finding::no(
            NAME,
            format!(
                "none of {} pages of 2 MiB is free{}",
                pool.total_pages,
                other_pools(&huge_pages::pools())
            ),
            "echo N > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages (optional)",
        ),
        Err(error) => Finding::no(NAME, error.to_string(), "a kernel with CONFIG_HUGETLBFS"),
    }
}

/// Lists the hugetlb pools of page sizes that no heap uses.
fn other_pools(pools: &[(u64, huge_pages::Pool)]) -> String {
    let others = pools.iter().filter(|(page_bytes, pool)| {
        *page_bytes != Granule::SIZE_2M.bytes() && pool.total_pages > 0
    });
    let texts = others.map(|(page_bytes, pool)| {
        format!("; {} pages of {} MiB, which no heap uses", pool.total_pages, page_bytes >> 20)
    });
    texts.collect()
}

fn udmabuf_heap() -> Finding {
    const NAME: &str = "heap udmabuf";
    match udmabuf::check_access() {
        Ok(()) => match Heap::Udmabuf.allocate(4096).and_then(|b| b.share(heap::Sealing::Size)) {
            Ok(_) => Finding::yes(NAME, "exports dma-bufs"),
            Err(error) => Finding::no(NAME, error.to_string(), "see the kernel log"),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Finding::no(
            NAME,
            format!("no {}", udmabuf::DEVICE),
            "modprobe udmabuf, or a kernel with CONFIG_UDMABUF",
        ),
        Err(error) => Finding::no(
            NAME,
            error.to_string(),
            format!("give this user access to {} (a udev rule)", udmabuf::DEVICE),
        ),
    }
}

fn udmabuf_limit() -> Finding {
    const NAME: &str = "udmabuf size limit";
    match udmabuf::size_limit_bytes() {
        Ok(limit) => Finding::limited(
            NAME,
            format!("{}; a load by root raises it if needed", Decimal(limit as f64)),
            "echo 65536 > /sys/module/udmabuf/parameters/size_limit_mb",
        ),
        Err(_) => Finding::no(NAME, "no udmabuf", "see heap udmabuf"),
    }
}

fn dma_heaps() -> Finding {
    const NAME: &str = "heap dma-heap";
    let names = dma_heap::names();
    if names.is_empty() {
        let found = format!("no {}", dma_heap::DIRECTORY);
        return Finding::no(NAME, found, "a kernel with CONFIG_DMABUF_HEAPS and one of its heaps");
    }
    Finding::yes(NAME, format!("{}; read through the page cache", names.join(", ")))
}

/// Examines the file system of `directory` with a temporary file there.
fn file_system(directory: &Path) -> Vec<Finding> {
    let path = directory.join(format!(".longshore-doctor-{}", std::process::id()));
    let probe = || -> io::Result<Vec<Finding>> {
        // `create_new` neither overwrites a file nor follows a symlink.
        fs::File::create_new(&path)?.write_all(&[1; 8192])?;
        let file = file::open(&path)?;
        // Unlinked at once, so that no file is left behind if this process ends.
        fs::remove_file(&path)?;
        Ok(vec![direct_io(&file)?, uncached_io(&file), residency(&file)])
    };
    probe().unwrap_or_else(|error| {
        vec![Finding::no(
            "file system",
            format!("cannot write to {}: {error}", directory.display()),
            "name a directory that you can write to: longshore doctor DIR",
        )]
    })
}

fn direct_io(file: &std::os::fd::OwnedFd) -> io::Result<Finding> {
    const NAME: &str = "direct I/O";
    let status = file::status(file)?;
    Ok(match (status.direct, file::reopen_direct(file)) {
        (Some(alignment), Ok(_)) => Finding::yes(
            NAME,
            format!("offsets to {}, memory to {}", alignment.offset, alignment.memory),
        ),
        (None, _) => Finding::no(
            NAME,
            "the file system reports none (statx)",
            "ext4, xfs, btrfs or f2fs on Linux 6.1 or later; not tmpfs",
        ),
        (_, Err(error)) => Finding::no(NAME, error.to_string(), "another file system"),
    })
}

fn uncached_io(file: &std::os::fd::OwnedFd) -> Finding {
    const NAME: &str = "uncached reads";
    let flags = ReadFlags { uncached: true, ..ReadFlags::default() };
    match file::read_into(file, &mut [0], longshore::mem::FileOffset::new(0), flags) {
        Ok(_) => Finding::yes(NAME, "RWF_DONTCACHE"),
        Err(error) => Finding::limited(
            NAME,
            error.to_string(),
            "Linux 6.14 or later with ext4, xfs or btrfs; direct I/O is an alternative",
        ),
    }
}

fn residency(file: &std::os::fd::OwnedFd) -> Finding {
    const NAME: &str = "page cache residency";
    match page_cache::stat(file, longshore::mem::FileOffset::new(0), 8192) {
        Ok(_) => Finding::yes(NAME, "cachestat"),
        Err(error) => {
            Finding::limited(NAME, format!("{error}; probed by reading"), "Linux 6.5 or later")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_get_huge_mappings_if_the_kernel_or_they_align_them() {
        for setting in ["always", "within_size", "advise", "force"] {
            assert!(mappings_by_setting(setting).state == State::Yes, "{setting}");
        }
        for setting in ["never", "deny", "absent"] {
            let finding = mappings_by_setting(setting);
            assert!(finding.state == State::Limited, "{setting}");
            assert!(finding.advice.unwrap().contains("echo advise"), "{setting}");
        }
    }

    #[test]
    fn each_group_has_a_heading_and_a_name() {
        let groups = [Group::Loading, Group::Devices]
            .map(|group| (group, vec![Finding::yes("feature", "found")]));
        let text = as_table(&groups);
        let expected = [Group::Loading, Group::Devices]
            .map(|group| format!("{}:\nyes      feature                 found\n", group.heading()));
        assert_eq!(text, expected.join("\n"));
        let json = as_json(&groups);
        assert_eq!(json["findings"][1]["group"], "devices");
    }

    #[test]
    fn pools_of_other_page_sizes_are_listed() {
        let pool = |total_pages| huge_pages::Pool { total_pages, ..huge_pages::Pool::default() };
        assert_eq!(other_pools(&[(2 << 20, pool(8)), (1 << 30, pool(0))]), "");
        let text = other_pools(&[(2 << 20, pool(8)), (1 << 30, pool(4))]);
        assert_eq!(text, "; 4 pages of 1024 MiB, which no heap uses");
    }
}
