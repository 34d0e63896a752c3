//! How to load, as C says it.
#![expect(unsafe_code, reason = "copies a struct of C's whose length it tells itself")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{MaybeUninit, offset_of};
use std::ptr;
use std::str::FromStr;

use longshore_heap::Heap;
use longshore_load::FormatChoice;
use longshore_load::{DigestKind, ReadMode};
use longshore_mem::Granule;

use crate::door;
use crate::error::Failure;

/// For `verify`: CRC-32C, eight hexadecimal digits.
pub const LONGSHORE_VERIFY_CRC32C: u32 = 1;
/// For `verify`: XXH3 of 64 bits with seed 0, sixteen hexadecimal digits.
pub const LONGSHORE_VERIFY_XXH3: u32 = 2;
/// For `verify`: SHA-256, 64 hexadecimal digits.
pub const LONGSHORE_VERIFY_SHA256: u32 = 4;

/// For `flags`: leave the content writable by whoever has it, instead of sealing it. Heaps that
/// cannot seal their content, `udmabuf` and `dma-heap`, need it.
pub const LONGSHORE_LOAD_WRITABLE: u32 = 1;
/// For `flags`: do not use io_uring, even where it may be used.
pub const LONGSHORE_LOAD_NO_URING: u32 = 2;

/// Told how far a load has come: about twenty times a second and once at the end, on the thread
/// that called `longshore_load`. It must return: no exception and no `longjmp` may leave it.
///
/// @param done_bytes Bytes that are in the buffer.
/// @param total_bytes Bytes that there are to be.
/// @param data The `progress_data` of the options.
/// @return 0 to go on; anything else cancels the load, which then leaves nothing behind.
#[allow(non_camel_case_types, reason = "C's name")]
pub type longshore_progress =
    Option<unsafe extern "C" fn(done_bytes: u64, total_bytes: u64, data: *mut c_void) -> c_int>;

/// How to load. `LONGSHORE_LOAD_OPTIONS_INIT` is what is done where nothing is said: a zero or NULL
/// in any field but `size` means that. Later versions of Longshore add fields at the end; `size`
/// tells the library which the program knows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct longshore_load_options {
    /// `sizeof(longshore_load_options)`.
    pub size: usize,
    /// Where the memory comes from: `auto`, `memfd`, `memfd:4k`, `hugetlb`, `udmabuf`, `dma-heap`
    /// or `dma-heap:NAME`. `auto` is `memfd`, and `udmabuf` where there is one and the content
    /// stays writable.
    pub heap: *const c_char,
    /// How files are read: `auto`, `direct`, `buffered`, `uncached`.
    pub mode: *const c_char,
    /// What the files are: `auto`, which goes by their names, or a format's name: `raw`,
    /// `safetensors`, `gguf`.
    pub format: *const c_char,
    /// The path of a manifest: the load fails unless each file has the checksum it names, in the
    /// form that `sha256sum` writes.
    pub manifest: *const c_char,
    /// Place every tensor at a multiple of this while reading: a power of two up to 1 GiB, such as
    /// 64. A file whose tensors do not lie so already becomes one in the buffer that has the same
    /// tensors and metadata.
    pub align_bytes: u64,
    /// Fail rather than load more than so many bytes.
    pub memory_max_bytes: u64,
    /// How many bytes of pages are made ahead of the reads; 128 MiB where nothing is said.
    pub populate_ahead_bytes: u64,
    /// Which checksums to compute of each file: `LONGSHORE_VERIFY_*`, any number of them or'ed.
    pub verify: u32,
    /// `LONGSHORE_LOAD_*`, any number of them or'ed.
    pub flags: u32,
    /// Called while the load runs.
    pub progress: longshore_progress,
    /// What `progress` is given as its last argument.
    pub progress_data: *mut c_void,
}

/// The struct's length in the first version that had it.
const SIZE_MIN_BYTES: usize = 88;
/// No version will have a longer one: what says so was not set.
const SIZE_MAX_BYTES: usize = 4096;

/// No page is larger.
const ALIGNMENT_MAX_BYTES: u64 = 1 << 30;

const _: () = {
    assert!(size_of::<longshore_load_options>() == 88);
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
};

/// Options, understood.
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
}

/// C's callback and its data.
#[derive(Debug)]
pub(crate) struct Callback {
    function: unsafe extern "C" fn(u64, u64, *mut c_void) -> c_int,
    data: *mut c_void,
}

