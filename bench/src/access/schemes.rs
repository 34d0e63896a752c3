//! The published table: what each access paid for finding its group and holding it.
//!
//! The structure is in the kernel's likeness, and the translations are the page tables of a space of
//! ours, looked up without a TLB. So candidates differ by what they lock, and by nothing else:
//!
//! | candidate | what each access takes |
//! | --- | --- |
//! | untranslated | two full fences, as an SRCU read section; the slot of the guest address |
//! | mutex | list of groups, three locks of the group, the container's lock; the task's lock and a reference to its memory |
//! | rwlock for reading | the same, the container's lock for reading |
//! | references held | the container's lock for reading; the task's lock and a reference to its memory |
//! | references held, no task lock | the container's lock for reading; a reference to the memory |
//! | parking_lot, arc-swap, crossbeam-epoch | references held; a lock of that crate for reading, a guard of its pointer, its epoch pinned |
#![expect(unsafe_code, reason = "copies from and to addresses of memory that is borrowed")]

use std::collections::HashMap;
use std::hint::black_box;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use anyhow::Result;
use arc_swap::ArcSwap;
use longshore_access::{Barrier, Space};
use longshore_mem::Iova;
use longshore_pagetable::Prot;

use super::cases::{Candidates, effort};
use super::doors::{Door, Doors};
use super::memory::{BASE, Maps, Memory, SPACE_BYTES};
use super::ours::{Ours, raw_space};
use super::plain;
use super::published;
use super::stream::{Places, Work};
use super::timed::{Task, Timed};
use crate::harness::metric::CYCLES;
use crate::harness::{Against, CommonOptions, Session};

pub(super) const UNTRANSLATED: &str = "untranslated";

pub(super) fn run(options: &CommonOptions, memory: &Memory, session: &mut Session) -> Result<()> {
    let maps = Maps::new(16);
    let cases = [
        ("schemes, mix, 1 VM", Work::Mix, 1),
        ("schemes, mix, 2 VMs", Work::Mix, 2),
        ("schemes, read 8, 1 VM", Work::Read(8), 1),
    ];
    for (case, work, threads) in cases {
        if !options.wants(case) {
            continue;
        }
        let effort = effort(options);
        let task = Task { work, places: Places::Hot, threads, speed: threads > 1, effort };
        let measured = session.run(case, candidates(memory, &maps, task)?);
        let against = [Against { metric: CYCLES, baseline: UNTRANSLATED, only: None }];
        let mut rows = measured.rows(session.bench(), &against);
        if work == Work::Mix {
            rows.extend(published::accesses(session.bench(), case, threads)?);
        }
        session.publish(rows)?;
    }
    Ok(())
}

fn candidates<'m>(memory: &'m Memory, maps: &Maps, task: Task) -> Result<Candidates<'m>> {
    let vms = task.threads;
    let mut candidates = Candidates::new();
    let untranslated = Untranslated::new(memory, maps);
    candidates.push(Box::new(Timed::new(UNTRANSLATED, untranslated, task, memory, maps)));
    macro_rules! scheme {
        ($name:literal, $scheme:ty) => {
            let vfio = Vfio::<$scheme>::new(memory, maps, vms)?;
            candidates.push(Box::new(Timed::new($name, vfio, task, memory, maps)));
        };
    }
    scheme!("mutex", EachCall<Mutex<()>>);
    scheme!("rwlock for reading", EachCall<RwLock<()>>);
    scheme!("references held", Held<true>);
    scheme!("references held, no task lock", Held<false>);
    scheme!("parking_lot's rwlock", HeldBy<parking_lot::RwLock<()>>);
    scheme!("arc-swap", HeldBy<ArcSwap<()>>);
    scheme!("crossbeam-epoch", HeldBy<Epoch>);
    let fences = Ours::raw(memory, maps, vms, Some(Barrier::Fence))?;
    let fences = Timed::new("longshore, without membarrier", fences, task, memory, maps);
    candidates.push(Box::new(fences.ours()));
    let ours = Ours::raw(memory, maps, vms, None)?;
    candidates.push(Box::new(Timed::new("longshore", ours, task, memory, maps).ours()));
    Ok(candidates)
}

/// Guest memory without an IOMMU, as a hypervisor reads it for its own devices.
struct Untranslated<'m> {
    /// Guest address, length, host address.
    slots: Vec<(u64, u64, u64)>,
    maps: Maps,
    _memory: &'m Memory,
}

impl<'m> Untranslated<'m> {
    fn new(memory: &'m Memory, maps: &Maps) -> Self {
        let slots = vec![(BASE, SPACE_BYTES, memory.address(0))];
        Self { slots, maps: maps.clone(), _memory: memory }
    }

    #[inline(always)]
    fn with<R>(&self, at: u64, len: usize, access: impl FnOnce(u64) -> R) -> R {
        fence(Ordering::SeqCst);
        let slot = self.slots.iter().find(|slot| {
            let offset = at.wrapping_sub(slot.0);
            offset < slot.1 && len as u64 <= slot.1 - offset
        });
        let slot = slot.expect("it is mapped");
        let done = access(slot.2 + (at - slot.0));
        fence(Ordering::SeqCst);
        done
    }
}

