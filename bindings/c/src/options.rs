//! `longshore_load_options`.
#![expect(unsafe_code, reason = "reads the strings of a C struct")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::offset_of;
use std::str::FromStr;

use longshore_heap::Heap;
use longshore_load::FormatChoice;
use longshore_load::{DigestKind, ReadMode};
use longshore_mem::Granule;
use longshore_remote::Remote;

use crate::error::Failure;
use crate::ffi;
use crate::servers::{self, longshore_storage_option};
use crate::sized::SizedStruct;

/// For `verify`: CRC-32C, eight hexadecimal digits.
pub const LONGSHORE_VERIFY_CRC32C: u32 = 1;
/// For `verify`: XXH3 of 64 bits with seed 0, sixteen hexadecimal digits.
pub const LONGSHORE_VERIFY_XXH3: u32 = 2;
/// For `verify`: SHA-256, 64 hexadecimal digits.
pub const LONGSHORE_VERIFY_SHA256: u32 = 4;

/// For `flags`: do not seal the content; every process that has the memory can write to it. The heaps
/// `udmabuf` and `dma-heap` need this flag, because they cannot seal their content.
pub const LONGSHORE_LOAD_WRITABLE: u32 = 1;
/// For `flags`: do not use io_uring, even if it is available.
pub const LONGSHORE_LOAD_NO_URING: u32 = 2;

/// A callback for the progress of a load. It is called about twenty times a second and once at the
/// end, on the thread that called `longshore_load`. It must return: no exception and no `longjmp` may
/// leave it.
///
/// @param done_bytes The bytes that are in the buffer.
/// @param total_bytes The bytes of the whole load.
/// @param data The `progress_data` of the options.
/// @return 0 to continue; any other value cancels the load, which then leaves nothing behind.
#[allow(non_camel_case_types, reason = "C's name")]
pub type longshore_progress =
    Option<unsafe extern "C" fn(done_bytes: u64, total_bytes: u64, data: *mut c_void) -> c_int>;

/// The options of a load. Initialize them with `LONGSHORE_LOAD_OPTIONS_INIT`; a zero or NULL in any
/// field but `size` stands for the default. Later versions of Longshore add fields at the end; by
/// `size` the library recognises the version that the program was compiled for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct longshore_load_options {
    /// `sizeof(longshore_load_options)`.
    pub size: usize,
    /// The source of the memory: `auto`, `memfd`, `memfd:4k`, `hugetlb`, `udmabuf`, `dma-heap` or
    /// `dma-heap:NAME`. `auto` is `udmabuf` if that is available and the content stays writable, and
    /// `memfd` if not.
    pub heap: *const c_char,
    /// How files are read: `auto`, `direct`, `buffered` or `uncached`.
    pub mode: *const c_char,
    /// The format of the files: `raw`, `safetensors`, `gguf`, or `auto`, which chooses it by their
    /// names.
    pub format: *const c_char,
    /// The path of a manifest in the format of `sha256sum`. The load fails unless each file has its
    /// checksum.
    pub manifest: *const c_char,
    /// Place every tensor at a multiple of this while reading: a power of two up to 1 GiB, such as
    /// 64. If the tensors of a file are not aligned, the buffer holds another valid file with the
    /// same tensors and metadata.
    pub align_bytes: u64,
    /// Fail if the content has more than this number of bytes.
    pub memory_max_bytes: u64,
    /// The prefault window: by how many bytes prefaulted pages may be ahead of the reads. The default
    /// is 128 MiB.
    pub populate_ahead_bytes: u64,
    /// The checksums to compute for each file: `LONGSHORE_VERIFY_*`, any number of them or'ed.
    pub verify: u32,
    /// `LONGSHORE_LOAD_*`, any number of them or'ed.
    pub flags: u32,
    /// The callback for progress.
    pub progress: longshore_progress,
    /// The last argument of `progress`.
    pub progress_data: *mut c_void,
    /// Options of object stores, which replace those of the environment.
    pub storage_options: *const longshore_storage_option,
    /// The number of elements of `storage_options`.
    pub storage_option_count: usize,
    /// The time that all requests to servers together may take, in milliseconds. The default is no limit, but
    /// a server that sends nothing for 30 seconds is given up.
    pub timeout_ms: u64,
    /// The number of connections to servers, up to 256. The default is 16, and up to 128 while more are faster.
    pub connections: u64,
}

