//! Members that are known by their names: one moves to another address, and listens elsewhere than it advertises.

use super::common::client::Client;
use super::common::{Folder, Launch, Server, eventually, executable, skip};
use super::namespaces::Network;
use super::{CLIENT_PORT, MEMBERS, PEER_PORT, setting};

/// Where the member that moves listens. What comes for the port that it advertises is brought there.
const OTHER_PORT: u16 = 12_380;
const MOVING: usize = 2;

fn host(member: usize) -> usize {
    member + 1
}

fn names(network: &Network, address_of_moving: &str) -> Vec<(String, String)> {
    let address = |member| if member == MOVING { address_of_moving.to_owned() } else { network.address(host(member)) };
    (0..MEMBERS).map(|member| (format!("m{member}.test"), address(member))).collect()
}

fn launch(network: &Network, folder: &Folder, member: usize) -> Launch {
    let initial: Vec<String> =
        (0..MEMBERS).map(|member| format!("m{member}=http://m{member}.test:{PEER_PORT}")).collect();
    let port = if member == MOVING { OTHER_PORT } else { PEER_PORT };
    Launch::bare(network.command(host(member), executable().as_os_str()))
        .arg("serve")
        .arg(format!("--data-dir={}", folder.path().join(format!("m{member}")).display()))
        .arg(format!("--name=m{member}"))
        .arg(format!("--listen-client-urls=http://0.0.0.0:{CLIENT_PORT}"))
        .arg(format!("--advertise-client-urls=http://m{member}.test:{CLIENT_PORT}"))
        .arg(format!("--listen-peer-urls=http://0.0.0.0:{port}"))
        .arg(format!("--initial-advertise-peer-urls=http://m{member}.test:{PEER_PORT}"))
        .arg(format!("--initial-cluster={}", initial.join(",")))
}

/// The member that moves is reached at this address, by its peers and by clients.
fn assert_reached(servers: &mut [Server], address: &str) {
    for server in &mut *servers {
        server.wait_for(&format!("(m{MOVING}) is there, at {address}:{PEER_PORT}"));
    }
    eventually("a write through it", || {
        Client::tcp(&format!("{address}:{CLIENT_PORT}")).ok()?.put("k", address.to_owned()).ok()
    });
}

#[test]
fn a_member_is_found_by_its_name_where_it_has_moved_to_and_listens_elsewhere_than_it_advertises() {
    let network = match Network::new(MEMBERS + 1) {
        Ok(network) => network,
        Err(reason) if setting("GARBOARD_CRASH_REQUIRED", 0) != 0 => panic!("{reason}"),
        Err(reason) => return skip(&reason),
    };
    let folder = Folder::new();
    let (first, second, third) = (network.address(host(MOVING)), "10.77.0.101", "10.77.0.102");
    network.set_names(&names(&network, &first));
    network.map_port(host(MOVING), PEER_PORT, OTHER_PORT);
    network.enter(0);
    // It can't dial, wherever it is: that it is met at all shows that the others do, by its name.
    for member in (0..MEMBERS).filter(|member| *member != MOVING) {
        for address in [&first, second, third] {
            network.close_port(host(member), PEER_PORT, address);
        }
    }
    let mut servers: Vec<Server> = (0..MEMBERS).map(|member| launch(&network, &folder, member).spawn()).collect();
    let (others, moving) = servers.split_at_mut(MOVING);
    assert_reached(others, &first);
    // Its host gets another address while it runs,
    network.move_host(host(MOVING), &first, second);
    network.set_names(&names(&network, second));
    assert_reached(others, second);
    // and another one while it does not.
    moving[0].kill();
    network.move_host(host(MOVING), second, third);
    network.set_names(&names(&network, third));
    moving[0] = launch(&network, &folder, MOVING).spawn();
    assert_reached(others, third);
}