/// A file descriptor's worth of groups.
struct Groups {
    list: Mutex<HashMap<u32, Arc<Group>>>,
}

struct Group {
    unbound: Mutex<Vec<u32>>,
    devices: Mutex<Vec<u32>>,
    container: Mutex<Option<Arc<Container>>>,
}

/// An IOMMU's translations, and whose memory they lead to.
struct Container {
    mutex: Mutex<()>,
    rwlock: RwLock<()>,
    parking_lot: parking_lot::RwLock<()>,
    arc_swap: ArcSwap<()>,
    space: Space,
    task: Mutex<Option<Arc<AtomicUsize>>>,
    users: Arc<AtomicUsize>,
}

const DEVICE: u32 = 7;

impl Container {
    fn new(space: Space) -> Self {
        let users = Arc::new(AtomicUsize::new(1));
        let task = Mutex::new(Some(Arc::clone(&users)));
        Self {
            mutex: Mutex::new(()),
            rwlock: RwLock::new(()),
            parking_lot: parking_lot::RwLock::new(()),
            arc_swap: ArcSwap::from_pointee(()),
            space,
            task,
            users,
        }
    }

    /// Translates and accesses.
    #[inline(always)]
    fn access<R>(&self, at: u64, len: usize, want: Prot, access: impl FnOnce(u64) -> R) -> R {
        let iova = Iova::new(at);
        let mapping = self.space.walker().lookup(iova).ok().flatten().expect("it is mapped");
        assert!(mapping.prot.contains(want));
        assert!(at + (len as u64 - 1) <= mapping.last().raw());
        access(mapping.translate(iova).expect("it lies in the mapping").raw())
    }

    /// With the task's memory, as `get_task_mm` takes it.
    #[inline(always)]
    fn with_task_lock<R>(&self, then: impl FnOnce() -> R) -> R {
        let users = {
            let task = lock(&self.task);
            let users = task.as_ref().expect("the task lives");
            users.fetch_add(1, Ordering::Relaxed);
            Arc::as_ptr(users)
        };
        black_box(users);
        let done = then();
        self.users.fetch_sub(1, Ordering::Release);
        done
    }

    /// With the memory alone, as `mmget_not_zero` takes it.
    #[inline(always)]
    fn with_memory<R>(&self, then: impl FnOnce() -> R) -> R {
        let not_zero = |users: usize| (users != 0).then(|| users + 1);
        let taken = self.users.fetch_update(Ordering::Relaxed, Ordering::Relaxed, not_zero);
        assert!(taken.is_ok());
        let done = then();
        self.users.fetch_sub(1, Ordering::Release);
        done
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How an access comes by its container.
trait Scheme: Send + Sync + 'static {
    fn with<R>(vm: &Vm<'_>, access: impl FnOnce(&Container) -> R) -> R;
}

/// Which of a container's locks is taken.
trait ContainerLock: Send + Sync + 'static {
    fn with<R>(container: &Container, then: impl FnOnce() -> R) -> R;
}

impl ContainerLock for Mutex<()> {
    #[inline(always)]
    fn with<R>(container: &Container, then: impl FnOnce() -> R) -> R {
        let _held = lock(&container.mutex);
        then()
    }
}

impl ContainerLock for RwLock<()> {
    #[inline(always)]
    fn with<R>(container: &Container, then: impl FnOnce() -> R) -> R {
        let _held = container.rwlock.read().unwrap_or_else(PoisonError::into_inner);
        then()
    }
}

impl ContainerLock for parking_lot::RwLock<()> {
    #[inline(always)]
    fn with<R>(container: &Container, then: impl FnOnce() -> R) -> R {
        let _held = container.parking_lot.read();
        then()
    }
}

impl ContainerLock for ArcSwap<()> {
    #[inline(always)]
    fn with<R>(container: &Container, then: impl FnOnce() -> R) -> R {
        let _held = container.arc_swap.load();
        then()
    }
}

/// The epoch of all threads.
struct Epoch;

impl ContainerLock for Epoch {
    #[inline(always)]
    fn with<R>(_container: &Container, then: impl FnOnce() -> R) -> R {
        let _pinned = crossbeam_epoch::pin();
        then()
    }
}

/// Everything anew.
struct EachCall<L>(PhantomData<L>);

impl<L: ContainerLock> Scheme for EachCall<L> {
    #[inline(always)]
    fn with<R>(vm: &Vm<'_>, access: impl FnOnce(&Container) -> R) -> R {
        let group = lock(&vm.groups.list).get(&vm.group_id).map(Arc::clone);
        let group = group.expect("the group is there");
        assert!(!lock(&group.unbound).contains(&DEVICE));
        assert!(lock(&group.devices).contains(&DEVICE));
        let container = lock(&group.container).as_ref().map(Arc::clone);
        let container = container.expect("the group has a container");
        L::with(&container, || container.with_task_lock(|| access(&container)))
    }
}

/// With references to group and container that are held across calls.
struct Held<const TASK_LOCK: bool>;

impl<const TASK_LOCK: bool> Scheme for Held<TASK_LOCK> {
    #[inline(always)]
    fn with<R>(vm: &Vm<'_>, access: impl FnOnce(&Container) -> R) -> R {
        let container = &*vm.container;
        <RwLock<()>>::with(container, || {
            if TASK_LOCK {
                container.with_task_lock(|| access(container))
            } else {
                container.with_memory(|| access(container))
            }
        })
    }
}

/// With references held across calls, and nothing but what keeps the translations for this one: what
/// a program would use that is no kernel.
struct HeldBy<L>(PhantomData<L>);

impl<L: ContainerLock> Scheme for HeldBy<L> {
    #[inline(always)]
    fn with<R>(vm: &Vm<'_>, access: impl FnOnce(&Container) -> R) -> R {
        L::with(&vm.container, || access(&vm.container))
    }
}

/// Several guests, each with a group and a container.
struct Vfio<'m, S> {
    groups: Groups,
    containers: Vec<Arc<Container>>,
    scheme: PhantomData<S>,
    _memory: &'m Memory,
}

