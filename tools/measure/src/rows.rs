//! The rows of the table, each with its targets.

use crate::cluster::{self, Loss};
use crate::memory::Group;
use crate::servers::{Kind, Server};
use crate::steps::{Pair, figure, kinds, largest, launch, load_one, milliseconds, plan_one, ratio, run_all, show};
use crate::volume::Volume;
use crate::{Failure, Setting};
use garboard_bench::{Metric, Report, Task, anonymous_bytes, file_bytes, measure, measure_floor, written_bytes};
use std::time::{Duration, Instant};

/// A row, and how it is measured.
pub struct Row {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it measures.
    pub what: &'static str,
    /// Measures it.
    pub measure: fn(&Setting) -> Result<Vec<Line>, Failure>,
}

/// Every row, in the order of the table.
pub const ROWS: &[Row] = &[
    Row { name: "floor", what: "put p50, 1 client, beside the disk's write and a no-op call", measure: floor },
    Row { name: "p99", what: "put p99, 10 clients", measure: p99 },
    Row { name: "throughput-200", what: "puts/s, 200 in flight", measure: |setting| throughput(setting, 200, 2.0) },
    Row {
        name: "throughput-1000",
        what: "puts/s, 1,000 in flight",
        measure: |setting| throughput(setting, 1_000, 1.8),
    },
    Row { name: "reads", what: "server CPU of reads of a key", measure: reads },
    Row {
        name: "bytes-100k",
        what: "bytes written per put, 100,000 keys",
        measure: |setting| bytes(setting, 100_000, 1.0),
    },
    Row {
        name: "bytes-1m",
        what: "bytes written per put, 1,000,000 keys",
        measure: |setting| bytes(setting, 1_000_000, 1.5),
    },
    Row { name: "count", what: "count of 1,000,000 keys, now and 1,000 writes ago", measure: count },
    Row { name: "restart", what: "kill −9 under load, until a read answers", measure: |setting| restart(setting, 1) },
    Row { name: "restart-history", what: "the same with 10 × the history", measure: |setting| restart(setting, 10) },
    Row {
        name: "compact",
        what: "put p99 while 800,000 revisions are compacted",
        measure: |s| disturbed(s, "compact"),
    },
    Row {
        name: "ranges",
        what: "put p99 and memory while 200 MB are read in a loop",
        measure: |s| disturbed(s, "ranges"),
    },
    Row { name: "checkpoint", what: "put p99 while checkpoints run", measure: |s| disturbed(s, "checkpoint") },
    Row { name: "defragment", what: "put p99 while Defragment is called", measure: |s| disturbed(s, "defragment") },
    Row { name: "watch", what: "10,000 + 100 watchers at 5,000 puts/s", measure: |setting| watch(setting, "watch", 1) },
    Row {
        name: "watch-share",
        what: "the same, the 100 watch a hundredth of the keys",
        measure: |setting| watch(setting, "watch-share", 100),
    },
    Row { name: "memory", what: "anonymous memory, idle and with 1,000,000 keys of 1 KiB", measure: memory },
    Row { name: "cluster-put", what: "three members: put p50 through leader and follower", measure: cluster::put },
    Row {
        name: "cluster-throughput",
        what: "three members: puts/s, CPU of puts and of linearizable reads",
        measure: cluster::throughput,
    },
    Row {
        name: "cluster-kill",
        what: "three members: gap between writes, leader killed",
        measure: |setting| cluster::failover(setting, Loss::Killed),
    },
    Row {
        name: "cluster-pause",
        what: "three members: gap between writes, leader silent",
        measure: |setting| cluster::failover(setting, Loss::Paused),
    },
    Row {
        name: "cluster-vanish",
        what: "three members: gap between writes, leader's host off the network",
        measure: |setting| cluster::failover(setting, Loss::Vanished),
    },
    Row {
        name: "cluster-stop",
        what: "three members: gap between writes, leader stopped by SIGTERM",
        measure: |setting| cluster::failover(setting, Loss::Stopped),
    },
    Row {
        name: "cluster-move",
        what: "three members: gap between writes, leader moved",
        measure: |setting| cluster::failover(setting, Loss::Moved),
    },
    Row {
        name: "cluster-snapshot",
        what: "three members: put p99 while a learner is filled with 2 GB",
        measure: cluster::snapshot,
    },
];

