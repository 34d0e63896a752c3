//! Shares models between the processes of a node: a server loads each model once, into memory that no
//! process can change, and gives it to every process that may read the file. It also shares models of other servers.
//!
//! ```text
//!   Client ── Attach + the file, opened by the client ──► Server ── load, once ──► sealed memfd
//!      ▲                                                    │
//!      └───────────── descriptor, length, files ◄───────────┘      an Attachment counts for as long
//!                                                                  as its connection lives
//! ```
//!
//! # Which clients may attach a model
//!
//! A client shows that it may read a file by opening it itself and sending the descriptor. The server
//! finds the same path beneath what it serves (`openat2`, not into another mount) and compares device,
//! inode and time of birth. To judge by the client's user instead (`SO_PEERCRED`), the server would
//! have to compute the kernel's decision, with access control lists, supplementary groups and security
//! modules, and would be wrong when the file changes meanwhile. The credentials of the peer serve to
//! count what each user has, and to log the user. A client in another mount namespace attaches by the
//! path that the server sees.
//!
//! The server finds a path with its own rights. If it resolved `..` and symbolic links in the paths of
//! clients, the path `private/sub/../../own` would show that `private/sub` exists to a client that
//! cannot search `private`. So no directory in a path may be `..` or a symbolic link ([`Client`] sends
//! real paths). Only the last component may be a link, whose relative target stays beneath the root and
//! has `..` only at its beginning. One case remains: a client that guesses a name in such a directory
//! learns that it exists if it leads to a file that the client can open by another path. Files that the
//! operator named one by one are found through all links.
//!
//! The server finds a file without opening it (`O_PATH`). It opens the file only after the client has
//! shown it, and only if it is a regular file. So a FIFO gets no reader, and a device is not touched. If
//! an index or the first of several splits names other files, the server asks the client to show all of
//! them, and looks for none of them before that. So neither its errors nor its requests tell a client
//! anything about a file that the client cannot open.
//!
//! File systems reuse the inode number of a deleted file, and the next owner of the number can set the
//! length and the time of modification. So the server keeps the inode of each file in use, by the
//! descriptor through which it reads the file, for as long as it compares the number. A request matches
//! a model in memory only if both have the same inodes, in use at the same time, with the same lengths
//! and times of birth and of modification. The server checks the files of its models every ten seconds,
//! and before it answers a list, which waits at most a second for that. If a file was deleted, its model
//! matches no request any more, and its descriptors are closed, because they keep the blocks of the disk
//! in use.
//!
//! Clients of several users may wait for one load. Its result depends on the loaded files alone. The
//! format and the index, which each client adds, are checked when its request is looked up, and errors
//! in them are reported to that client only. An index is not kept in use and makes no model stale.
//!
//! This does not make the content authentic. A user who can write to a file, or could when it was
//! loaded, decides which bytes others attach as its content: the owner can set the time of modification
//! back after a change, and a store through a shared mapping changes that time only when the kernel has
//! written the page back, and on tmpfs never. The server does not force files to be written back to
//! detect such stores: it would help on some file systems only, and clients could cause input and output
//! by it. Attach only files whose writers you trust, or compare [`Attachment::as_slice`] with checksums
//! that you trust. The memory is sealed, so the result of such a comparison stays valid.
//!
//! A mount beneath a root is not entered unless it is a root of its own. If a file system does not
//! answer within 20 seconds, the client is refused, and the server loses one of a bounded number of
//! threads. Users can make files of others hang with read permission alone. So a path or a file that
//! hangs costs at most twice that number of threads, even if many users ask for it, also at the same
//! time. Other loads and lookups begin beside it after three seconds, and beside a load that is slow.
//! The number of hanging threads is bounded for each user, so users without any are always served.
//!
//! Every process that can connect can list the models of a server and the directories that it serves:
//! set the socket's permissions accordingly. The list does not show whether a path outside these
//! directories exists.
//!
//! ## Models on servers
//!
//! With [`Options::remote`], clients also attach models of HTTP servers, object stores and the Hugging Face
//! Hub by their names. There is no file that a client could show, so the permissions of the socket are the
//! only protection: every process that can connect may attach every model beneath the roots. The server uses
//! its own credentials, and clients never get them. [`Event::RemoteRoots`] reports this at the start.
//!
//! A name is compared with the roots before any server is asked. It must have the same scheme and the same
//! host, bucket or repository, and its path must be that of a root or below it. A name is refused if it has
//! a user, a query or a fragment, if a part of its path is empty, `.` or `..`, and if it contains a
//! percent-encoded byte that could become one of these. The files that an index or a first split names are
//! compared in the same way. No file of this machine is opened: neither a local file nor one in the local
//! cache of the Hub. Servers can redirect requests; a [`RemoteAccess`] decides which redirects it follows.
//! Clients can name every revision of a repository, also those of pull requests, unless the root has a
//! revision.
//!
//! Lookups and loads of these models use the same threads and limits as those of files. A lookup may take 30
//! seconds, and a load the time of [`RemoteOptions::time_limit`]. The requests end when the last client that
//! waits for them disconnects, and when the server stops. Clients that wait for a lookup of the same name
//! share the next one.
//!
//! Two requests get the same memory if the names, the lengths and the versions of all files are equal. The
//! version is what [`longshore_load::Object::version`] returns (a strong `ETag`), or the commit in a name of
//! the Hub. The server of the files is trusted to send another version for other content. If it sends no
//! version, a model is never shared: each attachment is a load of its own. Such a model cannot be loaded at
//! the start. Versions are compared for each request to attach, and not at an interval. So a model is marked
//! as stale when a client requests a version that has changed, and not before.
//!
//! # Which servers a client trusts
//!
//! A client sends open files to the server, so it first checks the user of the process that listens:
//! root, the client's own user, the system user `longshore`, or a user that the caller named
//! ([`Trust`]). It sends nothing to another user's server. The check matters because the path of the
//! socket can come from the environment, or can be in a directory that others can write to.
//!
//! # What a client receives
//!
//! A read-only descriptor of a memfd, with the permissions 0400, sealed against shrinking, growing and
//! writing. [`Attachment`] checks the seals itself before it trusts the memory: a slice of it is sound
//! because no process can change it. The memory stays valid when the server ends or is killed.
//!
//! # How references are counted
//!
//! An attachment lives as long as its connection. It ends when the client dies or releases it. The
//! memory is freed after the last attachment, or as [`Keep`] says. A client that releases an attachment
//! and keeps the descriptor keeps the memory, too: the server charges a model without attachments to
//! every user that had it until the kernel reports that the last reference to it is gone
//! ([`Event::Freed`]). Of the models that others may keep as well, the largest is not charged to a user,
//! so that no other user can prevent this user from attaching it again.
//!
//! # Several users
//!
//! The connections, the bytes and the loads of one user are limited, and requests of several users take
//! turns. A user can have at most as many connections and bytes as it leaves free. Ids that a user owns
//! in `/etc/subuid` count as that user. The limits do not apply to root and to the server's own user
//! ([`Options::memory_per_user`]).
#![forbid(unsafe_op_in_unsafe_fn)]

pub mod protocol;

mod address;
mod client;
mod error;
mod fault;
mod held;
mod inodes;
mod model_cache;
mod passwd;
mod peer;
mod publishing;
mod reason;
mod remote;
mod served;
mod server;

pub use address::{ACTIVATION_NAME, Listener, SOCKET_VARIABLE, default_server, default_socket};
pub use client::{AttachedFile, Attachment, Client, Listing, TRUST_VARIABLE, Trust, Wanted};
pub use error::{Error, Result};
pub use fault::{ClientFault, NoServerCause, ServerFault};
pub use held::{Held, HeldState};
pub use model_cache::Keep;
pub use peer::Peer;
pub use publishing::{
    Eviction, PublishEvent, PublishManager, PublishOptions, PublishTrouble, RemoteSource,
};
pub use reason::Reason;
pub use remote::{RemoteAccess, RemoteOptions, RemoteSession};
pub use server::{Event, LoadFailure, Options, Server, ServerProblem, Stop, Users};
