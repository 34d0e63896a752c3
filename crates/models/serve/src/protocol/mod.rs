//! The messages between a client and the server.
//!
//! The socket keeps the boundaries of messages (`SOCK_SEQPACKET`), so that there is no partial message
//! to wait for and no length to trust, and a descriptor belongs to the message that it came with. A
//! message is its kind, two bytes, and its fields in the order in which they are listed here: numbers in
//! little-endian order, texts and paths after their length in two bytes. It has at most
//! [`MESSAGE_BYTES_MAX`] bytes, and no bytes after its last field.
//!
//! ```text
//!   client                                       server
//!   Hello(version)                         ──►
//!                                          ◄──   Welcome(version, process)
//!   List                                   ──►
//!                                          ◄──   Root …, Held …, End
//!   Attach(target, format, …) + the file   ──►             without a file if it is on a server
//!                                          ◄──   Prove(path)        for each other file of a model
//!   Proof + that file                      ──►
//!                                          ◄──   Progress …         while it is being loaded
//!                                          ◄──   Attached(…) + the memory, then a File for each
//!   (the attachment lives as long as the connection, or until:)
//!   Release                                ──►
//!                                          ◄──   Released
//!                                          ◄──   Refused(reason, words)    in place of any answer
//!                                          ◄──   Closing            the server ends
//! ```
//!
//! A client has one request at a time. `Hello` may be followed at once by the next request. A client
//! that was given memory receives every message that it was sent, `Released` included, before it
//! attaches again.

mod fields;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::held::{Held, HeldState};
use crate::reason::Reason;
use crate::remote::name::{NAME_BYTES_MAX, is_remote_or_hub};

pub use fields::Malformed;
use fields::{Reader, Writer};

/// The version of the protocol.
pub const VERSION: u16 = 1;
/// The longest message in bytes: a path and some numbers.
pub const MESSAGE_BYTES_MAX: usize = 8192;
/// The longest path in bytes, as in Linux.
pub const PATH_BYTES_MAX: usize = 4096;
const _: () = assert!(NAME_BYTES_MAX == PATH_BYTES_MAX);
/// The longest text in bytes.
pub const TEXT_BYTES_MAX: usize = 2048;
/// The longest name of a format in bytes.
pub const FORMAT_BYTES_MAX: usize = 32;

const MAGIC: [u8; 8] = *b"longshor";

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// The first message, with the version of the client.
    Hello {
        /// [`VERSION`].
        version: u16,
    },
    /// Requests the memory of a model. The named file comes with the request as a readable descriptor,
    /// by which the client shows that it may read it. There is no descriptor for a model on a server
    /// ([`Target::is_remote`]).
    Attach {
        /// The model.
        target: Target,
        /// The format of the files, as a word of `longshore load --format`.
        format: String,
        /// The alignment of the tensors in bytes; 0 if they stay where they are in the file.
        align_bytes: u64,
    },
    /// Another file of the model, which [`Reply::Prove`] asked for, as a descriptor.
    Proof,
    /// Ends the attachment, and keeps the connection.
    Release,
    /// Requests the served files and the models.
    List,
}

/// The model to attach.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// The file at this absolute path, as it is now.
    Path(PathBuf),
    /// The model that the server has under this number.
    Id(u64),
    /// The model of this name on a server, such as `s3://BUCKET/PREFIX/`.
    Remote(String),
    /// The model on a server that the server has under this number.
    RemoteId(u64),
}

impl Target {
    /// Returns `true` for a model on a server, which no client can show.
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Remote(_) | Self::RemoteId(_))
    }
}