const STRUCT: SizedStruct = SizedStruct { name: "longshore_load_options", first_bytes: 88 };

/// The largest alignment: no page is larger.
const ALIGNMENT_MAX_BYTES: u64 = 1 << 30;

const _: () = {
    assert!(size_of::<longshore_load_options>() == 120);
    assert!(offset_of!(longshore_load_options, heap) == 8);
    assert!(offset_of!(longshore_load_options, mode) == 16);
    assert!(offset_of!(longshore_load_options, format) == 24);
    assert!(offset_of!(longshore_load_options, manifest) == 32);
    assert!(offset_of!(longshore_load_options, align_bytes) == 40);
    assert!(offset_of!(longshore_load_options, memory_max_bytes) == 48);
    assert!(offset_of!(longshore_load_options, populate_ahead_bytes) == 56);
    assert!(offset_of!(longshore_load_options, verify) == 64);
    assert!(offset_of!(longshore_load_options, flags) == 68);
    assert!(offset_of!(longshore_load_options, progress) == 72);
    assert!(offset_of!(longshore_load_options, progress_data) == 80);
    assert!(offset_of!(longshore_load_options, storage_options) == 88);
    assert!(offset_of!(longshore_load_options, storage_option_count) == 96);
    assert!(offset_of!(longshore_load_options, timeout_ms) == 104);
    assert!(offset_of!(longshore_load_options, connections) == 112);
};

/// Parsed options.
#[derive(Debug, Default)]
pub(crate) struct Options<'a> {
    pub(crate) heap: Heap,
    pub(crate) mode: ReadMode,
    pub(crate) format: FormatChoice,
    pub(crate) manifest: Option<&'a CStr>,
    pub(crate) alignment: Option<Granule>,
    pub(crate) memory_max_bytes: Option<u64>,
    pub(crate) populate_ahead_bytes: Option<u64>,
    pub(crate) verify: Vec<DigestKind>,
    pub(crate) writable: bool,
    pub(crate) no_uring: bool,
    pub(crate) progress: Option<Callback>,
    pub(crate) remote: Remote,
    pub(crate) connections: Option<usize>,
}

/// A progress callback and its data.
#[derive(Debug)]
pub(crate) struct Callback {
    function: unsafe extern "C" fn(u64, u64, *mut c_void) -> c_int,
    data: *mut c_void,
}

impl Callback {
    /// Calls the callback and returns `true` if the load is to continue.
    pub(crate) fn goes_on(&self, done_bytes: u64, total_bytes: u64) -> bool {
        // SAFETY: by the contract of `read`, the function may be called with its data.
        (unsafe { (self.function)(done_bytes, total_bytes, self.data) }) == 0
    }
}

/// Parses the options of a load.
///
/// # Safety
/// `options` is NULL, not aligned, or points to as many bytes as its first field says. Its pointers
/// are NULL or strings that do not change during `'a`, its array has the number of elements that it says,
/// and the callback may be called with its data.
pub(crate) unsafe fn read<'a>(
    options: *const longshore_load_options,
) -> Result<Options<'a>, Failure> {
    let understood = if options.is_null() {
        Options::default()
    } else {
        // SAFETY: by this function's contract.
        let known = unsafe { STRUCT.read(options, "options") }?;
        // SAFETY: by this function's contract.
        unsafe { understand(&known) }?
    };
    if understood.heap == Heap::Auto && !understood.writable {
        // The best heap whose content can be sealed.
        return Ok(Options { heap: Heap::Memfd, ..understood });
    }
    Ok(understood)
}

