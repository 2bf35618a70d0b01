// One step's rows as kernels see them. The arrays stand at fixed addresses, so that a captured graph can be replayed
// with other contents; `counts` says how much of them is real.
#pragma once

#include "common.cuh"

/// Consecutive rows of one sequence.
struct Segment {
    u32 first_row;   // in the step
    u32 rows;
    u32 start;       // position of the first row
    u32 pages;       // offset into `tables`: KV block table from position 0, 16 tokens a page
    u32 anchors;     // offset into `tables`: anchor slot at the start of each block touched, and of the next if the
                     // last one is completed
    u32 open_pages;  // offset into `tables`: open-block page of each block touched
    u32 ring;        // convolution ring
    u32 reserved;
};

struct Counts {
    u32 rows;        // of the step
    u32 segments;
    u32 logit_rows;
    u32 few;         // entries of `few`
    u32 tiles;       // entries of `tiles`
    u32 reserved[3];
};

/// The most rows of a segment that is computed by the kernels for decode.
constexpr u32 kFewRows = 8;
/// Rows of a prefill tile.
constexpr u32 kTileRows = 64;

/// `kTileRows` (or fewer, at the end) rows of one segment that has more than `kFewRows`.
struct Tile {
    u32 segment;
    u32 row;         // first row, counted from the segment's first
};

struct Step {
    const u32* tokens;       // [rows]
    const u32* positions;    // [rows]
    const u32* row_segment;  // [rows] segment of each row
    const u32* logit_rows;   // [logit_rows], ascending
    const Segment* segments;
    const u32* few;          // segments of at most kFewRows rows: decode rows and verify groups
    const Tile* tiles;       // tiles of all other segments, in row order
    const u32* tables;
    const Counts* counts;
};