/// A line of the table.
#[derive(Debug)]
pub struct Line {
    what: String,
    target: String,
    garboard: String,
    etcd: String,
    /// Whether the target is met, if there is one and it could be told.
    pub met: Option<bool>,
}

impl Line {
    /// With a target, and whether it is met.
    pub fn new(what: &str, target: &str, garboard: String, etcd: String, met: Option<bool>) -> Self {
        Self { what: what.to_owned(), target: target.to_owned(), garboard, etcd, met }
    }

    /// A figure that is to be at most a share of etcd's.
    pub fn ratio(
        what: &str,
        report: &Report,
        metric: Metric,
        show: impl Fn(Option<f64>) -> String,
        bound: f64,
    ) -> Self {
        let (garboard, etcd) = compared(report, metric, show);
        Self::new(what, &format!("≤ {bound} × etcd's"), garboard, etcd, at_most(ratio(report, metric), bound))
    }

    /// A row that could not be measured.
    pub fn failed(what: &str, failure: &Failure) -> Self {
        let why = failure.to_string().replace(['\n', '|'], " ");
        Self::new(what, "", format!("not measured: {why}"), String::new(), None)
    }

    /// As a line of a Markdown table.
    pub fn to_markdown(&self, row: &str) -> String {
        let met = match self.met {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "–",
        };
        format!("| {row} | {} | {} | {} | {} | {met} |", self.what, self.target, self.garboard, self.etcd)
    }
}

fn floor(setting: &Setting) -> Result<Vec<Line>, Failure> {
    let pair = Pair::start(setting, "floor")?;
    let total = setting.scaled(3_000);
    let line = format!("floor --dir {} --clients 1 --conns 1 --total {total}", setting.folder("floor")?.display());
    let Task::Floor(disk, puts) = pair.task(setting, &line)? else {
        return Err(Failure::new("floor is another task".into()));
    };
    let report = measure_floor(&disk, &puts, &mut |text| eprintln!("{text}"))?;
    setting.keep(&report.to_text());
    let first = &report.targets[0];
    let (disk, noop, put) = (first.median.disk_p50_us, first.median.noop_p50_us, first.median.put_p50_us);
    let garboard = format!("{:.2} × ({put:.0} µs; disk {disk:.0} + no-op {noop:.0} µs)", first.median.ratio);
    let etcd = report.targets.get(1).map_or_else(
        || "–".to_owned(),
        |etcd| format!("{:.2} × ({:.0} µs)", etcd.ratio_to_first_floor, etcd.median.put_p50_us),
    );
    let met = first.median.ratio <= 1.25;
    Ok(vec![Line::new("put p50, 1 client, by disk write + no-op call", "≤ 1.25 ×", garboard, etcd, Some(met))])
}

fn at_most(value: Option<f64>, bound: f64) -> Option<bool> {
    value.map(|value| value <= bound)
}

fn at_least(value: Option<f64>, bound: f64) -> Option<bool> {
    value.map(|value| value >= bound)
}

/// One server's figure and, for the first, what it is of the other's.
fn compared(report: &Report, metric: Metric, show: impl Fn(Option<f64>) -> String) -> (String, String) {
    let garboard = match ratio(report, metric) {
        Some(ratio) => format!("{} ({ratio:.2} ×)", show(figure(report, 0, metric))),
        None => show(figure(report, 0, metric)),
    };
    (garboard, show(figure(report, 1, metric)))
}

fn p99(setting: &Setting) -> Result<Vec<Line>, Failure> {
    let pair = Pair::start(setting, "p99")?;
    let report = pair.load(setting, &format!("put --clients 10 --conns 10 --total {}", setting.scaled(40_000)))?;
    let (garboard, etcd) = compared(&report, Metric::LatencyP99Us, milliseconds);
    let met = at_most(ratio(&report, Metric::LatencyP99Us), 1.0 / 3.0);
    let (p50, p50_etcd) = compared(&report, Metric::LatencyP50Us, milliseconds);
    Ok(vec![
        Line::new("put p99, 10 clients", "≤ 1/3 of etcd's", garboard, etcd, met),
        Line::new("put p50, 10 clients", "", p50, p50_etcd, None),
    ])
}

