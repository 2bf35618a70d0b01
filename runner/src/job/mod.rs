//! Jobs: models that `atlas run` started, each with a private directory that says what was started and how it is.
//!
//! `store` finds and creates job directories, `condition` tells how a job really is, `launch` starts the server
//! process of a job, and `launched` is that process's side of the start.

pub(crate) mod condition;
pub(crate) mod launch;
pub(crate) mod launched;
pub(crate) mod log;
pub(crate) mod private_dir;
pub(crate) mod process;
pub(crate) mod record;
pub(crate) mod stop;
pub(crate) mod store;
