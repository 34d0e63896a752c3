//! Model weights from HTTP servers, object stores and the Hugging Face Hub, received into the buffer.
//!
//! ```text
//!   https://HOST/model.safetensors ─► Remote::open ─► HttpFile: first bytes, length, version
//!                                                        │ longshore_load::Object
//!                                                        ▼
//!                                       Loader::load: ranges of 8 MiB, each to its place
//! ```

mod cache;
mod credentials;
mod find;
pub mod http;
mod hub;
mod model;
mod object;
mod opener;
mod shared;
mod shown;
mod store;
mod verify;
pub mod xet;

pub use credentials::FoundCredentials;
pub use hub::is_offline;
pub use opener::{Remote, UnknownOptionError, is_remote};
pub use shown::without_secrets;
