//! Hashes a part file from its beginning while its bytes still come in, in whatever order they come.

use crate::digest::{CHUNK, Digest, Hasher, Hashes};
use crate::error::HubError;
use crate::part::Part;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use tokio::task::JoinHandle;

/// How far a file is whole from its beginning, for the one who waits for it.
#[derive(Debug)]
pub(crate) struct Frontier {
    state: Mutex<(u64, bool)>,
    moved: Condvar,
}

impl Frontier {
    pub(crate) fn new(position: u64) -> Self {
        Self { state: Mutex::new((position, false)), moved: Condvar::new() }
    }

    pub(crate) fn advance(&self, position: u64) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0 = position;
        self.moved.notify_all();
    }

    fn close(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.moved.notify_all();
    }

    /// Blocks until there are bytes after `position`; `None` once nobody wants them any more.
    fn beyond(&self, position: u64) -> Option<u64> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self
            .moved
            .wait_while(state, |(frontier, closed)| *frontier <= position && !*closed)
            .unwrap_or_else(PoisonError::into_inner);
        (!state.1).then_some(state.0)
    }
}

/// A hash in the making. Dropped, it ends.
#[derive(Debug)]
pub(crate) struct Rolling {
    task: Option<JoinHandle<Result<Hashes, HubError>>>,
    frontier: Arc<Frontier>,
}

impl Rolling {
    /// Begins to hash, on a thread of its own.
    pub(crate) fn start(part: &Part, expected: &Digest, size: u64) -> Result<Self, HubError> {
        let file = part.reader().map_err(|error| HubError::Internal(error.to_string()))?;
        let (frontier, mut hasher) = (part.frontier.clone(), Hasher::new(Some(expected), size));
        let follow = move || {
            let mut buffer = vec![0; CHUNK.min(size as usize)];
            let mut position = 0;
            while position < size {
                let end = frontier.beyond(position).ok_or_else(|| HubError::Internal("hash not wanted".to_owned()))?;
                while position < end {
                    let wanted = buffer.len().min((end - position) as usize);
                    let read = |error: std::io::Error| HubError::Internal(format!("a part file: {error}"));
                    file.read_exact_at(&mut buffer[..wanted], position).map_err(read)?;
                    hasher.update(&buffer[..wanted]);
                    position += wanted as u64;
                }
            }
            Ok(hasher.finish())
        };
        Ok(Self { task: Some(tokio::task::spawn_blocking(follow)), frontier: part.frontier.clone() })
    }

    /// The hashes, once all bytes are there.
    pub(crate) async fn finish(mut self) -> Result<Hashes, HubError> {
        let task = self.task.take().ok_or_else(|| HubError::Internal("hashed twice".to_owned()))?;
        task.await.map_err(|error| HubError::Internal(error.to_string()))?
    }
}

impl Drop for Rolling {
    fn drop(&mut self) {
        if self.task.is_some() {
            self.frontier.close();
        }
    }
}
