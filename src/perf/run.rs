//! A run from the command line to the exit status.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::CtaPolicy;
use crate::Settings;
use crate::UniqueId;
use crate::engine::error::Error;
use crate::engine::types::Collective;
use crate::perf::backend::engine::Engine;
use crate::perf::backend::{LaneWishes, Library, Steering};
use crate::perf::cli::config::{BackendKind, Launch, Notices, SweepConfig};
use crate::perf::cli::{self, Parsed};
use crate::perf::crew::Crew;
use crate::perf::environment;
use crate::perf::exit::{Failure, Result, Status};
use crate::perf::fatal;
use crate::perf::job::{self, Capped, Job};
use crate::perf::measure::{Bench, Seat, Setting, buffer_bytes};
use crate::perf::plan;
use crate::perf::report::csv::{Common, Details};
use crate::perf::report::text::MemoryLine;
use crate::perf::report::{Closing, Report};
use crate::perf::sweep::Forcing;
use crate::rendezvous::{self, LaunchMode, World};
use crate::watch::{self, Activity, Phase, Watch, WatchParams};

/// Runs the program for `collective` and gives its exit status.
pub fn main(collective: Collective) -> i32 {
    let args: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    match cli::parse(args, collective, &environment::settings()) {
        Ok(Parsed::Text(text)) => {
            fatal::show(&text);
            Status::Success.code()
        }
        Ok(Parsed::Run(config, notices)) => start(&config, &notices),
        Err(failure) => {
            if environment::speaks() {
                eprintln!("{failure}");
            }
            failure.status.code()
        }
    }
}

fn start(config: &SweepConfig, notices: &Notices) -> i32 {
    let mode = match config.launch {
        Launch::Auto => LaunchMode::Auto,
        Launch::Mpi => LaunchMode::Mpi,
        Launch::Env => LaunchMode::Env,
        Launch::Local => LaunchMode::Local,
    };
    let world = match rendezvous::find(mode, config.limit) {
        Ok(world) => Arc::new(world),
        Err(failed) => {
            if failed.speaks {
                eprintln!("{}: {}", config.program, failed.error);
            }
            return Status::of(&failed.error).code();
        }
    };
    if world.process == 0 {
        notices.stdout.iter().for_each(|line| fatal::show(&format!("{line}\n")));
        notices.stderr.iter().for_each(|line| eprintln!("{line}"));
        environment::warnings(&crate::env::names()).iter().for_each(|line| eprintln!("{line}"));
    }
    let report = (world.process == 0).then(|| {
        let environment: Vec<String> =
            environment::recorded().iter().map(|(k, v)| format!("{k}={v}")).collect();
        Arc::new(Mutex::new(Report::open(config, Box::new(std::io::stdout()), &environment)))
    });
    let ranks = config.ranks_per_process();
    let params = WatchParams {
        process: world.process,
        n_processes: world.n_processes,
        ranks: world.process * ranks..(world.process + 1) * ranks,
        limit: config.limit,
        on_fatal: Arc::new(fatal::ending(config, &world.host, report.clone())),
    };
    let watch = match Watch::start(params, &mut |bytes| world.all_gather(bytes)) {
        Ok(watch) => watch,
        Err(error) => {
            eprintln!("{}: {error}", config.program);
            world.abort(Status::of(&error).code());
        }
    };
    if world.mode == LaunchMode::Mpi {
        watch.leave_word_of_sigterm_to_the_launcher();
    }
    let run = Run { config, world: world.clone(), report };
    let status = run.all().unwrap_or_else(|failure| watch.fail(failure.into_error()));
    drop(run);
    watch.finish();
    match Arc::into_inner(world).map(World::finalize) {
        Some(Err(error)) => {
            eprintln!("{}: {error}", config.program);
            Status::of(&error).code()
        }
        _ => status.code(),
    }
}

struct Run<'a> {
    config: &'a SweepConfig,
    world: Arc<World>,
    report: Option<Arc<Mutex<Report>>>,
}

