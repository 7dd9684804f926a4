//! The rows of a cluster of three members on one machine.

use crate::network::{Host, Network};
use crate::rows::Line;
use crate::servers::{Kind, Launch, Server};
use crate::steps::{figure, kinds, milliseconds, ratio, run, show};
use crate::{Failure, Setting, program};
use garboard_bench::{
    Endpoint, Gap, GapPlan, MemberStatus, Metric, Report, add_learner, measure_gap, member_status, move_leader,
};
use std::time::{Duration, Instant};

const MEMBERS: usize = 3;
/// How long a cluster may take until all its members know one leader.
const ELECTION_MAX: Duration = Duration::from_secs(30);
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// A running cluster.
struct Cluster {
    launches: Vec<Launch>,
    /// By the launch's place; nothing while a member is down.
    servers: Vec<Option<Server>>,
}

impl Cluster {
    fn start(setting: &Setting, row: &str, kind: Kind, hosts: &[Option<Host>]) -> Result<Self, Failure> {
        let program = program(setting, kind).ok_or_else(|| Failure::new(format!("no {}", kind.name())))?;
        let launches = Launch::cluster(kind, program, &setting.folder(row)?, hosts)?;
        // They answer only once there are enough of them.
        let servers = launches.iter().map(Launch::start).collect::<Result<Vec<_>, _>>()?;
        let mut cluster = Self { launches, servers: servers.into_iter().map(Some).collect() };
        cluster.wait()?;
        Ok(cluster)
    }

