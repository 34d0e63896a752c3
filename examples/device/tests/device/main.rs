//! Tests of the device without a virtual machine.

mod driver;
mod program;
mod served;
