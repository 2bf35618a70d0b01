//! A scheduler on a device that stores, instead of keys and states, whose tokens they belong to.
//!
//! Every position of every page holds a token and the hash of all tokens up to it; so do open rows, rings and anchors.
//! A step checks the whole history of each of its sequences, so a page, row or state that is shared by mistake, written
//! while shared, or read before it was written fails the test. The next token is a function of the hash alone.

use super::super::{Limits, Scheduler};
use crate::backend::{Backend, Observer, StepOutput};
use crate::cache::{BLOCK, CacheSizes, PAGE, ZERO_ANCHOR};
use crate::engine::{GenerateEvent, GenerateRequest, Submission};
use crate::errors::EngineError;
use crate::plan::{BufferId, Plan, View};
use crate::sampling::SamplingParams;
use crate::schedule::StepBatch;
use crate::schedule::batch::Segment;
use crate::step::step;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

pub(super) const VOCAB: usize = 64;
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// The caches of a test.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) pages: usize,
    pub(super) checkpoints: usize,
    pub(super) recurrent: bool,
}

/// `len` tokens, of which the first `common` are the family's.
pub(super) fn prompt(family: u32, common: usize, len: usize) -> Vec<u32> {
    let token = |salt: u64, index: usize| (mix(salt, index as u32) % VOCAB as u64) as u32;
    let own = mix(u64::from(family), (common * 1000 + len) as u32);
    (0..len).map(|index| token(if index < common { u64::from(family) } else { own }, index)).collect()
}

