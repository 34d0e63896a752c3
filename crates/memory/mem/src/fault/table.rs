//! The exception table: the ranges in which assembly may fault, and where it then resumes.

/// The cause that the handler writes for SIGSEGV.
pub(super) const NOT_MAPPED: usize = 1;
/// The cause that the handler writes for SIGBUS.
pub(super) const NOT_BACKED: usize = 2;
/// The cause that the handler writes for SIGBUS with `BUS_MCEERR_AR`.
pub(super) const POISONED: usize = 3;

/// Assembly text for an entry: a fault from label `$start` up to label `$end` resumes at label
/// `$resume`.
///
/// Every instruction of the range must keep the number of bytes left valid in a register. The block
/// must have as outputs the two registers that the handler writes: on x86-64 `rax` (address) and
/// `rdx` (cause), on AArch64 `x0` and `x1`. The block itself sets the cause to zero first. Entries
/// hold distances instead of addresses, so that the table needs no relocation. The section is
/// retained (`R`) because only the handler refers to it.
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
