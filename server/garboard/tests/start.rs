//! Starting: under which names, flags and limits the server serves, and what it refuses with which reason.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test drives real processes, and what fails fails it"
)]

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::client::Client;
use common::{Folder, Launch, executable, files, is_root, skip, tool};

/// Bytes that a server may reserve on disk at start.
const RESERVED_AT_START_MAX_BYTES: u64 = 256 << 20;
/// The usual limit of locked memory.
const MEMLOCK_BYTES: u64 = 8 << 20;
/// `nobody` on most systems; it need not exist.
const ORDINARY_USER: u32 = 65_534;

/// Puts a key and reads it back.
fn check_serves(client: &Client) {
    client.put("key", "value").unwrap();
    assert_eq!(client.get("key").unwrap().unwrap().value, "value");
}

#[test]
fn a_second_server_on_the_same_data_directory_is_refused_with_the_reason() {
    let folder = Folder::new();
    let server = Launch::new(&folder.data()).start();
    let said = Launch::new(&folder.data()).refused();
    assert!(said.contains("is in use by another server"), "{said}");
    assert!(said.contains(folder.data().to_str().unwrap()), "{said}");
    check_serves(&server.client());
}

#[test]
fn a_second_server_on_the_same_port_is_refused_with_the_reason() {
    let (folder, other) = (Folder::new(), Folder::new());
    let server = Launch::new(&folder.data()).start();
    let address = format!("127.0.0.1:{}", server.port());
    let mut second = Command::new(executable());
    second.arg("serve").arg("--data-dir").arg(other.data()).arg(format!("--listen-client-urls=http://{address}"));
    let started = Instant::now();
    let said = Launch::bare(second).refused();
    // It waits a little for the address: a killed server's sockets go after its process.
    assert!(started.elapsed() > Duration::from_millis(1500), "it gave up after {:?}", started.elapsed());
    assert!(said.contains("in use") && said.contains(&address), "{said}");
    check_serves(&server.client());
}

#[test]
fn a_data_directory_keeps_its_member_and_cluster_whatever_the_flags_say_of_them() {
    let folder = Folder::new();
    Launch::new(&folder.data()).start().stop();
    for flag in ["--initial-advertise-peer-urls=http://127.0.0.9:2380", "--initial-cluster-token=another"] {
        let server = Launch::new(&folder.data()).arg(flag).start();
        check_serves(&server.client());
        let said = server.output();
        assert!(said.contains("the data directory belongs to member"), "{flag}: {said}");
        server.stop();
    }
}

#[test]
fn a_data_directory_of_another_format_version_is_refused_with_the_reason() {
    let folder = Folder::new();
    Launch::new(&folder.data()).start().stop();
    let identity = folder.data().join("identity");
    files::replace_in(&identity, "format 1", "format 7");
    let said = Launch::new(&folder.data()).refused();
    assert!(said.contains("layout version 7"), "{said}");
    files::replace_in(&identity, "format 7", "format 1");
    check_serves(&Launch::new(&folder.data()).start().client());
}

#[test]
fn a_damaged_identity_is_refused_and_data_without_one_too() {
    let folder = Folder::new();
    Launch::new(&folder.data()).start().stop();
    let identity = folder.data().join("identity");
    let good = fs::read(&identity).unwrap();
    files::flip(&identity, 40);
    assert!(Launch::new(&folder.data()).refused().contains("is damaged"));
    fs::remove_file(&identity).unwrap();
    assert!(Launch::new(&folder.data()).refused().contains("no identity file"));
    fs::write(&identity, good).unwrap();
    check_serves(&Launch::new(&folder.data()).start().client());
}

#[test]
fn an_etcd_members_directory_is_refused() {
    let folder = Folder::new();
    fs::create_dir_all(folder.data().join("member/snap")).unwrap();
    fs::write(folder.data().join("member/snap/db"), b"etcd's").unwrap();
    let said = Launch::new(&folder.data()).refused();
    assert!(said.contains("holds an etcd member's data"), "{said}");
    assert_eq!(fs::read(folder.data().join("member/snap/db")).unwrap(), b"etcd's");
}