/// Parses the options of `longshore_attach`, and refuses those that only a load has.
///
/// # Safety
/// The same as for [`read`].
pub(crate) unsafe fn read_to_attach<'a>(
    options: *const longshore_load_options,
) -> Result<Options<'a>, Failure> {
    if options.is_null() {
        return Ok(Options::default());
    }
    // SAFETY: by this function's contract.
    let known = unsafe { STRUCT.read(options, "options") }?;
    let words = [known.heap, known.mode, known.manifest];
    let numbers = [known.align_bytes, known.memory_max_bytes, known.populate_ahead_bytes];
    let of_servers = [known.storage_option_count as u64, known.timeout_ms, known.connections];
    let is_said = words.iter().any(|word| !word.is_null())
        || of_servers.iter().any(|number| *number != 0)
        || numbers.iter().any(|number| *number != 0)
        || known.verify != 0
        || known.flags != 0;
    if is_said {
        return Err(Failure::argument(
            "options: longshore_attach takes only format, progress and progress_data, because the \
             server decides how a model is loaded"
                .to_owned(),
        ));
    }
    // SAFETY: by this function's contract.
    unsafe { understand(&known) }
}

/// # Safety
/// The pointers are NULL or strings that do not change during `'a`, and the callback may be called
/// with its data. `storage_options` has the number of elements that the options say.
unsafe fn understand<'a>(known: &longshore_load_options) -> Result<Options<'a>, Failure> {
    let unknown = known.flags & !(LONGSHORE_LOAD_WRITABLE | LONGSHORE_LOAD_NO_URING);
    if unknown != 0 {
        return Err(Failure::argument(format!("options: flags has the unknown bits {unknown:#x}")));
    }
    Ok(Options {
        // SAFETY: NULL or a string, by this function's contract.
        heap: word(unsafe { ffi::optional_string(known.heap) })?,
        // SAFETY: as above.
        mode: word(unsafe { ffi::optional_string(known.mode) })?,
        // SAFETY: as above.
        format: word(unsafe { ffi::optional_string(known.format) })?,
        // SAFETY: as above.
        manifest: unsafe { ffi::optional_string(known.manifest) },
        alignment: alignment(known.align_bytes)?,
        memory_max_bytes: (known.memory_max_bytes > 0).then_some(known.memory_max_bytes),
        populate_ahead_bytes: (known.populate_ahead_bytes > 0)
            .then_some(known.populate_ahead_bytes),
        verify: kinds(known.verify)?,
        writable: known.flags & LONGSHORE_LOAD_WRITABLE != 0,
        no_uring: known.flags & LONGSHORE_LOAD_NO_URING != 0,
        progress: known.progress.map(|function| Callback { function, data: known.progress_data }),
        // SAFETY: by this function's contract.
        remote: unsafe {
            servers::access(known.storage_options, known.storage_option_count, known.timeout_ms)
        }?,
        connections: servers::connections(known.connections)?,
    })
}

/// Parses a word; NULL is the default.
pub(crate) fn word<T>(word: Option<&CStr>) -> Result<T, Failure>
where
    T: FromStr<Err: std::error::Error> + Default,
{
    let Some(word) = word else { return Ok(T::default()) };
    word.to_string_lossy().parse().map_err(|error| Failure::word(&error))
}

/// Parses `align_bytes`; 0 is no alignment.
fn alignment(bytes: u64) -> Result<Option<Granule>, Failure> {
    if bytes == 0 {
        return Ok(None);
    }
    let granule = Granule::new(bytes).ok().filter(|_| bytes <= ALIGNMENT_MAX_BYTES);
    granule.map(Some).ok_or_else(|| {
        Failure::argument(format!(
            "options: align_bytes is {bytes}, which is not a power of two up to 1 GiB"
        ))
    })
}

