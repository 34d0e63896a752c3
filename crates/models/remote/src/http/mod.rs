//! A client for HTTP/1.1 whose responses are received into memory of a buffer.
//!
//! Of a response, only the head is parsed. A body is received to its place by one system call after the
//! other, without a copy in between; over TLS, the decrypted bytes are copied there once.

mod body;
mod client;
mod connection;
mod endpoint;
mod error;
mod file;
mod head;
mod pace;
mod progress;
mod proxy;
mod requests;
mod tls;

pub use client::{Client, Field, Followed, Request, Response};
pub use connection::{Connection, Limits};
pub use endpoint::Endpoint;
pub use error::HttpError;
pub use file::HttpFile;
pub(crate) use file::{FIRST_BYTES, Tries};
pub use head::{ContentRange, HEAD_LEN_MAX_BYTES, Head, HeadProblem};
pub(crate) use progress::Progress;
pub use proxy::Proxy;
pub use requests::{Requests, UrlRequests, Version};
pub use tls::Tls;
