//! Servers of this run, each in a directory of its own, ended by their own process ids whatever ends the run.

use crate::Failure;
use crate::network::Host;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long a server may take to answer.
const START_MAX: Duration = Duration::from_secs(120);
/// How long a server may take to stop.
const STOP_MAX: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// What must be undone when a signal ends the run.
#[derive(Debug, Default)]
struct Undo {
    pids: Vec<u32>,
    mounts: Vec<PathBuf>,
    folders: Vec<PathBuf>,
    namespaces: Vec<String>,
}

static UNDO: Mutex<Undo> =
    Mutex::new(Undo { pids: Vec::new(), mounts: Vec::new(), folders: Vec::new(), namespaces: Vec::new() });

fn undo() -> std::sync::MutexGuard<'static, Undo> {
    UNDO.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// From now on SIGINT and SIGTERM end the servers of this run, and then the run.
pub fn end_on_signals() -> Result<(), Failure> {
    let mut signals = signal_hook::iterator::Signals::new([2, 15])?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            clean_up();
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

/// Ends what is left of this run's servers, and removes what they wrote.
pub fn clean_up() {
    let Undo { pids, mounts, folders, namespaces } = std::mem::take(&mut *undo());
    for pid in pids {
        signal(pid, Signal::KILL);
    }
    for mount in mounts {
        let _ = Command::new("umount").arg("--lazy").arg(mount).status();
    }
    for folder in folders {
        let _ = fs::remove_dir_all(folder);
    }
    for name in namespaces {
        let _ = Command::new("ip").args(["netns", "del", &name]).status();
    }
}

/// Has a folder removed at the end.
pub fn remove_at_end(folder: &Path) {
    undo().folders.push(folder.to_owned());
}

/// Has a network namespace removed at the end.
pub fn remove_namespace_at_end(name: &str) {
    undo().namespaces.push(name.to_owned());
}

/// Has a file system unmounted at the end, unless that is done before.
pub fn unmount_at_end(mount: &Path) {
    undo().mounts.push(mount.to_owned());
}

/// It is unmounted.
pub fn unmounted(mount: &Path) {
    undo().mounts.retain(|known| known != mount);
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // A process that is gone needs no signal.
        let _ = kill_process(pid, signal);
    }
}

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The one that is measured.
    Garboard,
    /// What it is compared with.
    Etcd,
}

impl Kind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Garboard => "garboard",
            Self::Etcd => "etcd",
        }
    }
}

/// How to start a server.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Which.
    pub kind: Kind,
    /// The executable.
    pub program: PathBuf,
    /// Where its data goes.
    pub data_dir: PathBuf,
    /// A control group to run in.
    pub cgroup: Option<PathBuf>,
    /// Its name in the cluster.
    name: String,
    ports: (u16, u16),
    /// What `--initial-cluster` says.
    initial_cluster: String,
    /// Whether that cluster is there already.
    joins: bool,
    /// A host of its own; else it is on this one.
    host: Option<Host>,
}

impl Launch {
    /// A server with its data below `folder`.
    pub fn new(kind: Kind, program: &Path, folder: &Path) -> Result<Self, Failure> {
        let mut cluster = Self::cluster(kind, program, folder, &[None])?;
        Ok(cluster.pop().expect("as many as were asked for"))
    }

    /// The members of a cluster with their data below `folder`, each on its host.
    pub fn cluster(kind: Kind, program: &Path, folder: &Path, hosts: &[Option<Host>]) -> Result<Vec<Self>, Failure> {
        let ports = free_ports(2 * hosts.len())?;
        let member = |(at, (host, ports)): (usize, (&Option<Host>, &[u16]))| {
            let name = format!("m{at}");
            Self {
                kind,
                program: program.to_owned(),
                data_dir: folder.join(format!("{}-{name}", kind.name())),
                cgroup: None,
                name,
                ports: (ports[0], ports[1]),
                initial_cluster: String::new(),
                joins: false,
                host: host.clone(),
            }
        };
        let mut cluster: Vec<_> = hosts.iter().zip(ports.chunks_exact(2)).enumerate().map(member).collect();
        let initial_cluster = cluster.iter().map(Self::initial).collect::<Vec<_>>().join(",");
        cluster.iter_mut().for_each(|member| member.initial_cluster.clone_from(&initial_cluster));
        Ok(cluster)
    }

    /// One more member of a cluster that is there already.
    pub fn joining(cluster: &[Self], folder: &Path) -> Result<Self, Failure> {
        let first = &cluster[0];
        let mut member = Self::new(first.kind, &first.program, folder)?;
        member.name = format!("m{}", cluster.len());
        member.data_dir = folder.join(format!("{}-{}", first.kind.name(), member.name));
        member.initial_cluster = format!("{},{}", first.initial_cluster, member.initial());
        member.joins = true;
        Ok(member)
    }