fn throughput(setting: &Setting, clients: u32, times: f64) -> Result<Vec<Line>, Failure> {
    let pair = Pair::start(setting, &format!("throughput-{clients}"))?;
    let load = format!("--clients {clients} --conns 8 --total {}", setting.scaled(100_000));
    let puts = pair.plan(setting, &format!("put {load}"))?;
    let noops = plan_one(&pair.servers[0], &format!("noop {load} --rounds {}", setting.rounds()))?;
    let reports = run_all(setting, &[puts, noops])?;
    let (puts, noops) = (&reports[0], &reports[1]);
    let metric = Metric::ThroughputPerSecond;
    let (garboard, etcd) = compared(puts, metric, |rate| show(rate, 0, "/s"));
    let noop = figure(noops, 0, metric);
    let share = figure(puts, 0, metric).zip(noop).map(|(put, noop)| put / noop);
    let by_noop = format!("{} % of {}", show(share.map(|share| share * 100.0), 0, ""), show(noop, 0, "/s"));
    let what = format!("puts/s, {clients} in flight");
    let cpu = Metric::ServerCpuSecondsPer1000;
    let (cpu_garboard, cpu_etcd) = compared(puts, cpu, |seconds| show(seconds, 4, " s"));
    let own = figure(puts, 0, Metric::GeneratorCpuSecondsPer1000);
    let cpu_garboard = format!("{cpu_garboard}; the load itself {}", show(own, 4, " s"));
    let cpu_met = (clients == 1_000).then(|| at_most(ratio(puts, cpu), 0.4)).flatten();
    let cpu_target = if clients == 1_000 { "≤ 0.4 × etcd's" } else { "" };
    Ok(vec![
        Line::new(&what, &format!("≥ {times} × etcd's"), garboard, etcd, at_least(ratio(puts, metric), times)),
        Line::new(&what, "≥ 70 % of no-op calls", by_noop, String::new(), at_least(share, 0.7)),
        Line::new(
            &format!("server CPU per 1,000 puts, {clients} in flight"),
            cpu_target,
            cpu_garboard,
            cpu_etcd,
            cpu_met,
        ),
    ])
}

fn reads(setting: &Setting) -> Result<Vec<Line>, Failure> {
    let pair = Pair::start(setting, "reads")?;
    let load = format!("range --clients 64 --conns 8 --total {}", setting.scaled(60_000));
    let plans = [pair.plan(setting, &load)?, pair.plan(setting, &format!("{load} --serializable"))?];
    let reports = run_all(setting, &plans)?;
    let mut lines = Vec::new();
    for (report, name) in reports.iter().zip(["linearizable", "serializable"]) {
        let cpu = Metric::ServerCpuSecondsPer1000;
        let (garboard, etcd) = compared(report, cpu, |seconds| show(seconds, 4, " s"));
        let what = format!("server CPU per 1,000 {name} reads of a key, 64 clients");
        lines.push(Line::new(&what, "≤ 0.4 × etcd's", garboard, etcd, at_most(ratio(report, cpu), 0.4)));
        let (garboard, etcd) = compared(report, Metric::ThroughputPerSecond, |rate| show(rate, 0, "/s"));
        lines.push(Line::new(&format!("{name} reads/s"), "", garboard, etcd, None));
    }
    Ok(lines)
}

/// What one server wrote for each put: by its file system's device, and by the kernel's count for the process.
struct Written {
    device: Option<f64>,
    process: f64,
}

fn bytes(setting: &Setting, keys: u64, times: f64) -> Result<Vec<Line>, Failure> {
    let name = if keys == 100_000 { "bytes-100k" } else { "bytes-1m" };
    let mut written = Vec::new();
    for kind in kinds(setting) {
        written.push(bytes_of(setting, kind, name, keys)?);
    }
    let shown = |written: Option<&Written>| match written {
        Some(Written { device, process }) => {
            format!("{} (process: {process:.0})", show(*device, 0, ""))
        }
        None => "–".to_owned(),
    };
    let of = |written: &Written| written.device.unwrap_or(written.process);
    let ratio = written.get(1).map(|etcd| of(&written[0]) / of(etcd));
    let what =
        format!("bytes written per put of 256 bytes, 200 in flight, {keys} keys, {} puts", setting.scaled(1_000_000));
    let garboard = format!("{}, {}", shown(written.first()), show(ratio, 2, " ×"));
    let target = format!("≤ {times} × etcd's");
    Ok(vec![Line::new(&what, &target, garboard, shown(written.get(1)), at_most(ratio, times))])
}

