//! The accesses of a device, and their expected results.

use longshore_access::{Fault, Reason};
use longshore_mem::Iova;
use longshore_pagetable::Prot;

use crate::backend::{Entry, Script};
use crate::memory::PAGE;
use crate::ops::At;
use crate::oracle::UNKNOWN;
use crate::world::World;

/// The expected content of an address.
enum Found {
    Transfer(u64),
    Coherent(usize),
    /// Possibly mapped, or a slot without a transfer.
    Vague,
    Nothing,
}

/// Returns the mapping of the backend that contains `at`.
pub(crate) fn around(script: &Script, at: u64) -> Option<Entry> {
    let (start, entry) = script.entries.range(..=at).next_back()?;
    (at - start < entry.len_bytes).then_some(*entry)
}

impl World<'_, '_> {
    fn find(&self, at: u64) -> Found {
        let has = |(start, len): (u64, u64)| start <= at && at < start + len;
        for (id, transfer) in &self.books.transfers {
            if has(transfer.window()) {
                return if transfer.is_shaky { Found::Vague } else { Found::Transfer(*id) };
            }
        }
        for (nth, one) in self.coherent.iter().enumerate() {
            if has((one.iova, one.bytes.len() as u64)) {
                return Found::Coherent(nth);
            }
        }
        match around(&self.books.script(), at) {
            Some(_) => Found::Vague,
            None => Found::Nothing,
        }
    }

    /// Returns the address of an access.
    pub(crate) fn address(&self, at: &At) -> u64 {
        let moved = |to: u64, offset: i64| to.saturating_add_signed(offset);
        let transfer = |which: usize| {
            let ids: Vec<_> = self.books.transfers.keys().collect();
            which.checked_rem(ids.len()).map(|at| &self.books.transfers[ids[at]])
        };
        match *at {
            At::Near { which, offset } => {
                transfer(which).map_or(PAGE, |one| moved(one.iova, offset))
            }
            At::Within { which, part, offset } => {
                transfer(which).map_or(PAGE, |one| moved(one.iova + one.len * part / 1000, offset))
            }
            At::Past { which, offset } => which
                .checked_rem(self.books.past.len())
                .map_or(0, |at| moved(self.books.past[at], offset)),
            At::Page(at) => at,
        }
    }

    /// Has a device read, or write bytes that begin with `byte`. Compares the outcome with the model.
    pub(crate) fn access(&mut self, session: usize, at: u64, len: usize, byte: Option<u8>) {
        let right = if byte.is_some() { Prot::WRITE } else { Prot::READ };
        let from: Vec<u8> = (0..len)
            .map(|at| (usize::from(byte.unwrap_or(0)) + at * 7 + at / 128) as u8 & 0x7f)
            .collect();
        let (mut expected, mut reason, mut done) = (Vec::new(), None, 0);
        while done < len {
            let here = at + done as u64;
            let count = ((PAGE - here % PAGE) as usize).min(len - done);
            match self.find(here) {
                Found::Transfer(id) => {
                    let transfer = self.books.transfers.get_mut(&id).expect("it was found");
                    if !transfer.rights.contains(right) {
                        reason = Some(Reason::Permission);
                        break;
                    }
                    let start = here - transfer.window().0;
                    if byte.is_none() {
                        transfer.append_to(&mut expected, start, count);
                    } else {
                        let bytes = start..start + count as u64;
                        bytes.zip(&from[done..]).for_each(|(at, byte)| transfer.set(at, *byte));
                    }
                }
                Found::Coherent(nth) => {
                    let one = &mut self.coherent[nth];
                    let start = (here - one.iova) as usize;
                    if byte.is_some() {
                        one.bytes[start..start + count].copy_from_slice(&from[done..done + count]);
                    } else {
                        expected
                            .extend(one.bytes[start..start + count].iter().map(|b| u16::from(*b)));
                    }
                }
                Found::Vague => break,
                Found::Nothing => {
                    reason = Some(Reason::Unmapped);
                    break;
                }
            }
            done += count;
        }
        // An access ends before bytes whose content the model does not know.
        let len = if reason.is_some() { len } else { done };
        let iova = Iova::new(at);
        let session = &self.books.sessions[session];
        let mut into = vec![0xee; len];
        let outcome = match byte {
            Some(_) => session.write(iova, &from[..len]),
            None => session.read(iova, &mut into),
        };
        let fault = |reason| Fault::new(Iova::new(at + done as u64), done, reason);
        assert_eq!(outcome, reason.map_or(Ok(()), |reason| Err(fault(reason))));
        if byte.is_none() {
            let seen: Vec<_> = into.iter().map(|byte| u16::from(*byte)).collect();
            let is_same = seen.get(..expected.len()) == Some(&expected[..]);
            let pairs = into.iter().zip(&expected).enumerate().take(if is_same { 0 } else { len });
            for (nth, (seen, right)) in pairs {
                // A byte that was never filled may come from a device, but never from other memory.
                let is_right =
                    if *right == UNKNOWN { *seen < 0x80 } else { u16::from(*seen) == *right };
                assert!(is_right, "byte {nth} at {at:#x}: read {seen:#x}, expected {right:#x}");
            }
            assert!(into[expected.len()..].iter().all(|byte| *byte == 0xee));
        }
    }
}