#[test]
fn a_data_directory_that_others_can_read_is_warned_about_and_refused_when_strict() {
    let folder = Folder::new();
    let server = Launch::new(&folder.data()).arg("--strict-permissions").start();
    check_serves(&server.client());
    server.stop();
    fs::set_permissions(folder.data(), Permissions::from_mode(0o755)).unwrap();
    let said = Launch::new(&folder.data()).arg("--strict-permissions").refused();
    assert!(said.contains("0755") && said.contains("chmod 0700"), "{said}");
    let server = Launch::new(&folder.data()).start();
    check_serves(&server.client());
    assert!(server.output().contains("0755"), "a warning: {}", server.output());
}

#[test]
fn nobody_else_can_read_what_the_server_creates() {
    let folder = Folder::new();
    let server = Launch::new(&folder.data()).start();
    check_serves(&server.client());
    fn check(path: &Path) {
        let metadata = fs::metadata(path).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o077, 0, "{}", path.display());
        if metadata.is_dir() {
            fs::read_dir(path).unwrap().for_each(|entry| check(&entry.unwrap().path()));
        }
    }
    check(&folder.data());
}

#[test]
fn foreign_files_in_the_data_directory_do_no_harm() {
    let folder = Folder::new();
    let data = folder.data();
    fs::create_dir_all(data.join("lost+found")).unwrap();
    fs::write(data.join("lost+found/#12"), b"found").unwrap();
    fs::write(data.join("notes.txt"), b"an operator's").unwrap();
    let server = Launch::new(&data).start();
    check_serves(&server.client());
    server.stop();
    for place in ["wal", "wal/shard-0000", "keyspace-0"] {
        fs::create_dir(data.join(place).join("lost+found")).unwrap();
        fs::write(data.join(place).join("notes.txt"), b"an operator's").unwrap();
    }
    let server = Launch::new(&data).start();
    assert_eq!(server.client().get("key").unwrap().unwrap().value, "value");
    check_serves(&server.client());
    for place in ["", "wal", "wal/shard-0000", "keyspace-0"] {
        assert_eq!(fs::read(data.join(place).join("notes.txt")).unwrap(), b"an operator's", "{place}");
        assert!(data.join(place).join("lost+found").is_dir(), "{place}");
    }
}

#[test]
fn an_unfinished_creation_is_made_anew() {
    let folder = Folder::new();
    let mut server = Launch::new(&folder.data()).spawn();
    // Killed at whatever point it has come to: before it is ready nothing was acknowledged.
    common::eventually("it begins", || folder.data().join("identity").exists().then_some(()));
    server.kill();
    check_serves(&Launch::new(&folder.data()).start().client());
}

#[test]
fn through_a_link_named_etcd_it_takes_etcds_flags_with_one_dash_and_its_variables() {
    let folder = Folder::new();
    let link = folder.path().join("etcd");
    std::os::unix::fs::symlink(executable(), &link).unwrap();
    let launch = Launch::bare(Command::new(&link));
    let url = format!("http://127.0.0.1:{}", launch.port());
    let server = launch
        .with(|command| {
            command.current_dir(folder.path());
            command.args(["-name", "infra0", "--listen-client-urls", &url, "-advertise-client-urls", &url]);
        })
        .arg("-initial-cluster=infra0=http://127.0.0.1:2380")
        .env("ETCD_INITIAL_ADVERTISE_PEER_URLS", "http://127.0.0.1:2380")
        .env("ETCD_MAX_TXN_OPS", "7")
        .env("ETCD_NAME", "shadowed")
        .start();
    let client = server.client();
    check_serves(&client);
    let members = client.members().unwrap().members;
    assert_eq!(members.len(), 1);
    assert_eq!((&members[0].name[..], &members[0].client_ur_ls), ("infra0", &vec![url]));
    assert!(folder.path().join("infra0.etcd/identity").exists(), "etcd's default data directory");
    assert!(server.output().contains("ETCD_NAME"), "a shadowed variable is told: {}", server.output());
}