impl Callback {
    /// Whether the load is to go on.
    pub(crate) fn goes_on(&self, done_bytes: u64, total_bytes: u64) -> bool {
        // SAFETY: whoever made the options promised a function that takes this, and its data.
        (unsafe { (self.function)(done_bytes, total_bytes, self.data) }) == 0
    }
}

/// # Safety
/// `options` is NULL, not aligned, or points to as many bytes as its first word says, of which the
/// pointers are NULL or strings that nobody changes during `'a`, and the callback may be called
/// with its data.
pub(crate) unsafe fn read<'a>(
    options: *const longshore_load_options,
) -> Result<Options<'a>, Failure> {
    let understood = if options.is_null() {
        Options::default()
    } else {
        // SAFETY: as promised to this function.
        let known = unsafe { copy(options) }?;
        // SAFETY: as promised to this function.
        unsafe { understand(&known) }?
    };
    if understood.heap == Heap::Auto && !understood.writable {
        // The best heap whose content can be sealed.
        return Ok(Options { heap: Heap::Memfd, ..understood });
    }
    Ok(understood)
}

/// As [`read`], where only what there is to say when a model is attached may be said.
///
/// # Safety
/// As [`read`].
pub(crate) unsafe fn read_to_attach<'a>(
    options: *const longshore_load_options,
) -> Result<Options<'a>, Failure> {
    if options.is_null() {
        return Ok(Options::default());
    }
    // SAFETY: as promised to this function.
    let known = unsafe { copy(options) }?;
    let words = [known.heap, known.mode, known.manifest];
    let numbers = [known.align_bytes, known.memory_max_bytes, known.populate_ahead_bytes];
    let is_said = words.iter().any(|word| !word.is_null())
        || numbers.iter().any(|number| *number != 0)
        || known.verify != 0
        || known.flags != 0;
    if is_said {
        return Err(Failure::argument(
            "options: only format, progress and progress_data mean anything to longshore_attach: \
             how a model is loaded is decided by its server"
                .to_owned(),
        ));
    }
    // SAFETY: as promised to this function.
    unsafe { understand(&known) }
}

/// # Safety
/// The pointers are NULL or strings that nobody changes during `'a`, and the callback may be called
/// with its data.
unsafe fn understand<'a>(known: &longshore_load_options) -> Result<Options<'a>, Failure> {
    let unknown = known.flags & !(LONGSHORE_LOAD_WRITABLE | LONGSHORE_LOAD_NO_URING);
    if unknown != 0 {
        return Err(Failure::argument(format!(
            "options: flags has {unknown:#x}, which is no flag"
        )));
    }
    Ok(Options {
        // SAFETY: NULL or a string, as promised to this function.
        heap: word(unsafe { door::optional_string(known.heap) })?,
        // SAFETY: as above.
        mode: word(unsafe { door::optional_string(known.mode) })?,
        // SAFETY: as above.
        format: word(unsafe { door::optional_string(known.format) })?,
        // SAFETY: as above.
        manifest: unsafe { door::optional_string(known.manifest) },
        alignment: alignment(known.align_bytes)?,
        memory_max_bytes: (known.memory_max_bytes > 0).then_some(known.memory_max_bytes),
        populate_ahead_bytes: (known.populate_ahead_bytes > 0)
            .then_some(known.populate_ahead_bytes),
        verify: kinds(known.verify)?,
        writable: known.flags & LONGSHORE_LOAD_WRITABLE != 0,
        no_uring: known.flags & LONGSHORE_LOAD_NO_URING != 0,
        progress: known.progress.map(|function| Callback { function, data: known.progress_data }),
    })
}

/// What this version knows of the options; what the program does not know of is zero.
///
/// # Safety
/// `options` is not aligned, or points to as many bytes as its first word says.
unsafe fn copy(options: *const longshore_load_options) -> Result<longshore_load_options, Failure> {
    door::checked(options, "options")?;
    // SAFETY: its first field is there in every version.
    let size = unsafe { options.cast::<usize>().read() };
    if !(SIZE_MIN_BYTES..=SIZE_MAX_BYTES).contains(&size) {
        return Err(Failure::argument(format!(
            "options: size is {size}; set it to sizeof(longshore_load_options)"
        )));
    }
    let known_size = size_of::<longshore_load_options>();
    // SAFETY: the caller says that there are as many bytes as `size`.
    let bytes = unsafe { std::slice::from_raw_parts(options.cast::<MaybeUninit<u8>>(), size) };
    if let Some(more) = bytes.get(known_size..) {
        let more: *const [MaybeUninit<u8>] = more;
        // SAFETY: what is behind the fields of this version was set by who set `size`.
        let more = unsafe { &*(more as *const [u8]) };
        if more.iter().any(|byte| *byte != 0) {
            return Err(Failure::argument(
                "options: a field is set that this version of the library does not know; run with \
                 the version that the program was compiled for"
                    .to_owned(),
            ));
        }
    }
    let mut known = MaybeUninit::<longshore_load_options>::zeroed();
    // SAFETY: both are as long as the shorter of the two, and not the same memory.
    unsafe {
        ptr::copy_nonoverlapping(bytes.as_ptr(), known.as_mut_ptr().cast(), size.min(known_size));
    }
    // SAFETY: it was zeroed, and zero is a value of each field.
    Ok(unsafe { known.assume_init() })
}

