//! Measures from which length on mapping a transfer is faster than copying it.
#![expect(unsafe_code, reason = "maps parts of a buffer that it keeps")]

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use longshore_heap::{Buffer, Heap};
use longshore_mem::{DmaMemory, FileOffset};

use super::Domain;
use super::calibration::{Calibration, CalibrationStep};
use crate::direction::Direction;
use crate::error::Error;
use crate::local::Local;
use crate::pool::classes;
use crate::trace::span;
use crate::transfer::mapping::Mapping;

/// The first bytes of a buffer. Each mapping keeps the buffer, so that it outlives a mapping that
/// cannot be unmapped and is leaked.
struct Part(Arc<Buffer>, usize);

// SAFETY: the part keeps the buffer, which stays at its address, and to which there is no reference.
unsafe impl DmaMemory for Part {
    fn host(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.0.host().cast(), self.1)
    }

    fn is_writable(&self) -> bool {
        true
    }

    unsafe fn file(&self) -> Option<(BorrowedFd<'_>, FileOffset)> {
        None
    }
}

/// The duration of a measurement, and the number of measurements.
const TIME: Duration = Duration::from_micros(200);
const TIMES: u32 = 5;

impl Domain {
    /// Measures the costs of mapping and of copying for lengths up to the largest bounce buffer.
    /// This takes 14 ms, and longer if mapping is slow. No device is involved. The transfers are
    /// counted like any others.
    ///
    /// ```
    /// use longshore_domain::{Domain, backend::Soft};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let domain = Domain::builder(Soft::new()?).build();
    /// let calibration = domain.calibrate()?;
    /// println!("{calibration}");
    /// domain.set_bounce(calibration.bounce);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error`] if there is no memory, or the backend cannot map.
    pub fn calibrate(&self) -> Result<Calibration, Error> {
        let _span = span!("calibrate", backend = self.state().core.backend.name());
        let granule_bytes = self.limits().granule.bytes();
        let most_bytes = classes::LARGEST * granule_bytes;
        let mut buffer = Heap::Memfd.allocate(most_bytes).map_err(Error::Memory)?;
        // The pages are populated, as those of a transfer are.
        buffer.write().map_err(Error::Memory)?.fill(1);
        let buffer = Arc::new(buffer);
        let local = self.local();
        let mut steps = Vec::new();
        let mut len_bytes = granule_bytes;
        while len_bytes <= most_bytes {
            let part = || Part(Arc::clone(&buffer), len_bytes as usize);
            let bounced = each(|| Ok(Mapping::bounced(&local, part(), TOWARDS)?))?;
            let mapped = each(|| Ok(Mapping::direct(&local, part(), TOWARDS)?))?;
            steps.push(CalibrationStep { len_bytes, bounced, mapped });
            len_bytes *= 2;
        }
        Ok(Calibration::new(steps))
    }
}

