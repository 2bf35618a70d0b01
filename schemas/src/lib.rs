//! The typed nouns of Atlas that cross a boundary (a file, a wire, a process), and their JSON Schemas.
//!
//! Nothing here touches the network, the disk or a device. The rooms above (engine, server, gates, runner) depend on
//! these types, so that a recipe key, a flag, a schema and a validation message have one source.

pub mod bench;
pub mod cache;
pub mod eval;
pub mod gate;
pub mod hardware;
pub mod hosts;
pub mod job;
pub mod json_schemas;
pub mod lock;
pub mod outputs;
pub mod provenance;
pub mod recipe;
pub mod registry;
pub mod serve_options;
pub mod suggest;
pub mod yaml;
