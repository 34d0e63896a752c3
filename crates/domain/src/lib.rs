//! A DMA API in userspace.

pub mod iova;