#[test]
fn version_is_answered_as_etcd_does() {
    let folder = Folder::new();
    let link = folder.path().join("etcd");
    std::os::unix::fs::symlink(executable(), &link).unwrap();
    for flag in ["--version", "-version"] {
        let mut command = Command::new(&link);
        command.arg(flag);
        let (status, said) = Launch::bare(command).ended();
        assert!(status.success(), "{said}");
        assert!(said.lines().next().is_some_and(|line| line.starts_with("etcd Version: 3.")), "{said}");
    }
    let mut command = Command::new(executable());
    command.arg("--version");
    let (status, said) = Launch::bare(command).ended();
    assert!(status.success() && said.starts_with("garboard "), "{said}");
}

#[test]
fn an_unknown_flag_is_an_error_that_names_the_nearest_known_one() {
    let folder = Folder::new();
    let launch = Launch::new(&folder.data()).arg("--quota-backend-byte=1");
    let (status, said) = launch.ended();
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.contains("--quota-backend-byte") && said.contains("did you mean --quota-backend-bytes?"), "{said}");
    assert!(!folder.data().exists(), "nothing is touched");
}

#[test]
fn ipv6_and_several_urls_are_listened_on_at_once() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return skip("no IPv6 on the loopback");
    }
    let folder = Folder::new();
    let launch = Launch::new(&folder.data());
    let (port, other) = (launch.port(), common::free_port());
    let socket = folder.path().join("client.sock");
    let urls = format!(
        "http://127.0.0.1:{port},http://[::1]:{port},http://127.0.0.1:{other},unix://{}",
        socket.to_str().unwrap()
    );
    let mut server =
        launch.arg(format!("--listen-client-urls={urls}")).arg("--advertise-client-urls=http://localhost:1").start();
    // One line for each address; the last is the socket's.
    server.wait_for("client.sock\"");
    let clients = [
        Client::tcp(&format!("127.0.0.1:{port}")),
        Client::tcp(&format!("[::1]:{port}")),
        Client::tcp(&format!("127.0.0.1:{other}")),
        Client::unix(&socket),
    ];
    for (number, client) in clients.into_iter().enumerate() {
        let client = client.unwrap_or_else(|error| panic!("address {number}: {error:?}\n{}", server.output()));
        client.put(format!("key-{number}"), "value").unwrap();
        assert_eq!(client.revision().unwrap(), 2 + number as i64);
    }
}

#[test]
fn a_socket_in_the_file_system_survives_kill_9_and_is_not_taken_from_a_server_that_serves() {
    let (folder, other) = (Folder::new(), Folder::new());
    let socket = folder.path().join("client.sock");
    let launch = |data: &Path| {
        let mut command = Command::new(executable());
        command.arg("serve").arg("--data-dir").arg(data);
        command.arg(format!("--listen-client-urls=unix://{}", socket.to_str().unwrap()));
        Launch::bare(command).arg("--advertise-client-urls=http://localhost:1")
    };
    let mut server = launch(&folder.data()).start();
    common::eventually("the socket answers", || Client::unix(&socket).ok()).put("a", "1").unwrap();
    let said = launch(&other.data()).refused();
    assert!(said.contains("in use"), "{said}");
    server.kill();
    let _server = launch(&folder.data()).start();
    let client = common::eventually("the socket answers", || Client::unix(&socket).ok());
    assert_eq!(client.get("a").unwrap().unwrap().value, "1");
}

