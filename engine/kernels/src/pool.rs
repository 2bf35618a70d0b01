//! The thread pool of a model step.
//!
//! A step is a few hundred short operations in a row, so workers spin for a moment after each operation before they
//! park: long enough to catch the next operation, short enough that an idle engine leaves the cores to the server.
//!
//! Protocol: `gate` holds `epoch << 32 | OPEN | workers inside`. The caller fills in the job, opens the gate, takes
//! part, closes the gate and waits until nobody is inside. A worker may enter only while the gate is open, so a late
//! worker never sees a job that has ended, and nobody waits for a worker that is still parked.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a thread without work spins before it parks.
const SPIN: Duration = Duration::from_micros(40);
const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;
const EPOCH: u64 = 1 << 32;

/// Threads that run the tasks of one operation together: `threads - 1` workers and the caller.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    owner: Mutex<()>,
}

struct Shared {
    gate: AtomicU64,
    next: AtomicUsize,
    job: UnsafeCell<Job>,
    caller_waits: AtomicBool,
    parked: Vec<AtomicBool>,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

struct Job {
    task: *const (dyn Fn(usize) + Sync),
    tasks: usize,
    caller: Thread,
}

// SAFETY: `job` is written only while the gate is closed and nobody is inside, and read only by those inside; the
// gate's sequentially consistent accesses order the two. The task pointer is `Sync` and outlives the run.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

thread_local! {
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
}

impl Pool {
    /// A pool of `threads` threads (at least one), the caller of [`Pool::run`] included.
    ///
    /// # Panics
    /// If the system refuses a thread.
    pub fn new(threads: usize) -> Pool {
        let workers = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(Job { task: &|_| {}, tasks: 0, caller: thread::current() }),
            caller_waits: AtomicBool::new(false),
            parked: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let workers = (0..workers)
            .map(|index| {
                let shared = Arc::clone(&shared);
                thread::Builder::new()
                    .name(format!("atlas-step-{index}"))
                    .spawn(move || shared.work(index))
                    .expect("the system starts a worker thread")
            })
            .collect();
        Pool { shared, workers, owner: Mutex::new(()) }
    }

    /// Number of threads, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f(0)`, …, `f(tasks - 1)`, each once, on all threads, and returns when all have finished.
    ///
    /// Runs of other threads wait for their turn. A run inside a task works through its tasks on the spot.
    ///
    /// # Panics
    /// With the first panic of a task, after all tasks have ended.
    pub fn run(&self, tasks: usize, f: &(dyn Fn(usize) + Sync)) {
        if tasks <= 1 || self.workers.is_empty() || IN_TASK.get() {
            (0..tasks).for_each(f);
            return;
        }
        let _owner = lock(&self.owner);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes; `finish` returns after the last thread has let go of the pointer.
        let task = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const (dyn Fn(usize) + Sync + 'static)>(f)
        };
        // SAFETY: the gate is closed and nobody is inside, so nobody reads the job.
        unsafe { *shared.job.get() = Job { task, tasks, caller: thread::current() } };
        shared.next.store(0, SeqCst);
        shared.gate.fetch_add(EPOCH | OPEN, SeqCst);
        for (parked, worker) in shared.parked.iter().zip(&self.workers).take(tasks - 1) {
            if parked.load(SeqCst) {
                worker.thread().unpark();
            }
        }
        shared.claim();
        shared.finish();
        let panic = lock(&shared.panic).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its tasks, so it has none of its own to report.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// A worker's life: wait for an open gate, take part, wait again.
    fn work(&self, index: usize) {
        let mut seen = 0;
        while let Some(gate) = self.wait(index, seen) {
            if self.gate.compare_exchange(gate, gate + 1, SeqCst, SeqCst).is_err() {
                continue;
            }
            seen = gate / EPOCH;
            self.claim();
            // SAFETY: this thread is inside, so the job stays.
            let caller = unsafe { (*self.job.get()).caller.clone() };
            let left = self.gate.fetch_sub(1, SeqCst) - 1;
            if left & (OPEN | INSIDE) == 0 && self.caller_waits.load(SeqCst) {
                caller.unpark();
            }
        }
    }

    /// Returns the gate once it is open for a job other than `seen`, or nothing when the pool ends.
    fn wait(&self, index: usize, seen: u64) -> Option<u64> {
        let ready = || {
            let gate = self.gate.load(SeqCst);
            (gate & OPEN != 0 && gate / EPOCH != seen).then_some(gate)
        };
        loop {
            let mut spin = Spin::new();
            while spin.turn() {
                if self.stop.load(SeqCst) {
                    return None;
                }
                if let Some(gate) = ready() {
                    return Some(gate);
                }
            }
            self.parked[index].store(true, SeqCst);
            if ready().is_none() && !self.stop.load(SeqCst) {
                thread::park();
            }
            self.parked[index].store(false, SeqCst);
        }
    }

    /// Takes tasks until none is left. Only for the caller of the run and for workers inside.
    fn claim(&self) {
        // SAFETY: the job stays while this thread is inside.
        let (task, tasks) = unsafe { ((*self.job.get()).task, (*self.job.get()).tasks) };
        IN_TASK.set(true);
        loop {
            let index = self.next.fetch_add(1, SeqCst);
            if index >= tasks {
                break;
            }
            // SAFETY: the caller of the run keeps the closure alive until nobody is inside.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| unsafe { (*task)(index) })) {
                lock(&self.panic).get_or_insert(panic);
            }
        }
        IN_TASK.set(false);
    }

