//! Servers of this run, each in a directory of its own, ended by their own process ids whatever ends the run.

use crate::Failure;
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
}

static UNDO: Mutex<Undo> = Mutex::new(Undo { pids: Vec::new(), mounts: Vec::new(), folders: Vec::new() });

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
    let Undo { pids, mounts, folders } = std::mem::take(&mut *undo());
    for pid in pids {
        signal(pid, Signal::KILL);
    }
    for mount in mounts {
        let _ = Command::new("umount").arg("--lazy").arg(mount).status();
    }
    for folder in folders {
        let _ = fs::remove_dir_all(folder);
    }
}

/// Has a folder removed at the end.
pub fn remove_at_end(folder: &Path) {
    undo().folders.push(folder.to_owned());
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
}

impl Launch {
    /// A server with its data below `folder`.
    pub fn new(kind: Kind, program: &Path, folder: &Path) -> Result<Self, Failure> {
        let mut cluster = Self::cluster(kind, program, folder, 1)?;
        Ok(cluster.pop().expect("as many as were asked for"))
    }

    /// The members of a cluster with their data below `folder`.
    pub fn cluster(kind: Kind, program: &Path, folder: &Path, members: usize) -> Result<Vec<Self>, Failure> {
        let ports = free_ports(2 * members)?;
        let ports: Vec<_> = ports.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        let peers = ports.iter().enumerate().map(|(at, (_, peer))| format!("m{at}=http://127.0.0.1:{peer}"));
        let initial_cluster = peers.collect::<Vec<_>>().join(",");
        let member = |(at, ports)| {
            let name = format!("m{at}");
            let data_dir = folder.join(format!("{}-{name}", kind.name()));
            let initial_cluster = initial_cluster.clone();
            Self { kind, program: program.to_owned(), data_dir, cgroup: None, name, ports, initial_cluster }
        };
        Ok(ports.into_iter().enumerate().map(member).collect())
    }

    /// HOST:PORT of its clients.
    pub fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.ports.0)
    }

    /// Starts it. It may not serve yet.
    pub fn start(&self) -> Result<Server, Failure> {
        let (client, peer) = (format!("http://{}", self.endpoint()), format!("http://127.0.0.1:{}", self.ports.1));
        let mut command = match &self.cgroup {
            None => Command::new(&self.program),
            Some(group) => {
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
            .arg("--data-dir")
            .arg(&self.data_dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .map_err(|error| Failure::new(format!("starting {}: {error}", self.program.display())))?;
        undo().pids.push(child.id());
        Ok(Server { child, endpoint: self.endpoint(), kind: self.kind, log: self.data_dir.with_extension("log") })
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
