//! What the tests share: servers that run the real executable, a small client, and places to put data.
//!
//! Every server is killed by its own process id when it goes out of scope. Nothing sleeps to be right: conditions are
//! waited for, with deadlines that a loaded machine meets.
#![allow(dead_code, clippy::unwrap_used, reason = "each test binary uses a part; what fails here fails the test")]

pub mod cgroup;
pub mod client;
pub mod files;
pub mod load;
pub mod memory;
pub mod mount;
pub mod pem;
pub mod random;
pub mod raw;

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use client::Client;

/// How long anything that must happen may take.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// [`DEADLINE`], or what `GARBOARD_PATIENCE` says in seconds: for long runs on a machine that may stop them for a while.
pub fn patience() -> Duration {
    static PATIENCE: std::sync::OnceLock<Duration> = std::sync::OnceLock::new();
    let from_environment = || std::env::var("GARBOARD_PATIENCE").ok()?.parse().ok().map(Duration::from_secs);
    *PATIENCE.get_or_init(|| from_environment().unwrap_or(DEADLINE))
}
/// How often a condition is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// What a server says once it serves.
const READY: &str = "ready to serve client requests";

/// The executable under test: this build's own, or the one that `GARBOARD_EXECUTABLE` names, to measure a release build.
pub fn executable() -> &'static Path {
    static NAMED: OnceLock<Option<PathBuf>> = OnceLock::new();
    let named = NAMED.get_or_init(|| std::env::var_os("GARBOARD_EXECUTABLE").map(PathBuf::from));
    named.as_deref().unwrap_or(Path::new(env!("CARGO_BIN_EXE_garboard")))
}

/// Waits until a condition holds.
///
/// # Panics
/// When it does not hold in time.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < patience(), "{what}: not within {:?}", patience());
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// A TCP port on the loopback that nobody uses. They are taken from below the range of outgoing connections, which would
/// otherwise take one between here and the server's start.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = u16::try_from(std::process::id() % 97).unwrap() * 100;
    for _ in 0..10_000 {
        let port = 20_000 + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port");
}

/// A folder of its own, removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        Folder::below(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    /// In another place than the build's own.
    pub fn below(place: &Path) -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = place.join(format!("garboard-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A data directory in it that does not exist yet.
    pub fn data(&self) -> PathBuf {
        self.0.join("data")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// How a server is to be started.
pub struct Launch {
    command: Command,
    port: u16,
}

impl Launch {
    /// `garboard serve` over a data directory, on a free port.
    pub fn new(data: &Path) -> Launch {
        let mut launch = Launch::bare(Command::new(executable()));
        launch.command.arg("serve").arg("--data-dir").arg(data);
        let url = format!("--listen-client-urls=http://127.0.0.1:{}", launch.port);
        launch.arg(url)
    }

    /// `garboard serve` as one of several members.
    pub fn member(data: &Path, name: &str, client_url: &str, peer_url: &str, initial_cluster: &[String]) -> Launch {
        let flags = [
            format!("--data-dir={}", data.display()),
            format!("--name={name}"),
            format!("--listen-client-urls={client_url}"),
            format!("--advertise-client-urls={client_url}"),
            format!("--listen-peer-urls={peer_url}"),
            format!("--initial-advertise-peer-urls={peer_url}"),
            format!("--initial-cluster={}", initial_cluster.join(",")),
        ];
        flags.iter().fold(Launch::bare(Command::new(executable())).arg("serve"), Launch::arg)
    }

    /// A command that has no arguments yet; the environment has none of etcd's variables.
    pub fn bare(mut command: Command) -> Launch {
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ETCD_")) {
            command.env_remove(name);
        }
        // Any port: peers have nothing to do with a lone member, and many of them run at once.
        command.env("ETCD_LISTEN_PEER_URLS", "http://127.0.0.1:0");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Launch { command, port: free_port() }
    }

    pub fn arg(mut self, argument: impl AsRef<std::ffi::OsStr>) -> Launch {
        self.command.arg(argument);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Launch {
        self.command.env(name, value);
        self
    }

    /// Lets a test change how the process is made.
    pub fn with(mut self, change: impl FnOnce(&mut Command)) -> Launch {
        change(&mut self.command);
        self
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Starts it, and does not wait for anything.
    pub fn spawn(mut self) -> Server {
        let mut child = self.command.spawn().unwrap();
        let output = Arc::new(Mutex::new(String::new()));
        let stdout = collect(child.stdout.take().unwrap(), output.clone());
        let stderr = collect(child.stderr.take().unwrap(), output.clone());
        Server { child, port: self.port, output, readers: vec![stdout, stderr] }
    }

    /// Starts it and waits until it serves.
    pub fn start(self) -> Server {
        let mut server = self.spawn();
        server.wait_for(READY);
        server
    }

    /// Starts it, expects it to end by itself with a failure, and gives what it said.
    pub fn refused(self) -> String {
        let (status, said) = self.ended();
        assert!(!status.success(), "it ended well, but should have refused:\n{said}");
        assert!(status.code().is_some(), "it was ended by a signal ({status}):\n{said}");
        assert!(!said.contains("panicked"), "it panicked:\n{said}");
        said
    }

    /// Starts it, expects it to end by itself, and gives how it ended and what it said.
    pub fn ended(self) -> (ExitStatus, String) {
        let mut server = self.spawn();
        let status = server.wait();
        (status, server.said())
    }
}

fn collect(stream: impl Read + Send + 'static, output: Arc<Mutex<String>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let mut output = output.lock().unwrap();
            output.push_str(&line);
            output.push('\n');
        }
    })
}

/// A running server.
pub struct Server {
    child: Child,
    port: u16,
    output: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

impl Server {
    /// A new connection to it.
    pub fn client(&self) -> Client {
        Client::tcp(&format!("127.0.0.1:{}", self.port))
            .unwrap_or_else(|error| panic!("connecting: {error:?}\n{}", self.output()))
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has said so far.
    pub fn output(&self) -> String {
        self.output.lock().unwrap().clone()
    }

    /// Waits until it says something.
    pub fn wait_for(&mut self, text: &str) {
        let started = Instant::now();
        while !self.output().contains(text) {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("it ended ({status}) before it said {text:?}:\n{}", self.said());
            }
            assert!(started.elapsed() < patience(), "it does not say {text:?}:\n{}", self.output());
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Whether it runs.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Asks it to stop.
    pub fn terminate(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    /// Ends it at once, and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it has ended.
    pub fn wait(&mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(started.elapsed() < patience(), "it does not end:\n{}", self.output());
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Stops it and checks that it ended well.
    pub fn stop(mut self) {
        self.terminate();
        let status = self.wait();
        assert!(status.success(), "stopping ended with {status}:\n{}", self.said());
    }

    /// All that it said, once it has ended.
    pub fn said(&mut self) -> String {
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        self.output()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let id = i32::try_from(self.child.id()).unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_raw(id).unwrap(), signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says why a test does nothing here.
pub fn skip(reason: &str) {
    println!("skipped: {reason}");
}

/// Whether this process is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Where a tool lies, if it is installed.
pub fn tool(name: &str) -> Option<PathBuf> {
    let found = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"].iter().map(|folder| Path::new(folder).join(name));
    found.into_iter().find(|path| path.exists())
}

/// Runs a command to its end; what it said when it failed.
pub fn run(program: &str, arguments: &[&std::ffi::OsStr]) -> Result<(), String> {
    let path = tool(program).ok_or_else(|| format!("{program} is not installed"))?;
    let output = Command::new(path).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
