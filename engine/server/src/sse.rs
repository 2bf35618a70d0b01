//! Server-sent events: the choices of one answer, merged into one stream.

use crate::admission::Admission;
use crate::error::ApiError;
use crate::generation::usage::Usage;
use axum::http::{HeaderValue, header};
use axum::response::sse::{Event, KeepAlive};
use axum::response::{IntoResponse, Response, Sse};
use futures_util::stream::{self, BoxStream, SelectAll, StreamExt};
use serde::Serialize;
use std::convert::Infallible;
use std::time::Duration;

/// What one choice contributes, in order.
pub(crate) enum Frame {
    /// The JSON of a chunk.
    Chunk(String),
    /// The choice has ended and used so much.
    Ended(Usage),
}

/// One choice's frames.
pub(crate) type Frames = BoxStream<'static, Result<Frame, ApiError>>;

/// The state of a running answer. Dropping it cancels every choice.
struct Answer<F> {
    choices: SelectAll<Frames>,
    usage: Usage,
    /// Makes the last chunk if the client wants one about usage.
    usage_chunk: Option<F>,
    stage: Stage,
    _admission: Admission,
}

enum Stage {
    Running,
    Done,
    Closed,
}

/// Streams the choices until all have ended; an error ends all of them.
///
/// Nothing runs on its own: when the client goes away the stream is dropped, and with it the generations.
pub(crate) fn respond<F>(
    choices: Vec<Frames>,
    usage_chunk: Option<F>,
    keep_alive: Duration,
    admission: Admission,
) -> Response
where
    F: FnOnce(Usage) -> String + Send + 'static,
{
    let answer = Answer {
        choices: stream::select_all(choices),
        usage: Usage::default(),
        usage_chunk,
        stage: Stage::Running,
        _admission: admission,
    };
    let events = stream::unfold(answer, async |mut answer| {
        let data = answer.next().await?;
        Some((Ok::<_, Infallible>(Event::default().data(data)), answer))
    });
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(keep_alive)).into_response();
    // Proxies that buffer would hold tokens back.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

impl<F: FnOnce(Usage) -> String> Answer<F> {
    /// The data of the next event.
    async fn next(&mut self) -> Option<String> {
        loop {
            match self.stage {
                Stage::Running => match self.choices.next().await {
                    Some(Ok(Frame::Chunk(chunk))) => return Some(chunk),
                    Some(Ok(Frame::Ended(usage))) => self.usage += usage,
                    Some(Err(error)) => {
                        self.choices.clear();
                        self.stage = Stage::Done;
                        return Some(json(&error.body()));
                    }
                    None => {
                        self.stage = Stage::Done;
                        if let Some(make) = self.usage_chunk.take() {
                            return Some(make(self.usage));
                        }
                    }
                },
                Stage::Done => {
                    self.stage = Stage::Closed;
                    return Some("[DONE]".to_owned());
                }
                Stage::Closed => return None,
            }
        }
    }
}

/// `value` as one line of JSON. The wire types have string keys and finite numbers only, which always serialise.
pub(crate) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| {
        tracing::error!(%error, "a chunk could not be written");
        r#"{"error":{"message":"the server could not write its answer","type":"server_error","param":null,"code":null}}"#
            .to_owned()
    })
}
