//! DRY's sequence breakers: from texts to the tokens that hold them.

use crate::error::ApiError;
use crate::options::Options;
use crate::state::AppState;
use atlas_engine::text::tokenizer::Tokenizer;
use std::sync::{Arc, OnceLock};

/// The breakers of a request that names none, as everywhere.
const DEFAULT: [&str; 4] = ["\n", ":", "\"", "*"];

/// The tokens of [`DEFAULT`], found once a model.
pub(crate) type DefaultBreakers = OnceLock<Arc<[u32]>>;

/// Puts the breakers into the sampling parameters of a request that uses DRY.
pub(crate) async fn resolve(state: &AppState, options: &mut Options) -> Result<(), ApiError> {
    if options.sampling.dry.multiplier <= 0.0 {
        return Ok(());
    }
    let (state, wanted) = (state.clone(), options.dry_breakers.take());
    // Every token of the vocabulary is looked at.
    let work = move || -> Result<Arc<[u32]>, ApiError> {
        let model = state.ready_model()?;
        match wanted {
            None => Ok(model.default_breakers.get_or_init(|| ascending(holding(&model.tokenizer, &DEFAULT))).clone()),
            Some(texts) => tokens(&model.tokenizer, &texts),
        }
    };
    let found = tokio::task::spawn_blocking(work).await;
    let failed = |_| ApiError::internal("the sequence breakers could not be found");
    options.sampling.dry.breakers = found.map_err(failed)??;
    Ok(())
}

/// The tokens that hold any of the texts. A text that no token holds would have no effect.
fn tokens(tokenizer: &Tokenizer, texts: &[String]) -> Result<Arc<[u32]>, ApiError> {
    let mut all = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let found = holding(tokenizer, &[text]);
        if found.is_empty() {
            let problem = "no token of this model holds this text, so that it cannot break a sequence";
            return Err(ApiError::field(format!("dry_sequence_breakers[{index}]"), problem));
        }
        all.extend(found);
    }
    Ok(ascending(all))
}

fn holding(tokenizer: &Tokenizer, texts: &[&str]) -> Vec<u32> {
    let holds = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    (0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX))
        .filter(|id| tokenizer.token_bytes(*id).is_some_and(|bytes| texts.iter().any(|text| holds(&bytes, text))))
        .collect()
}

fn ascending(mut ids: Vec<u32>) -> Arc<[u32]> {
    ids.sort_unstable();
    ids.dedup();
    ids.into()
}
