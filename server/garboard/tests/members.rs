//! Members that join, get a vote and leave, with etcdctl: beside a real etcd of three, step by step, the outputs compared.
//!
//! The real programs lie in `tools/conformance/bin` once that was built, or in the folder that `GARBOARD_ETCD_BIN` names.
//! Without them there is nothing to compare with, and the test says so.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test drives real processes, and what fails fails it"
)]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Folder, Launch, Server, executable, free_port, patience, skip};

fn etcd_tool(name: &str) -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/conformance/bin");
    let folder = std::env::var_os("GARBOARD_ETCD_BIN").map_or(built, PathBuf::from);
    Some(folder.join(name)).filter(|path| path.exists())
}

/// One cluster, ours or the real one's.
struct Cluster {
    program: Option<PathBuf>,
    etcdctl: PathBuf,
    folder: Folder,
    members: Vec<Member>,
}

struct Member {
    name: String,
    client_port: u16,
    peer_port: u16,
    server: Option<Server>,
}

impl Member {
    fn new(n: usize) -> Member {
        Member { name: format!("m{n}"), client_port: free_port(), peer_port: free_port(), server: None }
    }

    fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer_port)
    }

    fn client_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.client_port)
    }
}

impl Cluster {
    /// Three members of the real etcd, or of ours.
    fn start(program: Option<PathBuf>, etcdctl: PathBuf) -> Cluster {
        let members = (1..=3).map(Member::new).collect();
        let mut cluster = Cluster { program, etcdctl, folder: Folder::new(), members };
        for n in 0..3 {
            let server = cluster.spawn(n, "new");
            cluster.members[n].server = Some(server);
        }
        for member in &mut cluster.members {
            member.server.as_mut().unwrap().wait_for("ready to serve client requests");
        }
        cluster
    }

    fn spawn(&self, n: usize, state: &str) -> Server {
        self.launch(n, state).spawn()
    }

    fn launch(&self, n: usize, state: &str) -> Launch {
        let member = &self.members[n];
        let everyone: Vec<String> = self.members.iter().map(|m| format!("{}={}", m.name, m.peer_url())).collect();
        let mut command = Command::new(self.program.as_deref().unwrap_or(executable()));
        match &self.program {
            // Of the real one only answers are looked at.
            Some(_) => command.arg("--unsafe-no-fsync").arg("--logger=zap"),
            None => command.arg("serve"),
        };
        Launch::bare(command)
            .with(|command| {
                command.env_remove("ETCD_LISTEN_PEER_URLS");
            })
            .arg(format!("--name={}", member.name))
            .arg(format!("--data-dir={}", self.folder.path().join(&member.name).display()))
            .arg(format!("--listen-client-urls={}", member.client_url()))
            .arg(format!("--advertise-client-urls={}", member.client_url()))
            .arg(format!("--listen-peer-urls={}", member.peer_url()))
            .arg(format!("--initial-advertise-peer-urls={}", member.peer_url()))
            .arg(format!("--initial-cluster={}", everyone.join(",")))
            .arg(format!("--initial-cluster-state={state}"))
    }

    /// What etcdctl says, asked of one member: whether it was content, and its words without what differs by itself.
    fn ctl(&self, asked: usize, arguments: &str) -> (bool, String) {
        let mut arguments = arguments.to_owned();
        for (n, member) in self.members.iter().enumerate() {
            arguments = arguments.replace(&format!("$PEER{n}"), &member.peer_url());
            if arguments.contains(&format!("$ID{n}")) {
                arguments = arguments.replace(&format!("$ID{n}"), &self.id(n));
            }
        }
        let (succeeded, said) = self.ctl_raw(asked, &arguments);
        (succeeded, self.masked(&said))
    }

    fn ctl_raw(&self, asked: usize, arguments: &str) -> (bool, String) {
        let output = Command::new(&self.etcdctl)
            .arg(format!("--endpoints={}", self.members[asked].client_url()))
            .args(arguments.split_whitespace())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let mut said = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        said.extend(errors.lines().filter(|line| line.starts_with("Error:")).map(|line| format!("{line}\n")));
        (output.status.success(), said)
    }

    /// A member's id, as the list has it.
    fn id(&self, n: usize) -> String {
        let (_, list) = self.ctl_raw(0, "member list");
        let peer_url = self.members[n].peer_url();
        let line = list.lines().find(|line| line.contains(&peer_url)).unwrap_or_else(|| panic!("no {n} in {list}"));
        line.split(',').next().unwrap().to_owned()
    }

