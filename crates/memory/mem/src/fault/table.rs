//! The exception table: where assembly may fault, and where it goes on then.

/// What the handler writes for SIGSEGV.
pub(super) const NOT_MAPPED: usize = 1;
/// What the handler writes for SIGBUS.
pub(super) const NOT_BACKED: usize = 2;
/// What the handler writes for SIGBUS with `BUS_MCEERR_AR`.
pub(super) const POISONED: usize = 3;

/// Assembly text for an entry: a fault from label `$start` up to label `$end` goes on at label
/// `$resume`.
///
/// There the block must find its count of bytes left in a register that every instruction of the
/// range keeps true, and must have named as outputs the two registers the handler writes: on x86-64
/// `rax` (address) and `rdx` (cause), on AArch64 `x0` and `x1`. The block itself zeroes the cause
/// first. Distances are kept rather than addresses, so that the table needs no relocation; the
/// section is retained (`R`) because only the handler refers to it.
#[doc(hidden)]
#[macro_export]
macro_rules! fault_range {
    ($start:literal, $end:literal, $resume:literal) => {
        concat!(
            ".pushsection longshore_faults,\"aR\",%progbits\n",
            ".balign 4\n",
            ".long ",
            $start,
            " - .\n",
            ".long ",
            $end,
            " - .\n",
            ".long ",
            $resume,
            " - .\n",
            ".popsection\n",
        )
    };
}