/// The results of this process by the backend's name. The lock is not held during a measurement,
/// because a subscriber to its spans may build a domain. Threads that measure at the same time use
/// the first result.
static MEASURED: Mutex<Vec<(&'static str, Arc<Calibration>)>> = Mutex::new(Vec::new());

impl Domain {
    /// Sets the fastest policy for this kind of backend, and resets the domain's pools and counters. If
    /// the backend cannot map, the first mapping of the program returns the error.
    pub(crate) fn use_calibration(&self) {
        let name = self.state().core.backend.name();
        let measured = || MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
        let find = |measured: &[(&str, Arc<Calibration>)]| {
            measured.iter().find(|known| known.0 == name).map(|known| Arc::clone(&known.1))
        };
        let known = find(&measured());
        let calibration = known.or_else(|| {
            let calibration = Arc::new(self.calibrate().ok()?);
            let _ = self.shrink(Duration::ZERO);
            self.state().tallies.forget();
            self.state().pools.forget();
            let mut measured = measured();
            find(&measured).or_else(|| {
                measured.push((name, Arc::clone(&calibration)));
                Some(calibration)
            })
        });
        if let Some(calibration) = calibration {
            self.set_bounce(calibration.bounce);
            let _ = self.state().calibration.set(calibration);
        }
    }
}

const TOWARDS: Direction = Direction::ToDevice;

/// Returns the best of several means: delays by other load on the machine are not costs of mapping.
fn each<'l, 'd: 'l>(
    mut map: impl FnMut() -> Result<Mapping<'l, Part, Local<'d>>, Error>,
) -> Result<Duration, Error> {
    let mut best = Duration::MAX;
    map()?.unmap().map_err(|failed| *failed.error)?;
    for _ in 0..TIMES {
        let (began, mut count) = (Instant::now(), 0);
        while count == 0 || began.elapsed() < TIME {
            map()?.unmap().map_err(|failed| *failed.error)?;
            count += 1;
        }
        best = best.min(began.elapsed() / count);
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use longshore_mem::{AddrRange, Iova};
    use longshore_pagetable::Prot;

    use super::*;
    use crate::Bounce;
    use crate::backend::{Backend, BackendError, Limits, Piece, Soft};

    #[test]
    fn every_length_is_measured_and_nothing_stays_mapped() {
        let domain = Domain::builder(Soft::new().unwrap()).free_after(None).build();
        let calibration = domain.calibrate().unwrap();
        let lens: Vec<_> = calibration.steps.iter().map(|step| step.len_bytes).collect();
        assert_eq!(lens, [4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144]);
        assert!(
            calibration.steps.iter().all(|step| !step.bounced.is_zero() && !step.mapped.is_zero())
        );
        domain.shrink(Duration::ZERO).unwrap();
        assert_eq!(domain.iovas().free_bytes(), domain.iovas().all_bytes());
        let counters = domain.counters();
        assert_eq!(counters.maps, counters.unmaps);
        assert!(counters.bounced != 0 && counters.flushes != 0);
    }

    /// A backend whose calls are as slow as a trap to a hypervisor, and are counted.
    #[derive(Debug)]
    struct Slow(Soft, &'static str, Arc<AtomicU64>);

    // SAFETY: the calls are passed on.
    unsafe impl Backend for Slow {
        fn name(&self) -> &'static str {
            self.1
        }

        fn limits(&self) -> Limits {
            Limits { maps_cheaply: false, ..self.0.limits() }
        }

        unsafe fn map(&self, iova: Iova, piece: Piece<'_>, prot: Prot) -> Result<(), BackendError> {
            self.2.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_micros(500));
            // SAFETY: the caller's promise.
            unsafe { self.0.map(iova, piece, prot) }
        }

        unsafe fn unmap(&self, ranges: &[AddrRange<Iova>]) -> Result<(), BackendError> {
            // SAFETY: the caller's promise.
            unsafe { self.0.unmap(ranges) }
        }
    }

    fn slow(name: &'static str) -> (Slow, Arc<AtomicU64>) {
        let maps = Arc::new(AtomicU64::new(0));
        (Slow(Soft::new().unwrap(), name, Arc::clone(&maps)), maps)
    }

    #[test]
    #[cfg_attr(miri, ignore = "measures time")]
    fn transfers_are_bounced_by_default_if_mapping_is_slow() {
        let (backend, maps) = slow("slow");
        let domain = Domain::builder(backend).free_after(None).build();
        let calibration = domain.calibration().expect("the builder set no policy");
        // 4 KiB are copied in less than 500 us on any machine.
        assert!(matches!(calibration.bounce, Bounce::Below(5000..)), "{calibration}");
        assert_eq!(domain.counters(), crate::Counters::default(), "it is as new");
        assert_eq!(domain.iovas().free_bytes(), domain.iovas().all_bytes());
        let buffer = Heap::Memfd.allocate(4096).unwrap();
        let mapping = domain.map(buffer, Direction::ToDevice).unwrap();
        assert!(mapping.is_bounced());
        drop(mapping);
        assert_ne!(maps.load(Ordering::Relaxed), 0);

        // Each kind is measured once, and not at all if the policy is set.
        let (backend, maps) = slow("slow");
        let other = Domain::builder(backend).build();
        assert_eq!(other.calibration(), domain.calibration());
        assert_eq!(maps.load(Ordering::Relaxed), 0);
        let (backend, maps) = slow("another one");
        let told = Domain::builder(backend).bounce(Bounce::Never).build();
        assert_eq!((told.calibration(), maps.load(Ordering::Relaxed)), (None, 0));
        assert_eq!(Domain::builder(Soft::new().unwrap()).build().calibration(), None);
    }
}