    /// Addresses become names, ids and figures become nothing, and lists that are in order of ids become sorted.
    fn masked(&self, said: &str) -> String {
        let mut text = said.to_owned();
        for member in &self.members {
            text = text.replace(&member.peer_url(), &format!("{}-peer", member.name));
            text = text.replace(&member.client_url(), &format!("{}-client", member.name));
        }
        let is_id = |word: &str| word.len() >= 12 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        let mut lines: Vec<String> = text
            .lines()
            .map(|line| match line.split_once("took = ") {
                Some((before, _)) => before.to_owned(),
                None => line.to_owned(),
            })
            .map(|line| match line.strip_prefix("ETCD_INITIAL_CLUSTER=") {
                Some(list) => {
                    let mut parts: Vec<&str> = list.trim_matches('"').split(',').collect();
                    parts.sort_unstable();
                    format!("ETCD_INITIAL_CLUSTER={}", parts.join(","))
                }
                None => line,
            })
            .map(|line| {
                let words = line.split_whitespace().map(|word| {
                    let (core, comma) = word.strip_suffix(',').map_or((word, ""), |core| (core, ","));
                    if is_id(core) { format!("ID{comma}") } else { word.to_owned() }
                });
                words.collect::<Vec<_>>().join(" ")
            })
            .collect();
        lines.sort();
        lines.join("\n")
    }

    /// Of `endpoint status` what is the same in every cluster: who was asked, quota, learner, errors; and how many lead.
    fn status(&self) -> String {
        let (_, said) = self.ctl_raw(0, "endpoint status --cluster");
        let rows: Vec<Vec<&str>> = said.lines().map(|line| line.split(", ").collect()).collect();
        let leaders = rows.iter().filter(|row| row[8] == "true").count();
        let rows: Vec<String> = rows.iter().map(|row| [row[0], row[2], row[7], row[9], row[13]].join(", ")).collect();
        format!("{leaders} leads\n{}", self.masked(&rows.join("\n")))
    }

