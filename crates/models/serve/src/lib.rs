//! Sharing on a node: a server loads each model once, into memory that nobody can change, and hands
//! it to every process that may read the file.
//!
//! ```text
//!   Client ── Attach + the file, opened by the client ──► Server ── load, once ──► sealed memfd
//!      ▲                                                    │
//!      └───────────── descriptor, length, files ◄───────────┘      an Attachment counts for as long
//!                                                                  as its connection lives
//! ```
//!
//! # Who may attach what
//!
//! A client shows that it may read a file by opening it itself and sending the descriptor. The server
//! finds the same path beneath what it serves (`openat2`, not into another mount) and compares device,
//! inode and time of birth. To judge by the client's user instead (`SO_PEERCRED`), the server would
//! have to compute the kernel's decision, with access control lists, supplementary groups and security
//! modules, and would be wrong when the file changes meanwhile. The credentials of the peer serve to
//! count what each user has, and to log the user. A client in another mount namespace attaches by the
//! path that the server sees, if it has the same file of the same file system there.
//!
//! The server finds a path with its own rights. If it resolved `..` and the links of clients, the path
//! `private/sub/../../own` would show that `private/sub` exists to a client that cannot search
//! `private`. So no directory in a path may be `..` or a symbolic link ([`Client`] sends real paths).
//! Only the last component may be a link, whose relative target stays beneath the root and has `..` at
//! the beginning alone. One case remains: a client that guesses a name in such a directory learns that
//! it exists if it leads to a file that the client can open by another path. Files that the operator
//! named one by one are found through all links.
//!
//! The server finds a file without opening it (`O_PATH`), and opens it only after it was shown and only
//! if it is a regular file. So the owner of a FIFO sees no reader, and a device does nothing. If an
//! index or the first of several splits names other files, the client is asked to show all of them, and
//! none of them is looked for before it has: neither its errors nor its questions tell anything about a
//! file that the client cannot open.
//!
//! File systems use the inode number of a deleted file again, and its next owner can set the length
//! and the time of modification. So the server keeps the inode of each file in use by that descriptor
//! for as long as it compares its number, and reads the file through the same descriptor: a request
//! matches a model that is held only if both have the same inodes, in use at the same time, with the
//! same lengths and times of birth and of modification. The server looks at the files that it holds
//! every ten seconds, and before it answers a list, which waits at most a second for that. When one was
//! deleted, its model matches no request any more, and the descriptors are closed, since they keep the
//! blocks of the disk.
//!
//! Clients of several users may wait for one load. Its outcome depends on the loaded files alone: what
//! each client adds, a format and an index, is checked when its request is looked up, and what is wrong
//! with it is reported to that client only. An index is not kept in use and makes no model stale.
//!
//! This does not make the content authentic. A user who can write to a file, or could when it was
//! loaded, decides which bytes others attach as its content: its owner can set the time of
//! modification back after a change, and a store through a shared mapping moves that time only when
//! the kernel has written the page back, and on tmpfs never. The server does not have files written
//! back to notice such stores: it would help on some file systems alone, and a client could cause that
//! input and output. Clients attach files whose writers they trust, or compare
//! [`Attachment::as_slice`] with checksums that they trust. The memory is sealed, so that the outcome
//! stays valid.
//!
//! A mount beneath a root is not entered unless it is a root of its own, and a file system that does
//! not answer within 20 seconds costs a client a refusal and the server one of a bounded number of
//! threads. Users can make others' files hang with read permission alone. So a path or a file that hangs
//! costs no more than that, or twice that, however many users ask for it, also at once; other loads and
//! look-ups begin beside it after three seconds, and beside a load that is slow; and what hangs because of a user's requests is bounded for each user, so
//! that users without any of it are always served.
//!
//! What a server holds, and which directories it serves, is told to everybody who can connect: the
//! socket's permissions decide about that. It reveals nothing about a path outside, not even whether
//! it exists.
//!
//! # Which servers a client trusts
//!
//! A client sends open files to the server, so it first checks the user of the process that listens:
//! root, the client's own user, the system user `longshore`, or a user that the caller named
//! ([`Trust`]). Nothing is sent to another user's server. The check matters because the path of the
//! socket can come from the environment, or can be in a directory that others can write to.
//!
//! # What is handed out
//!
//! A descriptor that can only read, of a memfd sealed against shrinking, growing and writing, with the
//! permissions 0400. [`Attachment`] looks at the seals itself before it trusts the memory: a slice of
//! it exists because it cannot change, whoever made it. It stays valid when the server ends, however
//! that comes about.
//!
//! # Counting
//!
//! An attachment lives as long as its connection. A client that dies releases; so does one that asks
//! to. The memory goes with the last attachment, or as [`Keep`] says. A client that releases and
//! keeps the descriptor keeps the memory, too: the server counts each model that no client has attached
//! for every user that had it until the kernel reports that the last reference to it is gone
//! ([`Event::Freed`]). The largest of the models that others may keep as well is not counted for a
//! user, so that no other user can prevent that it is attached again.
//!
//! # Several users
//!
//! The connections, the bytes and the loads of one user are limited, and requests of several users
//! take turns. Of connections and bytes a user leaves as many free as it has. Ids that a user owns in `/etc/subuid` count as that user. The limits do not apply to
//! root and to the server's own user ([`Options::memory_per_user`]).
#![forbid(unsafe_op_in_unsafe_fn)]

pub mod protocol;

mod address;
mod client;
mod error;
mod fault;
mod held;
mod inodes;
mod passwd;
mod peer;
mod reason;
mod served;
mod server;
mod shelf;

pub use address::{ACTIVATION_NAME, Listener, SOCKET_VARIABLE, default_server, default_socket};
pub use client::{AttachedFile, Attachment, Client, Listing, TRUST_VARIABLE, Trust, Wanted};
pub use error::{Error, Result};
pub use fault::{ClientFault, NoServerCause, ServerFault};
pub use held::{Held, HeldState};
pub use peer::Peer;
pub use reason::Reason;
pub use server::{Event, LoadFailure, Options, Server, ServerProblem, Stop, Users};
pub use shelf::Keep;
