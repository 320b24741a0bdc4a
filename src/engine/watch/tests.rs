//! Processes as threads: each has a watch of its own whose exit is a message.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::engine::error::Error;
use crate::engine::types::Collective;
use crate::engine::watch::board::tests::{Scripted, progress};
use crate::engine::watch::board::{Activity, Board, Phase, ProgressProbe};
use crate::engine::watch::{Watch, WatchParams};

/// One process of the job: its watch, its board, what it would have exited with, and what on_fatal was told.
struct Process {
    watch: Option<Watch>,
    board: Arc<Board>,
    exited: Receiver<i32>,
    told: Arc<Mutex<Option<Error>>>,
}

impl Process {
    fn exit_status(&self) -> Option<i32> {
        self.exited.recv_timeout(Duration::from_secs(5)).ok()
    }

    fn enters(&self, activity: Activity) {
        self.board.exchange(activity);
    }

    fn last_error(&self) -> String {
        self.told.lock().expect("no panic").as_ref().map_or_else(String::new, ToString::to_string)
    }
}

fn job(n: usize, limit: Option<Duration>) -> Vec<Process> {
    let (meet, parts) = (Barrier::new(n), Mutex::new(vec![Vec::new(); n]));
    let one = |process: usize| {
        let board = Arc::new(Board::default());
        let (exit, exited) = channel();
        let told = Arc::new(Mutex::new(None));
        let heard = Arc::clone(&told);
        let on_fatal = move |error: &Error| {
            *heard.lock().expect("no panic") = Some(error.clone());
            match error {
                Error::PeerDied(_) => 3,
                Error::Timeout { .. } => 4,
                _ => 1,
            }
        };
        let params = WatchParams {
            process,
            n_processes: n,
            ranks: process * 2..process * 2 + 2,
            limit,
            on_fatal: Arc::new(on_fatal),
        };
        let mut exchange = |bytes: &[u8]| {
            parts.lock().expect("no panic")[process] = bytes.to_vec();
            meet.wait();
            let all = parts.lock().expect("no panic").clone();
            meet.wait();
            Ok(all)
        };
        let exit = Box::new(move |status| exit.send(status).unwrap_or(()));
        let watch = Watch::start_with(params, &mut exchange, Vec::new(), Arc::clone(&board), exit)
            .expect("connected");
        Process { watch: Some(watch), board, exited, told }
    };
    thread::scope(|scope| {
        let one = &one;
        let processes: Vec<_> = (0..n).map(|process| scope.spawn(move || one(process))).collect();
        processes.into_iter().map(|process| process.join().expect("no panic")).collect()
    })
}

fn busy(bytes: u64) -> Activity {
    Activity { phase: Phase::Timing, collective: Some(Collective::AllReduce), bytes }
}

#[test]
fn a_good_bye_is_never_taken_for_a_death() {
    let mut processes = job(4, None);
    processes.iter().for_each(|process| process.enters(busy(8)));
    processes.remove(2).watch.take().expect("running").finish();
    thread::sleep(Duration::from_millis(150));
    for process in &mut processes {
        assert!(process.exited.try_recv().is_err(), "{}", process.last_error());
        process.watch.take().expect("running").finish();
    }
}

#[test]
fn a_failure_is_told_to_all_with_its_words() {
    let mut processes = job(3, None);
    processes.iter().for_each(|process| process.enters(busy(1024)));
    let failed = processes.remove(1);
    let handle = failed.watch.as_ref().expect("running").handle();
    handle
        .order(|orders| orders.failure = Some(Error::NoSuchCombination("nvls with ll: choose ring".into())));
    assert_eq!(failed.exit_status(), Some(1));
    for process in processes {
        assert_eq!(process.exit_status(), Some(1));
        assert_eq!(process.last_error(), "nvls with ll: choose ring");
    }
}

