//! Checks with loom every interleaving of threads that send commands to the client, of the thread that
//! takes the client's commands and of one that cancels: `RUSTFLAGS="--cfg loom" cargo test -p
//! longshore-vfio-user --release --test loom_mailbox`.
//!
//! The socket is a queue here, and the event that ends a wait for it is a flag. A thread that waits for
//! ever is a deadlock, which loom reports.
#![cfg(loom)]

use std::collections::VecDeque;
use std::mem::ManuallyDrop;

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use mailbox::{Came, Letter, Mailbox, NothingCame};

#[expect(dead_code, reason = "the library uses more of it")]
#[path = "../src/mailbox.rs"]
mod mailbox;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Command(u8),
    Reply { id: u16, says: u8 },
}

impl Letter for Message {
    fn reply_to(&self) -> Option<u16> {
        match self {
            Self::Command(_) => None,
            Self::Reply { id, .. } => Some(*id),
        }
    }

    fn held_bytes(&self) -> usize {
        1
    }

    fn held_descriptors(&self) -> usize {
        0
    }
}

/// The messages that the client has sent.
#[derive(Default)]
struct Socket {
    messages: VecDeque<Message>,
    is_closed: bool,
    is_signalled: bool,
}

struct World {
    mailbox: Mailbox<Message, ()>,
    socket: Mutex<Socket>,
    readable: Condvar,
    /// The step that waking leaves out, to show that it is needed.
    defect: Option<Defect>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Defect {
    NoSignal,
    NoNotice,
}

impl World {
    fn new(requests_bytes_max: usize, defect: Option<Defect>) -> Arc<Self> {
        Arc::new(Self {
            mailbox: Mailbox::new(requests_bytes_max),
            socket: Mutex::new(Socket::default()),
            readable: Condvar::new(),
            defect,
        })
    }

    /// Reads as a thread does that waits for the socket and the event.
    fn read(&self) -> Came<Message, ()> {
        let mut socket = self.socket.lock().unwrap();
        loop {
            if let Some(message) = socket.messages.pop_front() {
                return Came::Message(message);
            }
            if socket.is_closed {
                return Came::End(());
            }
            if std::mem::take(&mut socket.is_signalled) {
                return Came::Nothing;
            }
            socket = self.readable.wait(socket).unwrap();
        }
    }

    fn send(&self, messages: &[Message]) {
        self.socket.lock().unwrap().messages.extend(messages);
        self.readable.notify_all();
    }

    fn close(&self) {
        self.socket.lock().unwrap().is_closed = true;
        self.readable.notify_all();
    }

    /// As `Link::wake`.
    fn wake(&self) {
        if self.defect != Some(Defect::NoSignal) {
            self.socket.lock().unwrap().is_signalled = true;
            self.readable.notify_all();
        }
        if self.defect != Some(Defect::NoNotice) {
            self.mailbox.notify();
        }
    }

    fn enter(&self, about: u64) -> u16 {
        self.mailbox.inbox().enter(about..about + 1).unwrap()
    }

    fn answer(&self, id: u16) -> Result<Option<u8>, NothingCame> {
        let answer = self.mailbox.answer(id, None, false, || self.read())?;
        Ok(answer.map(|message| match message {
            Message::Reply { says, .. } => says,
            Message::Command(_) => panic!("a command is no answer"),
        }))
    }

    fn request(&self) -> Result<Message, NothingCame> {
        self.mailbox.request(|| self.read())
    }
}

/// Runs all interleavings in which threads are preempted at most `preemptions` times.
fn model(preemptions: usize, work: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(work);
}

fn spawn<R: 'static>(
    world: &Arc<World>,
    work: impl FnOnce(&World) -> R + 'static,
) -> thread::JoinHandle<R> {
    let world = Arc::clone(world);
    thread::spawn(move || work(&world))
}

#[test]
fn each_thread_gets_the_reply_to_its_own_command() {
    model(3, || {
        let world = World::new(8, None);
        let (first, second) = (world.enter(0), world.enter(1));
        let asking = spawn(&world, move |world| world.answer(first));
        let replies = [second, first].map(|id| Message::Reply { id, says: id as u8 });
        let client = spawn(&world, move |world| world.send(&replies));
        assert_eq!(world.answer(second), Ok(Some(second as u8)));
        assert_eq!(asking.join().unwrap(), Ok(Some(first as u8)));
        client.join().unwrap();
        assert_eq!(world.mailbox.inbox().stray_replies_count, 0);
    });
}

