//! Where job directories are, and how one is found by id, prefix or recipe name.

use super::private_dir::{PrivateDir, PrivateDirError};
use super::process::ProcessId;
use super::record::{ExitNote, server_process, url};
use crate::errors::CliError;
use atlas_schemas::job::{JobRecord, JobState};
use std::path::PathBuf;

const RECORD: &str = "job.json";
const EXIT: &str = "exit.json";
const LOG: &str = "log";
const STOP: &str = "stop";
const GATE: &str = "gate.json";
const LAUNCHER: &str = "launcher.json";
/// Largest record that is read.
const MAX_RECORD: u64 = 1 << 20;
/// Ended jobs that are kept, so that their logs can be read.
const KEEP_ENDED: usize = 20;
/// A directory without a record is a launch at its beginning, unless it is older than this.
const ABANDONED: std::time::Duration = std::time::Duration::from_secs(60);

/// The directory of all jobs.
#[derive(Debug)]
pub(crate) struct JobStore {
    jobs: PrivateDir,
}

/// One job's directory.
#[derive(Debug)]
pub(crate) struct JobDir {
    directory: PrivateDir,
    id: String,
}

impl From<PrivateDirError> for CliError {
    fn from(error: PrivateDirError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// `ATLAS_STATE_DIR`, else `$XDG_STATE_HOME/atlas`, else `~/.local/state/atlas`.
pub(crate) fn state_dir() -> Result<PathBuf, CliError> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let path = variable("ATLAS_STATE_DIR")
        .or_else(|| Some(variable("XDG_STATE_HOME").filter(|path| path.is_absolute())?.join("atlas")))
        .or_else(|| Some(variable("HOME")?.join(".local/state/atlas")));
    path.ok_or_else(|| CliError::Failed("no place for job directories: set HOME or ATLAS_STATE_DIR".to_owned()))
}

impl JobStore {
    /// Opens the store; `None` when nothing was ever started. Creates nothing.
    pub(crate) fn open() -> Result<Option<Self>, CliError> {
        let Some(base) = PrivateDir::open_base(&state_dir()?)? else { return Ok(None) };
        Ok(base.open_dir("jobs")?.map(|jobs| Self { jobs }))
    }

    /// Opens the store, creating it when it is absent.
    pub(crate) fn create() -> Result<Self, CliError> {
        Ok(Self { jobs: PrivateDir::create_base(&state_dir()?)?.ensure_dir("jobs")? })
    }

    /// Creates the directory of a new job.
    pub(crate) fn create_job(&self) -> Result<JobDir, CliError> {
        loop {
            let mut random = [0u8; 6];
            getrandom::fill(&mut random).map_err(|error| CliError::Failed(format!("no random numbers: {error}")))?;
            let id: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
            if let Some(directory) = self.jobs.create_dir(&id)? {
                return Ok(JobDir { directory, id });
            }
        }
    }

    /// The directory of the job with this id, if there is one.
    pub(crate) fn job(&self, id: &str) -> Result<Option<JobDir>, CliError> {
        if !is_id(id) {
            return Ok(None);
        }
        Ok(self.jobs.open_dir(id)?.map(|directory| JobDir { directory, id: id.to_owned() }))
    }

    /// Every job directory, whether or not its record can be read.
    pub(crate) fn jobs(&self) -> Result<Vec<JobDir>, CliError> {
        let ids = self.jobs.names()?.into_iter().filter(|name| is_id(name));
        Ok(ids.filter_map(|id| Some(JobDir { directory: self.jobs.open_dir(&id).ok()??, id })).collect())
    }

    /// Jobs with a record, the newest first. Records that cannot be read are warned about and left out.
    pub(crate) fn records(&self) -> Result<Vec<(JobDir, JobRecord)>, CliError> {
        let mut records = Vec::new();
        for job in self.jobs()? {
            match job.record() {
                Ok(Some(record)) => records.push((job, record)),
                // Its launch begins at this moment, or was cut off at its very beginning.
                Ok(None) => {}
                Err(error) => tracing::warn!("a job's record is left out: {error}"),
            }
        }
        records.sort_by(|(_, a), (_, b)| b.started_at.cmp(&a.started_at).then_with(|| a.id.cmp(&b.id)));
        Ok(records)
    }

    /// The one job that `name` (an id, the beginning of one, or a recipe's name) means. Among jobs of one recipe
    /// those that run come first, then those that were not stopped.
    pub(crate) fn find(&self, name: &str) -> Result<(JobDir, JobRecord), CliError> {
        let records = self.records()?;
        let by_id = |record: &JobRecord| record.id.starts_with(name);
        let by_recipe = |record: &JobRecord| record.recipe == name || short_name(&record.recipe) == name;
        let groups: [&dyn Fn(&JobRecord) -> bool; 5] = [
            &|record| record.id == name,
            &|record| !name.is_empty() && by_id(record),
            &|record| by_recipe(record) && is_alive(record),
            &|record| by_recipe(record) && record.state.is_live(),
            &by_recipe,
        ];
        for group in groups {
            let found: Vec<&JobRecord> =
                records.iter().map(|(_, record)| record).filter(|record| group(record)).collect();
            match found.as_slice() {
                [] => {}
                [one] => {
                    let id = one.id.clone();
                    return records
                        .into_iter()
                        .find(|(_, record)| record.id == id)
                        .ok_or_else(|| CliError::Failed(format!("job {id} vanished")));
                }
                several => {
                    let ids: Vec<&str> = several.iter().map(|record| record.id.as_str()).collect();
                    return Err(CliError::Usage(format!(
                        "`{name}` means several jobs: {}; name one by its id",
                        ids.join(", ")
                    )));
                }
            }
        }
        Err(unknown_job(name, &records))
    }