/// A reply of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// The reply to [`Request::Hello`].
    Welcome {
        /// The version to use from here on.
        version: u16,
        /// The process id of the server.
        pid: u32,
    },
    /// Asks for another file of the model: the client opens it and sends it.
    Prove {
        /// The file.
        path: PathBuf,
    },
    /// The model is being loaded.
    Progress {
        /// The number of bytes that are loaded.
        done_bytes: u64,
        /// The number of bytes of the model.
        total_bytes: u64,
        /// The time since the load began, in milliseconds.
        elapsed_ms: u64,
    },
    /// The model is attached. The memory comes as a descriptor, and the files in as many messages.
    Attached {
        /// The number of the model.
        id: u64,
        /// The length of the content in bytes.
        len_bytes: u64,
        /// The number of [`Reply::File`] messages that follow.
        files: u32,
    },
    /// A file and its place in the memory.
    File {
        /// The offset in bytes at which it begins in the memory.
        buffer_offset: u64,
        /// Its length in bytes.
        len_bytes: u64,
        /// The path of the file, or its name on a server.
        path: PathBuf,
    },
    /// The attachment has ended.
    Released,
    /// A served directory or file, also on a server.
    Root {
        /// The path, or the name on a server.
        path: PathBuf,
    },
    /// A model that is in memory or being loaded.
    Held(Held),
    /// The end of a list.
    End,
    /// The request is refused.
    Refused {
        /// The reason, for programs.
        reason: Reason,
        /// The reason and advice, for people.
        message: String,
    },
    /// The server ends. Clients keep the memory that they have.
    Closing,
}

impl Request {
    /// Returns `true` if it comes with a descriptor.
    pub fn has_descriptor(&self) -> bool {
        match self {
            Self::Attach { target, .. } => !target.is_remote(),
            Self::Proof => true,
            Self::Hello { .. } | Self::Release | Self::List => false,
        }
    }

    /// Returns the bytes of the message.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello { version } => {
                let mut writer = Writer::new(1);
                writer.0.extend(MAGIC);
                writer.u16(*version)
            }
            Self::Attach { target, format, align_bytes } => {
                let writer = Writer::new(2);
                let writer = match target {
                    Target::Path(path) => {
                        writer.u8(0).bytes(path.as_os_str().as_bytes(), PATH_BYTES_MAX)
                    }
                    Target::Id(id) => writer.u8(1).u64(*id),
                    Target::Remote(name) => writer.u8(2).text(name, PATH_BYTES_MAX),
                    Target::RemoteId(id) => writer.u8(3).u64(*id),
                };
                writer.text(format, FORMAT_BYTES_MAX).u64(*align_bytes)
            }
            Self::Proof => Writer::new(3),
            Self::Release => Writer::new(4),
            Self::List => Writer::new(5),
        }
        .0
    }

    /// Parses a message.
    ///
    /// # Errors
    /// [`Malformed`] for bytes that [`Self::encode`] does not return.
    pub fn decode(message: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(message);
        let request = match reader.u16()? {
            1 => {
                for byte in MAGIC {
                    if reader.u8()? != byte {
                        return Err(Malformed("it is of another protocol"));
                    }
                }
                Self::Hello { version: reader.u16()? }
            }
            2 => {
                let target = match reader.u8()? {
                    0 => Target::Path(absolute(reader.bytes(PATH_BYTES_MAX)?)?),
                    1 => Target::Id(reader.u64()?),
                    2 => Target::Remote(reader.text(PATH_BYTES_MAX)?),
                    3 => Target::RemoteId(reader.u64()?),
                    _ => return Err(Malformed("it names neither a path nor a number")),
                };
                let format = reader.text(FORMAT_BYTES_MAX)?;
                Self::Attach { target, format, align_bytes: reader.u64()? }
            }
            3 => Self::Proof,
            4 => Self::Release,
            5 => Self::List,
            _ => return Err(Malformed("no request is of that kind")),
        };
        reader.end()?;
        Ok(request)
    }
}

