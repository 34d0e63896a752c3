//! Runs the futures of `object_store` without an async runtime: their requests are made by this crate's client.
//!
//! `object_store` knows how each provider finds, renews and uses credentials. A future of it hands a request to
//! its transport, which is [`Handover`], and waits. [`drive`] takes the request from there, has it answered, and
//! polls the future again. A request for a range of an object is not answered: it is what [`drive`] was called
//! for, complete with its signature, and is made by [`HttpFile`](crate::http::HttpFile), into the buffer.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use http::header::RANGE;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError as StoreHttpError, HttpRequest, HttpResponse, HttpService,
};

use crate::http::{HttpError, Limits};

/// The longest time until a cancellation is noticed while another thread makes a request.
const GLANCE: Duration = Duration::from_millis(100);

/// The answer to a request.
type Answer = Result<HttpResponse, StoreHttpError>;

thread_local! {
    /// The request of the future that this thread polls, and then its answer.
    static TURN: RefCell<Turn> = const { RefCell::new(Turn { request: None, answer: None }) };
}

struct Turn {
    request: Option<HttpRequest>,
    answer: Option<Answer>,
}

/// The transport, which hands requests over to [`drive`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Handover;

impl HttpConnector for Handover {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(*self))
    }
}

impl HttpService for Handover {
    fn call<'a, 'f>(
        &'a self,
        request: HttpRequest,
    ) -> std::pin::Pin<Box<dyn Future<Output = Answer> + Send + 'f>>
    where
        'a: 'f,
        Self: 'f,
    {
        let mut request = Some(request);
        Box::pin(std::future::poll_fn(move |_| {
            TURN.with_borrow_mut(|turn| {
                if let Some(request) = request.take() {
                    *turn = Turn { request: Some(request), answer: None };
                }
                turn.answer.take().map_or(Poll::Pending, Poll::Ready)
            })
        }))
    }
}

/// The result of [`drive`].
pub(super) enum Driven<T> {
    /// The future has ended.
    Done(T),
    /// The future made this request for a range.
    Range(Box<HttpRequest>),
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls a future until it ends, or makes a request for a range. `answer` makes all other requests.
///
/// # Errors
/// [`HttpError::Stopped`], [`HttpError::TimeLimit`]; [`HttpError::Credentials`] if a request cannot be made.
pub(super) fn drive<T>(
    future: impl Future<Output = T>,
    limits: &Limits<'_>,
    mut answer: impl FnMut(HttpRequest) -> Answer,
) -> Result<Driven<T>, HttpError> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        // `object_store` panics if it cannot make a request, for example with a token of a server that has a line
        // break. A future that panicked is not polled again.
        let polled = AssertUnwindSafe(|| future.as_mut().poll(&mut context));
        match panic::catch_unwind(polled) {
            Ok(Poll::Ready(done)) => return Ok(Driven::Done(done)),
            Ok(Poll::Pending) => {}
            Err(_) => {
                let message = "no valid request can be made with these credentials and settings";
                return Err(HttpError::Credentials(message.to_owned()));
            }
        }
        match TURN.with_borrow_mut(|turn| turn.request.take()) {
            Some(request) if request.headers().contains_key(RANGE) => {
                return Ok(Driven::Range(Box::new(request)));
            }
            Some(request) => {
                let answer = answer(request);
                TURN.with_borrow_mut(|turn| turn.answer = Some(answer));
            }
            // Another thread renews the credentials.
            None => thread::park_timeout(GLANCE),
        }
        limits.check_ended()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_future_is_an_error() {
        let limits = Limits { control: &|| false, idle_timeout: GLANCE, deadline: None };
        let driven = drive(async { panic!("request valid") }, &limits, |_| {
            unreachable!("it makes no request")
        });
        assert!(matches!(driven.map(|_: Driven<()>| ()), Err(HttpError::Credentials(_))));
    }
}