#[test]
fn a_command_and_a_reply_arrive_while_another_thread_reads() {
    model(3, || {
        let world = World::new(8, None);
        let id = world.enter(0);
        let asking = spawn(&world, move |world| world.answer(id));
        let client = spawn(&world, move |world| {
            world.send(&[Message::Command(5)]);
            world.send(&[Message::Reply { id, says: 7 }]);
        });
        assert_eq!(world.request(), Ok(Message::Command(5)));
        assert_eq!(asking.join().unwrap(), Ok(Some(7)));
        client.join().unwrap();
    });
}

#[test]
fn commands_beyond_the_queue_wait_and_the_reply_after_them_arrives() {
    model(3, || {
        let world = World::new(1, None);
        let id = world.enter(0);
        let asking = spawn(&world, move |world| world.answer(id));
        world.send(&[Message::Command(1), Message::Command(2), Message::Reply { id, says: 7 }]);
        assert_eq!(world.request(), Ok(Message::Command(1)));
        assert_eq!(world.request(), Ok(Message::Command(2)));
        assert_eq!(asking.join().unwrap(), Ok(Some(7)));
    });
}

/// Two threads wait for replies that never arrive; one of them is cancelled, then the other.
fn cancelled(defect: Option<Defect>) {
    model(3, move || {
        // Values of loom must not be dropped after it has found a deadlock.
        let world = ManuallyDrop::new(World::new(8, defect));
        let (first, second) = (world.enter(0), world.enter(1));
        let asking = spawn(&world, move |world| world.answer(first));
        let other = spawn(&world, move |world| world.answer(second));
        for about in [1, 0] {
            assert_eq!(world.mailbox.inbox().cancel(&(about..about + 1)), 1);
            world.wake();
        }
        assert_eq!(asking.join().unwrap(), Ok(None));
        assert_eq!(other.join().unwrap(), Ok(None));
        // Late replies are replies to no other command, and free the ids.
        world.send(&[first, second].map(|id| Message::Reply { id, says: 0 }));
        world.close();
        assert_eq!(world.request(), Err(NothingCame::Ended));
        assert_eq!(world.mailbox.inbox().stray_replies_count, 0);
        drop(ManuallyDrop::into_inner(world));
    });
}

#[test]
fn a_cancelled_thread_does_not_wait() {
    cancelled(None);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_event_a_cancelled_reader_waits_for_ever() {
    cancelled(Some(Defect::NoSignal));
}

/// A thread waits for a reply and does not read, because commands fill the queue.
fn cancelled_beside_commands(defect: Option<Defect>) {
    model(3, move || {
        let world = ManuallyDrop::new(World::new(1, defect));
        world.send(&[Message::Command(1)]);
        let id = world.enter(0);
        let asking = spawn(&world, move |world| world.answer(id));
        assert_eq!(world.mailbox.inbox().cancel(&(0..1)), 1);
        world.wake();
        assert_eq!(asking.join().unwrap(), Ok(None));
        assert_eq!(world.request(), Ok(Message::Command(1)));
        drop(ManuallyDrop::into_inner(world));
    });
}

#[test]
fn a_cancelled_thread_does_not_wait_for_room() {
    cancelled_beside_commands(None);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_notice_a_cancelled_thread_waits_for_ever() {
    cancelled_beside_commands(Some(Defect::NoNotice));
}

#[test]
fn a_command_that_is_cancelled_and_answered_at_once_gets_one_result() {
    model(3, || {
        let world = World::new(8, None);
        let id = world.enter(0);
        let client = spawn(&world, move |world| world.send(&[Message::Reply { id, says: 7 }]));
        let canceller = spawn(&world, |world| {
            let count = world.mailbox.inbox().cancel(&(0..1));
            if count > 0 {
                world.wake();
            }
            count
        });
        let answer = world.answer(id).unwrap();
        let cancelled = canceller.join().unwrap();
        // The reply may have been taken before the cancellation.
        assert_eq!(answer, if cancelled == 0 { Some(7) } else { None });
        client.join().unwrap();
        world.close();
        assert_eq!(world.request(), Err(NothingCame::Ended));
        assert_eq!(world.mailbox.inbox().stray_replies_count, 0);
    });
}

#[test]
fn no_thread_waits_after_the_connection_has_ended() {
    model(3, || {
        let world = World::new(8, None);
        let (first, second) = (world.enter(0), world.enter(1));
        let asking = spawn(&world, move |world| world.answer(first));
        let client = spawn(&world, move |world| {
            world.send(&[Message::Reply { id: second, says: 3 }]);
            world.close();
        });
        let answer = world.answer(second);
        assert_eq!(answer, Ok(Some(3)));
        assert_eq!(asking.join().unwrap(), Err(NothingCame::Ended));
        assert_eq!(world.request(), Err(NothingCame::Ended));
        client.join().unwrap();
    });
}
