//! The published table: the cost of finding and holding the VFIO group in each access.
//!
//! The data structures imitate the kernel's. The translations are the page tables of a Longshore space,
//! which are walked without a TLB. So candidates differ only in their locks:
//!
//! | candidate | locks and references of each access |
//! | --- | --- |
//! | untranslated | two full fences, as an SRCU read section; the slot of the guest address |
//! | mutex | list of groups, three locks of the group, the container's lock; the task's lock and a reference to its memory |
//! | rwlock for reading | the same, the container's lock for reading |
//! | references held | the container's lock for reading; the task's lock and a reference to its memory |
//! | references held, no task lock | the container's lock for reading; a reference to the memory |

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use anyhow::Result;
use longshore_access::{Barrier, Space};
use longshore_mem::Iova;
use longshore_pagetable::Prot;

use super::memory::{BASE, Maps, Memory, SPACE_BYTES};
use super::ours::raw_space;
use super::plain::{Copies, Translate};
use super::stream::{Places, Work};
use super::timed::{Address, Task, candidate, shared};
use crate::harness::metric::CYCLES;
use crate::harness::{Against, Candidate, CommonOptions, Row, Session, published};

const UNTRANSLATED: &str = "untranslated";

pub(super) fn run(options: &CommonOptions, memory: &Memory, session: &mut Session) -> Result<()> {
    let maps = Maps::new(16);
    let cases = [
        ("schemes, mix, 1 VM", Work::Mix, 1),
        ("schemes, mix, 2 VMs", Work::Mix, 2),
        ("schemes, read 8, 1 VM", Work::Read(8), 1),
    ];
    for (case, work, vms) in cases {
        if !options.wants(case) {
            continue;
        }
        let task = Task::new(work, Places::Hot, options);
        let task = if vms > 1 { task.threads(vms) } else { task };
        let measured = session.run(case, candidates((memory, &maps), task)?);
        let against = [Against::new(CYCLES, UNTRANSLATED)];
        let mut rows = measured.rows(&against);
        if work == Work::Mix {
            rows.extend(published_rows(case, &vms.to_string())?);
        }
        session.publish(rows)?;
    }
    Ok(())
}

/// Returns the published averages with `vms` guests, each with its ratio to untranslated access.
fn published_rows(case: &str, vms: &str) -> Result<Vec<Row>> {
    let csv = published::read("iova_access")?;
    let of_vms = csv.lines.iter().filter(|line| csv.field(line, "vms") == Some(vms));
    // For some interfaces only a part was published.
    let average =
        |line: &Vec<_>| Some((format!("published: {}", line[0]), csv.number(line, "average")?));
    let figures: Vec<_> = of_vms.filter_map(average).collect();
    let baseline = "published: kvm_read_page/kvm_write_page";
    let note = Some("a kernel of 2020, glmark2 in the guest".to_owned());
    let rows = published::rows(case, CYCLES, baseline, &figures);
    Ok(rows.map(|row| Row { note: note.clone(), ..row }).collect())
}

fn candidates<'m>(on: (&'m Memory, &Maps), task: Task) -> Result<Vec<Candidate<'m>>> {
    let (memory, maps) = on;
    let slot = Copies(Slots(vec![(BASE, SPACE_BYTES, memory.address(0))]));
    let mut all = vec![candidate(UNTRANSLATED, task, on, Address::Slot, shared(slot))];
    macro_rules! scheme {
        ($name:literal, $each_call:literal, $mutex:literal, $task_lock:literal) => {
            let vms = vms::<$each_call, $mutex, $task_lock>(memory, maps, task.threads)?;
            let open = move |thread: usize| Arc::clone(&vms[thread]);
            all.push(candidate($name, task, on, Address::Iova, open));
        };
    }
    scheme!("mutex", true, true, true);
    scheme!("rwlock for reading", true, false, true);
    scheme!("references held", false, false, true);
    scheme!("references held, no task lock", false, false, false);
    for (name, barrier) in
        [("longshore, without membarrier", Some(Barrier::Fence)), ("longshore", None)]
    {
        let spaces: Vec<Space> =
            (0..task.threads).map(|_| raw_space(memory, maps, barrier)).collect::<Result<_>>()?;
        let open = move |thread: usize| Box::new(spaces[thread].session());
        all.push(candidate(name, task, on, Address::Iova, open).ours());
    }
    Ok(all)
}

/// Guest memory without an IOMMU, as a hypervisor reads it for its own devices: guest address, length,
/// host address.
struct Slots(Vec<(u64, u64, u64)>);

impl Translate for Slots {
    #[inline(always)]
    fn with<R>(&self, at: u64, len: usize, _want: Prot, access: impl FnOnce(u64) -> R) -> R {
        fence(Ordering::SeqCst);
        let slot = self.0.iter().find(|slot| {
            let offset = at.wrapping_sub(slot.0);
            offset < slot.1 && len as u64 <= slot.1 - offset
        });
        let slot = slot.expect("it is mapped");
        let done = access(slot.2 + (at - slot.0));
        fence(Ordering::SeqCst);
        done
    }
}

