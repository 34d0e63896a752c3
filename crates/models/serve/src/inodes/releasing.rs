//! Threads that close the descriptors of inodes.
//!
//! Closing the last descriptor of a deleted file frees its blocks. That can take seconds, and on a mount
//! that hangs it never ends. So only a few threads close descriptors of one device, and others close
//! those of other devices meanwhile.
//!
//! Waiting descriptors are charged to no user, and those of one device are closed in the order in which
//! they came, because several users can have requested the files of a model.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// The most threads that drop values of one device at once.
const THREADS_PER_DEVICE_MAX: usize = 2;
/// The most threads that drop values at once. A server has few devices beneath its roots, but on btrfs
/// each subvolume has a device number of its own, and users can make subvolumes.
const THREADS_MAX: usize = 64;
/// The stack of such a thread, in bytes: it calls little more than `close(2)`.
const STACK_BYTES: usize = 64 << 10;

/// The major and minor number of a device.
pub(super) type Device = (u32, u32);

/// Values that threads drop, because dropping them can block for ever.
#[derive(Debug)]
pub(super) struct Releasing<T>(Mutex<Waiting<T>>);

#[derive(Debug)]
struct Waiting<T> {
    /// The values that no thread has taken. No queue is empty.
    queues: BTreeMap<Device, VecDeque<T>>,
    /// The number of threads of each device. No number is zero.
    threads: BTreeMap<Device, usize>,
}

impl<T: Send + 'static> Releasing<T> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(Waiting { queues: BTreeMap::new(), threads: BTreeMap::new() }))
    }

    /// Makes a thread drop these values, and does not wait for it. Values for which no thread can be
    /// started wait for the next call.
    pub(super) fn release(&'static self, values: impl IntoIterator<Item = (Device, T)>) {
        let mut waiting = self.lock();
        for (device, value) in values {
            waiting.queues.entry(device).or_default().push_back(value);
        }
        let devices: Vec<Device> = waiting.queues.keys().copied().collect();
        for device in devices {
            if !waiting.may_begin(device) || waiting.threads.values().sum::<usize>() >= THREADS_MAX
            {
                continue;
            }
            *waiting.threads.entry(device).or_default() += 1;
            let thread = thread::Builder::new().name("longshore-close".to_owned());
            if thread.stack_size(STACK_BYTES).spawn(move || self.drop_all(device)).is_err() {
                waiting.end(device);
            }
        }
    }

    /// Drops values until there are none left that this thread, which is one of `device`'s, may drop.
    fn drop_all(&self, mut device: Device) {
        while let Some((next, value)) = self.next(device) {
            drop(value);
            device = next;
        }
    }

    /// Takes the next value for a thread of `device`. The thread becomes one of the value's device: the
    /// device that has the fewest threads.
    fn next(&self, device: Device) -> Option<(Device, T)> {
        let mut waiting = self.lock();
        waiting.end(device);
        let devices = waiting.queues.keys().copied().filter(|device| waiting.may_begin(*device));
        let next = devices.min_by_key(|device| waiting.threads_of(*device))?;
        let queue = waiting.queues.get_mut(&next)?;
        let value = queue.pop_front()?;
        if queue.is_empty() {
            waiting.queues.remove(&next);
        }
        *waiting.threads.entry(next).or_default() += 1;
        Some((next, value))
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        // Code under the lock does not panic between two changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Waiting<T> {
    fn may_begin(&self, device: Device) -> bool {
        self.threads_of(device) < THREADS_PER_DEVICE_MAX
    }

    fn threads_of(&self, device: Device) -> usize {
        self.threads.get(&device).copied().unwrap_or(0)
    }

    fn end(&mut self, device: Device) {
        if let Some(count) = self.threads.get_mut(&device) {
            *count -= 1;
            if *count == 0 {
                self.threads.remove(&device);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver, Sender};

    use super::*;

    /// A descriptor whose close is reported, and ends when the test permits it.
    struct Slow {
        name: u32,
        closing: Sender<u32>,
        /// Receives the permission to end the close.
        permit: Option<Receiver<()>>,
    }

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.closing.send(self.name);
            if let Some(permit) = &self.permit {
                let _ = permit.recv();
            }
        }
    }

    fn releasing() -> &'static Releasing<Slow> {
        Box::leak(Box::new(Releasing::new()))
    }

    const HUNG: Device = (8, 1);

    #[test]
    fn a_mount_that_hangs_blocks_two_threads_and_no_descriptor_of_others() {
        let (releasing, (closing, closed)) = (releasing(), mpsc::channel());
        let mut permits = Vec::new();
        for name in 0..100 {
            let (permitting, permit) = mpsc::channel::<()>();
            permits.push(permitting);
            let slow = Slow { name, closing: closing.clone(), permit: Some(permit) };
            releasing.release([(HUNG, slow)]);
        }
        let begun = [closed.recv().unwrap(), closed.recv().unwrap()];
        // Descriptors of the other devices are closed, one after the other.
        for name in 100..200 {
            let device = (9, name % 50);
            releasing.release([(device, Slow { name, closing: closing.clone(), permit: None })]);
        }
        let mut others: Vec<u32> = closed.iter().take(100).collect();
        others.sort_unstable();
        assert_eq!(others, Vec::from_iter(100..200), "{begun:?} hang");
        let waiting = releasing.lock();
        assert_eq!(waiting.threads_of(HUNG), THREADS_PER_DEVICE_MAX);
        assert_eq!(waiting.queues[&HUNG].len(), 98);
        drop(waiting);
        // The others are closed when the mount answers.
        drop(permits);
        assert_eq!(closed.iter().take(98).count(), 98);
    }

    #[test]
    fn the_threads_of_all_devices_are_bounded_and_the_others_wait_for_them() {
        let (releasing, (closing, closed)) = (releasing(), mpsc::channel());
        let mut permits = Vec::new();
        for name in 0..100 {
            let (permitting, permit) = mpsc::channel::<()>();
            permits.push(permitting);
            let slow = Slow { name, closing: closing.clone(), permit: Some(permit) };
            releasing.release([((9, name), slow)]);
        }
        assert_eq!(closed.iter().take(THREADS_MAX).count(), THREADS_MAX);
        assert_eq!(releasing.lock().threads.values().sum::<usize>(), THREADS_MAX);
        drop(permits);
        assert_eq!(closed.iter().take(100 - THREADS_MAX).count(), 100 - THREADS_MAX);
    }
}
