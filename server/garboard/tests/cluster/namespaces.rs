//! A network of its own for each member: a namespace with one address, all of them on one bridge, and what can be cut
//! between them.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::common::{is_root, run, tool};

/// What the tests need beside the kernel.
const TOOLS: [&str; 2] = ["ip", "nft"];

/// A bridge with some hosts on it. Host 0 is the clients'.
pub struct Network {
    name: String,
    hosts: usize,
}

impl Network {
    /// Makes one; the reason where that is not permitted or a tool is missing.
    pub fn new(hosts: usize) -> Result<Network, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !is_root() {
            return Err("only root can make network namespaces".to_owned());
        }
        if let Some(missing) = TOOLS.iter().find(|name| tool(name).is_none()) {
            return Err(format!("{missing} is not installed"));
        }
        let name = format!("gb{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let network = Network { name, hosts };
        let switch = network.switch();
        ip(&format!("netns add {switch}"))?;
        ip(&format!("-n {switch} link add br0 type bridge"))?;
        ip(&format!("-n {switch} link set br0 up"))?;
        for host in 0..hosts {
            let space = network.space(host);
            ip(&format!("netns add {space}"))?;
            ip(&format!("-n {space} link add eth0 type veth peer name port{host} netns {switch}"))?;
            ip(&format!("-n {switch} link set port{host} master br0 up"))?;
            ip(&format!("-n {space} addr add {}/24 dev eth0", network.address(host)))?;
            ip(&format!("-n {space} link set eth0 up"))?;
            ip(&format!("-n {space} link set lo up"))?;
            network.nft(host, "add table inet cut")?;
            network.nft(host, "add chain inet cut in { type filter hook input priority 0; }")?;
        }
        Ok(network)
    }

    fn switch(&self) -> String {
        format!("{}-s", self.name)
    }

    fn space(&self, host: usize) -> String {
        format!("{}-{host}", self.name)
    }

    /// A host's address.
    pub fn address(&self, host: usize) -> String {
        format!("10.77.0.{}", host + 1)
    }

    /// A command that runs a program on a host, as the same process.
    pub fn command(&self, host: usize, program: &OsStr) -> Command {
        let mut command = Command::new(tool("ip").expect("looked for before"));
        command.args(["netns", "exec", &self.space(host)]).arg(program);
        command
    }

    /// Takes the calling thread to a host: the sockets that it makes from now on are there.
    pub fn enter(&self, host: usize) {
        let space = File::open(format!("/run/netns/{}", self.space(host))).unwrap();
        move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }

    /// What the hosts' resolvers know from now on, for the programs that are started after the first time.
    pub fn set_names(&self, names: &[(String, String)]) {
        let lines: String = names.iter().map(|(name, address)| format!("{address} {name}\n")).collect();
        for host in 0..self.hosts {
            let folder = self.resolver(host);
            std::fs::create_dir_all(&folder).unwrap();
            // Written in place: `ip netns exec` has put this very file where programs look.
            std::fs::write(folder.join("hosts"), &lines).unwrap();
        }
    }

    fn resolver(&self, host: usize) -> PathBuf {
        Path::new("/etc/netns").join(self.space(host))
    }

    /// Gives a host another address in place of the one that it has.
    pub fn move_host(&self, host: usize, from: &str, to: &str) {
        let space = self.space(host);
        // In this order: one that was added first would go with the address whose network it shares.
        ip(&format!("-n {space} addr del {from}/24 dev eth0")).unwrap();
        ip(&format!("-n {space} addr add {to}/24 dev eth0")).unwrap();
    }

    /// What comes for one port of a host arrives at another.
    pub fn map_port(&self, host: usize, from: u16, to: u16) {
        self.nft(host, "add table ip mapped").unwrap();
        self.nft(host, "add chain ip mapped in { type nat hook prerouting priority dstnat; }").unwrap();
        self.nft(host, &format!("add rule ip mapped in tcp dport {from} redirect to :{to}")).unwrap();
        self.nft(host, &format!("add rule ip mapped in udp dport {from} redirect to :{to}")).unwrap();
    }

    /// From now on nothing from an address arrives at a UDP port of a host.
    pub fn close_port(&self, host: usize, to_port: u16, from: &str) {
        self.nft(host, &format!("add rule inet cut in ip saddr {from} udp dport {to_port} drop")).unwrap();
    }

    /// From now on nothing that one host sends arrives at the other. The way back stays open.
    pub fn cut(&self, from: usize, to: usize) {
        self.nft(to, &format!("add rule inet cut in ip saddr {} drop", self.address(from))).unwrap();
    }

    /// From now on no UDP arrives at a host. TCP does.
    pub fn block_udp(&self, host: usize) {
        self.nft(host, "add rule inet cut in meta l4proto udp drop").unwrap();
    }

    /// From now on nothing arrives at a host, and nothing that it sends arrives anywhere, clients' packets included: as if
    /// the host had vanished.
    pub fn vanish(&self, host: usize) {
        for other in (0..self.hosts).filter(|other| *other != host) {
            self.cut(host, other);
        }
        self.nft(host, "add rule inet cut in iifname eth0 drop").unwrap();
    }

    /// Ends all cuts.
    pub fn heal(&self) {
        for host in 0..self.hosts {
            self.nft(host, "flush chain inet cut in").unwrap();
        }
    }

    fn nft(&self, host: usize, rule: &str) -> Result<(), String> {
        let space = self.space(host);
        let words = ["netns", "exec", &space, "nft", rule];
        run("ip", &words.map(OsStr::new))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for space in (0..self.hosts).map(|host| self.space(host)).chain([self.switch()]) {
            let _ = ip(&format!("netns del {space}"));
        }
        for host in 0..self.hosts {
            let _ = std::fs::remove_dir_all(self.resolver(host));
        }
    }
}

fn ip(line: &str) -> Result<(), String> {
    let words: Vec<&OsStr> = line.split(' ').map(OsStr::new).collect();
    run("ip", &words)
}