    /// Waits until every member that runs answers, and all know the same leader. Returns its place.
    fn wait(&mut self) -> Result<usize, Failure> {
        for server in self.servers.iter_mut().flatten() {
            server.wait_until_it_answers()?;
        }
        let begin = Instant::now();
        loop {
            let statuses = self.statuses();
            let leader = statuses.iter().position(|status| status.is_some_and(|status| status.leads()));
            if let Some(at) = leader
                && statuses.iter().flatten().all(|status| Some(status.leader) == statuses[at].map(|own| own.member_id))
                && statuses.iter().flatten().count() == self.servers.iter().flatten().count()
            {
                return Ok(at);
            }
            if begin.elapsed() > ELECTION_MAX {
                return Err(Failure::new(format!("no leader that all know: {statuses:?}")));
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    fn statuses(&self) -> Vec<Option<MemberStatus>> {
        let status = |server: &Server| member_status(&Endpoint::parse(server.endpoint()).ok()?).ok();
        self.servers.iter().map(|server| status(server.as_ref()?)).collect()
    }

    fn running(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter().flatten()
    }

    fn endpoints(&self) -> Result<Vec<Endpoint>, Failure> {
        self.running().map(|server| Ok(Endpoint::parse(server.endpoint())?)).collect()
    }

    fn pids(&self) -> String {
        self.running().map(|server| server.pid().to_string()).collect::<Vec<_>>().join(",")
    }

    fn all(&self) -> String {
        self.running().map(Server::endpoint).collect::<Vec<_>>().join(",")
    }
}

/// Both kinds of cluster that are to be measured.
fn clusters(setting: &Setting, row: &str) -> Result<Vec<Cluster>, Failure> {
    kinds(setting).map(|kind| Cluster::start(setting, row, kind, &[const { None }; MEMBERS])).collect()
}

/// The same with each member on a host of its own.
fn clusters_on_hosts(setting: &Setting, row: &str, network: &Network) -> Result<Vec<Cluster>, Failure> {
    let hosts: Vec<_> = network.members().iter().cloned().map(Some).collect();
    kinds(setting).zip(hosts.chunks(MEMBERS)).map(|(kind, hosts)| Cluster::start(setting, row, kind, hosts)).collect()
}

/// A load on both clusters by turns: `at` chooses the endpoints of each.
fn load(
    setting: &Setting,
    clusters: &mut [Cluster],
    line: &str,
    at: impl Fn(&mut Cluster) -> Result<String, Failure>,
) -> Result<Report, Failure> {
    let mut options = String::new();
    for (cluster, (endpoint, pid)) in clusters.iter_mut().zip([("--endpoints", "--pid"), ("--vs", "--vs-pid")]) {
        options.push_str(&format!(" {endpoint} {} {pid} {}", at(cluster)?, cluster.pids()));
    }
    run(setting, &format!("{line}{options} --rounds {}", setting.rounds()))
}

/// Latency of one client, through the leader and through a follower.
pub fn put(setting: &Setting) -> Result<Vec<Line>, Failure> {
    let mut clusters = clusters(setting, "cluster-put")?;
    let mut lines = Vec::new();
    for (through, away) in [("the leader", 0), ("a follower", 1)] {
        let total = setting.scaled(3_000);
        let line = format!("put --clients 1 --conns 1 --total {total}");
        let report = load(setting, &mut clusters, &line, |cluster| {
            let leader = cluster.wait()?;
            let place = (leader + away) % MEMBERS;
            cluster.servers[place]
                .as_ref()
                .map(|server| server.endpoint().to_owned())
                .ok_or_else(|| Failure::new("a member is down".to_owned()))
        })?;
        lines.push(Line::ratio(
            &format!("put p50, 1 client, through {through}"),
            &report,
            Metric::LatencyP50Us,
            |us| show(us, 0, " µs"),
            0.5,
        ));
    }
    Ok(lines)
}

/// Puts and their CPU, and linearizable reads, about 1,000 in flight over all members.
pub fn throughput(setting: &Setting) -> Result<Vec<Line>, Failure> {
    let mut clusters = clusters(setting, "cluster-throughput")?;
    let total = setting.scaled(200_000);
    let line = format!("put --clients 1000 --conns 24 --total {total}");
    let puts = load(setting, &mut clusters, &line, |cluster| Ok(cluster.all()))?;
    let line = format!("range --clients 1000 --conns 24 --total {total} --key-space 10000");
    let reads = load(setting, &mut clusters, &line, |cluster| Ok(cluster.all()))?;
    let per_1000 = |seconds| show(seconds, 4, " s");
    let rate = ratio(&puts, Metric::ThroughputPerSecond);
    let shown = |server| show(figure(&puts, server, Metric::ThroughputPerSecond), 0, "/s");
    let own = rate.map_or_else(|| shown(0), |rate| format!("{} ({rate:.2} ×)", shown(0)));
    let what = "puts/s, 1,000 in flight over all members";
    Ok(vec![
        Line::new(what, "≥ 2 × etcd's", own, shown(1), rate.map(|rate| rate >= 2.0)),
        Line::ratio("CPU of all members per 1,000 puts", &puts, Metric::ServerCpuSecondsPer1000, per_1000, 0.5),
        Line::ratio("the same per 1,000 linearizable reads", &reads, Metric::ServerCpuSecondsPer1000, per_1000, 0.4),
    ])
}

/// What happens to the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Its process is killed.
    Killed,
    /// Its process no longer runs, and nothing says so.
    Paused,
    /// Its host is off the network.
    Vanished,
    /// It is asked to stop.
    Stopped,
    /// It is asked to hand over.
    Moved,
}

/// How long no write is acknowledged when something happens to the leader.
pub fn failover(setting: &Setting, loss: Loss) -> Result<Vec<Line>, Failure> {
    let (row, what, p50_max_ms, max_ms) = match loss {
        Loss::Killed => ("cluster-kill", "the leader is killed −9", 250.0, Some(2_000.0)),
        Loss::Paused => ("cluster-pause", "the leader falls silent", 1_200.0, Some(2_000.0)),
        Loss::Vanished => ("cluster-vanish", "the leader's packets are dropped", 1_200.0, Some(2_000.0)),
        Loss::Stopped => ("cluster-stop", "the leader gets SIGTERM", 7.0, None),
        Loss::Moved => ("cluster-move", "MoveLeader", 7.0, None),
    };
    let trials = setting.scaled(100);
    let gaps = if loss == Loss::Vanished {
        let network = Network::new(u8::try_from(kinds(setting).count() * MEMBERS).expect("a handful"))?;
        // A thread of its own: it never comes back from the load's host.
        let run = || {
            network.enter()?;
            lose_often(setting, row, &mut clusters_on_hosts(setting, row, &network)?, loss, trials)
        };
        std::thread::scope(|scope| scope.spawn(run).join().expect("a failure is no panic"))?
    } else {
        lose_often(setting, row, &mut clusters(setting, row)?, loss, trials)?
    };
    let figures = |server: usize| {
        let mut ms: Vec<f64> = gaps.get(server)?.iter().map(|gap| gap.longest.as_secs_f64() * 1e3).collect();
        ms.sort_unstable_by(f64::total_cmp);
        Some((ms.get(ms.len() / 2).copied()?, ms.first().copied()?, ms.last().copied()?))
    };
    let shown = |server| {
        figures(server).map_or_else(
            || "–".to_owned(),
            |(p50, min, max)| format!("p50 {p50:.1} ms, {min:.1}–{max:.1}, {trials} trials"),
        )
    };
    let met = figures(0).map(|(p50, _, max)| p50 <= p50_max_ms && max_ms.is_none_or(|bound| max <= bound));
    let target =
        max_ms.map_or_else(|| format!("p50 ≤ {p50_max_ms} ms"), |max| format!("p50 ≤ {p50_max_ms} ms, max ≤ {max} ms"));
    let mut lines =
        vec![Line::new(&format!("longest gap between acknowledged writes, {what}"), &target, shown(0), shown(1), met)];
    if matches!(loss, Loss::Stopped | Loss::Moved) {
        let failed = |server: usize| -> Option<u64> {
            Some(gaps.get(server)?.iter().map(|gap| gap.failed.values().sum::<u64>()).sum())
        };
        let shown = |server| failed(server).map_or_else(|| "–".to_owned(), |failed| failed.to_string());
        lines.push(Line::new("writes that failed", "0", shown(0), shown(1), failed(0).map(|failed| failed == 0)));
    }
    Ok(lines)
}

/// The gaps of so many trials on each cluster by turns.
fn lose_often(
    setting: &Setting,
    row: &str,
    clusters: &mut [Cluster],
    loss: Loss,
    trials: u64,
) -> Result<Vec<Vec<Gap>>, Failure> {
    let mut gaps: Vec<Vec<Gap>> = clusters.iter().map(|_| Vec::new()).collect();
    for trial in 0..trials {
        for (cluster, gaps) in clusters.iter_mut().zip(&mut gaps) {
            let gap = lose(cluster, loss)?;
            setting.keep(&format!("{row}, trial {trial}: {gap:?}\n"));
            gaps.push(gap);
        }
        if trial % 10 == 9 {
            eprintln!("{row}: {} of {trials} trials", trial + 1);
        }
    }
    Ok(gaps)
}

fn lose(cluster: &mut Cluster, loss: Loss) -> Result<Gap, Failure> {
    let leader = cluster.wait()?;
    let plan = GapPlan {
        endpoints: cluster.endpoints()?,
        interval: Duration::from_millis(2),
        timeout: Duration::from_secs(5),
        before: Duration::from_millis(400),
        after: match loss {
            Loss::Killed | Loss::Paused | Loss::Vanished => Duration::from_millis(2_600),
            Loss::Stopped | Loss::Moved => Duration::from_millis(600),
        },
    };
    let down = || Failure::new("a member is down".to_owned());
    let gap = match loss {
        Loss::Killed => {
            let server = cluster.servers[leader].take().ok_or_else(down)?;
            measure_gap(&plan, move || drop(server.kill()))?
        }
        Loss::Stopped => {
            let server = cluster.servers[leader].take().ok_or_else(down)?;
            measure_gap(&plan, move || drop(server.stop()))?
        }
        Loss::Paused | Loss::Vanished => {
            let server = cluster.servers[leader].take().ok_or_else(down)?;
            let silence = move |server: &Server, silent: bool| {
                if loss == Loss::Vanished {
                    return server.set_reachable(!silent);
                }
                server.pause(silent);
                Ok(())
            };
            let (send, receive) = std::sync::mpsc::channel();
            let gap = measure_gap(&plan, move || {
                let silenced = silence(&server, true);
                let _ = send.send((server, silenced));
            })?;
            let (server, silenced) = receive.recv().map_err(|_| down())?;
            silenced?;
            silence(&server, false)?;
            cluster.servers[leader] = Some(server);
            gap
        }
        Loss::Moved => {
            let endpoint = Endpoint::parse(cluster.servers[leader].as_ref().ok_or_else(down)?.endpoint())?;
            let target = cluster.statuses()[(leader + 1) % MEMBERS].ok_or_else(down)?.member_id;
            measure_gap(&plan, move || {
                if let Err(error) = move_leader(&endpoint, target) {
                    eprintln!("MoveLeader: {error}");
                }
            })?
        }
    };
    if cluster.servers[leader].is_none() {
        cluster.servers[leader] = Some(cluster.launches[leader].start()?);
    }
    Ok(gap)
}

/// What a load sees of a learner that is filled with a snapshot.
struct Filling {
    /// Of each round, in microseconds.
    quiet_p99_us: Vec<f64>,
    filling_p99_us: Vec<f64>,
    /// From the start of the learner's process until it had applied what the leader had then.
    took: Duration,
    elections: u64,
}

impl Filling {
    fn ratio(&self) -> Option<f64> {
        Some(middle(&self.filling_p99_us)? / middle(&self.quiet_p99_us)?)
    }

    fn show(&self) -> String {
        let [quiet, filling] = [&self.quiet_p99_us, &self.filling_p99_us].map(|p99| milliseconds(middle(p99)));
        format!(
            "{} ({quiet} → {filling}, {} rounds in {:.0} s; {} elections)",
            show(self.ratio(), 2, " ×"),
            self.filling_p99_us.len(),
            self.took.as_secs_f64(),
            self.elections
        )
    }
}

fn middle(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Latency of clients while a new learner is filled with a snapshot of 2 GB.
pub fn snapshot(setting: &Setting) -> Result<Vec<Line>, Failure> {
    let fillings: Vec<_> = kinds(setting).map(|kind| snapshot_of(setting, kind)).collect::<Result<_, _>>()?;
    let shown = |server: usize| fillings.get(server).map_or_else(|| "–".to_owned(), Filling::show);
    let met = fillings[0].ratio().map(|ratio| ratio <= 2.0 && fillings[0].elections == 0);
    let what = format!("put p99, {SNAPSHOT_RATE}/s, while a learner is filled with {} MB", setting.scaled(2_000));
    Ok(vec![Line::new(&what, "≤ 2 × without; no election", shown(0), shown(1), met)])
}

/// Puts per second beside the snapshot.
const SNAPSHOT_RATE: u64 = 1_000;

fn snapshot_of(setting: &Setting, kind: Kind) -> Result<Filling, Failure> {
    const ROW: &str = "cluster-snapshot";
    /// Seconds of a round.
    const ROUND: u64 = 5;
    const FILLED_MAX: Duration = Duration::from_secs(600);
    let mut cluster = Cluster::start(setting, ROW, kind, &[const { None }; MEMBERS])?;
    let keys = setting.scaled(2_000_000_000 / 4_096);
    let endpoints = cluster.all();
    let leader = cluster.wait()?;
    let filled_through = cluster.launches[leader].endpoint();
    // A count of all keys puts each of them once before. A member that lags behind the others refuses writes, so the leader is
    // given them.
    run(
        setting,
        &format!(
            "count --clients 64 --conns 8 --key-space {keys} --value-size 4096 --total 1 --warmup 0 \
             --endpoints {filled_through}"
        ),
    )?;
    let load = format!(
        "put --clients 64 --conns 9 --rate {SNAPSHOT_RATE} --total {} --key-space 1000 --key-prefix beside/ \
         --endpoints {endpoints}",
        SNAPSHOT_RATE * ROUND
    );
    let p99 = || figure(&run(setting, &load)?, 0, Metric::LatencyP99Us).ok_or_else(|| Failure::new("no p99".into()));
    let quiet_p99_us = (0..setting.rounds()).map(|_| p99()).collect::<Result<Vec<_>, _>>()?;

    let leader = cluster.wait()?;
    let before = cluster.statuses()[leader].ok_or_else(|| Failure::new("the leader does not answer".into()))?;
    let learner = Launch::joining(&cluster.launches, &setting.folder(ROW)?)?;
    add_learner(&Endpoint::parse(&cluster.launches[leader].endpoint())?, &learner.peer_url())?;
    let (begin, server) = (Instant::now(), learner.start()?);
    let endpoint = Endpoint::parse(server.endpoint())?;
    let filled = std::thread::spawn(move || {
        while begin.elapsed() < FILLED_MAX {
            if member_status(&endpoint).is_ok_and(|own| own.raft_applied_index >= before.raft_applied_index) {
                return Some(begin.elapsed());
            }
            std::thread::sleep(LOOK_INTERVAL * 10);
        }
        None
    });
    let mut filling_p99_us = Vec::new();
    while !filled.is_finished() {
        filling_p99_us.push(p99()?);
    }
    let took = filled.join().ok().flatten().ok_or_else(|| Failure::new("the learner was not filled".into()))?;
    let after = cluster.statuses()[leader].ok_or_else(|| Failure::new("the leader does not answer".into()))?;
    Ok(Filling { quiet_p99_us, filling_p99_us, took, elections: after.raft_term - before.raft_term })
}