fn bytes_of(setting: &Setting, kind: Kind, row: &str, keys: u64) -> Result<Written, Failure> {
    const VOLUME_BYTES: u64 = 12 << 30;
    let folder = setting.folder(row)?;
    let volume = match Volume::new(&folder, VOLUME_BYTES) {
        Ok(volume) => Some(volume),
        Err(failure) => {
            eprintln!("no file system of its own, so only the process is looked at: {failure}");
            None
        }
    };
    let place = volume.as_ref().map_or(folder.as_path(), Volume::path);
    let server = launch(setting, kind, place)?.start_and_wait()?;
    let on_device = |volume: &Option<Volume>| volume.as_ref().map(Volume::written_bytes).transpose();
    let (device_before, process_before) = (on_device(&volume)?, written_bytes(&[server.pid()])?);
    let (puts, keys) = (setting.scaled(1_000_000), setting.scaled(keys));
    let line = format!("put --clients 200 --conns 8 --total {puts} --key-space {keys} --warmup 0");
    load_one(setting, &server, &line)?;
    let plan = plan_one(&server, "put")?;
    garboard_bench::save(&plan.targets[0])?;
    // The kernel's counts of the process are gone with it; what it still writes when it stops only the device shows.
    let process = written_bytes(&[server.pid()])? - process_before;
    server.stop()?;
    let device = on_device(&volume)?.zip(device_before).map(|(after, before)| (after - before) as f64 / puts as f64);
    let written = Written { device, process: process as f64 / puts as f64 };
    let name = kind.name();
    setting.keep(&format!(
        "{name}: {} bytes per put on the device, {} by the process\n",
        show(device, 1, ""),
        written.process
    ));
    Ok(written)
}

fn count(setting: &Setting) -> Result<Vec<Line>, Failure> {
    let pair = Pair::start(setting, "count")?;
    let keys = setting.scaled(1_000_000);
    let load = format!("count --clients 1 --conns 1 --key-space {keys} --total 50 --warmup 5");
    let mut lines = Vec::new();
    for (what, more, bound_us) in [("now", "", 1_000.0), ("1,000 writes ago", " --rev-ago 1000", 5_000.0)] {
        let report = pair.load(setting, &format!("{load}{more}"))?;
        let shown = |server| {
            let of = |metric| milliseconds(figure(&report, server, metric));
            format!("p50 {}, p99 {}", of(Metric::LatencyP50Us), of(Metric::LatencyP99Us))
        };
        let what = format!("count of a prefix with {keys} keys, {what}");
        let target = format!("p50 < {} ms at the client", bound_us / 1e3);
        let met = figure(&report, 0, Metric::LatencyP50Us).map(|p50| p50 < bound_us);
        let etcd = if pair.servers.len() > 1 { shown(1) } else { "–".to_owned() };
        lines.push(Line::new(&what, &target, shown(0), etcd, met));
    }
    Ok(lines)
}

/// How long a killed server took.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    from_kill: Duration,
    from_start: Duration,
}

fn restart(setting: &Setting, histories: u64) -> Result<Vec<Line>, Failure> {
    let row = if histories == 1 { "restart" } else { "restart-history" };
    let (mut warm, mut cold) = (Vec::new(), Vec::new());
    for kind in kinds(setting) {
        // Ten histories of etcd's need more room than they are worth.
        if histories > 1 && kind == Kind::Etcd {
            continue;
        }
        let (times, dropped) = restart_of(setting, kind, row, histories)?;
        warm.push(times);
        cold.push(dropped);
    }
    let shown = |times: Option<&Vec<Recovery>>| {
        times.and_then(|times| median(times)).map_or_else(
            || "–".to_owned(),
            |Recovery { from_kill, from_start }| {
                format!(
                    "{:.2} s ({:.2} s from the new process' start)",
                    from_kill.as_secs_f64(),
                    from_start.as_secs_f64()
                )
            },
        )
    };
    let (keys, puts) = (setting.scaled(1_000_000), setting.scaled(1_000_000) * histories);
    let what = format!(
        "kill −9 with 200 puts in flight, {keys} keys of 1 KiB, {puts} puts, until a linearizable read answers"
    );
    let met = warm.first().and_then(|times| median(times)).map(|median| median.from_kill < Duration::from_secs(1));
    Ok(vec![
        Line::new(&what, "< 1 s", shown(warm.first()), shown(warm.get(1)), met),
        Line::new("the same, page cache dropped", "", shown(cold.first()), shown(cold.get(1)), None),
    ])
}