fn word<T>(word: Option<&CStr>) -> Result<T, Failure>
where
    T: FromStr<Err: std::error::Error> + Default,
{
    let Some(word) = word else { return Ok(T::default()) };
    word.to_string_lossy().parse().map_err(|error| Failure::word(&error))
}

/// What tensors are to begin at multiples of, if they are.
fn alignment(bytes: u64) -> Result<Option<Granule>, Failure> {
    if bytes == 0 {
        return Ok(None);
    }
    let granule = Granule::new(bytes).ok().filter(|_| bytes <= ALIGNMENT_MAX_BYTES);
    granule.map(Some).ok_or_else(|| {
        Failure::argument(format!(
            "options: align_bytes is {bytes}, which is no power of two up to 1 GiB"
        ))
    })
}

/// The checksums of a mask.
fn kinds(mask: u32) -> Result<Vec<DigestKind>, Failure> {
    let unknown = mask & !KINDS.iter().fold(0, |all, (bit, _)| all | bit);
    if unknown != 0 {
        return Err(Failure::argument(format!(
            "options: verify has {unknown:#x}, which is no checksum"
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
    use super::*;

    /// Options with a field behind those of this version.
    #[repr(C)]
    struct Newer {
        known: longshore_load_options,
        more: u64,
    }

    fn nothing_said(size: usize) -> longshore_load_options {
        // SAFETY: zero is a value of each field.
        let zero = unsafe { MaybeUninit::<longshore_load_options>::zeroed().assume_init() };
        longshore_load_options { size, ..zero }
    }

    fn understood(options: &longshore_load_options) -> Result<Options<'_>, Failure> {
        // SAFETY: a struct of these tests that is as long as it says, or longer.
        unsafe { read(options) }
    }

    #[test]
    fn nothing_said_is_what_null_means_but_for_heaps_that_cannot_seal() {
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
    fn options_of_a_newer_program_are_taken_where_they_say_nothing_new() {
        let size = size_of::<Newer>();
        let mut newer = Newer { known: nothing_said(size), more: 0 };
        // SAFETY: as long as it says.
        unsafe { read((&raw const newer).cast()) }.unwrap();
        newer.more = 1 << 63;
        // SAFETY: as long as it says.
        let refused = unsafe { read((&raw const newer).cast()) }.unwrap_err();
        assert!(refused.message.contains("does not know"), "{}", refused.message);
    }

    #[test]
    fn a_size_that_was_not_set_is_refused() {
        for size in [0, 8, 87, 4097, usize::MAX] {
            let refused = understood(&nothing_said(size)).unwrap_err();
            assert!(refused.message.contains("sizeof"), "{}", refused.message);
        }
    }

    #[test]
    fn what_means_nothing_is_refused() {
        let masks = longshore_load_options { verify: 9, ..nothing_said(88) };
        assert!(understood(&masks).unwrap_err().message.contains("0x8"));
        let flags = longshore_load_options { flags: 1 << 31, ..nothing_said(88) };
        assert!(understood(&flags).unwrap_err().message.contains("0x80000000"));
        let heap = longshore_load_options { heap: c"shm".as_ptr(), ..nothing_said(88) };
        assert!(understood(&heap).unwrap_err().message.starts_with("unknown heap 'shm'"));
        for align_bytes in [3, 96, 1 << 31, u64::MAX] {
            let odd = longshore_load_options { align_bytes, ..nothing_said(88) };
            assert!(understood(&odd).unwrap_err().message.contains("no power of two"));
        }
        let all = longshore_load_options { verify: 7, ..nothing_said(88) };
        assert_eq!(understood(&all).unwrap().verify.len(), 3);
    }
}
