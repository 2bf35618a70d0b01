//! Threads that compute masks while the model computes logits.

use super::GrammarError;
use llguidance::Matcher;
use std::num::NonZero;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use toktrie::SimpleVob;

/// The tokens that may come next.
pub(super) type Mask = Result<SimpleVob, GrammarError>;

/// A parser and where it goes when its mask is computed.
pub(super) struct Turn {
    pub(super) matcher: Box<Matcher>,
    pub(super) done: Sender<(Box<Matcher>, Mask)>,
}

/// A queue of parsers that want their mask. Its threads end with it.
#[derive(Clone)]
pub(super) struct MaskThreads(Arc<Mutex<Sender<Turn>>>);

impl MaskThreads {
    /// Starts one thread for every four processors, at most eight.
    pub(super) fn start() -> Result<Self, GrammarError> {
        let count = std::thread::available_parallelism().map_or(1, NonZero::get).div_ceil(4).min(8);
        let (sender, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        for index in 0..count {
            let receiver = receiver.clone();
            std::thread::Builder::new()
                .name(format!("atlas-grammar-{index}"))
                .spawn(move || work(&receiver))
                .map_err(|error| GrammarError::Invalid(format!("no thread for grammars: {error}")))?;
        }
        Ok(Self(Arc::new(Mutex::new(sender))))
    }

    /// Queues a parser. If no thread is left, its mask is computed here.
    pub(super) fn send(&self, turn: Turn) {
        let sent = self.0.lock().unwrap_or_else(PoisonError::into_inner).send(turn);
        if let Err(unsent) = sent {
            compute(unsent.0);
        }
    }
}

fn work(turns: &Mutex<Receiver<Turn>>) {
    loop {
        let turn = turns.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match turn {
            Ok(turn) => compute(turn),
            Err(_) => return,
        }
    }
}

fn compute(turn: Turn) {
    let Turn { mut matcher, done } = turn;
    let mask = mask_of(&mut matcher);
    // Whoever wanted it may have gone.
    let _ = done.send((matcher, mask));
}

/// The tokens that may come next; the library turns its own panics into errors.
pub(super) fn mask_of(matcher: &mut Matcher) -> Mask {
    matcher.compute_mask_or_eos().map_err(|error| GrammarError::Stuck(GrammarError::text(error)))
}