impl Reply {
    /// Returns the bytes of the message.
    pub fn encode(&self) -> Vec<u8> {
        let of_path =
            |writer: Writer, path: &Path| writer.bytes(path.as_os_str().as_bytes(), PATH_BYTES_MAX);
        match self {
            Self::Welcome { version, pid } => Writer::new(0x81).u16(*version).u32(*pid),
            Self::Prove { path } => of_path(Writer::new(0x82), path),
            Self::Progress { done_bytes, total_bytes, elapsed_ms } => {
                Writer::new(0x83).u64(*done_bytes).u64(*total_bytes).u64(*elapsed_ms)
            }
            Self::Attached { id, len_bytes, files } => {
                Writer::new(0x84).u64(*id).u64(*len_bytes).u32(*files)
            }
            Self::File { buffer_offset, len_bytes, path } => {
                of_path(Writer::new(0x85).u64(*buffer_offset).u64(*len_bytes), path)
            }
            Self::Released => Writer::new(0x86),
            Self::Root { path } => of_path(Writer::new(0x87), path),
            Self::Held(held) => {
                let writer = Writer::new(0x88)
                    .u64(held.id)
                    .u64(held.len_bytes)
                    .u64(held.done_bytes)
                    .u32(held.attachments)
                    .u8(u8::from(held.state == HeldState::Ready))
                    .u8(u8::from(held.is_stale))
                    .u8(u8::from(held.is_pinned))
                    .u64(held.age_ms);
                of_path(writer, &held.path)
                    .text(&held.format, FORMAT_BYTES_MAX)
                    .u64(held.align_bytes)
            }
            Self::End => Writer::new(0x89),
            Self::Refused { reason, message } => {
                Writer::new(0x8a).u16(reason.number()).text(message, TEXT_BYTES_MAX)
            }
            Self::Closing => Writer::new(0x8b),
        }
        .0
    }

    /// Parses a message.
    ///
    /// # Errors
    /// [`Malformed`] for bytes that [`Self::encode`] does not return.
    pub fn decode(message: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(message);
        let reply = match reader.u16()? {
            0x81 => Self::Welcome { version: reader.u16()?, pid: reader.u32()? },
            0x82 => Self::Prove { path: absolute(reader.bytes(PATH_BYTES_MAX)?)? },
            0x83 => Self::Progress {
                done_bytes: reader.u64()?,
                total_bytes: reader.u64()?,
                elapsed_ms: reader.u64()?,
            },
            0x84 => {
                Self::Attached { id: reader.u64()?, len_bytes: reader.u64()?, files: reader.u32()? }
            }
            0x85 => Self::File {
                buffer_offset: reader.u64()?,
                len_bytes: reader.u64()?,
                path: path_or_name(reader.bytes(PATH_BYTES_MAX)?)?,
            },
            0x86 => Self::Released,
            0x87 => Self::Root { path: path_or_name(reader.bytes(PATH_BYTES_MAX)?)? },
            0x88 => Self::Held(Held {
                id: reader.u64()?,
                len_bytes: reader.u64()?,
                done_bytes: reader.u64()?,
                attachments: reader.u32()?,
                state: if truth(&mut reader)? { HeldState::Ready } else { HeldState::Loading },
                is_stale: truth(&mut reader)?,
                is_pinned: truth(&mut reader)?,
                age_ms: reader.u64()?,
                path: path_or_name(reader.bytes(PATH_BYTES_MAX)?)?,
                format: reader.text(FORMAT_BYTES_MAX)?,
                align_bytes: reader.u64()?,
            }),
            0x89 => Self::End,
            0x8a => Self::Refused {
                reason: Reason::from_number(reader.u16()?),
                message: reader.text(TEXT_BYTES_MAX)?,
            },
            0x8b => Self::Closing,
            _ => return Err(Malformed("no answer is of that kind")),
        };
        reader.end()?;
        Ok(reply)
    }
}

fn truth(reader: &mut Reader<'_>) -> Result<bool, Malformed> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed("a truth value in it is neither 0 nor 1")),
    }
}

fn absolute(bytes: &[u8]) -> Result<PathBuf, Malformed> {
    if bytes.contains(&0) {
        return Err(Malformed("a path in it has a NUL"));
    }
    let path = Path::new(OsStr::from_bytes(bytes));
    if !path.is_absolute() {
        return Err(Malformed("a path in it is not absolute"));
    }
    Ok(path.to_owned())
}

