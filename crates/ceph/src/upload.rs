//! An object that comes in parts, each of which the file has by the time its future ends.
//!
//! A writer waits for the cluster when its window is full, so it has a thread of its own. Parts go to it in the order in
//! which they were handed over, whatever the order in which they are waited for. The object is visible after `complete`, and
//! without it never: an upload that is aborted or dropped gives the file up.

use std::sync::mpsc;

use async_trait::async_trait;
use object_store::path::Path;
use object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use onehop_io::rados::fs::{Entry, Writer};
use tokio::sync::oneshot;

use crate::error::{convert, generic};

/// An object on its way.
#[derive(Debug)]
pub(crate) struct Upload {
    steps: Option<mpsc::Sender<Step>>,
}

enum Step {
    Part(PutPayload, oneshot::Sender<Result<()>>),
    Complete(oneshot::Sender<Result<PutResult>>),
}

impl Upload {
    pub fn start(location: Path, writer: Writer) -> Self {
        let (steps, incoming) = mpsc::channel();
        tokio::task::spawn_blocking(move || write(&location, writer, &incoming));
        Self { steps: Some(steps) }
    }
}

/// Writes what comes. Who does not wait for an answer does not get it.
fn write(location: &Path, mut writer: Writer, steps: &mpsc::Receiver<Step>) {
    loop {
        match steps.recv() {
            Ok(Step::Part(payload, answer)) => {
                let written = payload.iter().try_for_each(|bytes| writer.append(bytes));
                let _ = answer.send(written.map_err(|error| convert(location, error, false)));
            }
            Ok(Step::Complete(answer)) => {
                let closed = writer.close().map_err(|error| convert(location, error, false));
                let _ = answer.send(closed.map(|entry| put_result(&entry)));
                return;
            }
            Err(mpsc::RecvError) => return writer.abort(),
        }
    }
}

/// What is said of an object that was written.
pub(crate) fn put_result(entry: &Entry) -> PutResult {
    PutResult { e_tag: Some(entry.id.to_string()), version: None }
}

fn ended() -> object_store::Error {
    generic("the upload has ended")
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (answer, answered) = oneshot::channel();
        let is_sent = self.steps.as_ref().is_some_and(|steps| steps.send(Step::Part(data, answer)).is_ok());
        Box::pin(async move { if is_sent { answered.await.unwrap_or_else(|_| Err(ended())) } else { Err(ended()) } })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let (answer, answered) = oneshot::channel();
        let steps = self.steps.take().ok_or_else(ended)?;
        steps.send(Step::Complete(answer)).map_err(|_| ended())?;
        answered.await.unwrap_or_else(|_| Err(ended()))
    }

    async fn abort(&mut self) -> Result<()> {
        self.steps = None;
        Ok(())
    }
}