#[test]
fn a_socket_that_can_not_be_made_is_refused_with_its_name_and_what_is_no_socket_stays() {
    let folder = Folder::new();
    let launch = |path: &Path| {
        let mut command = Command::new(executable());
        command.arg("serve").arg("--data-dir").arg(folder.data());
        command.arg(format!("--listen-client-urls=unix://{}", path.to_str().unwrap()));
        Launch::bare(command).arg("--advertise-client-urls=http://localhost:1")
    };
    let file = folder.path().join("file");
    fs::write(&file, b"precious").unwrap();
    for path in [file.clone(), folder.path().join("nowhere/client.sock")] {
        let said = launch(&path).refused();
        assert!(said.contains(path.to_str().unwrap()), "{said}");
        assert!(!said.contains("ready to serve"), "{said}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"precious");
}

#[test]
fn what_is_reserved_on_disk_at_start_is_bounded() {
    let folder = Folder::new();
    let server = Launch::new(&folder.data()).start();
    check_serves(&server.client());
    let reserved = files::disk_bytes(&folder.data());
    assert!(reserved <= RESERVED_AT_START_MAX_BYTES, "{reserved} bytes");
}

#[test]
fn one_core_is_enough_by_flag_and_by_affinity() {
    let folder = Folder::new();
    let server = Launch::new(&folder.data()).arg("--cores=1").start();
    check_serves(&server.client());
    server.stop();
    let Some(taskset) = tool("taskset") else { return skip("taskset is not installed") };
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let last = (0..rustix::thread::CpuSet::MAX_CPU).rfind(|cpu| allowed.is_set(*cpu)).unwrap();
    let mut command = Command::new(taskset);
    command.arg("-c").arg(last.to_string()).arg(executable());
    let launch = Launch::bare(command);
    let url = format!("--listen-client-urls=http://127.0.0.1:{}", launch.port());
    let server = launch.arg("serve").arg("--data-dir").arg(folder.data()).arg(url).start();
    check_serves(&server.client());
    assert!(server.output().contains(&format!("processors [{last}]")), "{}", server.output());
}

#[test]
fn a_cgroups_quota_bounds_the_cores() {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap().count();
    if allowed < 2 {
        return skip("there is one processor only");
    }
    let group = match Cgroup::of_one_core() {
        Ok(group) => group,
        Err(reason) => return skip(&reason),
    };
    let folder = Folder::new();
    // The shell puts itself into the group and becomes the server.
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg("echo $$ > \"$0\"/cgroup.procs && exec \"$@\"").arg(&group.0).arg(executable());
    let launch = Launch::bare(command);
    let url = format!("--listen-client-urls=http://127.0.0.1:{}", launch.port());
    let mut server = launch.arg("serve").arg("--data-dir").arg(folder.data()).arg(url).start();
    check_serves(&server.client());
    let output = server.output();
    let (_, processors) = output.split_once("processors [").expect("it says which processors it uses");
    let (processors, _) = processors.split_once(']').unwrap();
    assert!(!processors.contains(','), "one core, not {processors}");
    server.kill();
}

/// A control group whose processes may use one core.
struct Cgroup(std::path::PathBuf);

impl Cgroup {
    fn of_one_core() -> Result<Cgroup, String> {
        let name = format!("garboard-test-{}", std::process::id());
        for (root, file, quota) in
            [("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "100000"), ("/sys/fs/cgroup", "cpu.max", "100000 100000")]
        {
            let group = Cgroup(Path::new(root).join(&name));
            let made = fs::create_dir(&group.0).is_ok();
            if made && group.0.join(file).exists() && fs::write(group.0.join(file), quota).is_ok() {
                return Ok(group);
            }
        }
        Err("no control group can be made".to_owned())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A group that still holds a process that is going can't be removed yet.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() || !self.0.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn an_ordinary_user_with_the_usual_memlock_limit_is_enough() {
    let (Some(prlimit), Some(setpriv)) = (tool("prlimit"), tool("setpriv")) else {
        return skip("prlimit or setpriv is not installed");
    };
    // The build's own folder may be closed to other users.
    let folder = Folder::below(&std::env::temp_dir());
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("garboard");
    fs::copy(executable(), &program).unwrap();
    fs::create_dir(folder.data()).unwrap();
    fs::set_permissions(folder.data(), Permissions::from_mode(0o700)).unwrap();
    let mut command = Command::new(prlimit);
    command.arg(format!("--memlock={MEMLOCK_BYTES}"));
    if is_root() {
        std::os::unix::fs::chown(folder.data(), Some(ORDINARY_USER), Some(ORDINARY_USER)).unwrap();
        command.arg(setpriv);
        command.args([format!("--reuid={ORDINARY_USER}"), format!("--regid={ORDINARY_USER}")]);
        command.args(["--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]);
    }
    command.arg(program);
    let launch = Launch::bare(command);
    let url = format!("--listen-client-urls=http://127.0.0.1:{}", launch.port());
    let server = launch.arg("serve").arg("--data-dir").arg(folder.data()).arg(url).start();
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.id())).unwrap();
    let locked = limits.lines().find(|line| line.starts_with("Max locked memory")).unwrap();
    assert!(locked.contains(&MEMLOCK_BYTES.to_string()), "{locked}");
    let client = server.client();
    check_serves(&client);
    client.put("large", vec![7; 1 << 20]).unwrap();
    server.stop();
}

#[test]
fn where_io_uring_is_not_to_be_had_it_says_what_to_allow() {
    for (errno, name) in [(libc::EPERM, "as containerd's profile answers"), (libc::ENOSYS, "as docker's answers")] {
        let folder = Folder::new();
        let said = Launch::new(&folder.data()).with(|command| forbid_io_uring(command, errno)).refused();
        for call in ["io_uring_setup", "io_uring_enter", "io_uring_register", "seccomp"] {
            assert!(said.contains(call), "{name}: {said}");
        }
        assert!(!folder.data().exists(), "nothing is touched");
    }
}

/// Makes the process start under a seccomp filter that answers `io_uring_setup` with an error.
#[allow(unsafe_code)]
fn forbid_io_uring(command: &mut Command, errno: i32) {
    let answer = libc::SECCOMP_RET_ERRNO | u32::try_from(errno).unwrap();
    let forbidden = u32::try_from(libc::SYS_io_uring_setup).unwrap();
    let statement = |code: u32, k: u32, jf: u8| libc::sock_filter { code: u16::try_from(code).unwrap(), jt: 0, jf, k };
    let filter = [
        // The system call's number is the first field of what the filter sees.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, forbidden, 1),
        statement(libc::BPF_RET | libc::BPF_K, answer, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let install = move || {
        let mut filter = filter;
        let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
        // SAFETY: both calls only change this process, a child that has not started its program yet; `program` and
        // `filter` outlive the call, which copies them.
        unsafe {
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
            {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes two system calls and allocates nothing.
    unsafe {
        command.pre_exec(install);
    }
}

#[test]
fn where_o_direct_is_refused_it_says_so_once_and_loses_nothing() {
    let mount = match common::mount::Ramfs::new() {
        Ok(mount) => mount,
        Err(reason) => return skip(&reason),
    };
    let data = mount.path().join("data");
    let mut acknowledged = common::load::Acknowledged::new();
    for round in 0..3 {
        let mut server = Launch::new(&data).start();
        common::load::check_all_there(&server, &acknowledged);
        let load = common::load::Load::start(&server, &format!("round-{round}"), 8, 2000);
        load.wait_for(300);
        // Beyond a segment, so that further files are opened.
        let client = server.client();
        for number in 0..20 {
            client.put(format!("large-{number}"), vec![b'v'; 1 << 20]).unwrap();
        }
        server.kill();
        acknowledged.extend(load.finish().0);
        let said = server.said();
        assert_eq!(said.matches("refuses O_DIRECT").count(), 1, "{said}");
    }
    common::load::check_all_there(&Launch::new(&data).start(), &acknowledged);
}

#[test]
fn a_data_directory_in_memory_works_and_a_refused_o_direct_is_said_once() {
    let memory = Path::new("/dev/shm");
    if !memory.is_dir() {
        return skip("no /dev/shm");
    }
    let folder = Folder::below(memory);
    let mut server = Launch::new(&folder.data()).start();
    let client = server.client();
    for number in 0..40 {
        client.put(format!("key-{number}"), vec![b'v'; 1 << 20]).unwrap();
    }
    let probe = folder.path().join("probe");
    fs::write(&probe, [0; 4096]).unwrap();
    let direct = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::DIRECT;
    let refused = rustix::fs::open(&probe, direct, rustix::fs::Mode::empty()).is_err();
    let said = |server: &common::Server| server.output().matches("O_DIRECT").count();
    if refused {
        assert_eq!(said(&server), 1, "{}", server.output());
    } else {
        assert!(said(&server) <= 1, "{}", server.output());
    }
    server.kill();
    let server = Launch::new(&folder.data()).start();
    assert_eq!(server.client().revision().unwrap(), 41);
    assert!(said(&server) <= 1, "{}", server.output());
}
