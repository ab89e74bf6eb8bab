//! Programs on the device that the tests have, against the CPU backend.

mod shapes;
