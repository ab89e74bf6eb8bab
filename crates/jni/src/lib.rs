//! The native half of `jvm/`: files on RADOS for Hadoop's file system interface, through JNI.
//!
//! What Java sees is [`native`], one function per native method of `io.onehop.rados.Native`; what they do is in the other
//! modules, which know nothing of Java. Invariants:
//! - *No panic crosses the border.* Every function runs inside `with_env`, which catches it; it becomes a Java `Error`.
//! - *No pointer crosses it.* Java holds numbers; [`handles`] knows whether one is open, closed, or of another kind.
//! - *Whoever uses a handle keeps what it stands for alive*: closing one while another thread reads takes the number away,
//!   and memory goes when the read is over.
//! - *No lock of the virtual machine's is held while a cluster is waited for*: bytes are copied to and from Java arrays piece
//!   by piece, never by pinning them (`GetPrimitiveArrayCritical`), which would hold up the garbage collector.

mod failure;
mod handles;
mod input;
mod mount;
mod native;
mod output;
mod target;
mod wire;