#[test]
fn a_dead_process_is_named_with_operation_and_size_and_waits_are_freed() {
    let mut processes = job(4, None);
    let probe = Arc::new(Scripted::default());
    for process in &processes {
        process.board.exchange(busy(65536));
    }
    processes[0].board.attach(&(Arc::clone(&probe) as Arc<dyn ProgressProbe>));
    let started = Instant::now();
    let dead = processes.remove(2);
    // Its sockets close without a word: the mesh is dropped with the thread that held it.
    dead.watch.as_ref().expect("running").handle.order(|orders| orders.vanish = true);
    for process in &processes {
        assert_eq!(process.exit_status(), Some(3));
        let text = process.last_error();
        assert!(text.starts_with("rank 4 to 5 (process 2, pid "), "{text}");
        assert!(text.ends_with(" died in all_reduce of 65536 bytes (timing)"), "{text}");
    }
    assert!(started.elapsed() < Duration::from_secs(2));
    assert!(
        probe.aborted.lock().expect("no panic").as_deref().is_some_and(|text| text.contains("rank 4 to 5"))
    );
}

#[test]
fn nothing_that_moves_is_ever_late() {
    let limit = Duration::from_millis(300);
    let mut processes = job(2, Some(limit));
    processes[0].board.exchange(busy(8));
    processes[1].board.exchange(Activity { phase: Phase::Checking, ..busy(8) });
    let end = Instant::now() + 4 * limit;
    while Instant::now() < end {
        // Only process 1 moves; process 0 waits for it and learns so by asking.
        processes[1].board.tick();
        thread::sleep(Duration::from_millis(10));
    }
    for process in &mut processes {
        assert!(process.exited.try_recv().is_err(), "{}", process.last_error());
        process.watch.take().expect("running").finish();
    }
}

#[test]
fn an_idle_process_is_never_late() {
    let process = job(1, Some(Duration::from_millis(100))).remove(0);
    thread::sleep(Duration::from_millis(400));
    assert!(process.exited.try_recv().is_err(), "{}", process.last_error());
}

#[test]
fn when_nothing_moves_the_limit_ends_all_with_rank_and_step() {
    let limit = Duration::from_millis(400);
    let processes = job(2, Some(limit));
    let probe = Arc::new(Scripted::default());
    *probe.progress.lock().expect("no panic") = vec![progress(0, 9, Some(3)), progress(3, 5, None)];
    for process in &processes {
        process.board.exchange(busy(4096));
        process.board.attach(&(Arc::clone(&probe) as Arc<dyn ProgressProbe>));
    }
    let started = Instant::now();
    for process in &processes {
        assert_eq!(process.exit_status(), Some(4));
        let text = process.last_error();
        assert!(
            text.starts_with("rank 3 is late in all_reduce of 4096 bytes (timing), operation 7, step 5"),
            "{text}"
        );
        assert!(text.contains("rank 0 for rank 3 at step 9") && text.ends_with("(limit 0.4 s)"), "{text}");
    }
    let waited = started.elapsed();
    assert!(
        waited >= limit - Duration::from_millis(50) && waited < limit + Duration::from_secs(2),
        "{waited:?}"
    );
}

#[test]
fn a_process_that_does_not_answer_is_named() {
    let limit = Duration::from_millis(600);
    let mut processes = job(3, Some(limit));
    processes.iter().for_each(|process| process.enters(busy(512)));
    let stopped = processes.remove(1);
    stopped
        .watch
        .as_ref()
        .expect("running")
        .handle
        .order(|orders| orders.sleep = Some(Duration::from_secs(4)));
    for process in &processes {
        assert_eq!(process.exit_status(), Some(4));
        let text = process.last_error();
        assert!(text.starts_with("rank 2 to 3 (process 1, pid "), "{text}");
        assert!(text.contains("does not answer in all_reduce of 512 bytes"), "{text}");
    }
}

#[test]
fn an_error_met_by_another_thread_gives_way_to_the_death_that_caused_it() {
    let mut processes = job(3, None);
    processes.iter().for_each(|process| process.enters(busy(2048)));
    let dead = processes.remove(2);
    let survivor = processes[0].watch.as_ref().expect("running").handle();
    survivor.order(|orders| orders.failure = Some(Error::PeerDied("connection closed".into())));
    thread::sleep(Duration::from_millis(30));
    dead.watch.as_ref().expect("running").handle.order(|orders| orders.vanish = true);
    for process in &processes {
        assert_eq!(process.exit_status(), Some(3));
        assert!(process.last_error().contains("process 2"), "{}", process.last_error());
    }
}
