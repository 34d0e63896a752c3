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
//! opens the same path beneath what it serves (`openat2`, no way out by `..` or by a symbolic link)
//! and compares device and inode. Nothing else would do: to judge by the client's user (`SO_PEERCRED`)
//! means to compute what the kernel computes, access control lists, supplementary groups and security
//! modules included, and to be wrong when the file changes meanwhile. The credentials of the peer
//! serve to count what each user has, and to say who did what. A client in another mount namespace
//! attaches by the path that the server sees, if it has the same file of the same file system there.
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
//! to. The memory goes with the last attachment, or as [`Keep`] says. The server counts what it holds:
//! a client that releases and keeps the descriptor keeps the memory too, uncounted; a limit on the
//! control group of the server counts that as well.
#![forbid(unsafe_op_in_unsafe_fn)]

pub mod address;
pub mod client;
pub mod error;
pub mod protocol;
pub mod server;
mod passwd;

mod served;
mod shelf;

pub use address::{Listener, default_server, default_socket};
pub use client::{AttachedFile, Attachment, Client, Listing, Trust, Wanted};
pub use error::{Error, Result};
pub use longshore_sys::packet_socket::Peer;
pub use protocol::{Held, HeldState, Reason};
pub use server::{Event, Options, Server, Stop};
pub use shelf::Keep;