/// One of them, as a device model holds it.
struct Vm<'a> {
    groups: &'a Groups,
    group_id: u32,
    container: Arc<Container>,
}

struct VmDoor<'a, S>(Vm<'a>, PhantomData<S>);

impl<'m, S: Scheme> Vfio<'m, S> {
    fn new(memory: &'m Memory, maps: &Maps, count: u64) -> Result<Self> {
        let container = |_| Ok(Arc::new(Container::new(raw_space(memory, maps, None)?)));
        let containers = (0..count).map(container).collect::<Result<Vec<_>>>()?;
        let group = |container: &Arc<Container>| Group {
            unbound: Mutex::default(),
            devices: Mutex::new(vec![DEVICE]),
            container: Mutex::new(Some(Arc::clone(container))),
        };
        let list = (0..).zip(containers.iter().map(|container| Arc::new(group(container))));
        let groups = Groups { list: Mutex::new(list.collect()) };
        Ok(Self { groups, containers, scheme: PhantomData, _memory: memory })
    }
}

impl<'m, S: Scheme> Doors for Vfio<'m, S> {
    type Door<'a>
        = VmDoor<'a, S>
    where
        Self: 'a;

    fn open(&self, thread: u64) -> VmDoor<'_, S> {
        let container = Arc::clone(&self.containers[thread as usize]);
        let vm = Vm { groups: &self.groups, group_id: thread as u32, container };
        VmDoor(vm, PhantomData)
    }

    fn address(&self, place: u64) -> u64 {
        BASE + place
    }
}

impl<'m> Doors for Untranslated<'m> {
    type Door<'a>
        = &'a Self
    where
        Self: 'a;

    fn open(&self, _thread: u64) -> &Self {
        self
    }

    fn address(&self, place: u64) -> u64 {
        BASE + self.maps.memory_offset(place)
    }
}

/// A way to an address of this process.
trait Translates {
    fn with<R>(&self, at: u64, len: usize, want: Prot, access: impl FnOnce(u64) -> R) -> R;
}

impl Translates for Untranslated<'_> {
    #[inline(always)]
    fn with<R>(&self, at: u64, len: usize, _want: Prot, access: impl FnOnce(u64) -> R) -> R {
        self.with(at, len, access)
    }
}

impl<S: Scheme> Translates for VmDoor<'_, S> {
    #[inline(always)]
    fn with<R>(&self, at: u64, len: usize, want: Prot, access: impl FnOnce(u64) -> R) -> R {
        S::with(&self.0, |container| container.access(at, len, want, access))
    }
}

macro_rules! copying_door {
    ($door:ty $(, $generic:ident)?) => {
        impl $(<$generic: Scheme>)? Door for $door {
            #[inline(always)]
            fn read(&self, at: u64, into: &mut [u8]) {
                let len = into.len();
                // SAFETY: translated to an address of the memory; threads have lists of their own.
                let copy = |host| unsafe { plain::read(host, into) };
                Translates::with(self, at, len, Prot::READ, copy);
            }

            #[inline(always)]
            fn write(&self, at: u64, from: &[u8]) {
                // SAFETY: as in `read`.
                let copy = |host| unsafe { plain::write(host, from) };
                Translates::with(self, at, from.len(), Prot::WRITE, copy);
            }

            #[inline(always)]
            fn read_word(&self, at: u64) -> u64 {
                // SAFETY: as in `read`; words of lists are aligned.
                let load = |host| unsafe { plain::read_word(host) };
                Translates::with(self, at, 8, Prot::READ, load)
            }

            #[inline(always)]
            fn write_word(&self, at: u64, word: u64) {
                // SAFETY: as in `read`; words of lists are aligned.
                let store = |host| unsafe { plain::write_word(host, word) };
                Translates::with(self, at, 8, Prot::WRITE, store);
            }
        }
    };
}
copying_door!(Untranslated<'_>);
copying_door!(VmDoor<'_, S>, S);
