//! Groups: calls of one thread that are handed over together.
//!
//! As in NCCL nesting counts, a call outside a group is a group of its own, and the first error inside a group comes back from the
//! outermost [`group_end`], which then drops the group's calls.

use std::cell::RefCell;
use std::sync::Arc;

use super::{Inner, Request, Stream};
use crate::engine::error::{Error, Result};

#[derive(Default)]
struct Open {
    depth: usize,
    calls: Vec<(Arc<Inner>, Request, Stream)>,
    failure: Option<Error>,
}

thread_local! {
    static OPEN: RefCell<Open> = RefCell::default();
}

/// Opens a group on this thread.
pub fn group_start() {
    OPEN.with_borrow_mut(|open| open.depth += 1);
}

/// Closes the group; the outermost end hands its calls over, in order.
///
/// # Errors
/// The first error of a call inside the group, or `InvalidUsage` without an open group.
pub fn group_end() -> Result<()> {
    let (calls, failure) = OPEN.with_borrow_mut(|open| {
        if open.depth == 0 {
            return (Vec::new(), Some(Error::InvalidUsage("group_end without group_start".into())));
        }
        open.depth -= 1;
        if open.depth > 0 {
            return (Vec::new(), None);
        }
        (std::mem::take(&mut open.calls), open.failure.take())
    });
    if let Some(failure) = failure {
        return Err(failure);
    }
    let mut calls = calls;
    for (comm, request, stream) in calls.drain(..) {
        comm.submit(&request)?;
        stream.launched();
    }
    // The room goes back for the next group: no allocation per group.
    OPEN.with_borrow_mut(|open| {
        if open.calls.capacity() < calls.capacity() {
            open.calls = calls;
        }
    });
    Ok(())
}

/// Keeps a call for the end of the open group; `false` when there is none.
pub(super) fn defer(comm: &Arc<Inner>, request: &Request, stream: &Stream) -> bool {
    OPEN.with_borrow_mut(|open| {
        if open.depth > 0 {
            open.calls.push((comm.clone(), request.clone(), stream.clone()));
        }
        open.depth > 0
    })
}

/// Remembers an error of a call inside the open group.
pub(super) fn fail(error: &Error) {
    OPEN.with_borrow_mut(|open| {
        if open.depth > 0 && open.failure.is_none() {
            open.failure = Some(error.clone());
        }
    });
}