fn mix(hash: u64, token: u32) -> u64 {
    let mut z = (hash ^ u64::from(token).wrapping_mul(0xbf58_476d_1ce4_e5b9)).wrapping_add(SEED);
    z = (z ^ (z >> 30)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn next_token(hash: u64) -> u32 {
    (hash % VOCAB as u64) as u32
}

/// What a request generates alone.
fn alone(prompt: &[u32], count: usize) -> Vec<u32> {
    let mut hash = prompt.iter().fold(SEED, |hash, token| mix(hash, *token));
    let mut tokens = Vec::new();
    while tokens.len() < count {
        let token = next_token(hash);
        tokens.push(token);
        hash = mix(hash, token);
    }
    tokens
}

struct Device {
    plan: Plan,
    recurrent: bool,
    pages: Vec<[(u32, u64); PAGE]>,
    anchors: Vec<u64>,
    open: Vec<[u64; BLOCK]>,
    rings: Vec<Vec<(usize, u64)>>,
    logits: Vec<f32>,
}

impl Device {
    fn new(sizes: &CacheSizes, recurrent: bool) -> Self {
        let view = View { buffer: BufferId(0), width: VOCAB };
        let plan = Plan {
            params: vec![],
            buffers: vec![],
            ops: vec![],
            scopes: vec![],
            param_scopes: vec![],
            ropes: vec![],
            kv_layers: vec![],
            state_layers: vec![],
            layer_ends: vec![],
            residual: view,
            final_hidden: view,
            logits: view,
        };
        let mut anchors = vec![0; sizes.anchors + 1];
        anchors[ZERO_ANCHOR as usize] = SEED;
        Self {
            plan,
            recurrent,
            pages: vec![[(0, 0); PAGE]; sizes.pages],
            anchors,
            open: vec![[0; BLOCK]; sizes.open_pages],
            rings: vec![vec![(0, 0); sizes.ring_rows]; sizes.rings],
            logits: Vec::new(),
        }
    }

    /// The hash of everything before the segment, as every cache has it.
    fn history(&self, segment: &Segment) -> u64 {
        let mut hash = SEED;
        let mut at_block = SEED;
        for position in 0..segment.start {
            if position % BLOCK == 0 {
                at_block = hash;
            }
            let (token, kept) = self.pages[segment.tables.pages[position / PAGE] as usize][position % PAGE];
            hash = mix(hash, token);
            assert_eq!(kept, hash, "position {position} of {} holds another sequence's key", segment.start);
        }
        if self.recurrent {
            let row = segment.start % BLOCK;
            let anchor = self.anchors[segment.tables.anchors[0] as usize];
            assert_eq!(anchor, if row == 0 { hash } else { at_block }, "another sequence's state");
            if row > 0 {
                assert_eq!(self.open[segment.tables.open_pages[0] as usize][row - 1], hash, "another's open rows");
                let ring = &self.rings[segment.tables.ring as usize];
                assert_eq!(ring[(segment.start - 1) % ring.len()], (segment.start - 1, hash), "another's ring");
            }
        }
        hash
    }

    fn write(&mut self, segment: &Segment, position: usize, token: u32, hash: u64) {
        let tables = &segment.tables;
        self.pages[tables.pages[position / PAGE] as usize][position % PAGE] = (token, hash);
        if self.recurrent {
            let block = position / BLOCK - segment.start / BLOCK;
            self.open[tables.open_pages[block] as usize][position % BLOCK] = hash;
            let ring = &mut self.rings[tables.ring as usize];
            let row = position % ring.len();
            ring[row] = (position, hash);
            if position % BLOCK == BLOCK - 1 {
                let anchor = tables.anchors[block + 1];
                assert_ne!(anchor, ZERO_ANCHOR);
                self.anchors[anchor as usize] = hash;
            }
        }
    }
}

impl Backend for Device {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn execute(&mut self, batch: &StepBatch, _: Option<&mut dyn Observer>) -> Result<StepOutput<'_>, EngineError> {
        self.logits = vec![0.0; batch.logit_rows.len() * VOCAB];
        let before: Vec<u64> = batch.segments.iter().map(|segment| self.history(segment)).collect();
        for (segment, mut hash) in batch.segments.iter().zip(before) {
            for row in 0..segment.rows {
                let token = batch.tokens[segment.first_row + row];
                hash = mix(hash, token);
                self.write(segment, segment.start + row, token, hash);
                if let Ok(at) = batch.logit_rows.binary_search(&((segment.first_row + row) as u32)) {
                    self.logits[at * VOCAB + next_token(hash) as usize] = 1.0;
                }
            }
        }
        Ok(StepOutput::of_logits(&self.logits, VOCAB))
    }

    fn weight_bytes(&self) -> u64 {
        0
    }

    fn cache_bytes(&self) -> u64 {
        0
    }
}

struct Request {
    prompt: Vec<u32>,
    max_tokens: usize,
    events: UnboundedReceiver<GenerateEvent>,
    cancelled: Arc<AtomicBool>,
    tokens: Vec<u32>,
    first_token: Option<usize>,
    reported: Option<usize>,
    cached: Option<usize>,
    ended: bool,
}

/// A scheduler, its device and all requests so far.
pub(super) struct Bench {
    pub(super) scheduler: Scheduler,
    /// Prompt rows computed.
    pub(super) prompt_rows: usize,
    device: Device,
    requests: Vec<Request>,
    steps: usize,
}

impl Bench {
    pub(super) fn new(limits: Limits, shape: Shape) -> Self {
        let sizes = CacheSizes::for_sequences(limits.max_sequences, 0, 4, 8).with_checkpoints(shape.checkpoints);
        let sizes = CacheSizes { pages: shape.pages, ..sizes };
        Self {
            scheduler: Scheduler::new(limits, &sizes, shape.recurrent),
            device: Device::new(&sizes, shape.recurrent),
            requests: Vec::new(),
            prompt_rows: 0,
            steps: 0,
        }
    }

    pub(super) fn submit(&mut self, prompt: &[u32], max_tokens: usize) -> usize {
        self.add(prompt, max_tokens, None)
    }

    /// The same with log-probabilities of the prompt.
    pub(super) fn submit_reporting(&mut self, prompt: &[u32], max_tokens: usize) -> usize {
        self.add(prompt, max_tokens, Some(0))
    }

    fn add(&mut self, prompt: &[u32], max_tokens: usize, prompt_logprobs: Option<usize>) -> usize {
        let (sender, events) = unbounded_channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let request = GenerateRequest {
            id: String::new(),
            prompt: prompt.to_vec(),
            max_tokens,
            sampling: SamplingParams::default(),
            grammar: None,
            stop_tokens: vec![],
            logprobs: None,
            prompt_logprobs,
            deadline: None,
        };
        let submission = Submission { request, events: sender, cancelled: cancelled.clone() };
        self.scheduler.add(submission, Instant::now());
        self.requests.push(Request {
            prompt: prompt.to_vec(),
            max_tokens,
            events,
            cancelled,
            tokens: vec![],
            first_token: None,
            reported: None,
            cached: None,
            ended: false,
        });
        self.requests.len() - 1
    }

    pub(super) fn cancel(&mut self, id: usize) {
        self.requests[id].cancelled.store(true, Ordering::Release);
    }

    /// One turn of the engine's thread.
    pub(super) fn step(&mut self) {
        self.steps += 1;
        self.scheduler.reap(Instant::now());
        self.scheduler.admit();
        if !self.scheduler.running.is_empty() {
            let counts = step(&mut self.scheduler, &mut self.device).unwrap();
            self.prompt_rows += counts.prompt_tokens as usize;
        }
        self.read_events();
        // It walks the whole tree: too slow on each step of a large one.
        if self.device.pages.len() <= 500 {
            self.check();
        }
    }

    pub(super) fn run(&mut self) {
        while !self.is_idle() {
            self.step();
            assert!(self.steps < 200_000, "it does not end");
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    fn read_events(&mut self) {
        for request in &mut self.requests {
            while let Ok(event) = request.events.try_recv() {
                assert!(!request.ended, "an event after the end");
                match event {
                    GenerateEvent::Started { cached_tokens } => {
                        assert!(request.cached.replace(cached_tokens).is_none(), "started twice");
                    }
                    GenerateEvent::PromptLogprobs(found) => {
                        assert!(request.reported.replace(found.len()).is_none(), "reported twice");
                    }
                    GenerateEvent::Token(token) => {
                        request.first_token.get_or_insert(self.steps);
                        request.tokens.push(token.id);
                    }
                    GenerateEvent::Finished { usage, .. } => {
                        assert_eq!(Some(usage.cached_tokens), request.cached);
                        request.ended = true;
                    }
                    GenerateEvent::Failed(message) => panic!("{message}"),
                }
            }
        }
    }

    /// Every page is free or held by someone who should, and the tree is in order.
    fn check(&self) {
        self.scheduler.prefix.check(false).unwrap();
        let mut held: HashSet<u32> = self.scheduler.prefix.page_ids().into_iter().collect();
        assert_eq!(held.len(), self.scheduler.prefix.pages(), "the tree holds a page twice");
        let mut unshared = 0;
        for running in &self.scheduler.running {
            let pages = running.cache.page_ids();
            // Behind what it shares with the tree, a sequence's pages are its own.
            unshared += pages.iter().filter(|page| held.insert(**page)).count();
        }
        let (free, all) = self.scheduler.caches.pages();
        assert_eq!(free + held.len(), all, "{unshared} pages outside the tree");
        assert!(self.scheduler.available() <= all);
    }

    /// Everything that was not cancelled has ended with what it generates alone.
    pub(super) fn check_ends(&self) {
        for (id, request) in self.requests.iter().enumerate() {
            let expected = alone(&request.prompt, request.max_tokens);
            if request.cancelled.load(Ordering::Acquire) {
                assert!(expected.starts_with(&request.tokens), "request {id}, cancelled");
            } else {
                assert!(request.ended, "request {id} has not ended");
                assert_eq!(request.tokens, expected, "request {id}");
            }
        }
    }

    pub(super) fn has_token(&self, id: usize) -> bool {
        self.requests[id].first_token.is_some()
    }

    /// The step of its first token.
    pub(super) fn first_token(&self, id: usize) -> usize {
        self.requests[id].first_token.unwrap()
    }

    pub(super) fn tokens(&self, id: usize) -> Vec<u32> {
        self.requests[id].tokens.clone()
    }

    pub(super) fn cached(&self, id: usize) -> usize {
        self.requests[id].cached.unwrap()
    }

    /// Prompt tokens whose log-probabilities were reported.
    pub(super) fn reported(&self, id: usize) -> usize {
        self.requests[id].reported.unwrap()
    }
}
