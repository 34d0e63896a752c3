//! Notes of the summary: limits of the machine that concern this load, or the programs that map its
//! memory.

use longshore::formats::printable;
use longshore::heap::PageReport;
use longshore::load::{FormatChoice, Opened, Report};
use longshore_sys::memory::{self, Available};

use crate::units::Decimal;

/// From this share on, prefaulting limited the load.
const PREFAULT_SHARE_NOTABLE: f64 = 0.75;
/// A shorter load is fast enough.
const SECONDS_NOTABLE: f64 = 1.0;

/// Returns a note if programs get no 2 MiB pages by an ordinary `mmap` of the memfd. `shmem_enabled` is
/// the kernel's setting. If it is `never`, the kernel does not align their mappings, so it cannot map
/// the 2 MiB pages of the memfd as such.
pub(super) fn mapping(pages: &PageReport, shmem_enabled: Option<&str>) -> Option<String> {
    let is_huge = pages.huge_2m_bytes > pages.total_bytes() / 2;
    let setting = shmem_enabled.filter(|setting| is_huge && ["never", "deny"].contains(setting))?;
    Some(format!(
        "programs map it in 4 KiB pages, unless they map it at a multiple of 2 MiB (shmem_enabled is \
         {setting}: see longshore doctor)"
    ))
}

/// Returns a note if a file without an extension was loaded as raw bytes, because its content is that of no
/// known format.
pub(super) fn unrecognised(opened: &Opened, format: FormatChoice) -> Option<String> {
    let is_known = |index: usize| opened.tensors.iter().any(|file| file.file_index == index);
    let mut files = opened.plan.files().iter().enumerate();
    let (_, file) = files.find(|(index, file)| {
        format == FormatChoice::Auto
            && file.source().path().extension().is_none()
            && !is_known(*index)
    })?;
    let path = file.source().path().to_string_lossy();
    Some(format!(
        "{} is neither safetensors nor GGUF: it was loaded as raw bytes",
        printable(&path)
    ))
}

/// Returns a note if prefaulting pages took longer than reading.
pub(super) fn prefaulting(report: &Report) -> Option<String> {
    prefaulting_of(report.prefault_share, report.elapsed.as_secs_f64())
}

fn prefaulting_of(share: f64, seconds: f64) -> Option<String> {
    let is_notable = share >= PREFAULT_SHARE_NOTABLE && seconds >= SECONDS_NOTABLE;
    is_notable.then(|| {
        format!(
            "{:.0}% of the time was spent on making pages, not on reading: a virtual machine's memory is \
             slow when it is used for the first time; the next load is faster",
            share * 100.0
        )
    })
}

/// Returns the number of bytes of memory that are left for programs, of the machine and of its control
/// group; `None` if neither is known.
pub(super) fn memory_left() -> Option<u64> {
    left_of(&memory::available())
}

fn left_of(available: &Available) -> Option<u64> {
    let group = available.control_group.as_ref().map(|(left, _)| *left);
    [available.machine_bytes, group].into_iter().flatten().min()
}

/// Returns a note if a program that copies the content into memory of its own would not find room.
pub(super) fn second_copy(content_bytes: u64, left_bytes: Option<u64>) -> Option<String> {
    let left_bytes = left_bytes.filter(|left| *left < content_bytes)?;
    Some(format!(
        "{} of memory are left, which is less than the content: a program that copies it into memory of \
         its own can be killed (llama.cpp repacks Q4_0 and other types: give it --no-repack)",
        Decimal(left_bytes as f64)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(huge_2m_bytes: u64, base_bytes: u64) -> PageReport {
        let mut pages = PageReport::default();
        (pages.huge_2m_bytes, pages.base_bytes) = (huge_2m_bytes, base_bytes);
        pages
    }

    #[test]
    fn the_pages_that_programs_get_depend_on_the_setting() {
        let huge = pages(1 << 30, 4096);
        for setting in ["never", "deny"] {
            let note = mapping(&huge, Some(setting)).unwrap();
            assert!(note.contains("4 KiB pages") && note.contains(setting), "{note}");
        }
        for setting in [Some("advise"), Some("always"), Some("within_size"), None] {
            assert_eq!(mapping(&huge, setting), None, "{setting:?}");
        }
        // These are small for this process, too.
        assert_eq!(mapping(&pages(0, 1 << 30), Some("never")), None);
    }

    #[test]
    fn a_long_load_that_prefaulting_limited_has_a_note() {
        assert!(prefaulting_of(0.97, 18.0).unwrap().starts_with("97% of the time"));
        assert_eq!(prefaulting_of(0.97, 0.2), None);
        assert_eq!(prefaulting_of(0.5, 18.0), None);
    }

    #[test]
    fn the_tighter_of_the_machine_and_the_group_decides_about_a_second_copy() {
        let mut available = Available { machine_bytes: Some(2_000), ..Available::default() };
        assert_eq!(left_of(&available), Some(2_000));
        available.control_group = Some((900, "/g/memory.max".into()));
        let left = left_of(&available);
        assert_eq!(left, Some(900));
        assert_eq!(second_copy(900, left), None);
        assert!(second_copy(901, left).unwrap().starts_with("900 B of memory are left"));
        assert_eq!(second_copy(901, left_of(&Available::default())), None);
    }
}