fn median(times: &[Recovery]) -> Option<Recovery> {
    let mut times = times.to_vec();
    times.sort_by_key(|time| time.from_kill);
    times.get(times.len() / 2).copied()
}

fn restart_of(
    setting: &Setting,
    kind: Kind,
    row: &str,
    histories: u64,
) -> Result<(Vec<Recovery>, Vec<Recovery>), Failure> {
    let launch = launch(setting, kind, &setting.folder(row)?)?;
    let mut server = launch.start_and_wait()?;
    let keys = setting.scaled(1_000_000);
    let load = format!("--clients 200 --conns 8 --key-space {keys} --value-size 1024");
    // A count of all keys puts each of them once before.
    load_one(
        setting,
        &server,
        &format!("count --clients 8 --conns 8 --key-space {keys} --value-size 1024 --total 1 --warmup 0"),
    )?;
    for history in 1..histories {
        load_one(setting, &server, &format!("put {load} --total {keys} --warmup 0 --seed {history}"))?;
    }
    let (mut warm, mut cold) = (Vec::new(), Vec::new());
    for number in 0..2 * setting.rounds() {
        let drop_cache = number % 2 == 1;
        let (next, recovery) = crash(setting, &launch, server, &load, drop_cache)?;
        server = next;
        eprintln!("{}, page cache {}: {recovery:?}", kind.name(), if drop_cache { "dropped" } else { "kept" });
        setting.keep(&format!("{}, page cache dropped: {drop_cache}: {recovery:?}\n", kind.name()));
        if drop_cache { cold.push(recovery) } else { warm.push(recovery) }
    }
    Ok((warm, cold))
}

/// Kills a server under load and starts it again.
fn crash(
    setting: &Setting,
    launch: &crate::servers::Launch,
    server: Server,
    load: &str,
    drop_cache: bool,
) -> Result<(Server, Recovery), Failure> {
    /// How long the load has run when the server is killed.
    const LOADED: Duration = Duration::from_secs(3);
    let puts = plan_one(&server, &format!("put {load} --total {} --warmup 0", 1_000_000_000))?;
    let load = std::thread::spawn(move || measure(&puts, &mut |_| {}));
    std::thread::sleep(LOADED.mul_f64(setting.scale().clamp(0.1, 1.0)));
    if load.is_finished() {
        return Err(Failure::new("the load ended before the server was killed".into()));
    }
    let killed = Instant::now();
    server.kill()?;
    let mut paused = Duration::ZERO;
    if drop_cache {
        let begin = Instant::now();
        std::process::Command::new("sync").status()?;
        std::fs::write("/proc/sys/vm/drop_caches", "3")?;
        paused = begin.elapsed();
    }
    let started = Instant::now();
    let mut server = launch.start()?;
    server.wait_until_it_answers()?;
    let recovery = Recovery { from_kill: killed.elapsed() - paused, from_start: started.elapsed() };
    // It ends with an error as its connections broke.
    let _ = load.join();
    Ok((server, recovery))
}