impl Run<'_> {
    fn report(&self) -> Option<MutexGuard<'_, Report>> {
        self.report.as_ref().map(|report| report.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Everything between the banner and the footer.
    fn all(&self) -> Result<Status> {
        let config = self.config;
        let starting = watch::enter(Activity { phase: Phase::StartUp, collective: None, bytes: 0 });
        let job = Job::gather(&self.world, config, &crate::device_name())?;
        if let Some(mut report) = self.report() {
            report.devices(&job.devices());
        }
        let library = self.library(&job)?;
        let library = library.as_ref();
        self.connect(library, &job)?;
        let initialization = library.memory().library;
        let capped = job::cap(&self.world, config, initialization)?;
        if let Some(mut report) = self.report().filter(|_| capped.lowered) {
            report.memory_cap(capped.sizes.max);
        }
        let tables = match library.steering() {
            Some(steering) => plan::existing(config, steering, &capped, job.n_ranks())?,
            None => vec![Forcing::default()],
        };
        if config.plan_only {
            return self.plan(library, &capped, &job, &tables);
        }
        self.open_record(&job, library)?;
        if let Some(mut report) = self.report() {
            report.expect_rows(rows(config, &capped, tables.len()));
        }
        drop(starting);
        self.measure(library, &capped, &job, &tables)?;
        self.conclude(library, initialization)
    }

    fn library(&self, job: &Job) -> Result<Box<dyn Library>> {
        match self.config.backend {
            BackendKind::Engine => {
                let mut settings = Settings::from_env(self.config.limit)?;
                // As in NCCL, the environment wins over what the program asks for.
                let asked = self.config.cta_policy.and_then(CtaPolicy::from_number);
                settings.cta_policy = settings.cta_policy.or(asked);
                let id = self.group_id(job, &settings)?;
                Ok(Box::new(Engine::new(id, job.n_ranks(), settings, self.config.limit)))
            }
            #[cfg(feature = "mpi")]
            BackendKind::Mpi => {
                if self.config.ranks_per_process() > 1 {
                    return Err(Failure::usage("--backend mpi: one rank a process, so -t and -g must be 1"));
                }
                if self.world.mode != LaunchMode::Mpi {
                    let message = "--backend mpi: start the program with mpirun";
                    return Err(Failure::new(Status::Unavailable, message));
                }
                let group = crate::perf::backend::mpi::Group {
                    color: job.color(),
                    process: self.world.process,
                    n_hosts: self.world.n_hosts,
                };
                let (collective, forced) = (self.config.collective, &self.config.forced);
                Ok(Box::new(crate::perf::backend::mpi::Mpi::new(&group, collective, forced)?))
            }
            #[cfg(not(feature = "mpi"))]
            BackendKind::Mpi => {
                Err(Failure::new(Status::Unavailable, "--backend mpi: this build has no MPI"))
            }
        }
    }

    /// The group's name, made by its first process.
    fn group_id(&self, job: &Job, settings: &Settings) -> Result<UniqueId> {
        let mine = if job.leader() == self.world.process {
            UniqueId::create(&settings.bootstrap).map_err(Error::from)?.to_bytes().to_vec()
        } else {
            Vec::new()
        };
        let all = self.world.all_gather(&mine)?;
        let bytes: Option<&[u8; 128]> = all[job.leader()].as_slice().try_into().ok();
        let bytes =
            bytes.ok_or_else(|| Error::Internal("the first process of the group sent no id".into()))?;
        Ok(UniqueId::from_bytes(bytes).map_err(Error::from)?)
    }

    fn connect(&self, library: &dyn Library, job: &Job) -> Result<()> {
        let ranks = job.ranks();
        if !self.config.parallel_init {
            return Ok(library.connect(&ranks)?);
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> = ranks
                .chunks(self.config.n_devices)
                .map(|part| scope.spawn(move || library.connect(part)))
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("invariant: no panic in set-up"))
        })?;
        Ok(())
    }

    fn plan(&self, library: &dyn Library, capped: &Capped, job: &Job, tables: &[Forcing]) -> Result<Status> {
        let ranks_on_host = self.world.n_local_processes * self.config.ranks_per_process();
        let extent = plan::Extent { n_ranks: job.n_ranks(), ranks_on_host };
        let text = plan::describe(self.config, library, capped, extent, tables)?;
        if let Some(mut report) = self.report() {
            report.line(text.trim_end());
            report.close(Closing::Complete);
        }
        self.world.barrier()?;
        Ok(Status::Success)
    }

    fn open_record(&self, job: &Job, library: &dyn Library) -> Result<()> {
        let (Some(mut report), Some(path)) = (self.report(), &self.config.csv) else { return Ok(()) };
        let details = Details {
            launcher: self.world.mode.name().into(),
            environment: environment::recorded(),
            common: Common {
                backend: self.config.backend.name().into(),
                device: job.device_name().into(),
                n_hosts: library.steering().map_or(self.world.n_hosts, Steering::n_hosts) as u32,
                n_ranks: job.n_ranks() as u32,
                collective: self.config.collective.name().into(),
            },
        };
        report.record(path, &self.config.args, environment::identity(), details).map_err(|error| {
            // A file of another form names itself.
            let is_named = error.kind() == std::io::ErrorKind::InvalidData;
            Error::system(if is_named { "--csv".into() } else { format!("--csv {path}") }, error).into()
        })
    }

    /// Threads with their ranks, all running the same sweep; the first failure ends all.
    fn measure(&self, library: &dyn Library, capped: &Capped, job: &Job, tables: &[Forcing]) -> Result<()> {
        let config = self.config;
        let crew = &Crew::new(self.world.clone(), config.n_threads);
        let bytes = buffer_bytes(capped.sizes.max, capped.span, config.unalign) as usize;
        let setting = Setting {
            config,
            sizes: capped.sizes,
            span: capped.span,
            tables,
            n_ranks: job.n_ranks(),
            library,
            crew,
            report: self.report.as_deref(),
        };
        let ranks = job.ranks();
        let mut parts = ranks.chunks(config.n_devices).map(<[usize]>::to_vec).collect::<Vec<_>>();
        let wishes = LaneWishes { register: config.register, default_stream: config.default_stream };
        let seats_of = |ranks: &[usize]| -> Result<Vec<Seat>> {
            let lanes = library.lanes(ranks, bytes, wishes)?;
            Ok(ranks.iter().zip(lanes).map(|(&rank, lane)| Seat { rank, lane }).collect())
        };
        let mut ready: Vec<Option<Vec<Seat>>> = parts.iter().map(|_| None).collect();
        if !config.parallel_init {
            let mut seats = seats_of(&ranks)?.into_iter();
            for (part, slot) in parts.iter().zip(&mut ready) {
                *slot = Some(seats.by_ref().take(part.len()).collect());
            }
        }
        let work = |thread: usize, ranks: Vec<usize>, seats: Option<Vec<Seat>>| {
            let alarm = Alarm { crew };
            let seats = seats.map_or_else(|| seats_of(&ranks), Ok);
            let done = seats.and_then(|seats| Bench::new(setting, thread, seats).run());
            if let Err(failure) = &done {
                crew.fail(failure.clone());
            }
            drop(alarm);
            done
        };
        let work = &work;
        std::thread::scope(|scope| {
            let first = (parts.remove(0), ready.remove(0));
            let threads: Vec<_> = parts
                .into_iter()
                .zip(ready)
                .enumerate()
                .map(|(i, (ranks, seats))| scope.spawn(move || work(i + 1, ranks, seats)))
                .collect();
            let mine = work(0, first.0, first.1);
            let theirs = threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(panicked())));
            std::iter::once(mine).chain(theirs.collect::<Vec<_>>()).collect::<Result<()>>()
        })
    }

    /// Footer, files and the status all processes agree on.
    fn conclude(&self, library: &dyn Library, initialization: u64) -> Result<Status> {
        let memory =
            if self.config.report_memory { Some(self.memory(library, initialization)?) } else { None };
        let mut status = Status::Success;
        if let Some(mut report) = self.report() {
            if report.pipe_closed() {
                report.close(Closing::Interrupted("nobody read the table any more".into()));
            } else {
                report.finish(memory, "");
            }
            status = match report.fast_enough() {
                _ if report.failed_checks() > 0 => Status::WrongData,
                _ if report.is_incomplete() => Status::Internal,
                Some(false) if !report.pipe_closed() => Status::TooSlow,
                _ => Status::Success,
            };
            if status == Status::WrongData {
                fatal::show(&fatal::trace(&self.world.host, file!(), line!()));
            }
        }
        let mut agreed = vec![status.code() as u8];
        self.world.broadcast(&mut agreed)?;
        Ok(Status::ALL.iter().copied().find(|s| s.code() == i32::from(agreed[0])).unwrap_or(status))
    }

    fn memory(&self, library: &dyn Library, initialization: u64) -> Result<MemoryLine> {
        let now = library.memory();
        let mine = [initialization as f64, now.user as f64, now.library as f64 - initialization as f64];
        let most = self.world.reduce_f64(&mine, rendezvous::Reduction::Max)?;
        let [initialization, user, collective] = [most[0] as i64, most[1] as i64, most[2] as i64];
        Ok(MemoryLine { initialization, user, collective, total: initialization + user + collective })
    }
}

/// Lets nobody wait for a thread that panicked.
struct Alarm<'a> {
    crew: &'a Crew,
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.crew.fail(panicked());
        }
    }
}

fn panicked() -> Failure {
    Failure::new(Status::Internal, "a thread of the harness panicked")
}

/// Rows the sweep will print, for the bar; 0 when it never ends.
fn rows(config: &SweepConfig, capped: &Capped, n_tables: usize) -> u64 {
    let sizes: usize = config.dtypes.iter().map(|&d| capped.sizes.iter(d).count()).sum();
    (sizes * config.ops.len() * n_tables) as u64 * u64::from(config.cycles)
}