/// The groups of a file descriptor.
type Groups = Mutex<HashMap<usize, Arc<Group>>>;

struct Group {
    unbound: Mutex<Vec<u32>>,
    devices: Mutex<Vec<u32>>,
    container: Mutex<Option<Arc<Container>>>,
}

/// An IOMMU's translations, and the task that owns the memory.
struct Container {
    mutex: Mutex<()>,
    rwlock: RwLock<()>,
    space: Space,
    task: Mutex<Option<Arc<AtomicUsize>>>,
    users: Arc<AtomicUsize>,
}

const DEVICE: u32 = 7;

impl Container {
    fn new(space: Space) -> Self {
        let users = Arc::new(AtomicUsize::new(1));
        let task = Mutex::new(Some(Arc::clone(&users)));
        Self { mutex: Mutex::new(()), rwlock: RwLock::new(()), space, task, users }
    }

    /// Translates `at` and calls `access` with the host address.
    #[inline(always)]
    fn access<R>(&self, at: u64, len: usize, want: Prot, access: impl FnOnce(u64) -> R) -> R {
        let iova = Iova::new(at);
        let mapping = self.space.walker().lookup(iova).ok().flatten().expect("it is mapped");
        assert!(mapping.prot.contains(want));
        assert!(at + (len as u64 - 1) <= mapping.last().raw());
        access(mapping.translate(iova).expect("it lies in the mapping").raw())
    }

    /// Calls `then` with a reference to the task's memory, taken as by `get_task_mm`, or without the
    /// task's lock as by `mmget_not_zero`.
    #[inline(always)]
    fn with_memory<R>(&self, task_lock: bool, then: impl FnOnce() -> R) -> R {
        if task_lock {
            let task = lock(&self.task);
            let users = task.as_ref().expect("the task lives");
            users.fetch_add(1, Ordering::Relaxed);
            black_box(Arc::as_ptr(users));
        } else {
            let not_zero = |users: usize| (users != 0).then(|| users + 1);
            let taken = self.users.fetch_update(Ordering::Relaxed, Ordering::Relaxed, not_zero);
            assert!(taken.is_ok());
        }
        let done = then();
        self.users.fetch_sub(1, Ordering::Release);
        done
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A guest with a group and a container, as a device model holds it. `EACH_CALL`: each access looks its
/// group and its container up, instead of holding references across calls. `MUTEX`: the container's lock
/// is a mutex instead of a read-write lock. `TASK_LOCK`: each access takes the task's lock.
struct Vm<const EACH_CALL: bool, const MUTEX: bool, const TASK_LOCK: bool> {
    groups: Arc<Groups>,
    group_id: usize,
    container: Arc<Container>,
}

/// Creates `count` guests, whose groups belong to one file descriptor.
fn vms<const EACH_CALL: bool, const MUTEX: bool, const TASK_LOCK: bool>(
    memory: &Memory,
    maps: &Maps,
    count: usize,
) -> Result<Vec<Arc<Copies<Vm<EACH_CALL, MUTEX, TASK_LOCK>>>>> {
    let groups = Arc::new(Groups::default());
    let vm = |group_id| {
        let container = Arc::new(Container::new(raw_space(memory, maps, None)?));
        let group = Group {
            unbound: Mutex::default(),
            devices: Mutex::new(vec![DEVICE]),
            container: Mutex::new(Some(Arc::clone(&container))),
        };
        lock(&groups).insert(group_id, Arc::new(group));
        Ok(Arc::new(Copies(Vm { groups: Arc::clone(&groups), group_id, container })))
    };
    (0..count).map(vm).collect()
}

impl<const EACH_CALL: bool, const MUTEX: bool, const TASK_LOCK: bool>
    Vm<EACH_CALL, MUTEX, TASK_LOCK>
{
    #[inline(always)]
    fn find(&self) -> Arc<Container> {
        let group = lock(&self.groups).get(&self.group_id).map(Arc::clone);
        let group = group.expect("the group is there");
        assert!(!lock(&group.unbound).contains(&DEVICE));
        assert!(lock(&group.devices).contains(&DEVICE));
        let container = lock(&group.container).as_ref().map(Arc::clone);
        container.expect("the group has a container")
    }
}

impl<const EACH_CALL: bool, const MUTEX: bool, const TASK_LOCK: bool> Translate
    for Vm<EACH_CALL, MUTEX, TASK_LOCK>
{
    #[inline(always)]
    fn with<R>(&self, at: u64, len: usize, want: Prot, access: impl FnOnce(u64) -> R) -> R {
        let found = EACH_CALL.then(|| self.find());
        let container = found.as_ref().unwrap_or(&self.container);
        let locked =
            || container.with_memory(TASK_LOCK, || container.access(at, len, want, access));
        if MUTEX {
            let _held = lock(&container.mutex);
            locked()
        } else {
            let _held = container.rwlock.read().unwrap_or_else(PoisonError::into_inner);
            locked()
        }
    }
}
