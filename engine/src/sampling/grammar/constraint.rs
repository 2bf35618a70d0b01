//! One output on its way through its grammar.

use super::masks::{Mask, Turn, mask_of};
use super::{CompiledGrammar, GrammarError};
use llguidance::Matcher;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use toktrie::SimpleVob;

/// Follows the tokens of one output and says which may come next.
///
/// The next mask is computed on another thread from the moment that a token is accepted, which is while the model
/// computes the logits that it is for.
pub struct Constraint {
    grammar: Arc<CompiledGrammar>,
    accepted: Vec<u32>,
    state: State,
    complete: bool,
}

enum State {
    /// Before the first token: the grammar has its mask.
    Fresh,
    /// A thread has the parser.
    Away(Receiver<(Box<Matcher>, Mask)>),
    Here(Box<Matcher>, Mask),
    Lost(GrammarError),
}

impl Constraint {
    /// Before the first token of an output.
    pub fn new(grammar: &Arc<CompiledGrammar>) -> Self {
        Self { grammar: grammar.clone(), accepted: Vec::new(), state: State::Fresh, complete: false }
    }

    /// Waits for the parser and its mask.
    fn settle(&mut self) -> Result<(&mut Matcher, &Mask), GrammarError> {
        match &self.state {
            State::Fresh => {
                self.state = State::Here(Box::new(self.grammar.matcher()), Ok(self.grammar.first_mask().clone()));
            }
            State::Away(parser) => {
                self.state = match parser.recv() {
                    Ok((matcher, mask)) => State::Here(matcher, mask),
                    Err(_) => State::Lost(GrammarError::Stuck("its mask was not computed".into())),
                };
            }
            State::Here(..) | State::Lost(_) => {}
        }
        match &mut self.state {
            State::Here(matcher, mask) => Ok((matcher, mask)),
            State::Lost(error) => Err(error.clone()),
            State::Fresh | State::Away(_) => Err(GrammarError::Stuck("its parser is lost".into())),
        }
    }

    /// Sets the logits of tokens that may not come next to minus infinity.
    ///
    /// # Errors
    /// When nothing may come next, or the grammar has grown too complex to tell.
    pub(crate) fn apply(&mut self, logits: &mut [f32]) -> Result<(), GrammarError> {
        match &self.state {
            State::Fresh => forbid(self.grammar.first_mask(), logits),
            _ => forbid(self.settle()?.1.as_ref().map_err(Clone::clone)?, logits),
        }
        Ok(())
    }

    /// As [`Self::apply`], as if `extra` had been accepted. Where the grammar does not allow one of them, those before
    /// it count: a draft that is not allowed is never chosen, and nothing that follows it is.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub(crate) fn apply_after(&mut self, extra: &[u32], logits: &mut [f32]) -> Result<(), GrammarError> {
        if extra.is_empty() || self.complete {
            return self.apply(logits);
        }
        let (matcher, _) = self.settle()?;
        match mask_after(matcher, extra) {
            Ok(mask) => forbid(&mask, logits),
            Err(error) => {
                self.state = State::Lost(error.clone());
                return Err(error);
            }
        }
        Ok(())
    }

    /// Follows a token. A token that the grammar does not allow ends the constraint with an error at the next mask.
    pub(crate) fn accept(&mut self, token: u32) {
        self.accepted.push(token);
        if self.complete || self.settle().is_err() {
            return;
        }
        let State::Here(mut matcher, mask) = std::mem::replace(&mut self.state, State::Fresh) else { return };
        if let Err(error) = matcher.consume_token(token) {
            self.state = State::Lost(GrammarError::Stuck(GrammarError::text(error)));
        } else if matcher.is_stopped() {
            self.complete = true;
            self.state = State::Here(matcher, mask);
        } else {
            let (done, parser) = channel();
            self.state = State::Away(parser);
            self.grammar.threads().send(Turn { matcher, done });
        }
    }

    /// Why it cannot go on, if it cannot.
    pub(crate) fn error(&self) -> Option<&GrammarError> {
        match &self.state {
            State::Lost(error) | State::Here(_, Err(error)) => Some(error),
            State::Here(_, Ok(_)) | State::Fresh | State::Away(_) => None,
        }
    }

    /// Whether the output is complete and nothing may follow.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }
}

/// A copy follows the same tokens anew.
impl Clone for Constraint {
    fn clone(&self) -> Self {
        let mut copy = Self::new(&self.grammar);
        self.accepted.iter().for_each(|&token| copy.accept(token));
        copy
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("accepted", &self.accepted.len()).finish_non_exhaustive()
    }
}

/// The mask after as many of `extra` as may come; the parser is left where it was.
fn mask_after(matcher: &mut Matcher, extra: &[u32]) -> Mask {
    let stuck = |error| GrammarError::Stuck(GrammarError::text(error));
    let consumed = matcher.try_consume_tokens(extra).map_err(stuck)?;
    let mask = mask_of(matcher)?;
    matcher.rollback(consumed).map_err(stuck)?;
    Ok(mask)
}

/// Sets the logits of all tokens outside the mask to minus infinity; rows that the tokenizer has no token for too.
fn forbid(mask: &SimpleVob, logits: &mut [f32]) {
    const BITS: usize = 32;
    let known = mask.len().min(logits.len());
    for (logits, &word) in logits.chunks_mut(BITS).zip(mask.as_slice()) {
        match word {
            0 => logits.fill(f32::NEG_INFINITY),
            u32::MAX => {}
            word => {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    if word >> bit & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
    logits[known..].fill(f32::NEG_INFINITY);
}
