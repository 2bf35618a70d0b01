//! The likeliest token.

/// Index of the greatest logit; ties go to the lower id (NUMERICS N8). NaN is never chosen; 0 for no logits.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (id, &logit) in logits.iter().enumerate() {
        if logit > best.1 {
            best = (id as u32, logit);
        }
    }
    best.0
}