    /// Address of the newest job that is ready and whose process is alive.
    pub(crate) fn newest_running_url(&self) -> Option<String> {
        let records = self.records().ok()?;
        let running = |record: &JobRecord| record.state == JobState::Ready && is_alive(record);
        records.iter().find(|(_, record)| running(record)).and_then(|(_, record)| url(record))
    }

    /// The job whose server is the process `pid`.
    pub(crate) fn job_of_process(&self, pid: u32) -> Option<JobRecord> {
        let mut records = self.records().ok()?.into_iter().map(|(_, record)| record);
        records.find(|record| record.ranks.first().is_some_and(|rank| rank.pid == Some(pid)) && is_alive(record))
    }

    /// Removes a job's directory with everything in it.
    pub(crate) fn remove(&self, job: &JobDir) -> Result<(), CliError> {
        Ok(self.jobs.remove_dir(&job.id)?)
    }

    /// Removes the oldest of the jobs that have ended, so that the store does not grow without end, and what launches
    /// left that were killed before they had a record.
    pub(crate) fn prune(&self) {
        for job in self.jobs().unwrap_or_default() {
            let launching = job.launcher().is_some_and(|launcher| launcher.is_alive());
            if !launching && job.record().is_ok_and(|record| record.is_none()) && job.directory.age() > ABANDONED {
                let _ = self.remove(&job);
            }
        }
        let Ok(records) = self.records() else { return };
        let ended = |record: &JobRecord| !record.state.is_live() && !is_alive(record);
        for (job, _) in records.iter().filter(|(_, record)| ended(record)).skip(KEEP_ENDED) {
            // A leftover costs a few kilobytes; the launch matters more.
            let _ = self.remove(job);
        }
    }
}

/// An error that names what could have been meant.
pub(crate) fn unknown_job(name: &str, records: &[(JobDir, JobRecord)]) -> CliError {
    let names =
        records.iter().flat_map(|(_, record)| [record.id.as_str(), record.recipe.as_str(), short_name(&record.recipe)]);
    let hint = atlas_schemas::suggest::hint(name, names);
    let known = if records.is_empty() { "there are no jobs".to_owned() } else { "see `atlas status --all`".to_owned() };
    CliError::Usage(format!("unknown job `{name}`{hint}; {known}"))
}

/// `tiny` of `@atlas/tiny` and of `recipes/tiny.yaml`.
pub(crate) fn short_name(recipe: &str) -> &str {
    let name = recipe.rsplit('/').next().unwrap_or(recipe);
    name.strip_suffix(".yaml").or_else(|| name.strip_suffix(".yml")).unwrap_or(name)
}

fn is_alive(record: &JobRecord) -> bool {
    server_process(record).is_some_and(|process| process.is_alive())
}

fn is_id(name: &str) -> bool {
    name.len() == 12 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl JobDir {
    /// The job's id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Where the log is, for people.
    pub(crate) fn log_path(&self) -> PathBuf {
        self.directory.path().join(LOG)
    }

    /// The record; `None` when the launch was cut off before it was written.
    pub(crate) fn record(&self) -> Result<Option<JobRecord>, CliError> {
        self.read_json(RECORD)
    }

    /// Writes the record.
    pub(crate) fn write_record(&self, record: &JobRecord) -> Result<(), CliError> {
        self.write_json(RECORD, record)
    }

    /// The server's last words, if it could say any.
    pub(crate) fn exit_note(&self) -> Option<ExitNote> {
        self.read_json(EXIT).ok().flatten()
    }

    /// Leaves the server's last words.
    pub(crate) fn write_exit_note(&self, note: &ExitNote) -> Result<(), CliError> {
        self.write_json(EXIT, note)
    }

    /// The `atlas run` that launches the job, or did.
    pub(crate) fn launcher(&self) -> Option<ProcessId> {
        self.read_json(LAUNCHER).ok().flatten()
    }

    /// Writes down who launches the job.
    pub(crate) fn write_launcher(&self, launcher: &ProcessId) -> Result<(), CliError> {
        self.write_json(LAUNCHER, launcher)
    }

    /// Leaves word that the job is being stopped on purpose. The record has two writers while a job is launched, `atlas
    /// run` and `atlas stop`; this mark has one, and nothing takes it back.
    pub(crate) fn request_stop(&self) -> Result<(), CliError> {
        Ok(self.directory.replace(STOP, "")?)
    }

    /// Whether the job is being stopped on purpose, or was.
    pub(crate) fn stop_requested(&self) -> bool {
        self.directory.open_file(STOP).is_ok_and(|file| file.is_some())
    }

    /// Keeps what the gates measured on the job.
    pub(crate) fn write_gate_record(&self, record: &atlas_schemas::gate::GateRecord) -> Result<(), CliError> {
        self.write_json(GATE, record)
    }

    /// Creates the log.
    pub(crate) fn create_log(&self) -> Result<std::fs::File, CliError> {
        Ok(self.directory.create_file(LOG)?)
    }

    /// Opens the log; `None` when there is none.
    pub(crate) fn open_log(&self) -> Result<Option<std::fs::File>, CliError> {
        Ok(self.directory.open_file(LOG)?)
    }

    fn read_json<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<Option<T>, CliError> {
        let Some(text) = self.directory.read(name, MAX_RECORD)? else { return Ok(None) };
        let path = self.directory.path().join(name);
        serde_json::from_str(&text).map(Some).map_err(|error| CliError::Failed(format!("{}: {error}", path.display())))
    }

    fn write_json(&self, name: &str, value: &impl serde::Serialize) -> Result<(), CliError> {
        let text = serde_json::to_string_pretty(value).map_err(|error| CliError::Failed(format!("{name}: {error}")))?;
        Ok(self.directory.replace(name, &(text + "\n"))?)
    }
}