/// Takes an absolute path, or the name of a model on a server.
fn path_or_name(bytes: &[u8]) -> Result<PathBuf, Malformed> {
    let path = Path::new(OsStr::from_bytes(bytes));
    match is_remote_or_hub(path) && !bytes.contains(&0) {
        true => Ok(path.to_owned()),
        false => absolute(bytes),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn held() -> Held {
        Held {
            id: 7,
            path: "/models/a".into(),
            format: "auto".into(),
            align_bytes: 64,
            len_bytes: 1 << 40,
            done_bytes: 3,
            attachments: 2,
            state: HeldState::Loading,
            is_stale: true,
            is_pinned: false,
            age_ms: 12_345,
        }
    }

    #[test]
    fn messages_survive_encoding_and_decoding() {
        let path = PathBuf::from(OsStr::from_bytes(b"/models/\xff/\x1b"));
        let requests = [
            Request::Hello { version: VERSION },
            Request::Attach {
                target: Target::Path(path.clone()),
                format: "auto".into(),
                align_bytes: 64,
            },
            Request::Attach { target: Target::Id(u64::MAX), format: String::new(), align_bytes: 0 },
            Request::Attach {
                target: Target::Remote("s3://b/ö/".into()),
                format: "auto".into(),
                align_bytes: 0,
            },
            Request::Attach { target: Target::RemoteId(7), format: String::new(), align_bytes: 0 },
            Request::Proof,
            Request::Release,
            Request::List,
        ];
        for request in requests {
            assert_eq!(Request::decode(&request.encode()), Ok(request.clone()));
            assert!(Reply::decode(&request.encode()).is_err());
        }
        let mut replies = vec![
            Reply::Welcome { version: VERSION, pid: 17 },
            Reply::Prove { path: path.clone() },
            Reply::Progress { done_bytes: 1, total_bytes: 2, elapsed_ms: 3 },
            Reply::Attached { id: 1, len_bytes: 2, files: 3 },
            Reply::File { buffer_offset: 1, len_bytes: 2, path: path.clone() },
            Reply::Released,
            Reply::Root { path },
            Reply::Root { path: "hf://org".into() },
            Reply::Held(held()),
            Reply::Held(Held { path: "s3://b/llama/".into(), ..held() }),
            Reply::End,
            Reply::Closing,
        ];
        replies.extend(
            crate::reason::REASONS.map(|reason| Reply::Refused { reason, message: "no".into() }),
        );
        for reply in replies {
            assert!(reply.encode().len() <= MESSAGE_BYTES_MAX);
            assert_eq!(Reply::decode(&reply.encode()), Ok(reply.clone()));
            assert!(Request::decode(&reply.encode()).is_err());
        }
    }

    #[test]
    fn the_longest_messages_fit_and_texts_are_cut_between_characters() {
        let path = PathBuf::from(format!("/{}", "x".repeat(PATH_BYTES_MAX - 1)));
        let longest = Reply::Held(Held { path, format: "f".repeat(32), ..held() });
        assert!(longest.encode().len() <= MESSAGE_BYTES_MAX);
        assert_eq!(Reply::decode(&longest.encode()), Ok(longest));
        let message = format!("x{}", "ö".repeat(TEXT_BYTES_MAX));
        let said = Reply::Refused { reason: Reason::Other, message: message.clone() };
        let Reply::Refused { message: heard, .. } = Reply::decode(&said.encode()).unwrap() else {
            panic!("not a refusal");
        };
        assert!(message.starts_with(&heard) && heard.len() == TEXT_BYTES_MAX - 1);
    }

    #[test]
    fn messages_that_are_cut_short_or_too_long_are_refused() {
        let message = Reply::Held(held()).encode();
        for end in 0..message.len() {
            assert!(Reply::decode(&message[..end]).is_err(), "{end}");
        }
        assert!(Reply::decode(&[&message[..], &[0]].concat()).is_err());
        let relative = Request::Attach {
            target: Target::Path("a".into()),
            format: "raw".into(),
            align_bytes: 0,
        };
        assert!(Request::decode(&relative.encode()).is_err());
        let nul = Request::Attach {
            target: Target::Path("/a\0b".into()),
            format: "raw".into(),
            align_bytes: 0,
        };
        assert!(Request::decode(&nul.encode()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_are_a_message(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(request) = Request::decode(&bytes) {
                prop_assert_eq!(request.encode(), bytes.clone());
            }
            if let Ok(Reply::Refused { .. }) = Reply::decode(&bytes) {
                // Unknown reasons are decoded as `Reason::Other`.
            } else if let Ok(reply) = Reply::decode(&bytes) {
                prop_assert_eq!(reply.encode(), bytes);
            }
        }
    }
}