/// Returns the checksums of a mask.
pub(crate) fn kinds(mask: u32) -> Result<Vec<DigestKind>, Failure> {
    let unknown = mask & !KINDS.iter().fold(0, |all, (bit, _)| all | bit);
    if unknown != 0 {
        return Err(Failure::argument(format!(
            "options: verify has the unknown bits {unknown:#x}"
        )));
    }
    let chosen = KINDS.iter().filter(|(bit, _)| mask & bit != 0);
    Ok(chosen.map(|(_, kind)| *kind).collect())
}

/// Every checksum and its bit.
pub(crate) const KINDS: [(u32, DigestKind); 3] = [
    (LONGSHORE_VERIFY_CRC32C, DigestKind::Crc32c),
    (LONGSHORE_VERIFY_XXH3, DigestKind::Xxh3),
    (LONGSHORE_VERIFY_SHA256, DigestKind::Sha256),
];

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::ptr;

    use super::*;

    /// The options of a later version, with one more field.
    #[repr(C)]
    struct Newer {
        known: longshore_load_options,
        more: u64,
    }

    fn nothing_said(size: usize) -> longshore_load_options {
        // SAFETY: zero is valid for each field.
        let zero = unsafe { MaybeUninit::<longshore_load_options>::zeroed().assume_init() };
        longshore_load_options { size, ..zero }
    }

    fn understood(options: &longshore_load_options) -> Result<Options<'_>, Failure> {
        // SAFETY: the tests pass a struct of that size or longer, or a size that is refused.
        unsafe { read(options) }
    }

    #[test]
    fn zeroed_options_are_the_defaults_and_writable_ones_allow_any_heap() {
        let nothing = nothing_said(88);
        let options = understood(&nothing).unwrap();
        assert_eq!((options.heap, options.mode), (Heap::Memfd, ReadMode::Auto));
        // SAFETY: NULL is allowed.
        let null = unsafe { read(ptr::null()) }.unwrap();
        assert_eq!((null.heap, null.mode, null.writable), (Heap::Memfd, ReadMode::Auto, false));
        let writable =
            longshore_load_options { flags: LONGSHORE_LOAD_WRITABLE, ..nothing_said(88) };
        assert_eq!(understood(&writable).unwrap().heap, Heap::Auto);
    }

    #[test]
    fn options_of_a_newer_program_are_accepted_if_new_fields_are_zero() {
        let size = size_of::<Newer>();
        let mut newer = Newer { known: nothing_said(size), more: 0 };
        // SAFETY: the struct has the size in its first field.
        unsafe { read((&raw const newer).cast()) }.unwrap();
        newer.more = 1 << 63;
        // SAFETY: the struct has the size in its first field.
        let refused = unsafe { read((&raw const newer).cast()) }.unwrap_err();
        assert!(refused.message.contains("does not have"), "{}", refused.message);
    }

    #[test]
    fn an_invalid_size_is_refused() {
        for size in [0, 8, 87, 4097, usize::MAX] {
            let refused = understood(&nothing_said(size)).unwrap_err();
            assert!(refused.message.contains("sizeof"), "{}", refused.message);
        }
    }

    #[test]
    fn invalid_values_are_refused() {
        let masks = longshore_load_options { verify: 9, ..nothing_said(88) };
        assert!(understood(&masks).unwrap_err().message.contains("0x8"));
        let flags = longshore_load_options { flags: 1 << 31, ..nothing_said(88) };
        assert!(understood(&flags).unwrap_err().message.contains("0x80000000"));
        let heap = longshore_load_options { heap: c"shm".as_ptr(), ..nothing_said(88) };
        assert!(understood(&heap).unwrap_err().message.starts_with("unknown heap 'shm'"));
        for align_bytes in [3, 96, 1 << 31, u64::MAX] {
            let odd = longshore_load_options { align_bytes, ..nothing_said(88) };
            assert!(understood(&odd).unwrap_err().message.contains("not a power of two"));
        }
        let all = longshore_load_options { verify: 7, ..nothing_said(88) };
        assert_eq!(understood(&all).unwrap().verify.len(), 3);
    }
}
