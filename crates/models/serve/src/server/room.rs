//! Waiting for memory that is being freed.
//!
//! The thread that frees memory takes 0.1 to 0.2 s for each GiB in base pages. A client that needs the room
//! waits until then. Memory that another client keeps is not free afterwards, and then the client is
//! refused.

use std::time::{Duration, Instant};

use super::asking::{Refusal, Told};
use super::connection::Phase;
use super::core::Core;
use super::jobs::Job;
use super::users::User;
use crate::reason::Reason;
use crate::served::Found;

/// The time for a client to wait. It gives the server up after a minute without an answer.
const TIME_MAX: Duration = Duration::from_secs(30);
/// The interval at which the memory that is being freed is checked.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The clients and loads that wait.
#[derive(Debug, Default)]
pub(super) struct AwaitingRoom(Vec<Awaiting>);

#[derive(Debug)]
struct Awaiting {
    what: What,
    /// The memory that must have been dropped.
    given_up: u64,
    /// The time when it is refused in any case.
    deadline: Instant,
}

#[derive(Debug)]
enum What {
    /// A client, whose phase has the model that it wants.
    Client(u64),
    /// A load that has failed for a lack of memory.
    Load(u64, User),
}

impl AwaitingRoom {
    /// Returns the time of the next check; `None` if nothing waits.
    pub(super) fn next_time(&self) -> Option<Instant> {
        (!self.0.is_empty()).then(|| Instant::now() + LOOK_EVERY)
    }
}

impl Core {
    /// Refuses a client the model that it wants, or has it wait if memory is being freed, or was since
    /// `given_up_before`.
    pub(super) fn refuse_or_wait(
        &mut self,
        id: u64,
        found: Found,
        refusal: Refusal,
        (given_up_before, deadline): (u64, Option<Instant>),
        now: Instant,
    ) -> Told {
        let is_for_room = matches!(refusal.reason, Reason::TooMany | Reason::NoMemory);
        let given_up = self.lingering.given_up();
        let deadline = deadline.unwrap_or(now + TIME_MAX);
        let is_free = given_up == given_up_before && self.lingering.is_dropped(given_up);
        if !is_for_room || is_free || deadline <= now {
            return self.refuse(id, refusal, now);
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.enter(Phase::AwaitingRoom(Box::new(found)), now);
            let what = What::Client(id);
            self.awaiting_room.0.push(Awaiting { what, given_up, deadline });
        }
        Ok(())
    }

    /// Checks that all memory is dropped that was given up: the rest is kept by clients.
    pub(super) fn check_dropped(&mut self) -> Result<(), Refusal> {
        if self.lingering.is_dropped(self.lingering.given_up()) {
            self.say_freed();
            return Ok(());
        }
        let message = "memory is being freed; try again".to_owned();
        Err(Refusal::new(Reason::NoMemory, message))
    }

    /// Begins a load when the memory is dropped that was given up for it.
    pub(super) fn load_after_freeing(&mut self, id: u64, user: User, now: Instant) {
        let (what, given_up) = (What::Load(id, user), self.lingering.given_up());
        let deadline = now + TIME_MAX;
        self.awaiting_room.0.push(Awaiting { what, given_up, deadline });
        self.end_waits_for_room(now);
    }

    /// Goes on with the clients and loads whose wait is over.
    pub(super) fn end_waits_for_room(&mut self, now: Instant) {
        let lingering = &self.lingering;
        let is_over = |awaiting: &mut Awaiting| {
            lingering.is_dropped(awaiting.given_up) || awaiting.deadline <= now
        };
        let over: Vec<_> = self.awaiting_room.0.extract_if(.., is_over).collect();
        for Awaiting { what, deadline, .. } in over {
            self.say_freed();
            match what {
                What::Client(id) => {
                    let Some(connection) = self.connections.get_mut(&id) else { continue };
                    let phase = std::mem::replace(&mut connection.phase, Phase::Idle);
                    let Phase::AwaitingRoom(found) = phase else {
                        connection.phase = phase;
                        continue;
                    };
                    connection.enter(Phase::Idle, now);
                    if let Err(why) = self.give_until(id, *found, Some(deadline), now) {
                        self.disconnect(id, why, now);
                    }
                }
                What::Load(id, user) => {
                    let cancel = self.loads.get(&id).map(|load| load.cancel.clone());
                    let model = self.cache.get(id).filter(|model| !model.is_abandoned);
                    let found = model.map(|model| model.found.clone());
                    let (Some(cancel), Some(found)) = (cancel, found) else {
                        self.loads.remove(&id);
                        self.cache.remove(id);
                        continue;
                    };
                    self.jobs.begin(user, Job::Load { id, found, cancel }, now);
                    self.set_users(id);
                }
            }
        }
    }
}
