//! Model weights from HTTP servers, object stores and the Hugging Face Hub, received into the buffer.

pub mod http;