fn disturbed(setting: &Setting, during: &'static str) -> Result<Vec<Line>, Failure> {
    const PAUSE_MAX_US: f64 = 20_000.0;
    const MEMORY_MAX_MIB: f64 = 64.0;
    let pair = Pair::start(setting, during)?;
    let line = format!(
        "put --during {during} --half-rate-of 10 --clients 256 --conns 10 --total {} --key-space {} \
         --compact-revisions {} --range-bytes {}",
        setting.scaled(50_000),
        setting.scaled(100_000),
        setting.scaled(800_000),
        setting.scaled(200_000_000),
    );
    let report = pair.load(setting, &line)?;
    let result = |server: usize| report.results.get(server);
    let p99 = |server| {
        let Some(result) = result(server) else { return "–".to_owned() };
        let during = result.disturbed.as_ref();
        let ratio = during.and_then(|during| during.ratio_to_quiet.get(Metric::LatencyP99Us));
        let during = during.and_then(|during| during.median.get(Metric::LatencyP99Us));
        let quiet = milliseconds(result.median.get(Metric::LatencyP99Us));
        let rate = show(result.rate_per_second, 0, "/s");
        format!("{} ({} quiet, {} at {rate})", show(ratio, 2, " ×"), quiet, milliseconds(during))
    };
    let pause = |server| {
        let during = result(server)?.disturbed.as_ref()?;
        largest(&during.rounds, Metric::LongestGapUs)
    };
    let pauses = |server| {
        let quiet = result(server).and_then(|result| largest(&result.rounds, Metric::LongestGapUs));
        format!("{} ({} quiet)", milliseconds(pause(server)), milliseconds(quiet))
    };
    let measured = report.results[0].disturbed.as_ref();
    let ratio = measured.and_then(|during| during.ratio_to_quiet.get(Metric::LatencyP99Us));
    let what = format!("put p99, half the rate of 10 clients, {during}");
    let mut lines = vec![
        Line::new(&what, "≤ 1.5 × quiet", p99(0), p99(1), at_most(ratio, 1.5)),
        Line::new(
            &format!("longest time without an answer, {during}"),
            "≤ 20 ms",
            pauses(0),
            pauses(1),
            at_most(pause(0), PAUSE_MAX_US),
        ),
    ];
    if during == "ranges" {
        let added = |server| {
            let rounds = &result(server)?.disturbed.as_ref()?.rounds;
            let added = rounds.iter().filter_map(|round| {
                Some(round.get(Metric::ServerAnonymousPeakMib)? - round.get(Metric::ServerAnonymousBeforeMib)?)
            });
            added.max_by(f64::total_cmp)
        };
        lines.push(Line::new(
            "anonymous memory added by reads of 200 MB",
            "≤ 64 MB",
            show(added(0), 1, " MiB"),
            show(added(1), 1, " MiB"),
            at_most(added(0), MEMORY_MAX_MIB),
        ));
    }
    Ok(lines)
}

/// Watchers of single keys, and 100 that watch the first of every `parts` keys: each put is an event for its key's own
/// watcher, and each of the first keys' for all of the 100.
fn watch(setting: &Setting, row: &str, parts: u64) -> Result<Vec<Line>, Failure> {
    const EVENT_P99_MAX_US: f64 = 5_000.0;
    let pair = Pair::start(setting, row)?;
    let watchers = setting.scaled(10_000);
    let watched = (watchers / parts).max(1);
    let line = format!(
        "watch --rate {} --watchers 100 --watched-keys {watched} --key-watchers {watchers} --key-space {watchers} \
         --clients 256 --conns 8 --total {} --rounds {}",
        setting.scaled(5_000),
        setting.scaled(50_000),
        setting.rounds(),
    );
    // One after the other: a server that cannot keep up must not keep the other one from being measured.
    let reports: Vec<_> = pair.servers.iter().map(|server| load_one(setting, server, &line)).collect();
    let cell = |server: usize, of: &dyn Fn(&Report) -> Option<String>| match reports.get(server) {
        None => "–".to_owned(),
        Some(Err(failure)) => failure.to_string().replace(['\n', '|'], " "),
        Some(Ok(report)) => of(report).unwrap_or_else(|| "–".to_owned()),
    };
    let during = |report: &Report, metric| report.results[0].disturbed.as_ref()?.median.get(metric);
    let ratio = |report: &Report| report.results[0].disturbed.as_ref()?.ratio_to_quiet.get(Metric::LatencyP99Us);
    let events = |report: &Report| {
        let [p50, p99] = [Metric::EventP50Us, Metric::EventP99Us].map(|metric| milliseconds(during(report, metric)));
        Some(format!("p99 {p99}, p50 {p50}, {} events/s", show(during(report, Metric::EventsPerSecond), 0, "")))
    };
    let puts = |report: &Report| {
        let quiet = figure(report, 0, Metric::LatencyP99Us);
        let with = during(report, Metric::LatencyP99Us);
        Some(format!("{} ({} without, {} with)", show(ratio(report), 2, " ×"), milliseconds(quiet), milliseconds(with)))
    };
    let garboard = reports.first().and_then(|report| report.as_ref().ok());
    let event_met = at_most(garboard.and_then(|report| during(report, Metric::EventP99Us)), EVENT_P99_MAX_US);
    let what = format!(
        "{watchers} watchers of one key, 100 of {watched} keys, {} puts/s: every event, in order",
        setting.scaled(5_000)
    );
    Ok(vec![
        Line::new(&what, "event p99 ≤ 5 ms", cell(0, &events), cell(1, &events), event_met.or(Some(false))),
        Line::new(
            "put p99 beside the watchers",
            "≤ 2 × without",
            cell(0, &puts),
            cell(1, &puts),
            at_most(garboard.and_then(ratio), 2.0),
        ),
    ])
}