    /// Closes the gate and waits until nobody is inside.
    fn finish(&self) {
        let mut inside = self.gate.fetch_and(!OPEN, SeqCst) & INSIDE;
        let mut spin = Spin::new();
        while inside != 0 && spin.turn() {
            inside = self.gate.load(SeqCst) & INSIDE;
        }
        if inside == 0 {
            return;
        }
        self.caller_waits.store(true, SeqCst);
        while self.gate.load(SeqCst) & INSIDE != 0 {
            thread::park();
        }
        self.caller_waits.store(false, SeqCst);
    }
}

/// Spins for [`SPIN`], looking at the clock now and then.
struct Spin {
    turns: u32,
    end: Option<Instant>,
}

impl Spin {
    fn new() -> Self {
        Self { turns: 0, end: None }
    }

    fn turn(&mut self) -> bool {
        std::hint::spin_loop();
        self.turns += 1;
        if !self.turns.is_multiple_of(32) {
            return true;
        }
        let now = Instant::now();
        now < *self.end.get_or_insert(now + SPIN)
    }
}

/// The guarded values stay whole when a holder panics, so poison is no news.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in [1, 2, 3, 7] {
            let pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads);
            for tasks in [0, 1, 2, 5, 100] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|i| {
                    counts[i].fetch_add(1, Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Relaxed) == 1), "{threads} threads, {tasks} tasks");
            }
        }
    }

    #[test]
    fn runs_follow_each_other_spinning_or_parked() {
        let pool = Pool::new(3);
        let total = AtomicUsize::new(0);
        for round in 0..2000 {
            if round % 400 == 0 {
                thread::sleep(Duration::from_millis(2));
            }
            pool.run(4, &|i| {
                total.fetch_add(i, Relaxed);
            });
        }
        assert_eq!(total.into_inner(), 2000 * 6);
    }

    #[test]
    fn a_panic_reaches_the_caller_after_all_tasks() {
        let pool = Pool::new(2);
        let done = AtomicUsize::new(0);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.run(16, &|i| {
                assert!(i != 3, "task three");
                done.fetch_add(1, Relaxed);
            });
        }));
        let message = *outcome.unwrap_err().downcast::<&str>().unwrap();
        assert_eq!(message, "task three");
        assert_eq!(done.load(Relaxed), 15);
        pool.run(16, &|_| {
            done.fetch_add(1, Relaxed);
        });
        assert_eq!(done.into_inner(), 31, "the pool works on after a panic");
    }

    #[test]
    fn runs_nest_and_threads_take_turns() {
        let pool = Pool::new(2);
        let total = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        pool.run(3, &|_| {
                            pool.run(2, &|_| {
                                total.fetch_add(1, Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 3 * 50 * 6);
    }
}
