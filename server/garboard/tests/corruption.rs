//! A member whose state differs from that of the others, though every page and entry of it is sound: it has lived through
//! another history.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test drives real processes, and what fails fails it"
)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::client::Client;
use common::{Folder, Launch, Server, eventually, free_port};
use garboard_proto::etcdserverpb::AlarmType;

const NAMES: [&str; 3] = ["a", "b", "c"];

struct Members {
    folder: Folder,
    peer_ports: [u16; 3],
    client_ports: [u16; 3],
}

impl Members {
    fn new() -> Members {
        let ports = || [free_port(), free_port(), free_port()];
        Members { folder: Folder::new(), peer_ports: ports(), client_ports: ports() }
    }

    fn data(&self, member: usize) -> PathBuf {
        self.folder.path().join(NAMES[member])
    }

    fn launch(&self, member: usize, flags: &[&str]) -> Launch {
        let peer = |member: usize| format!("http://127.0.0.1:{}", self.peer_ports[member]);
        let cluster: Vec<String> = (0..3).map(|member| format!("{}={}", NAMES[member], peer(member))).collect();
        let client = format!("http://127.0.0.1:{}", self.client_ports[member]);
        let launch = Launch::member(&self.data(member), NAMES[member], &client, &peer(member), &cluster);
        flags.iter().fold(launch, Launch::arg)
    }

    fn client(&self, member: usize) -> Client {
        Client::tcp(&format!("127.0.0.1:{}", self.client_ports[member])).unwrap()
    }

    /// Keeps the data of all members, or brings it back.
    fn copy(&self, name: &str, back: bool) {
        for member in 0..3 {
            self.copy_one(member, name, back);
        }
    }

    fn copy_one(&self, member: usize, name: &str, back: bool) {
        let (data, kept) = (self.data(member), self.folder.path().join(format!("{}.{name}", NAMES[member])));
        let (from, to) = if back { (kept, data) } else { (data, kept) };
        let _ = fs::remove_dir_all(&to);
        copy_folder(&from, &to);
    }

    /// The first two members, which have what was kept, and serve. They begin anew each time: a leader's
    /// count of what the third one has would not hold for data that was brought back.
    fn two_of(&self, name: &str, flags: &[&str]) -> Vec<Server> {
        let mut servers: Vec<Server> = (0..2)
            .map(|member| {
                self.copy_one(member, name, true);
                self.launch(member, flags).spawn()
            })
            .collect();
        for server in &mut servers {
            server.wait_for("ready to serve client requests");
        }
        servers
    }

    /// All members live on from what was kept as `from`, up to one write. Their data is kept as `to`; the answer tells
    /// which history it is, beside the value.
    fn live(&self, from: &str, to: &str, value: &str) -> (u64, u64, i64) {
        self.copy(from, true);
        let mut servers: Vec<Server> = (0..3).map(|member| self.launch(member, &[]).spawn()).collect();
        for server in &mut servers {
            server.wait_for("ready to serve client requests");
        }
        let revision = self.client(0).put("key", value.to_owned()).unwrap();
        let history = eventually("all members have the write", || {
            let status = |member| self.client(member).status().unwrap();
            let of = |member| {
                let status = status(member);
                (status.raft_term, status.raft_applied_index, status.header.unwrap().revision)
            };
            let all = [of(0), of(1), of(2)];
            (all[0].2 == revision && all.iter().all(|one| *one == all[0])).then_some(all[0])
        });
        for server in &mut servers {
            server.kill();
        }
        self.copy(to, false);
        history
    }
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
    fs::set_permissions(to, fs::metadata(from).unwrap().permissions()).unwrap();
}

#[test]
fn a_member_of_another_history_does_not_serve_and_is_named_where_it_does() {
    let members = Members::new();
    let mut servers: Vec<Server> = (0..3).map(|member| members.launch(member, &[]).spawn()).collect();
    for server in &mut servers {
        server.wait_for("ready to serve client requests");
    }
    eventually("all members have published themselves", || {
        let listed = members.client(0).members().unwrap().members;
        listed.iter().all(|member| !member.client_ur_ls.is_empty()).then_some(())
    });
    let id = members.client(2).status().unwrap().header.unwrap().member_id;
    for server in &mut servers {
        server.kill();
    }
    members.copy("base", false);
    // Elections decide the terms and entries of a history: two that ran in step differ in nothing but a value.
    let mut lived = Vec::new();
    let (one, other) = loop {
        let name = lived.len().to_string();
        assert!(lived.len() < 10, "no two histories had the same terms and entries: {lived:?}");
        let history = members.live("base", &name, &name);
        if let Some(equal) = lived.iter().position(|known| *known == history) {
            break (equal.to_string(), name);
        }
        lived.push(history);
    };

    let check = "--feature-gates=InitialCorruptCheck=true";
    {
        let _others = members.two_of(&other, &[]);
        members.copy_one(2, &one, true);
        let said = members.launch(2, &[check]).refused();
        assert!(said.contains("the initial corruption check found data inconsistency with peers"), "{said}");
        assert!(said.contains(&format!("at revision {}", lived[0].2)) && !said.contains("ready to serve"), "{said}");
    }
    {
        let _others = members.two_of(&other, &["--corrupt-check-time=300ms"]);
        members.copy_one(2, &other, true);
        let mut equal = members.launch(2, &[check]).spawn();
        equal.wait_for("finished the initial corruption check");
        equal.wait_for("ready to serve client requests");
        assert_eq!(members.client(0).alarms().unwrap(), []);
    }
    let _others = members.two_of(&other, &["--corrupt-check-time=300ms"]);
    members.copy_one(2, &one, true);
    let _differs = members.launch(2, &[]).spawn();
    let alarms = eventually("the alarm is raised", || {
        let alarms = members.client(0).alarms().unwrap();
        (!alarms.is_empty()).then_some(alarms)
    });
    let named: Vec<(u64, i32)> = alarms.iter().map(|alarm| (alarm.member_id, alarm.alarm)).collect();
    assert_eq!(named, [(id, AlarmType::Corrupt.into())]);
    let refused = members.client(1).put("key", "three").unwrap_err();
    assert!(refused.text().contains("corrupt cluster"), "{refused:?}");
}