/// What a server takes of memory, in MiB.
struct Taken {
    idle: f64,
    loaded: f64,
    files: f64,
    working_set: Option<f64>,
    idle_working_set: Option<f64>,
}

fn memory(setting: &Setting) -> Result<Vec<Line>, Failure> {
    let mut taken = Vec::new();
    for kind in kinds(setting) {
        taken.push(memory_of(setting, kind)?);
    }
    let mib = |value: Option<f64>| show(value, 1, " MiB");
    let garboard = &taken[0];
    let etcd = taken.get(1);
    let keys = setting.scaled(1_000_000);
    let line = |what: &str, target: &str, of: &dyn Fn(&Taken) -> Option<f64>, times: Option<f64>| {
        let (first, second) = (of(garboard), etcd.and_then(of));
        let met = times.and_then(|times| Some(first? <= second? * times));
        Line::new(what, target, mib(first), mib(second), met)
    };
    Ok(vec![
        line("RssAnon, idle", "≤ etcd's", &|taken| Some(taken.idle), Some(1.0)),
        line(
            &format!("RssAnon after loading {keys} keys of 1 KiB"),
            "≤ 1/2 of etcd's",
            &|taken| Some(taken.loaded),
            Some(0.5),
        ),
        line("RssFile after loading", "", &|taken| Some(taken.files), None),
        line("working set, idle", "", &|taken| taken.idle_working_set, None),
        line("working set after loading (as the kubelet counts)", "", &|taken| taken.working_set, None),
    ])
}

fn memory_of(setting: &Setting, kind: Kind) -> Result<Taken, Failure> {
    /// After the start, and after the load: what is only needed meanwhile is given back.
    const SETTLED: Duration = Duration::from_secs(5);
    let group = match Group::new(kind.name()) {
        Ok(group) => Some(group),
        Err(failure) => {
            eprintln!("no working set: {failure}");
            None
        }
    };
    let mut launch = launch(setting, kind, &setting.folder("memory")?)?;
    launch.cgroup = group.as_ref().map(|group| group.path().to_owned());
    let server = launch.start_and_wait()?;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let working_set = || group.as_ref().map(Group::working_set_bytes).transpose().map(|bytes| bytes.map(mib));
    std::thread::sleep(SETTLED);
    let (idle, idle_working_set) = (mib(anonymous_bytes(&[server.pid()])?), working_set()?);
    let keys = setting.scaled(1_000_000);
    let load = format!("count --clients 8 --conns 8 --key-space {keys} --value-size 1024 --total 1 --warmup 0");
    load_one(setting, &server, &load)?;
    std::thread::sleep(SETTLED);
    Ok(Taken {
        idle,
        loaded: mib(anonymous_bytes(&[server.pid()])?),
        files: mib(file_bytes(&[server.pid()])?),
        working_set: working_set()?,
        idle_working_set,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_told_apart_by_their_names() {
        let mut names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ROWS.len());
    }

    #[test]
    fn a_line_says_whether_its_target_is_met_and_a_failure_meets_none() {
        let line = Line::new("w", "≤ 1", "2".into(), "3".into(), at_most(Some(2.0), 1.0));
        assert_eq!(line.to_markdown("r"), "| r | w | ≤ 1 | 2 | 3 | **no** |");
        let failed = Line::failed("w", &Failure::new("a | b\nc".into()));
        assert_eq!(failed.to_markdown("r"), "| r | w |  | not measured: a   b c |  | – |");
    }

    #[test]
    fn the_middle_of_several_restarts_counts() {
        let recovery = |ms| Recovery { from_kill: Duration::from_millis(ms), from_start: Duration::ZERO };
        let times = [recovery(9), recovery(900), recovery(10)];
        assert_eq!(median(&times).map(|time| time.from_kill), Some(Duration::from_millis(10)));
        assert!(median(&[]).is_none());
    }
}
