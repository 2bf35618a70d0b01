//! `atlas explain`: what a model costs, and how fast a machine's memory lets it decode.

use crate::engine_host;
use crate::errors::CliError;
use crate::host::memory::this_machine;
use crate::output::{GlobalArgs, print_json, write_stdout};
use crate::recipe::resolve;
use crate::target::Target;
use atlas_engine::explain::{explain, known_hardware};
use atlas_engine::model::LoadOptions;
use atlas_schemas::outputs::{Cost, ExplainReport};
use clap::Args;
use comfy_table::Table;

/// Show what a model costs, and how fast a machine's memory lets it decode.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Model folder, `embedded`, or a recipe.
    #[arg(value_name = "MODEL|RECIPE")]
    target: Target,
    /// Machine to compare with.
    #[arg(long, value_parser = ["gb10", "h200", "this"], default_value = "this")]
    hardware: String,
    /// Context length in tokens; the recipe's or the model's own unless told.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
    /// Sequences at once; the recipe's or 1 unless told.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    sequences: Option<u16>,
}

impl ExplainArgs {
    /// Runs the command.
    pub(crate) fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        let (model, mut options) = match &self.target {
            Target::Url(url) => {
                return Err(CliError::Usage(format!("{url} is an endpoint; name a model folder or a recipe")));
            }
            Target::Model(model) => (model.clone(), LoadOptions::default()),
            Target::Recipe(reference) => of_recipe(reference)?,
        };
        if let Some(context) = self.context {
            options.context = Some(context as usize);
        }
        if let Some(sequences) = self.sequences {
            options.sequences = sequences.into();
        }
        let hardware = known_hardware(&self.hardware).unwrap_or_else(this_machine);
        let explained = explain(&engine_host::open(&model)?, &options, hardware)?;
        if global.json {
            print_json(&explained);
        } else {
            write_stdout(&table(&explained));
        }
        Ok(())
    }
}

/// A recipe's model, and how the recipe would load it.
fn of_recipe(reference: &str) -> Result<(String, LoadOptions), CliError> {
    let recipe = resolve(reference).map_err(|error| CliError::Usage(error.to_string()))?;
    let effective = recipe.effective(&[]).map_err(|error| CliError::Usage(error.to_string()))?;
    let options = effective.set.resolve();
    let load = LoadOptions {
        context: options.max_seq_len.map(|tokens| tokens as usize),
        sequences: options.max_num_seqs.min(options.max_batch_size) as usize,
        ..LoadOptions::default()
    };
    Ok((recipe.recipe.model, load))
}

fn table(explained: &ExplainReport) -> String {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::UTF8_BORDERS_ONLY);
    table.set_header(["sublayer", "params", "weights", "MFLOP/token", "KV B/token", "state B/seq"]);
    let cells = |name: &str, cost: &Cost| {
        [
            name.to_owned(),
            cost.params.to_string(),
            bytes(cost.weight_bytes),
            format!("{:.2}", cost.flops_per_token as f64 / 1e6),
            cost.kv_bytes_per_token.to_string(),
            cost.state_bytes_per_sequence.to_string(),
        ]
    };
    for row in &explained.sublayers {
        table.add_row(cells(&row.name, &row.cost));
    }
    table.add_row(cells("total", &explained.total));
    let formats: Vec<String> =
        explained.weight_formats.iter().map(|(name, size)| format!("{name} {}", bytes(*size))).collect();
    let bound = match explained.decode_tok_s_bound {
        Some(bound) => format!("{bound:.1} tok/s"),
        None => "unknown (bandwidth of this machine is not measured)".to_owned(),
    };
    let hardware = &explained.hardware;
    let mut text = format!(
        "{table}\nfamily           {}\nweight formats   {}\nmemory           {} for {} sequence(s) of {} tokens; {} has {}: {}\ndecode bound     {bound}\n",
        explained.family,
        formats.join(", "),
        bytes(explained.memory_bytes),
        explained.sequences,
        explained.context,
        hardware.name,
        bytes(hardware.memory_bytes),
        if explained.fits { "fits" } else { "does not fit" },
    );
    explained.warnings.iter().for_each(|warning| text.push_str(&format!("warning: {warning}\n")));
    text
}

fn bytes(count: u64) -> String {
    indicatif::HumanBytes(count).to_string()
}