    /// What `--initial-cluster` says of it.
    fn initial(&self) -> String {
        format!("{}={}", self.name, self.peer_url())
    }

    fn address(&self) -> &str {
        self.host.as_ref().map_or("127.0.0.1", |host| &host.address)
    }

    /// HOST:PORT of its clients.
    pub fn endpoint(&self) -> String {
        format!("{}:{}", self.address(), self.ports.0)
    }

    /// The URL at which other members reach it.
    pub fn peer_url(&self) -> String {
        format!("http://{}:{}", self.address(), self.ports.1)
    }

    /// Starts it. It may not serve yet.
    pub fn start(&self) -> Result<Server, Failure> {
        let (client, peer) = (format!("http://{}", self.endpoint()), self.peer_url());
        let mut command = match (&self.cgroup, &self.host) {
            (None, None) => Command::new(&self.program),
            (None, Some(host)) => host.command(&self.program),
            (Some(group), _) => {
                // The shell joins the group and becomes the server.
                let mut shell = Command::new("sh");
                shell
                    .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
                    .arg(group.join("cgroup.procs"))
                    .arg(&self.program);
                shell
            }
        };
        if self.kind == Kind::Garboard {
            command.arg("serve");
        }
        fs::create_dir_all(&self.data_dir)?;
        let log = fs::File::create(self.data_dir.with_extension("log"))?;
        let child = command
            .args(["--name", &self.name, "--log-level", "error", "--quota-backend-bytes", "34359738368"])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &self.initial_cluster])
            .args(["--initial-cluster-state", if self.joins { "existing" } else { "new" }])
            .arg("--data-dir")
            .arg(&self.data_dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .map_err(|error| Failure::new(format!("starting {}: {error}", self.program.display())))?;
        undo().pids.push(child.id());
        let log = self.data_dir.with_extension("log");
        Ok(Server { child, endpoint: self.endpoint(), kind: self.kind, log, host: self.host.clone() })
    }

    /// Starts it and waits until it answers a linearizable read.
    pub fn start_and_wait(&self) -> Result<Server, Failure> {
        let mut server = self.start()?;
        server.wait_until_it_answers()?;
        Ok(server)
    }
}

/// A running server; it is killed when this is dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    endpoint: String,
    /// Which.
    pub kind: Kind,
    log: PathBuf,
    host: Option<Host>,
}

impl Server {
    /// HOST:PORT of its clients.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until a linearizable read is answered.
    pub fn wait_until_it_answers(&mut self) -> Result<(), Failure> {
        let begin = Instant::now();
        let endpoint = garboard_bench::Endpoint::parse(&self.endpoint)?;
        while garboard_bench::read_once(&endpoint).is_err() {
            if let Some(status) = self.child.try_wait()? {
                let said = fs::read_to_string(&self.log).unwrap_or_default();
                return Err(Failure::new(format!("{} ended with {status}: {said}", self.kind.name())));
            }
            if begin.elapsed() > START_MAX {
                return Err(Failure::new(format!("{} does not answer", self.kind.name())));
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        Ok(())
    }

    /// Stops its process where it stands, or lets it go on.
    pub fn pause(&self, paused: bool) {
        signal(self.pid(), if paused { Signal::STOP } else { Signal::CONT });
    }

    /// Takes its host off the network, or puts it there again.
    pub fn set_reachable(&self, reachable: bool) -> Result<(), Failure> {
        let host = self.host.as_ref().ok_or_else(|| Failure::new("it has no host of its own".to_owned()))?;
        host.set_reachable(reachable)
    }

    /// Kills it at once and waits until it is gone.
    pub fn kill(mut self) -> Result<(), Failure> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Asks it to stop, and waits until it has.
    pub fn stop(mut self) -> Result<(), Failure> {
        signal(self.pid(), Signal::TERM);
        let begin = Instant::now();
        while self.child.try_wait()?.is_none() {
            if begin.elapsed() > STOP_MAX {
                return Err(Failure::new(format!("{} does not stop", self.kind.name())));
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // After `kill` and `stop` there is nothing left to do, and these say so.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let pid = self.pid();
        undo().pids.retain(|known| *known != pid);
    }
}

/// Ports that nobody listens on, all different.
fn free_ports(count: usize) -> Result<Vec<u16>, Failure> {
    let listeners = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
    Ok(listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect::<Result<_, std::io::Error>>()?)
}
