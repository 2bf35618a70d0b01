//! Everything that the servers of this test binary log, at the lowest level.

use std::io::Write;
use std::sync::{Mutex, Once, PoisonError};
use tracing::Level;

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());
static INSTALLED: Once = Once::new();

struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Begins to collect. It comes before any server starts: `tracing` remembers which places have no listener.
pub(crate) fn install() {
    INSTALLED.call_once(|| {
        tracing_subscriber::fmt().with_max_level(Level::TRACE).with_ansi(false).with_writer(|| Log).init();
    });
}

/// The log so far, of all tests.
pub(crate) fn text() -> String {
    String::from_utf8_lossy(&LOG.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
}