    /// Repeats a command until it is content.
    fn until_content(&self, asked: usize, arguments: &str) -> String {
        let started = Instant::now();
        loop {
            match self.ctl(asked, arguments) {
                (true, said) => return said,
                (false, said) => assert!(started.elapsed() < patience(), "{arguments}: {said}"),
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Runs everything, and notes what is to be the same.
fn play(cluster: &mut Cluster) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |what: &str, said: String| notes.push(format!("{what}\n{said}"));
    note("list", cluster.ctl(0, "member list").1);
    note("status", cluster.status());
    note("health", cluster.ctl(0, "endpoint health --cluster").1);
    cluster.members.push(Member::new(4));
    note("add", cluster.until_content(1, "member add m4 --learner --peer-urls=$PEER3"));
    for arguments in [
        "member list",
        "member add other --peer-urls=$PEER0",
        "member add other --learner --peer-urls=http://127.0.0.1:1",
        "member promote $ID3",
        "member promote $ID0",
        "member promote 1234",
        "member remove 1234",
        "member update 1234 --peer-urls=http://127.0.0.1:1",
        "member update $ID3 --peer-urls=$PEER0",
    ] {
        let (succeeded, said) = cluster.ctl(2, arguments);
        note(arguments, format!("{succeeded} {said}"));
    }
    let mut joined = cluster.spawn(3, "existing");
    joined.wait_for("ready to serve client requests");
    note("status with a learner", cluster.status());
    note("promote", cluster.until_content(1, "member promote $ID3"));
    note("list with four", cluster.ctl(3, "member list").1);
    note("promote again", cluster.ctl(0, "member promote $ID3").1);
    note("update", cluster.ctl(1, "member update $ID3 --peer-urls=http://127.0.0.1:1").1);
    note("list after", cluster.ctl(1, "member list").1);
    let (_, list) = cluster.ctl_raw(0, "member list");
    let id = list.lines().find(|line| line.contains("m4")).unwrap().split(',').next().unwrap().to_owned();
    note("remove", cluster.until_content(2, &format!("member remove {id}")));
    note("list at the end", cluster.ctl(0, "member list").1);
    assert!(joined.wait().success(), "a member that was removed ends well");
    assert!(joined.said().contains("the member has been permanently removed from the cluster"));
    note("health at the end", cluster.ctl(0, "endpoint health --cluster").1);
    notes
}

#[test]
fn etcdctl_sees_members_join_and_leave_as_with_a_real_etcd() {
    let (Some(etcd), Some(etcdctl)) = (etcd_tool("etcd"), etcd_tool("etcdctl")) else {
        return skip("tools/conformance is not built: there is no etcd to compare with");
    };
    let mut real = Cluster::start(Some(etcd), etcdctl.clone());
    let mut ours = Cluster::start(None, etcdctl);
    let expected = play(&mut real);
    drop(real);
    let found = play(&mut ours);
    for (expected, found) in expected.iter().zip(&found) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
    // Its data is of no use any more.
    let said = ours.spawn(3, "existing").said_at_end();
    assert!(said.contains("the member has been permanently removed from the cluster"), "{said}");
}

/// One of three is made the only one, and notes what is to be the same.
fn play_forced(cluster: &mut Cluster) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |what: &str, said: String| notes.push(format!("{what}\n{said}"));
    for key in ["a", "b", "c"] {
        cluster.until_content(1, &format!("put {key} value-of-{key}"));
    }
    note("get", cluster.ctl(0, "get --prefix a").1);
    let ids = |cluster: &Cluster| {
        let (_, said) = cluster.ctl_raw(0, "endpoint status --write-out=json");
        let status: serde_json::Value = serde_json::from_str(&said).unwrap();
        let header = &status[0]["Status"]["header"];
        (header["cluster_id"].clone(), header["member_id"].clone())
    };
    let before = ids(cluster);
    for member in &mut cluster.members {
        member.server.take().unwrap().kill();
    }
    let mut forced = cluster.launch(0, "new").arg("--force-new-cluster").spawn();
    forced.wait_for("ready to serve client requests");
    note("list when forced", cluster.ctl(0, "member list").1);
    note("status when forced", cluster.status());
    note("health when forced", cluster.ctl(0, "endpoint health --cluster").1);
    note("data is kept", ["a", "b", "c"].map(|key| cluster.ctl(0, &format!("get {key}")).1).concat());
    note("it takes writes", cluster.ctl(0, "put d value-of-d").1);
    note("the same ids", format!("{}", ids(cluster) == before));
    forced.kill();
    let mut again = cluster.spawn(0, "new");
    again.wait_for("ready to serve client requests");
    note("list without the flag", cluster.ctl(0, "member list").1);
    note("data without the flag", ["a", "b", "c", "d"].map(|key| cluster.ctl(0, &format!("get {key}")).1).concat());
    note("the same ids", format!("{}", ids(cluster) == before));
    cluster.members.truncate(1);
    cluster.members.push(Member::new(9));
    note("add", cluster.until_content(0, "member add m9 --peer-urls=$PEER1"));
    let mut joined = cluster.spawn(1, "existing");
    joined.wait_for("ready to serve client requests");
    note("list with one who joined", cluster.ctl(1, "member list").1);
    note("data at who joined", cluster.ctl(1, "get d").1);
    notes
}

#[test]
fn one_of_three_is_made_the_only_member_as_with_a_real_etcd() {
    let (Some(etcd), Some(etcdctl)) = (etcd_tool("etcd"), etcd_tool("etcdctl")) else {
        return skip("tools/conformance is not built: there is no etcd to compare with");
    };
    let mut real = Cluster::start(Some(etcd), etcdctl.clone());
    let expected = play_forced(&mut real);
    drop(real);
    let mut ours = Cluster::start(None, etcdctl);
    let found = play_forced(&mut ours);
    for (expected, found) in expected.iter().zip(&found) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
}

#[test]
fn who_was_left_out_when_a_member_was_made_the_only_one_is_told_so_and_ends() {
    let Some(etcdctl) = etcd_tool("etcdctl") else {
        return skip("tools/conformance is not built: there is no etcdctl");
    };
    let mut cluster = Cluster::start(None, etcdctl);
    for member in &mut cluster.members {
        member.server.take().unwrap().kill();
    }
    let mut forced = cluster.launch(0, "new").arg("--force-new-cluster").spawn();
    forced.wait_for("ready to serve client requests");
    let said = cluster.spawn(1, "new").said_at_end();
    assert!(said.contains("the member has been permanently removed from the cluster"), "{said}");
    assert!(cluster.ctl(0, "put k v").0, "{}", forced.output());
}

/// What a server said that ends by itself.
trait AtEnd {
    fn said_at_end(self) -> String;
}

impl AtEnd for Server {
    fn said_at_end(mut self) -> String {
        self.wait();
        self.said()
    }
}
