//! A client that says exactly the bytes it is told to.

use super::PATIENCE;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) struct Raw(pub(crate) TcpStream);

impl Raw {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.unwrap())
    }

    /// Connects and sends.
    pub(crate) async fn say(address: SocketAddr, bytes: impl AsRef<[u8]>) -> Self {
        let mut raw = Self::connect(address).await;
        raw.send(bytes).await;
        raw
    }

    /// Sends; the server may have closed already.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        drop(self.0.write_all(bytes.as_ref()).await);
    }

    /// Everything until the server closes.
    pub(crate) async fn until_closed(mut self) -> String {
        let mut bytes = Vec::new();
        // A reset ends the connection as well as an end does.
        let reading = async { drop(self.0.read_to_end(&mut bytes).await) };
        tokio::time::timeout(PATIENCE, reading).await.expect("the server never closed the connection");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Reads until `text` has come.
    pub(crate) async fn until(&mut self, text: &str) -> String {
        let mut bytes = Vec::new();
        let reading = async {
            let mut buffer = [0; 4096];
            while !String::from_utf8_lossy(&bytes).contains(text) {
                match self.0.read(&mut buffer).await {
                    Ok(count @ 1..) => bytes.extend_from_slice(&buffer[..count]),
                    _ => break,
                }
            }
        };
        tokio::time::timeout(PATIENCE, reading).await.expect("the text never came");
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The status of an answer.
pub(crate) fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// A request with these header lines and this body.
pub(crate) fn request(method: &str, target: &str, headers: &[&str], body: &str) -> String {
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    format!("{method} {target} HTTP/1.1\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
}
