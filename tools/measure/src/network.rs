//! Hosts of their own for the members of a cluster: network namespaces on one bridge, so that one of them can vanish from
//! the network without its process ending.

use crate::Failure;
use crate::servers::remove_namespace_at_end;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;

/// A bridge with hosts on it, one more than there are members: the load's.
#[derive(Debug)]
pub struct Network {
    hosts: Vec<Host>,
}

/// One host.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its namespace, and that of the bridge.
    space: String,
    switch: String,
    /// Its end on the bridge.
    port: String,
    /// Its address.
    pub address: String,
}

impl Network {
    /// Makes one. It is gone when the run is over.
    pub fn new(hosts: u8) -> Result<Self, Failure> {
        let name = format!("measure{}", std::process::id());
        let switch = format!("{name}-switch");
        add_namespace(&switch)?;
        ip(&format!("-n {switch} link add br0 type bridge"))?;
        ip(&format!("-n {switch} link set br0 up"))?;
        let host = |number| {
            let host = Host {
                space: format!("{name}-{number}"),
                switch: switch.clone(),
                port: format!("port{number}"),
                address: format!("10.77.0.{number}"),
            };
            let Host { space, port, address, .. } = &host;
            add_namespace(space)?;
            ip(&format!("-n {space} link add eth0 type veth peer name {port} netns {switch}"))?;
            ip(&format!("-n {switch} link set {port} master br0 up"))?;
            ip(&format!("-n {space} addr add {address}/24 dev eth0"))?;
            ip(&format!("-n {space} link set eth0 up"))?;
            ip(&format!("-n {space} link set lo up"))?;
            Ok(host)
        };
        Ok(Self { hosts: (1..=hosts + 1).map(host).collect::<Result<_, Failure>>()? })
    }

    /// The members' hosts.
    pub fn members(&self) -> &[Host] {
        self.hosts.split_last().map_or(&[], |(_load, members)| members)
    }

    /// Takes the calling thread, and those that it starts, to the load's host.
    pub fn enter(&self) -> Result<(), Failure> {
        let load = self.hosts.last().expect("there is always the load's");
        let space = File::open(format!("/run/netns/{}", load.space))?;
        move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| Failure::new(format!("entering a network namespace: {error}")))
    }
}

impl Host {
    /// A command that runs a program on the host, as the same process.
    pub fn command(&self, program: &std::path::Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space]).arg(program);
        command
    }

    /// From now on nothing leaves the host or gets to it, or everything does again.
    pub fn set_reachable(&self, reachable: bool) -> Result<(), Failure> {
        let state = if reachable { "up" } else { "down" };
        ip(&format!("-n {} link set {} {state}", self.switch, self.port))
    }
}

fn add_namespace(name: &str) -> Result<(), Failure> {
    ip(&format!("netns add {name}"))?;
    remove_namespace_at_end(name);
    Ok(())
}

fn ip(line: &str) -> Result<(), Failure> {
    let output = Command::new("ip")
        .args(line.split(' '))
        .output()
        .map_err(|error| Failure::new(format!("ip, of the package iproute2, is needed: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(format!("ip {line}: {}; only root can make network namespaces", said.trim())))
}
