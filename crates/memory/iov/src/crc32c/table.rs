//! The CRC without special instructions: eight bytes at a time, by eight tables ("A Systematic
//! Approach to Building High Performance Software-Based CRC Generators", Kounavis and Berry, Intel
//! 2005).

use super::polynomial::times_x;

static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut register = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            register = times_x(register);
            bit += 1;
        }
        tables[0][byte] = register;
        byte += 1;
    }
    let mut byte = 0;
    while byte < 256 {
        let mut table = 1;
        while table < 8 {
            let before: u32 = tables[table - 1][byte];
            tables[table][byte] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            table += 1;
        }
        byte += 1;
    }
    tables
}

/// Returns the CRC register after `bytes`.
pub(super) fn crc_by_table(register: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks();
    let register = words.iter().fold(register, |register, word: &[u8; 8]| {
        let word = u64::from_le_bytes(*word) ^ u64::from(register);
        let from = |table: usize, shift: u32| TABLES[table][((word >> shift) & 0xff) as usize];
        from(7, 0)
            ^ from(6, 8)
            ^ from(5, 16)
            ^ from(4, 24)
            ^ from(3, 32)
            ^ from(2, 40)
            ^ from(1, 48)
            ^ from(0, 56)
    });
    rest.iter().fold(register, |register, byte| {
        (register >> 8) ^ TABLES[0][usize::from((register as u8) ^ byte)]
    })
}
