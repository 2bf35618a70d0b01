//! The vocabulary and its merges, shared by the tokenizers with and without control tokens.

use serde::{Deserialize, Deserializer};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokenizers::models::{ModelWrapper, TrainerWrapper};
use tokenizers::{Model, Result, Token};

/// A model behind a reference count: large vocabularies are held once.
#[derive(Clone)]
pub(super) struct SharedModel(Arc<ModelWrapper>);

impl SharedModel {
    /// One more than the highest id of the vocabulary.
    pub(super) fn vocab_end(&self) -> usize {
        self.get_vocab().values().max().map_or(0, |&id| id as usize + 1)
    }
}

impl<'de> Deserialize<'de> for SharedModel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        ModelWrapper::deserialize(deserializer).map(|model| Self(Arc::new(model)))
    }
}

impl Model for SharedModel {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, sequence: &str) -> Result<Vec<Token>> {
        self.0.tokenize(sequence)
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.token_to_id(token)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.id_to_token(id)
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.0.get_vocab()
    }

    fn get_vocab_size(&self) -> usize {
        self.0.get_vocab_size()
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> Result<Vec<PathBuf>> {
        self.0.save(folder, prefix)
    }

    fn get_trainer(&self) -> Self::Trainer {
        self.0.get_trainer()
    }
}
