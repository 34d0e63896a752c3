//! CRCs without assembly, for Miri.

use longshore_mem::isa::Scalar;

use super::table::crc_by_table;
use crate::kernels::CrcKernels;

impl CrcKernels for Scalar {
    fn crc_own(self, register: u32, bytes: &[u8]) -> u32 {
        crc_by_table(register, bytes)
    }
}
